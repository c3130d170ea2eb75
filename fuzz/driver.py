"""One example, whoever draws it: takes steps in lock step and turns drawn numbers into arguments.

Everything is looked up in the reference model, never in the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.media import TokenSpan, spans_below
from kvcrucible.contract.operations import (
    Accepted,
    Append,
    BeginUnit,
    Cancel,
    EndUnit,
    Outcome,
    Prefill,
    Schedule,
    Submit,
    Work,
)
from kvcrucible.contract.tokens import Tokens, canonical, run
from kvcrucible.fuzz.draws import (
    Length,
    Where,
    choose,
)
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.invariants.violation import InvariantViolated, Violation


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first failing example, before anything was shrunk, and how much had been tried by then."""

    setting: Setting
    log: tuple[Step, ...]
    violations: tuple[Violation, ...]
    examples: int
    steps_before: int


@dataclass(slots=True)
class Recorder:
    """Where a machine leaves what it is doing, so that a failure can be reported as steps."""

    current: LockStep | None = None
    on_example: Callable[[], None] | None = None
    first: FirstFailure | None = None

    def begin(self, setting: Setting, tally: Tally, full_every: int = 1, *, goals: bool = True) -> LockStep:
        """Start an example; an engine that is wrong before its first step is a failure without steps."""
        self.current = None
        try:
            self.current = LockStep(setting, tally, full_every=full_every, goals=goals)
        except InvariantViolated as found:
            self._note(setting, (), found, tally)
            raise
        return self.current

    def failed(self, example: LockStep, error: BaseException, tally: Tally) -> None:
        """Note an example that failed, if it is the first."""
        if isinstance(error, InvariantViolated):
            self._note(example.setting, tuple(example.log), error, tally)
            if self.on_example is not None:
                self.on_example()

    def _note(self, setting: Setting, log: tuple[Step, ...], found: InvariantViolated, tally: Tally) -> None:
        if self.first is None:
            self.first = FirstFailure(setting, log, found.violations, tally.examples + 1, tally.steps)


