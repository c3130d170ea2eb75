"""Media spans: which tokens of a prompt stand for which part of which media item (DESIGN 4.9, decision 0022).

An image, a recording or a document takes part in a prompt as placeholder tokens, whose ids say nothing of its content.
A :class:`TokenSpan` names what they stand for, and :func:`labelled` makes it part of the tokens: inside a span a token
is equal to another only where type, digest, plain token and offset within the span are.  So what two prompts share ends
at the first token that differs in any of these, wherever tokens are compared.  How long a span is makes no difference:
as under causal attention, nothing of what comes later is part of a position's identity.

Nothing here mutates its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcrucible.contract.quick import quick
from kvcrucible.contract.tokens import MediaSource, Run, Tokens, canonical

#: Characters of a token type; longest known use: a word such as "image".
MAX_TOKEN_TYPE = 64

#: Characters of a media digest; a SHA-512 in hexadecimal takes half of it.
MAX_MEDIA = 256


@quick
@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens ``[start, start + length)`` of a prompt are of ``token_type`` and stand for the item of digest ``media``.

    One of the two may be empty.  The digest is text of the caller's choice, compared by equality; whoever lets another
    thing than the content change what the tokens mean (a resolution, a crop) puts it into the digest.
    """

    start: int
    length: int
    token_type: str = ""
    media: str = ""

    @property
    def stop(self) -> int:
        """Position after its last token."""
        return self.start + self.length


def spans_in_place(spans: Iterable[TokenSpan], prompt: int) -> bool:
    """Say whether ``spans`` are in order, do not overlap, have a token each and lie within ``prompt`` positions."""
    at = 0
    for one in spans:
        if one.start < at or one.length < 1:
            return False
        at = one.stop
    return at <= prompt


def spans_named(spans: Iterable[TokenSpan]) -> bool:
    """Say whether each span has a type or a digest, and neither is too long."""
    return all(
        (one.token_type or one.media)
        and len(one.token_type) <= MAX_TOKEN_TYPE
        and len(one.media) <= MAX_MEDIA
        for one in spans
    )


def labelled(tokens: Tokens, spans: tuple[TokenSpan, ...]) -> Tokens:
    """Return plain ``tokens`` with what ``spans`` say of them as part of their identity.

    ``spans`` are in place, as for :func:`spans_in_place`; what they name beyond the tokens counts for nothing.  Tokens
    outside stay as they are.  Linear in runs and spans.
    """
    if not spans:
        return tokens
    found: list[Run] = []
    index = at = 0
    for source, start, length in tokens:
        end = at + length
        while at < end:
            while index < len(spans) and spans[index].stop <= at:
                index += 1
            value = start + length - (end - at)
            one = spans[index] if index < len(spans) else None
            if one is None or at < one.start:
                step = (end if one is None else min(end, one.start)) - at
                found.append((source, value, step))
            else:
                assert isinstance(source, int), "spans are of plain tokens"
                step, offset = min(end, one.stop) - at, at - one.start
                found.append((MediaSource(one.token_type, one.media, source, value - offset), offset, step))
            at += step
    return canonical(found)


def plain(tokens: Tokens) -> Tokens:
    """Return ``tokens`` without labels: those of which :func:`labelled` made them."""
    return canonical(
        (source.source, source.lead + start, length)
        if isinstance(source, MediaSource)
        else (source, start, length)
        for source, start, length in tokens
    )


def spans_below(spans: tuple[TokenSpan, ...], position: int) -> tuple[TokenSpan, ...]:
    """Return what ``spans`` say of the first ``position`` tokens."""
    return tuple(
        TokenSpan(one.start, min(one.length, position - one.start), one.token_type, one.media)
        for one in spans
        if one.start < position
    )
