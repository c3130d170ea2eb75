"""The rules: they draw operations that are mostly legal and crowd around the boundaries.

Arguments are drawn as small numbers and anchors ("the second live sequence, one token below a page boundary") and
turned into operations by looking at the reference model, never at the engine, so that shrinking keeps their meaning
and the drawn sequence does not depend on what is under test.  The steps that result are plain data and stand alone.
"""

from __future__ import annotations

from dataclasses import replace

from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Lookup,
    Pin,
    Prefill,
    Progress,
    Release,
    Restore,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
    Work,
)
from kvcrucible.contract.semantics import ACTIVE
from kvcrucible.contract.tokens import canonical, count, prefix, run
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.draws import (
    IDENTITIES,
    SOURCES,
    Length,
    Where,
    choose,
    identities,
    lengths,
    offsets,
    oversize,
    picks,
    positions,
    reaches,
    sessions,
)
from kvcrucible.fuzz.driver import Driver
from kvcrucible.fuzz.offers import any_active, any_held, any_idle, any_kept, any_queued, any_unit, can
from kvcrucible.fuzz.ruling import precondition, rule
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step


class Rules(Driver):
    """The rules; each takes one step, or a few that belong together."""

    # -- admission -----------------------------------------------------------------------------------------------

    @rule(
        shared=lengths,
        own=lengths,
        source=st.sampled_from(SOURCES),
        grow=lengths,
        session=sessions,
        consume=st.booleans(),
        identity=identities,
        large=oversize,
        patient=st.sampled_from((False, False, True)),
        prefill=st.sampled_from((True, True, False)),
        reach=reaches,
    )
    def submit(
        self,
        shared: Length,
        own: Length,
        source: int,
        grow: Length,
        session: str | None,
        consume: bool,
        identity: int,
        large: bool,
        patient: bool,
        prefill: bool,
        reach: str,
    ) -> None:
        """Submit, schedule and mostly prefill; an impatient request that has to wait is cancelled: it blocks
        nobody.
        """
        prompt = self.prompt(shared, own, source) or run(source, 100, 1)
        length = self.placeable(count(prompt), 0, large)
        more = self.placeable(grow.tokens(self.page_size), length, large)
        if "Lookup" not in self.supported:
            session, consume, identity = None, False, 0
        request = Submit(prefix(prompt, length), more, session, consume, IDENTITIES[identity])
        self.start(request, patient, prefill, reach)

    @can("Lookup", there=any_held)
    @rule(
        pick=picks,
        back=lengths,
        own=lengths,
        source=st.sampled_from(SOURCES),
        grow=lengths,
        consume=st.booleans(),
        mark=st.booleans(),
        keep=st.booleans(),
        reach=reaches,
    )
    def submit_known(
        self,
        pick: int,
        back: Length,
        own: Length,
        source: int,
        grow: Length,
        consume: bool,
        mark: bool,
        keep: bool,
        reach: str,
    ) -> None:
        """The next turn of what is there: most of its tokens, then others, under its session key where that is
        free.
        """
        owner = self.held(pick)
        if owner is None:
            return
        model = self.lock.model
        if mark and model.state(owner) in ACTIVE and not model.in_flight(owner):
            self.take(Checkpoint(owner))
        known = model.tokens(owner)
        known = prefix(known, max(0, count(known) - back.tokens(self.page_size)))
        prompt = canonical([*known, (source, 300, max(1, own.tokens(self.page_size)))])
        length = self.placeable(count(prompt), 0, large=False)
        more = self.placeable(grow.tokens(self.page_size), length, large=False)
        session = None if model.state(owner) in ACTIVE else model.session(owner) or "a"
        spans = self.spans_of(owner, count(known), length)
        request = Submit(prefix(prompt, length), more, session, consume, model.identity(owner), spans)
        self.start(request, patient=False, prefill=True, reach=reach)
        newest = max(model.sequences(), default=None)
        if keep and newest is not None and not model.in_flight(newest):
            self.take(Finish(newest))

    @rule(shared=lengths, own=lengths, source=st.sampled_from(SOURCES), grow=lengths)
    def submit_only(self, shared: Length, own: Length, source: int, grow: Length) -> None:
        """Submit without scheduling; now and then an empty prompt, or a growth below 0."""
        self.take(Submit(self.prompt(shared, own, source), grow.tokens(self.page_size) - 1))

    @rule(delta=offsets, source=st.sampled_from(SOURCES))
    def submit_at_demand(self, delta: int, source: int) -> None:
        """Ask for the pages that can be had, one fewer and one more, where the request would head the queue."""
        if self.lock.model.queue:
            return
        pools = self.lock.setting.engine_config().pools
        # In the pool that has the least room as many pages as it has; the other has more.
        size = min(
            (pages + delta) * pool.page_size
            for pages, pool in zip(self.lock.model.available_pages(), pools, strict=True)
        )
        if 1 <= size <= self.lock.setting.max_context:
            self.take(Submit(run(source, 50, 1), size - 1), Schedule())

    @can("Schedule", there=any_queued)
    @rule(pick=picks, one=st.booleans())
    def admit(self, pick: int, one: bool) -> None:
        """Schedule, or try one request, which may stand behind another."""
        request = choose(self.lock.model.queue, pick)
        if one and request is not None and "TryAdmit" in self.supported:
            self.take(TryAdmit(request))
        else:
            self.take(Schedule())

    # -- units ---------------------------------------------------------------------------------------------------

    @can("BeginUnit", "EndUnit", there=any_idle)
    @rule(
        chosen=st.lists(st.tuples(picks, lengths), min_size=1, max_size=3),
        source=st.sampled_from(SOURCES),
        commit=st.sampled_from((True, True, True, False)),
        reach=reaches,
    )
    def run_unit(self, chosen: list[tuple[int, Length]], source: int, commit: bool, reach: str) -> None:
        """Begin a unit and end it at once."""
        works = self.works(chosen, source, reach)
        if works:
            self.write(works, commit)

    @can("BeginUnit", "EndUnit", there=any_idle)
    @rule(length=lengths, source=st.sampled_from(SOURCES), reach=reaches)
    def grow_all(self, length: Length, source: int, reach: str) -> None:
        """One unit over every idle sequence."""
        everyone = [(pick, length) for pick in range(len(self.lock.model.sequences()))]
        works = self.works(everyone, source, reach)
        if works:
            self.write(works, commit=True)

    @can("BeginUnit", "EndUnit", "Cancel", there=any_idle)
    @rule(pick=picks, length=lengths, source=st.sampled_from(SOURCES))
    def cancel_in_unit(self, pick: int, length: Length, source: int) -> None:
        """Cancel one of the rows of a unit that then commits."""
        works = self.works([(other, length) for other in range(len(self.lock.model.sequences()))], source)
        if not works:
            return
        before = set(self.lock.model.units)
        self.take(BeginUnit(works), Cancel(works[pick % len(works)].sequence))
        for unit in set(self.lock.model.units) - before:
            self.end(unit, commit=True)

    @can("BeginUnit", "EndUnit", there=any_idle)
    @rule(
        chosen=st.lists(st.tuples(picks, lengths), min_size=1, max_size=3),
        source=st.sampled_from(SOURCES),
        reach=reaches,
    )
    def begin_unit(self, chosen: list[tuple[int, Length]], source: int, reach: str) -> None:
        """Begin a unit that stays in flight."""
        works = self.works(chosen, source, reach)
        if works:
            self.take(BeginUnit(works))

    @can("EndUnit", there=any_unit)
    @rule(pick=picks, commit=st.sampled_from((True, True, False)))
    def end_unit(self, pick: int, commit: bool) -> None:
        """End a unit in flight."""
        unit = choose(sorted(self.lock.model.units), pick)
        if unit is not None:
            self.end(unit, commit)

    @can("BeginUnit", "EndUnit", there=lambda lock: lock.setting.backend is not None and any_idle(lock))
    @rule(pick=picks, length=lengths, source=st.sampled_from(SOURCES), more=st.integers(0, 2))
    def run_ahead(self, pick: int, length: Length, source: int, more: int) -> None:
        """Legal work in Main that brings the backend to where Main will stand, or beyond."""
        sequence = self.idle(pick)
        work = None if sequence is None else self.work(sequence, length, source)
        if sequence is not None and work is not None:
            main, backend = self.lock.model.reach(sequence)
            self.write((replace(work, backend=main + work.count - backend + more),), commit=True)

    @can("BeginUnit", there=any_held)
    @rule(
        pick=picks,
        other=picks,
        size=st.integers(-1, 40),
        prefill=st.booleans(),
        twice=st.booleans(),
        backend=st.sampled_from((None, None, None, 0, -1, 1)),
        beyond=st.booleans(),
    )
    def begin_odd_unit(
        self, pick: int, other: int, size: int, prefill: bool, twice: bool, backend: int | None, beyond: bool
    ) -> None:
        """Works without regard to what is legal: wrong kind, too long, empty, in flight, named twice, with a backend
        that is not there or would run ahead.  ``beyond``: of an active sequence one position more than it has left, of
        one amid its prompt where there is one.
        """
        first, second = self.held(pick), self.held(other)
        if first is None or second is None:
            return
        model = self.lock.model
        if beyond:
            amid = [one for one in model.sequences() if model.frontier(one) and model.prompt_left(one)]
            first = amid[pick % len(amid)] if amid else first
        if beyond and model.state(first) in ACTIVE:
            left = model.prompt_left(first)
            prefill, size = left > 0, 1 + (left or model.limit(first) - model.frontier(first))
        tokens = run(1, 3, max(size, 0))
        ahead = None if backend is None else max(size, 0) + backend
        works: list[Work] = [Prefill(first, size, ahead) if prefill else Append(first, tokens, backend)]
        if twice:
            works.append(Append(second, tokens))
        self.take(BeginUnit(tuple(works[: self.capabilities.works_per_unit]) if size >= 0 else ()))

    # -- sequences -----------------------------------------------------------------------------------------------

    @can("Fork", there=any_held)
    @rule(pick=picks, where=positions, grow=lengths, session=sessions, large=oversize)
    def fork(self, pick: int, where: Where, grow: Length, session: str | None, large: bool) -> None:
        """Fork an active or retained sequence."""
        source = self.held(pick)
        if source is not None:
            position = self.position(source, where)
            grow_by = self.placeable(grow.tokens(self.page_size), position, large)
            self.take(Fork(source, position, grow_by, session))

    @can("Fork", "Truncate", there=any_idle)
    @rule(
        pick=picks, where=positions, length=lengths, cut=positions, child_first=st.booleans(), reach=reaches
    )
    def diverge(
        self, pick: int, where: Where, length: Length, cut: Where, child_first: bool, reach: str
    ) -> None:
        """Fork, let one branch write on, and cut it back, often below what it shares."""
        source = self.idle(pick)
        if source is None:
            return
        position = self.position(source, where)
        self.take(Fork(source, position, self.placeable(self.page_size, position, large=False)))
        branch = max(self.lock.model.sequences()) if child_first else source
        work = self.work(branch, length, 2, reach)
        if work is not None:
            self.write((work,), commit=True)
        self.take(Truncate(branch, self.position(branch, cut)))

    @can("Checkpoint", "Truncate", there=any_idle)
    @rule(pick=picks, length=lengths, cut=positions, reach=reaches)
    def mark_and_cut(self, pick: int, length: Length, cut: Where, reach: str) -> None:
        """Checkpoint, write on, and cut back around the checkpoint."""
        sequence = self.idle(pick)
        if sequence is None:
            return
        self.take(Checkpoint(sequence))
        work = self.work(sequence, length, 1, reach)
        if work is not None:
            self.write((work,), commit=True)
        self.take(Truncate(sequence, self.position(sequence, cut)))

    @can("Truncate", there=any_active)
    @rule(pick=picks, where=positions)
    def truncate(self, pick: int, where: Where) -> None:
        """Cut an active sequence."""
        sequence = self.active(pick)
        if sequence is not None:
            self.take(Truncate(sequence, self.position(sequence, where)))

    @can("Checkpoint", there=any_active)
    @rule(pick=picks)
    def checkpoint(self, pick: int) -> None:
        """Make a frontier findable."""
        sequence = self.active(pick)
        if sequence is not None:
            self.take(Checkpoint(sequence))

    @can("Finish", there=any_active)
    @rule(pick=picks, retain=st.sampled_from((True, True, False)))
    def finish(self, pick: int, retain: bool) -> None:
        """End an active sequence, mostly keeping it."""
        sequence = self.active(pick)
        if sequence is not None:
            self.take(Finish(sequence, retain and "Release" in self.supported))

    @can("Cancel", there=lambda lock: any_active(lock) or any_queued(lock))
    @rule(pick=picks, queued=st.sampled_from((True, True, False)))
    def cancel(self, pick: int, queued: bool) -> None:
        """Cancel a queued or active sequence."""
        sequence = choose(list(self.lock.model.queue), pick) if queued else self.active(pick)
        if sequence is not None:
            self.take(Cancel(sequence))

    # -- context cache -------------------------------------------------------------------------------------------

    @can("Release", "Pin", there=any_kept)
    @rule(pick=picks, what=st.sampled_from(("pin", "release", "unpin")))
    def keep_or_release(self, pick: int, what: str) -> None:
        """Pin, unpin or release a continuation."""
        kept = choose(self.lock.model.continuations(), pick)
        if kept is not None:
            self.take(Release(kept) if what == "release" else Pin(kept, pinned=what == "pin"))

    @can("Lookup")
    @rule(
        pick=picks,
        more=st.integers(0, 2),
        known=st.sampled_from((True, True, False)),
        shared=lengths,
        own=lengths,
        source=st.sampled_from(SOURCES),
        identity=identities,
    )
    def lookup(
        self, pick: int, more: int, known: bool, shared: Length, own: Length, source: int, identity: int
    ) -> None:
        """Look up what a live sequence holds and a little more, or something drawn."""
        owner = self.held(pick)
        prompt = self.prompt(shared, own, source)
        spans: tuple[TokenSpan, ...] = ()
        if known and owner is not None:
            prompt = canonical([*self.lock.model.tokens(owner), (2, 900, more)])
            spans = self.spans_of(owner, self.lock.model.frontier(owner))
        self.take(Lookup(prompt, IDENTITIES[identity], spans))

    # -- handles that mean nothing -------------------------------------------------------------------------------

    @rule(sequence=st.integers(-1, 30), which=st.integers(0, 13), position=st.integers(-1, 3))
    def use_any_handle(self, sequence: int, which: int, position: int) -> None:
        """Address a sequence by a number that may be queued, active, retained, ended or never given out."""
        operations: list[Step] = [
            Truncate(sequence, position),
            Fork(sequence, position, position),
            Finish(sequence, retain=False),
            Checkpoint(sequence),
            Release(sequence),
            Pin(sequence),
            TryAdmit(sequence),
            BeginUnit((Prefill(sequence, 1),)),
            EndUnit(sequence),
            Progress(),
            Cancel(sequence),
            Demote(sequence, position > 0),
            Restore(sequence, position > 0),
            CancelTransfer(sequence),
        ]
        operation = operations[which]
        if type(operation).__name__ in self.supported and self.lock.model.state(sequence) not in ACTIVE:
            self.take(operation)

    # -- device effects ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.lock.setting.lagging)
    @rule(count=st.integers(1, 6))
    def run_effects(self, count: int) -> None:
        """Let some of the lagging device effects take place."""
        self.take(RunEffects(count))

    @precondition(lambda self: self.lock.setting.depth == "payload")
    @rule()
    def read_back(self) -> None:
        """Compare all rows."""
        self.take(ReadBack())
