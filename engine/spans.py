"""What the engine knows a prompt by: its tokens, and what its spans say of them (DESIGN 4.9, decision 0022)."""

from __future__ import annotations

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.media import (
    MAX_MEDIA,
    MAX_TOKEN_TYPE,
    TokenSpan,
    labelled,
    spans_in_place,
    spans_named,
)
from kvcrucible.contract.tokens import Tokens, count


def known_as(asked: str, prompt: Tokens, spans: tuple[TokenSpan, ...]) -> Tokens:
    """Return the tokens by which ``prompt`` is kept and found.

    Raises ``BadArgument`` for an empty prompt, and for spans that are out of place or not named.
    """
    length = count(prompt)
    if length == 0:
        raise BadArgument(f"{asked} an empty prompt", "0 tokens", "give at least one token")
    if not spans_in_place(spans, length):
        places = [(one.start, one.stop) for one in spans[:4]]
        raise BadArgument(
            f"{asked} a prompt with spans at {places}{', …' if len(spans) > len(places) else ''}",
            f"{length} tokens",
            "give spans in order, apart from one another and within the prompt",
        )
    if not spans_named(spans):
        raise BadArgument(
            f"{asked} a prompt with a span that is not named, or too long",
            f"a type of at most {MAX_TOKEN_TYPE} characters, a digest of at most {MAX_MEDIA}",
            "give each span a token type or a media digest",
        )
    return labelled(prompt, spans)
