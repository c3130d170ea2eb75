"""Coverage goals about equal tokens that stand for different things: where a hit ends (DESIGN 4.9, decision 0022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.media import labelled, plain
from kvcrucible.contract.operations import Hit, Lookup, Schedule, Submit, TryAdmit
from kvcrucible.contract.tokens import (
    MediaSource,
    Source,
    Token,
    Tokens,
    common_prefix,
    count,
    prefix,
    token_at,
)
from kvcrucible.fuzz.goals import PREFIX_CACHE, Seen, admissions, goal, simple

#: Type, digest and offset of a token inside a span; None for text.
Label: TypeAlias = tuple[str, str, int] | None


def _label(token: Token) -> Label:
    source, value = token
    return (source.token_type, source.media, value) if isinstance(source, MediaSource) else None


def _has_media(tokens: Tokens) -> bool:
    sources: list[Source] = [run[0] for run in tokens]
    return any(isinstance(source, MediaSource) for source in sources)


def _parted(differs: Callable[[Label, Label], bool]) -> Callable[[Seen], bool]:
    """Return whether a lookup found as much as one checkpoint shares with it, whose next token is the same and stands
    for something else in the way of ``differs``.
    """

    def predicate(seen: Seen) -> bool:
        lookup = seen.operation
        assert isinstance(lookup, Lookup)
        if not seen.done:
            return False
        prompt = labelled(lookup.prompt, lookup.spans)
        hit = seen.outcome.value
        found = hit.length if isinstance(hit, Hit) else 0
        for entry in seen.before.findable.values():
            shared = common_prefix(prompt, entry.tokens)
            if entry.identity != lookup.identity or shared != found or shared >= count(prompt) - 1:
                continue
            if common_prefix(plain(prompt), plain(entry.tokens)) > shared:
                asked, there = token_at(prompt, shared), token_at(entry.tokens, shared)
                if differs(_label(asked), _label(there)):
                    return True
        return False

    return predicate


def _only(part: int) -> Callable[[Label, Label], bool]:
    """Return whether two labels differ in one part and no other."""

    def differs(left: Label, right: Label) -> bool:
        if left is None or right is None:
            return False
        return [at for at in range(3) if left[at] != right[at]] == [part]

    return differs


for _part, _name in enumerate(("type", "digest", "offset")):
    simple(
        f"hit-ends-at-another-{_name}",
        f"a hit ends, or is none, at an equal token of a media item with another {_name} and nothing else",
        _parted(_only(_part)),
        Lookup,
        needs=PREFIX_CACHE,
    )

simple(
    "hit-ends-where-media-is-text",
    "a hit ends, or is none, at an equal token that is text on one side and media on the other",
    _parted(lambda left, right: (left is None) != (right is None)),
    Lookup,
    needs=PREFIX_CACHE,
)


@goal(
    "hit-over-media", "a request starts from tokens of a media item", Schedule, TryAdmit, needs=PREFIX_CACHE
)
def _over(seen: Seen) -> bool:
    return any(
        one.hit and _has_media(prefix(seen.prompts[one.sequence], one.hit))
        for one in admissions(seen.outcome.value)
        if one.sequence in seen.prompts
    )


@goal(
    "hit-ends-inside-an-item",
    "a request starts from the first tokens of an item of which it has more",
    Schedule,
    TryAdmit,
    needs=PREFIX_CACHE,
)
def _inside(seen: Seen) -> bool:
    for one in admissions(seen.outcome.value):
        prompt = seen.prompts.get(one.sequence, ())
        if one.hit and one.hit < count(prompt):
            last, following = (_label(token_at(prompt, one.hit - 1)), _label(token_at(prompt, one.hit)))
            if last is not None and following is not None and following[2] == last[2] + 1:
                return True
    return False


@goal("spans-refused", "a request is refused whose spans are out of place", Submit, needs=PREFIX_CACHE)
def _refused(seen: Seen) -> bool:
    assert isinstance(seen.operation, Submit)
    return bool(seen.operation.spans) and seen.outcome.refusal is RefusalKind.BAD_ARGUMENT
