"""Rules for rounds of speculation: what is drafted, what of it is accepted, what is trimmed (decision 0023)."""

from __future__ import annotations

from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Cancel,
    EndUnit,
    Finish,
    Submit,
    Truncate,
)
from kvcrucible.contract.planes import LEADING
from kvcrucible.contract.speculation import lead
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.backfill_rules import BackfillRules
from kvcrucible.fuzz.draws import SOURCES, Length, accepts, choose, picks
from kvcrucible.fuzz.offers import any_idle, any_unit, can
from kvcrucible.fuzz.ruling import rule

#: Tokens that a round drafts beyond its first, or by which its backend runs ahead: a few, a page, or all there is room
#: for.
DRAFTED = (1, 2, 3, 5, "page", "all")

#: What becomes of a round.
FATES = ("commit", "commit", "commit", "abort", "cancel", "fly")

#: How far a backend runs ahead: as drafted, further than it may, not at all with Main (0), or just following it.
AHEAD = (*DRAFTED, "beyond", 0, None)


class SpeculationRules(BackfillRules):
    """All rules; those here draft, verify and keep a part."""

    @can("BeginUnit", "EndUnit")
    @rule(
        pick=picks,
        rows=st.sampled_from((1, 1, 3)),
        drafted=st.lists(st.sampled_from(DRAFTED), min_size=1, max_size=3),
        ahead=st.sampled_from(AHEAD),
        accept=accepts,
        fate=st.sampled_from(FATES),
        source=st.sampled_from(SOURCES),
        after=st.sampled_from(("write", "write", "cut", "nothing")),
        fresh=st.sampled_from((0, 0, 1, 2)),
    )
    def speculate(
        self,
        pick: int,
        rows: int,
        drafted: list[int | str],
        ahead: int | str | None,
        accept: str,
        fate: str,
        source: int,
        after: str,
        fresh: int,
    ) -> None:
        """One round over a few sequences whose prompts are complete; what it leaves is written over, or cut.

        ``fresh``: how many sequences are started before; a single one takes the place of the idle ones, may grow to the
        end of the context, and is drafted for up to there.  Of several rows mostly one is cut and the others are kept.
        """
        model = self.lock.model
        if rows > 1 and pick % 3:
            accept = "first"
        if fresh == 1:
            ahead = ahead if ahead == "beyond" else "all"
        if fresh == 1 and "Finish" in self.supported:
            self.take(*[Finish(one, retain=False) for one in model.sequences() if not model.in_flight(one)])
        for number in range(fresh or not any(map(self._can_draft, model.sequences()))):
            if not model.queue:
                length = max(1, self.placeable(self.page_size - number, 0, large=False))
                more = self.lock.setting.max_context if fresh == 1 else 2 * self.page_size
                request = Submit(run(source, 830, length), self.placeable(more, length, large=False))
                self.start(request, patient=False, prefill=True)
        able = [*filter(self._can_draft, model.sequences())]
        if not able:
            return
        first = pick % len(able)
        works: dict[int, Append] = {}
        for number, sequence in enumerate([*able[first:], *able[:first]][:rows]):
            works[sequence] = self._round(sequence, drafted[number % len(drafted)], ahead, source)
        before = set(model.units)
        self.take(BeginUnit(tuple(works.values())[: self.capabilities.works_per_unit]))
        if fate == "cancel" and "Cancel" in self.supported:
            self.take(Cancel(min(works)))
        for unit in set(model.units) - before:
            if fate != "fly":
                self.end(unit, fate != "abort", accept)
        for sequence in works:
            if sequence not in model.sequences() or model.in_flight(sequence):
                continue
            if after == "cut" and "Truncate" in self.supported:
                self.take(Truncate(sequence, model.frontier(sequence) - 1))
            elif after == "write" and model.frontier(sequence) < model.limit(sequence):
                self.write((Append(sequence, run(source, 860, 1)),), commit=True)

    @can("EndUnit", there=any_unit)
    @rule(pick=picks, accept=accepts)
    def end_round(self, pick: int, accept: str) -> None:
        """End any unit in flight, keeping a part of what it appended."""
        unit = choose(self.lock.model.units, pick)
        if unit is not None:
            self.end(unit, True, accept)

    @can("BeginUnit", "EndUnit", there=any_idle)
    @rule(
        pick=picks,
        other=picks,
        tokens=st.integers(-1, 5),
        odd=st.sampled_from(("count", "count", "twice", "other", "abort")),
        source=st.sampled_from(SOURCES),
    )
    def accept_oddly(self, pick: int, other: int, tokens: int, odd: str, source: int) -> None:
        """Accept without regard to what is legal: too few, too many, of a prompt, twice, of another, by an abort; then
        end the unit as it should be.
        """
        model, sequence = self.lock.model, self.idle(pick)
        if sequence is None or not self.capabilities.speculates:
            return
        left, room = model.prompt_left(sequence), model.limit(sequence) - model.frontier(sequence)
        works = self.works([(model.sequences().index(sequence), Length(1, 0, half=False))], source)
        if not works or not (left or room):
            return
        before = set(model.units)
        self.take(BeginUnit(works))
        named = (self.held(other) if odd == "other" else works[0].sequence) or 0
        for unit in set(model.units) - before:
            entries = ((named, tokens),) * (2 if odd == "twice" else 1)
            self.take(EndUnit(unit, odd != "abort" or not self.capabilities.aborts, entries))
            if unit in model.units:
                self.end(unit, commit=True)

    def _can_draft(self, sequence: int) -> bool:
        """Whether an active sequence is idle, past its prompt, and has room for a token and a draft."""
        model = self.lock.model
        room = model.limit(sequence) - model.frontier(sequence)
        return not (model.in_flight(sequence) or model.prompt_left(sequence)) and room > 1

    def _round(self, sequence: int, drafted: int | str, ahead: int | str | None, source: int) -> Append:
        """Return a round: a token and what is drafted behind it; the backend as far ahead as is asked and allowed."""
        model = self.lock.model
        frontier, limit, context = (
            model.frontier(sequence),
            model.limit(sequence),
            self.lock.setting.max_context,
        )
        count = 1 + lead(self._tokens(drafted), limit - frontier, context - frontier)
        tokens = run(source, 800, count)
        backend = self.lock.setting.backend
        if backend is None or ahead is None:
            return Append(sequence, tokens)
        if ahead == 0:
            return Append(sequence, tokens, 0)
        last = frontier + count - 1
        by = lead(self._tokens(ahead), limit - last, context - last) if backend in LEADING else 0
        lacking = frontier + count - model.reach(sequence)[1]
        return Append(sequence, tokens, lacking + by + (ahead == "beyond"))

    def _tokens(self, drawn: int | str) -> int:
        if isinstance(drawn, int):
            return drawn
        return self.page_size if drawn == "page" else self.lock.setting.max_context
