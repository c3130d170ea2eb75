"""Rules for what happens when a full pool meets what it retained: sources that are cut, twins, shared victims."""

from __future__ import annotations

from kvcrucible.contract.media import spans_below
from kvcrucible.contract.operations import Checkpoint, Finish, Fork, Lookup, Pin, Submit
from kvcrucible.contract.tokens import canonical, count, prefix
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.draws import IDENTITIES, SOURCES, Length, identities, lengths, picks
from kvcrucible.fuzz.offers import any_idle, can
from kvcrucible.fuzz.rules import Rules
from kvcrucible.fuzz.ruling import rule


class PressureRules(Rules):
    """All rules; those here take an idle sequence to its end and ask for the whole pool afterwards."""

    @can("Fork", "Checkpoint", "Lookup", "Release", there=any_idle)
    @rule(
        pick=picks,
        mark=st.booleans(),
        twins=st.integers(0, 2),
        pinned=st.booleans(),
        back=lengths,
        own=lengths,
        source=st.sampled_from(SOURCES),
        session=st.sampled_from((None, "a", "b")),
        consume=st.booleans(),
        spare=st.integers(0, 2),
    )
    def return_under_pressure(
        self,
        pick: int,
        mark: bool,
        twins: int,
        pinned: bool,
        back: Length,
        own: Length,
        source: int,
        session: str | None,
        consume: bool,
        spare: int,
    ) -> None:
        """Retain a sequence, with twins that share its pages, and come back for all but a few pages of the pool."""
        sequence, model = self.idle(pick), self.lock.model
        if sequence is None or not model.frontier(sequence):
            return
        if mark:
            self.take(Checkpoint(sequence))
            work = self.work(sequence, back, source)
            if work is not None:
                self.write((work,), commit=True)
        known, identity, spans = model.tokens(sequence), model.identity(sequence), model.spans(sequence)
        frontier = count(known)
        ending = [sequence]
        for _ in range(twins):
            alive = set(model.sequences())
            self.take(Fork(sequence, frontier, 0))
            ending += set(model.sequences()) - alive
        self.take(*(Finish(one) for one in ending))
        if pinned and sequence in model.continuations():
            self.take(Pin(sequence))
        if model.queue:
            return
        kept = prefix(known, max(1, frontier - back.tokens(self.page_size)))
        prompt = canonical([*kept, (source, 500, max(1, own.tokens(self.page_size)))])
        length = self.placeable(count(prompt), 0, large=False)
        whole = self.lock.setting.placeable_tokens - spare * self.page_size
        request = Submit(
            prefix(prompt, length),
            max(0, whole - length),
            session,
            consume,
            identity,
            spans_below(spans, min(count(kept), length)),
        )
        self.start(request, patient=False, prefill=True)

    @can("Fork", "Checkpoint", "Lookup", there=any_idle)
    @rule(pick=picks, other=identities)
    def look_as_another(self, pick: int, other: int) -> None:
        """Make a fork findable and look for it under another identity."""
        sequence, model = self.idle(pick), self.lock.model
        if sequence is None or not model.frontier(sequence):
            return
        alive = set(model.sequences())
        self.take(Fork(sequence, model.frontier(sequence), 0))
        self.take(*(Checkpoint(child) for child in set(model.sequences()) - alive))
        prompt = canonical([*model.tokens(sequence), (2, 900, 1)])
        self.take(Lookup(prompt, IDENTITIES[other], self.spans_of(sequence, model.frontier(sequence))))
