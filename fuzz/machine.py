"""The Hypothesis state machine: draws operations that are mostly legal and crowd around the boundaries.

Arguments are drawn as small numbers and anchors ("the second live sequence, one token below a page boundary") and
turned into operations by looking at the reference model, never at the engine, so that shrinking keeps their meaning
and the drawn sequence does not depend on what is under test.  The steps that result are plain data and stand alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Cancel,
    Checkpoint,
    EndUnit,
    Finish,
    Fork,
    Identity,
    Lookup,
    Pin,
    Prefill,
    Progress,
    Release,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
    Work,
)
from kvcrucible.contract.semantics import ACTIVE
from kvcrucible.contract.tokens import Tokens, canonical, run
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step

#: Sources of token runs; few, so that prompts meet and part again.
SOURCES = (0, 1, 2)

#: Identities between which nothing may be shared.
IDENTITIES = (Identity(), Identity(tenant_salt="other"))

#: Where a position lies, before the offset: nothing, some pages, the frontier, the end of what is shared.
ANCHORS = ("zero", "pages", "frontier", "shared", "prompt")

picks = st.integers(0, 5)
offsets = st.sampled_from((0, 1, -1))
sessions = st.sampled_from((None, None, "a", "b"))


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens: whole pages and an offset, or a half page instead."""

    pages: int
    offset: int
    half: bool

    def tokens(self, page_size: int) -> int:
        """Return the number, at least 0."""
        return max(0, self.pages * page_size + (page_size // 2 if self.half else self.offset))


@dataclass(frozen=True, slots=True)
class Where:
    """A position in a sequence; ``raw`` leaves out the clamping to what is committed."""

    anchor: str
    pages: int
    offset: int
    raw: bool


lengths = st.builds(Length, st.integers(0, 3), offsets, st.booleans())
positions = st.builds(
    Where, st.sampled_from(ANCHORS), st.integers(0, 3), offsets, st.sampled_from((False, False, False, True))
)


@dataclass(slots=True)
class Recorder:
    """Where a machine leaves what it is doing, so that a failure can be reported as steps."""

    current: LockStep | None = None
    on_example: Callable[[], None] | None = None


def machine_class(
    settings: st.SearchStrategy[Setting], capabilities: Capabilities, tally: Tally, recorder: Recorder
) -> type[RuleBasedStateMachine]:
    """Return a state machine over ``settings`` that asks for nothing beyond ``capabilities`` and counts into
    ``tally``.
    """
    supported, most_works = capabilities.operations, capabilities.works_per_unit

    def can(*operations: str) -> Callable[[Any], Any]:
        return precondition(lambda self: supported.issuperset(operations))

    class Campaign(RuleBasedStateMachine):
        """One example: an engine and the reference in lock step."""

        lock: LockStep
        failed = False

        @initialize(setting=settings)
        def begin(self, setting: Setting) -> None:
            self.lock = recorder.current = LockStep(setting, tally)

        def take(self, *steps: Step) -> None:
            """Take steps; a violation marks the example as failed, so that nothing is torn down in lock step."""
            for step in steps:
                try:
                    self.lock.step(step)
                except BaseException:
                    self.failed = True
                    raise

        def teardown(self) -> None:
            if not hasattr(self, "lock") or self.failed:
                return
            self.lock.close()
            tally.examples += 1
            if recorder.on_example is not None:
                recorder.on_example()

        # -- drawing from what is there ------------------------------------------------------------------------------

        @property
        def page_size(self) -> int:
            return self.lock.setting.page_size

        def active(self, pick: int) -> int | None:
            return _choose(self.lock.model.sequences(), pick)

        def held(self, pick: int) -> int | None:
            return _choose([*self.lock.model.sequences(), *self.lock.model.continuations()], pick)

        def position(self, owner: int, where: Where) -> int:
            model = self.lock.model
            frontier = model.frontier(owner)
            match where.anchor:
                case "zero":
                    at = where.pages
                case "pages":
                    at = where.pages * self.page_size
                case "frontier":
                    at = frontier
                case "prompt":
                    at = model.prompt(owner)
                case _:
                    at = model.shared_pages(owner) * self.page_size
            at += where.offset
            return at if where.raw else min(max(at, 0), frontier)

        def work(self, sequence: int, length: Length, source: int) -> Work | None:
            """Return legal work of about ``length`` for an idle sequence, None where it can write nothing more."""
            model, wanted = self.lock.model, max(1, length.tokens(self.page_size))
            left = model.prompt_left(sequence)
            if left:
                return Prefill(sequence, min(wanted, left))
            room = model.limit(sequence) - model.frontier(sequence)
            return Append(sequence, run(source, 7, min(wanted, room))) if room else None

        def works(self, chosen: list[tuple[int, Length]], source: int) -> tuple[Work, ...]:
            """Return at most one work for each chosen idle sequence."""
            found: dict[int, Work] = {}
            for pick, length in chosen:
                sequence = self.active(pick)
                if sequence is None or self.lock.model.in_flight(sequence):
                    continue
                work = self.work(sequence, length, source)
                if work is not None:
                    found.setdefault(sequence, work)
            return tuple(found.values())[:most_works]

        def prompt(self, shared: Length, own: Length, source: int) -> Tokens:
            return canonical(
                [(0, 0, shared.tokens(self.page_size)), (source, 100, own.tokens(self.page_size))]
            )

        # -- admission -----------------------------------------------------------------------------------------------

        @rule(
            shared=lengths,
            own=lengths,
            source=st.sampled_from(SOURCES),
            grow=lengths,
            session=sessions,
            consume=st.booleans(),
            identity=st.sampled_from((0, 0, 0, 1)),
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
        ) -> None:
            prompt, more = self.prompt(shared, own, source), grow.tokens(self.page_size)
            if not {"Lookup"} & supported:
                session, consume, identity = None, False, 0
            self.take(Submit(prompt, more, session, consume, IDENTITIES[identity]), Schedule())

        @rule(shared=lengths, own=lengths, source=st.sampled_from(SOURCES), grow=lengths)
        def submit_only(self, shared: Length, own: Length, source: int, grow: Length) -> None:
            self.take(Submit(self.prompt(shared, own, source), grow.tokens(self.page_size) - 1))

        @rule(delta=offsets, source=st.sampled_from(SOURCES))
        def submit_at_demand(self, delta: int, source: int) -> None:
            """Ask for the pages that can be had, one fewer and one more, where the request would head the queue."""
            if list(self.lock.model.queue):
                return
            pages = self.lock.model.available_pages() + delta
            size = pages * self.page_size
            if 1 <= size <= self.lock.setting.max_context:
                self.take(Submit(run(source, 50, 1), size - 1), Schedule())

        @rule()
        def schedule(self) -> None:
            self.take(Schedule())

        @can("TryAdmit")
        @rule(pick=picks)
        def try_admit(self, pick: int) -> None:
            request = _choose(list(self.lock.model.queue), pick)
            if request is not None:
                self.take(TryAdmit(request))

        # -- units ---------------------------------------------------------------------------------------------------

        @rule(
            chosen=st.lists(st.tuples(picks, lengths), min_size=1, max_size=3),
            source=st.sampled_from(SOURCES),
            commit=st.sampled_from((True, True, True, False)),
        )
        def run_unit(self, chosen: list[tuple[int, Length]], source: int, commit: bool) -> None:
            works = self.works(chosen, source)
            if works:
                self.take(BeginUnit(works))
                units = sorted(self.lock.model.units)
                if units:
                    self.take(EndUnit(units[-1], commit or not capabilities.aborts))

        @rule(
            chosen=st.lists(st.tuples(picks, lengths), min_size=1, max_size=3),
            source=st.sampled_from(SOURCES),
        )
        def begin_unit(self, chosen: list[tuple[int, Length]], source: int) -> None:
            works = self.works(chosen, source)
            if works:
                self.take(BeginUnit(works))

        @rule(pick=picks, commit=st.sampled_from((True, True, False)))
        def end_unit(self, pick: int, commit: bool) -> None:
            unit = _choose(sorted(self.lock.model.units), pick)
            if unit is not None:
                self.take(EndUnit(unit, commit or not capabilities.aborts))

        @rule(pick=picks, other=picks, count=st.integers(-1, 40), prefill=st.booleans(), twice=st.booleans())
        def begin_odd_unit(self, pick: int, other: int, count: int, prefill: bool, twice: bool) -> None:
            """Works without regard to what is legal: wrong kind, too long, empty, in flight, named twice."""
            first, second = self.held(pick), self.held(other)
            if first is None or second is None:
                return
            tokens = run(1, 3, max(count, 0))
            works: list[Work] = [Prefill(first, count) if prefill else Append(first, tokens)]
            if twice:
                works.append(Append(second, tokens))
            self.take(BeginUnit(tuple(works[:most_works]) if count >= 0 else ()))

        # -- sequences -----------------------------------------------------------------------------------------------

        @can("Fork")
        @rule(pick=picks, where=positions, grow=lengths, session=sessions)
        def fork(self, pick: int, where: Where, grow: Length, session: str | None) -> None:
            source = self.held(pick)
            if source is not None:
                self.take(Fork(source, self.position(source, where), grow.tokens(self.page_size), session))

        @can("Truncate")
        @rule(pick=picks, where=positions)
        def truncate(self, pick: int, where: Where) -> None:
            sequence = self.active(pick)
            if sequence is not None:
                self.take(Truncate(sequence, self.position(sequence, where)))

        @can("Checkpoint")
        @rule(pick=picks)
        def checkpoint(self, pick: int) -> None:
            sequence = self.active(pick)
            if sequence is not None:
                self.take(Checkpoint(sequence))

        @rule(pick=picks, retain=st.booleans())
        def finish(self, pick: int, retain: bool) -> None:
            sequence = self.active(pick)
            if sequence is not None:
                self.take(Finish(sequence, retain and "Release" in supported))

        @can("Cancel")
        @rule(pick=picks, queued=st.booleans())
        def cancel(self, pick: int, queued: bool) -> None:
            sequence = _choose(list(self.lock.model.queue), pick) if queued else self.active(pick)
            if sequence is not None:
                self.take(Cancel(sequence))

        # -- context cache -------------------------------------------------------------------------------------------

        @can("Release")
        @rule(pick=picks)
        def release(self, pick: int) -> None:
            kept = _choose(self.lock.model.continuations(), pick)
            if kept is not None:
                self.take(Release(kept))

        @can("Pin")
        @rule(pick=picks, pinned=st.booleans())
        def pin(self, pick: int, pinned: bool) -> None:
            kept = _choose(self.lock.model.continuations(), pick)
            if kept is not None:
                self.take(Pin(kept, pinned))

        @can("Lookup")
        @rule(
            shared=lengths, own=lengths, source=st.sampled_from(SOURCES), identity=st.sampled_from((0, 0, 1))
        )
        def lookup(self, shared: Length, own: Length, source: int, identity: int) -> None:
            self.take(Lookup(self.prompt(shared, own, source), IDENTITIES[identity]))

        @can("Lookup")
        @rule(pick=picks, more=st.integers(0, 2))
        def lookup_known(self, pick: int, more: int) -> None:
            """Look up what a live sequence holds, and a little more."""
            owner = self.held(pick)
            if owner is not None:
                known = self.lock.model.tokens(owner)
                self.take(Lookup(canonical([*known, (2, 900, more)])))

        # -- handles that mean nothing -------------------------------------------------------------------------------

        @rule(sequence=st.integers(0, 12), which=st.integers(0, 8), position=st.integers(-1, 3))
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
            ]
            operation = operations[which]
            if type(operation).__name__ in supported and self.lock.model.state(sequence) not in ACTIVE:
                self.take(operation)

        # -- device effects ------------------------------------------------------------------------------------------

        @precondition(lambda self: self.lock.setting.lagging)
        @rule(count=st.integers(1, 6))
        def run_effects(self, count: int) -> None:
            self.take(RunEffects(count))

        @precondition(lambda self: self.lock.setting.depth == "payload")
        @rule()
        def read_back(self) -> None:
            self.take(ReadBack())

        @can("Progress")
        @rule()
        def progress(self) -> None:
            self.take(Progress())

    return Campaign


def settings_for(engine: str, depths: tuple[str, ...]) -> st.SearchStrategy[Setting]:
    """Return small settings on purpose: pools of a few pages, few rows, every page size, every condition."""
    from kvcrucible.fuzz.setting import Depth

    def build(
        depth: str, page_size: int, capacity: int, context_pages: int, rows: int, bits: int | None, lagging: bool,
        profile: str, poison: str,
    ) -> Setting:  # fmt: skip
        context = min(context_pages, capacity + 1) * page_size - (rows % 2)
        return Setting(
            engine, Depth(depth), capacity, page_size, max(context, 1), rows, bits,
            lagging and depth == Depth.PAYLOAD, profile, poison,
        )  # fmt: skip

    return st.builds(
        build,
        st.sampled_from(depths),
        st.sampled_from((16, 64, 4)),
        st.integers(3, 12),
        st.integers(3, 8),
        st.integers(2, 5),
        st.sampled_from((None, 0, 4)),
        st.booleans(),
        st.sampled_from(("FP32", "BF16")),
        st.sampled_from(("nan", "huge")),
    )


def _choose(ids: Any, pick: int) -> int | None:
    """Return one of ``ids`` by a number that need not be an index; None where there is none."""
    ordered = sorted(ids)
    return ordered[pick % len(ordered)] if ordered else None
