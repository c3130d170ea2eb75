"""What a token of a prompt stands for, asked position by position (DESIGN 4.9, decision 0022).

The engine makes spans part of the tokens (``contract.media.labelled``) and compares runs.  Here tokens stay plain with
their spans beside them, and two places are compared by what each says: slow, and in nothing dependent on that function.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.tokens import Tokens, common_prefix

Spans: TypeAlias = tuple[TokenSpan, ...]


def label(spans: Spans, position: int) -> tuple[str, str, int] | None:
    """Type, digest and offset within its span of the token at ``position``; None for text."""
    for one in spans:
        if one.start <= position < one.start + one.length:
            return one.token_type, one.media, position - one.start
    return None


def common(left: Tokens, left_spans: Spans, right: Tokens, right_spans: Spans) -> int:
    """Number of leading tokens that are equal and stand for the same."""
    equal = common_prefix(left, right)
    if not left_spans and not right_spans:
        return equal
    for position in range(equal):
        if label(left_spans, position) != label(right_spans, position):
            return position
    return equal


def cut(spans: Spans, position: int) -> Spans:
    """What is left of ``spans`` where only the first ``position`` tokens are."""
    kept = [one for one in spans if one.start < position]
    return tuple(replace(one, length=min(one.length, position - one.start)) for one in kept)
