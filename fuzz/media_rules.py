"""Rules for prompts with media: the same tokens that stand for the same item, another, or another part (0022)."""

from __future__ import annotations

from kvcrucible.contract.media import MAX_MEDIA, TokenSpan, spans_below
from kvcrucible.contract.operations import Checkpoint, Finish, Lookup, Submit
from kvcrucible.contract.semantics import ACTIVE
from kvcrucible.contract.tokens import Tokens, canonical, count, prefix
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.backfill_rules import BackfillRules
from kvcrucible.fuzz.draws import SOURCES, Length, lengths
from kvcrucible.fuzz.offers import can
from kvcrucible.fuzz.ruling import rule

#: What the second of two prompts with equal tokens says of them; ``split``: one item twice, not one twice as long;
#: ``whole``: all of the item that the first prompt has only begun.  What is ``beyond`` the prompt, ``overlapping``,
#: ``nameless`` or ``long-winded`` is refused.
VARIATIONS = (
    "same", "digest", "type", "shifted", "split", "whole", "text", "beyond", "overlapping", "nameless", "long-winded"
)  # fmt: skip

#: Tokens of an item at most: repeated placeholders take a run each.
MOST_ITEM_TOKENS = 70


class MediaRules(BackfillRules):
    """All rules; the one here has equal tokens stand for different things."""

    @can("Lookup")
    @rule(
        before=lengths,
        item=lengths,
        after=lengths,
        source=st.sampled_from(SOURCES),
        repeated=st.booleans(),
        variation=st.sampled_from(VARIATIONS),
        named=st.sampled_from((("image", "a"), ("", "a"), ("audio", ""))),
        ending=st.sampled_from(("checkpoint", "finish", "nothing")),
        ask=st.booleans(),
    )
    def same_tokens_other_media(
        self,
        before: Length,
        item: Length,
        after: Length,
        source: int,
        repeated: bool,
        variation: str,
        named: tuple[str, str],
        ending: str,
        ask: bool,
    ) -> None:
        """Start a prompt with an item, make it findable, and come with the same tokens under another reading."""
        model, size = self.lock.model, self.page_size
        token_type, media = named
        start, length = before.tokens(size), min(max(2, item.tokens(size)), MOST_ITEM_TOKENS)
        # Placeholders as models have them, one id again and again, or ids that count up.
        ids = [0] * length if repeated else range(length)
        whole = canonical(
            [
                (0, 0, start),
                *((source, 600 + one, 1) for one in ids),
                (source, 100, max(1, after.tokens(size))),
            ]
        )
        prompt = prefix(whole, self.placeable(count(whole), 0, large=False))
        spans = spans_below((TokenSpan(start, length, token_type, media),), count(prompt))
        first = prefix(prompt, min(count(prompt), start + length // 2)) if variation == "whole" else prompt
        alive = set(model.sequences())
        self.start(Submit(first, 0, spans=spans_below(spans, count(first))), patient=False, prefill=True)
        newest = max(set(model.sequences()) - alive, default=None)
        if newest is not None and model.state(newest) in ACTIVE and not model.in_flight(newest):
            if ending == "finish" and "Finish" in self.supported:
                self.take(Finish(newest))
            elif ending == "checkpoint" and "Checkpoint" in self.supported and min(model.reach(newest)):
                self.take(Checkpoint(newest))
        self._come_with(prompt, self._other(variation, spans, count(prompt)), ask)

    def _come_with(self, prompt: Tokens, spans: tuple[TokenSpan, ...], ask: bool) -> None:
        if ask:
            self.take(Lookup(prompt, spans=spans))
        else:
            self.start(Submit(prompt, 0, spans=spans), patient=False, prefill=True)

    def _other(self, variation: str, spans: tuple[TokenSpan, ...], prompt: int) -> tuple[TokenSpan, ...]:
        """Return another reading of a prompt of so many tokens; the same where it is too short for that."""
        if not spans:
            return spans
        (one,) = spans
        start, length, token_type, media = one.start, one.length, one.token_type, one.media
        match variation:
            case "digest":
                # It begins as the first one does: what keeps a part of a digest takes the two for one.
                return (TokenSpan(start, length, token_type, media + "b"),)
            case "type":
                return (TokenSpan(start, length, "video", media),)
            case "shifted" if length > 1:
                return (TokenSpan(start + 1, length - 1, token_type, media),)
            case "split" if length > 1:
                half = length // 2
                return (
                    TokenSpan(start, half, token_type, media),
                    TokenSpan(start + half, length - half, token_type, media),
                )
            case "text":
                return ()
            case "beyond":
                return (TokenSpan(start, prompt - start + 1, token_type, media),)
            case "overlapping":
                return (one, TokenSpan(one.stop - 1, 1, token_type, media))
            case "nameless":
                return (TokenSpan(start, length),)
            case "long-winded":
                return (TokenSpan(start, length, token_type, "m" * (MAX_MEDIA + 1)),)
        return spans