class Driver:
    """One example: an engine and the reference in lock step, and how arguments are drawn from what is there."""

    lock: LockStep
    failed = False

    #: Set by the class that :func:`kvcrucible.fuzz.machine.machine_class` makes.
    capabilities: Capabilities
    tally: Tally
    recorder: Recorder
    #: Journeys that are taken rather than others.
    favoured: tuple[str, ...] = ()

    def take(self, *steps: Step) -> None:
        """Take steps; a violation marks the example as failed, so that nothing is torn down in lock step."""
        for step in steps:
            self.take_one(step)

    def take_one(self, step: Step) -> Outcome | None:
        """Take one step; return the engine's outcome for an operation."""
        try:
            return self.lock.step(step)
        except BaseException as error:
            self.failed = True
            self.recorder.failed(self.lock, error, self.tally)
            raise

    def teardown(self) -> None:
        """End the example in lock step, unless it failed."""
        if not hasattr(self, "lock") or self.failed:
            return
        try:
            self.lock.close()
        except BaseException as error:
            self.recorder.failed(self.lock, error, self.tally)
            raise
        self.tally.examples += 1
        if self.recorder.on_example is not None:
            self.recorder.on_example()

    @property
    def supported(self) -> frozenset[str]:
        """Names of the operations that the engine carries out."""
        return self.capabilities.operations

    def spans_of(self, owner: int, *lengths: int) -> tuple[TokenSpan, ...]:
        """Return what an owner's spans say of a prompt that begins with so many of its tokens, the least of them."""
        return spans_below(self.lock.model.spans(owner), min(lengths))

    # -- drawing from what is there ------------------------------------------------------------------------------

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.lock.setting.page_size

    def active(self, pick: int) -> int | None:
        """Return an active sequence, None where there is none."""
        return choose(self.lock.model.sequences(), pick)

    def held(self, pick: int) -> int | None:
        """Return an active or retained sequence, None where there is none."""
        return choose([*self.lock.model.sequences(), *self.lock.model.continuations()], pick)

    def position(self, owner: int, where: Where) -> int:
        """Return a position in a sequence."""
        model = self.lock.model
        pool = int(where.backend and self.lock.setting.backend is not None)
        size = self.lock.setting.engine_config().pools[pool].page_size
        match where.anchor:
            case "zero":
                at = where.pages
            case "pages":
                at = where.pages * size
            case "frontier":
                at = model.reach(owner)[pool]
            case "prompt":
                at = model.prompt(owner)
            case _:
                at = model.shared_pages(owner, pool) * size
        at += where.offset
        return at if where.raw else min(max(at, 0), model.frontier(owner))

    def idle(self, pick: int) -> int | None:
        """Return an active sequence that is not in flight, None where there is none."""
        model = self.lock.model
        return choose((one for one in model.sequences() if not model.in_flight(one)), pick)

    def work(self, sequence: int, length: Length, source: int, reach: str = "follow") -> Work | None:
        """Return legal work of about ``length`` for an idle sequence, None where it can write nothing more.

        ``reach``: how far it brings the backend, one of ``REACHES``; an engine without one is not asked.
        """
        model, wanted = self.lock.model, max(1, length.tokens(self.page_size))
        left = model.prompt_left(sequence)
        if left:
            count = left if length.pages > 1 else min(wanted, left)
            return Prefill(sequence, count, self.backend(sequence, count, reach))
        count = min(wanted, model.limit(sequence) - model.frontier(sequence))
        if not count:
            return None
        return Append(sequence, run(source, 7, count), self.backend(sequence, count, reach))

    def backend(self, sequence: int, count: int, reach: str) -> int | None:
        """Return how many positions work of ``count`` writes in the backend, None for up to where Main will stand."""
        if self.lock.setting.backend is None or reach == "follow":
            return None
        main, backend = self.lock.model.reach(sequence)
        lacking = main + count - backend
        return {"stay": 0, "half": lacking // 2, "short": lacking - 1}[reach]

    def works(self, chosen: list[tuple[int, Length]], source: int, reach: str = "follow") -> tuple[Work, ...]:
        """Return at most one work for each chosen idle sequence."""
        found: dict[int, Work] = {}
        for pick, length in chosen:
            sequence = self.active(pick)
            if sequence is None or self.lock.model.in_flight(sequence):
                continue
            work = self.work(sequence, length, source, reach)
            if work is not None:
                found.setdefault(sequence, work)
        return tuple(found.values())[: self.capabilities.works_per_unit]

    def placeable(self, tokens: int, above: int, large: bool) -> int:
        """Cut a number of tokens so that, ``above`` as many others, they could be placed in an empty pool."""
        most = self.lock.setting.placeable_tokens - above
        return tokens if large else max(0, min(tokens, most))

    def write(self, works: tuple[Work, ...], commit: bool) -> None:
        """Begin a unit and end it at once."""
        before = set(self.lock.model.units)
        self.take(BeginUnit(works))
        for unit in set(self.lock.model.units) - before:
            self.end(unit, commit)

    def end(self, unit: int, commit: bool, accept: str = "all") -> None:
        """End a unit; an engine that cannot abort commits.  ``accept``: how much of each append, one of ``ACCEPTS``."""
        commit = commit or not self.capabilities.aborts
        self.take(EndUnit(unit, commit, self.accepted(unit, accept) if commit else ()))

    def accepted(self, unit: int, accept: str) -> tuple[Accepted, ...]:
        """Return what to accept of the appends of a unit in flight; nothing is said of one that is kept whole."""
        if accept == "all" or not self.capabilities.speculates:
            return ()
        found = []
        for number, (sequence, written) in enumerate(self.lock.model.appended(unit).items()):
            how = accept if accept != "first" else "all" if number else "one"
            tokens = self.accepted_of(sequence, written, how)
            if tokens < written or accept == "said":
                found.append((sequence, tokens))
        return tuple(found)

    def accepted_of(self, sequence: int, written: int, accept: str) -> int:
        """Return how many of ``written`` tokens to accept: at least one."""
        sizes = [pool.page_size for pool in self.lock.setting.engine_config().pools]
        # Up to the next page boundary, in Main or where there is a backend in that.
        boundary = {"boundary": sizes[0], "backend-boundary": sizes[-1]}
        if accept in boundary:
            tokens = -self.lock.model.frontier(sequence) % boundary[accept] or boundary[accept]
            return tokens if tokens <= written else 1
        return max(1, {"one": 1, "half": written // 2, "but-one": written - 1}.get(accept, written))

    def start(self, request: Submit, patient: bool, prefill: bool, reach: str = "follow") -> None:
        """Submit and schedule; an impatient request that has to wait is cancelled, so that it blocks nobody."""
        self.take(request, Schedule())
        model = self.lock.model
        if model.queue and not patient and "Cancel" in self.supported:
            self.take(Cancel(model.queue[-1]))
        newest = max(model.sequences(), default=None)
        if prefill and newest is not None and not model.in_flight(newest) and model.prompt_left(newest):
            left = model.prompt_left(newest)
            self.write((Prefill(newest, left, self.backend(newest, left, reach)),), commit=True)

    def prompt(self, shared: Length, own: Length, source: int) -> Tokens:
        """Return a prompt: a part that many prompts share, then one of its own."""
        return canonical([(0, 0, shared.tokens(self.page_size)), (source, 100, own.tokens(self.page_size))])
