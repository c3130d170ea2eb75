"""Symbolic token runs: how operations, identities and histories name tokens (DESIGN 4.14.16).

A *run* ``(source, start, length)`` stands for the tokens ``(source, start), (source, start + 1), …``.  A trace's
prefix block is one run, generated text is another, and a literal token id ``t`` is ``(LITERAL, t, 1)``.  Two token
sequences are equal exactly when their canonical runs are equal, so a prompt of 100,000 tokens is compared as a few
hundred tuples.

Tokens of a media item carry its label in their source (:class:`MediaSource`, decision 0022): they equal no text and no
token of another item, type or place in it.  Operations carry plain tokens and spans beside them;
:mod:`kvcrucible.contract.media` puts the two together.

A *canonical* sequence has no empty run and no two neighbours that could be joined.  Every function here takes and
returns canonical sequences; :func:`canonical` makes one.  Nothing here mutates its arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import itemgetter
from typing import TypeAlias

from kvcrucible.contract.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class MediaSource:
    """Source of tokens inside a media span; the value of such a token is its offset within the span.

    The token at offset ``o`` is the plain token ``(source, lead + o)``.  Equality of the fields decides, nothing is
    hashed or interned, and no plain source, which is an integer, is ever equal to one.
    """

    token_type: str
    media: str
    source: int
    lead: int


Source: TypeAlias = int | MediaSource
Run: TypeAlias = tuple[Source, int, int]
Tokens: TypeAlias = tuple[Run, ...]
Token: TypeAlias = tuple[Source, int]

#: Source of runs whose values are a tokenizer's ids rather than offsets into something.
LITERAL = -1

EMPTY: Tokens = ()

#: A run's length; at C speed, since a long prompt has thousands of runs.
_length: Callable[[Run], int] = itemgetter(2)


def canonical(runs: Iterable[Run]) -> Tokens:
    """Join neighbouring runs that continue one another and drop empty ones.

    Raises ``ValueError`` for a negative length.
    """
    joined: list[Run] = []
    for source, start, length in runs:
        if length < 0:
            raise ValueError(f"a run's length is at least 0, not {length}")
        if length == 0:
            continue
        if joined:
            last_source, last_start, last_length = joined[-1]
            if last_source == source and last_start + last_length == start:
                joined[-1] = (source, last_start, last_length + length)
                continue
        joined.append((source, start, length))
    return tuple(joined)


def literal(token_ids: Iterable[int]) -> Tokens:
    """Return the tokens for a tokenizer's ids."""
    return canonical((LITERAL, token_id, 1) for token_id in token_ids)


def run(source: int, start: int, length: int) -> Tokens:
    """Return ``length`` tokens of ``source`` from ``start``; empty where ``length`` is 0."""
    return canonical([(source, start, length)])


def count(tokens: Tokens) -> int:
    """Number of tokens."""
    return sum(map(_length, tokens))


def expand(tokens: Tokens) -> Iterator[Token]:
    """Yield every single token as ``(source, value)``; linear in the number of tokens."""
    for source, start, length in tokens:
        for value in range(start, start + length):
            yield source, value


def prefix(tokens: Tokens, length: int) -> Tokens:
    """Return the first ``length`` tokens (all of them where there are fewer)."""
    return span(tokens, 0, length)


def span(tokens: Tokens, start: int, stop: int) -> Tokens:
    """Return tokens ``start`` up to, not including, ``stop``."""
    ends = list(accumulate(map(_length, tokens)))
    total = ends[-1] if ends else 0
    start, stop = max(start, 0), min(stop, total)
    if start == 0 and stop == total:
        return tokens
    if start >= stop:
        return EMPTY
    first, last = bisect_right(ends, start), bisect_left(ends, stop)
    kept = list(tokens[first : last + 1])
    source, at, length = kept[-1]
    kept[-1] = (source, at, length - (ends[last] - stop))
    skipped = start - (ends[first] - _length(tokens[first]))
    source, at, length = kept[0]
    kept[0] = (source, at + skipped, length - skipped)
    return tuple(kept)


def concat(left: Tokens, right: Tokens) -> Tokens:
    """Return ``left`` followed by ``right``, joined where they meet."""
    if not left or not right:
        return left or right
    return left[:-1] + canonical((left[-1], right[0])) + right[1:]


def common_prefix(left: Tokens, right: Tokens) -> int:
    """Number of leading tokens that the two sequences share."""
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a == b:
            shared += a[2]
            continue
        if a[:2] == b[:2]:
            # Canonical neighbours never continue one another, so what follows the shorter run cannot match.
            shared += min(a[2], b[2])
        break
    return shared


def token_at(tokens: Tokens, position: int) -> Token:
    """Return the token at ``position``; raises ``IndexError`` beyond the end."""
    at = next(islice(expand(span(tokens, position, position + 1)), 1), None)
    if at is None or position < 0:
        raise IndexError(f"position {position} of {count(tokens)} tokens")
    return at
