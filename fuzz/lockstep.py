"""Drives one engine and the reference through the same steps and stops at the first difference (DESIGN 7).

After every operation: the answer is compared with the reference's prediction, the counters with it; a refused
operation must have left everything as it was; every checker of the catalogue judges the step and the state; tokens
and frontiers are compared.  At payload depth rows are written and read back as well
(:mod:`kvcrucible.fuzz.payload`).  An engine that ends the process (``SystemExit``), wherever it is asked, has failed:
its status is not the campaign's.

Does not verify: speed, page choice, eviction order beyond what the contract fixes, engines' parts that they do not
show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.in_words import in_words
from kvcrucible.contract.operations import (
    Admitted,
    Cancel,
    Demote,
    EndUnit,
    Finish,
    Operation,
    Outcome,
    Pin,
    Progress,
    Progressed,
    Release,
    Restore,
    Schedule,
    Scheduled,
    Truncate,
    TryAdmit,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Snapshot, Touched, advanced
from kvcrucible.contract.tokens import Tokens
from kvcrucible.fuzz import coverage, waiting
from kvcrucible.fuzz.adapters.protocol import EngineAdapter, PayloadAdapter
from kvcrucible.fuzz.adapters.registry import build
from kvcrucible.fuzz.agreement import state_agrees
from kvcrucible.fuzz.asking import SHOWING, answered_wrongly, drained_of, exits_judged, let, snapshot_of
from kvcrucible.fuzz.effects import EffectsJudge
from kvcrucible.fuzz.fencing import FenceJudge
from kvcrucible.fuzz.goals import Observation
from kvcrucible.fuzz.judge import judge_outcome
from kvcrucible.fuzz.pairs import Pair, PairLog
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step
from kvcrucible.fuzz.waivers import Waiver, covering, waivers_of
from kvcrucible.invariants import registry
from kvcrucible.invariants.behaviour import epochs_risen, unchanged
from kvcrucible.invariants.monitor import Monitor
from kvcrucible.invariants.monitor import Tally as InvariantTally
from kvcrucible.invariants.violation import InvariantViolated, Violation, mismatch
from kvcrucible.reference.accounting import AccountingModel

if TYPE_CHECKING:
    from kvcrucible.fuzz.payload import PayloadTwin

#: What reading rows back judges, each with the operations without which an engine cannot break it.
_READ_BACK: tuple[tuple[str, frozenset[str]], ...] = (
    ("no-stale-read", frozenset()),
    ("cow-isolation", frozenset({"Fork"})),
    ("token-exact-truncation", frozenset({"Truncate"})),
)

#: Parts of a snapshot without which nobody sees whether Host room was lacking.
_HOST_ROOM = frozenset({"host", "extents", "transfers"})


@dataclass(slots=True)
class Tally:
    """What a campaign has done: counts over all its examples."""

    examples: int = 0
    steps: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    #: What became of requests with a hit, by the pages that Main has beyond those of one longest sequence.
    hits: Counter[tuple[int, str]] = field(default_factory=Counter)
    goals: Counter[str] = field(default_factory=Counter)
    invariants: Counter[str] = field(default_factory=Counter)
    premises: Counter[str] = field(default_factory=Counter)
    waived: Counter[str] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)

    def add_invariants(self, tallies: dict[str, InvariantTally]) -> None:
        """Add one example's counts of judgements."""
        for name, tally in tallies.items():
            self.invariants[name] += tally.steps + tally.full + tally.harness
            self.premises[name] += tally.premises


class LockStep:
    """One example.  ``log`` holds every step taken; the first difference raises ``InvariantViolated``.

    ``waivers``: known differences that are counted and passed over; None means those of the engine's ledger.
    ``full_every``: operations from one full snapshot to the next.  Between them the state after an operation is the one
    before with the entries that the engine reports as touched, and step checks alone judge it (decision 0027); an
    engine that reports none is always looked at in full.  ``goals``: whether coverage goals are asked.
    """

    def __init__(
        self,
        setting: Setting,
        tally: Tally | None = None,
        waivers: Sequence[Waiver] | None = None,
        full_every: int = 1,
        goals: bool = True,
    ) -> None:
        self.setting = setting
        self._full_every, self._since_full, self._goals = full_every, 0, goals
        self._waivers = waivers_of(setting.engine) if waivers is None else tuple(waivers)
        self.tally = tally if tally is not None else Tally()
        self.log: list[Step] = []
        self.adapter: EngineAdapter = build(setting)
        capabilities = self.adapter.capabilities
        # Where nobody can ask for progress, nothing waits for it.
        immediate = not setting.lagging or "Progress" not in capabilities.operations
        self.model = AccountingModel(setting.engine_config(), capabilities, immediate)
        with exits_judged():
            reports_touched = drained_of(self.adapter) is not None
            self.snapshot = snapshot_of(self.adapter)
            self._effects = EffectsJudge(self.adapter)
        self.monitor = Monitor(
            registry.checkers(_asked(capabilities, setting)), reports_touched=reports_touched
        )
        self._reserves, self._cuts = capabilities.reserves, "Truncate" in capabilities.operations
        self._fences = None if immediate else FenceJudge()
        self._pairs = PairLog(self.tally.pairs)
        self._twin = self._payload_twin()
        self._last_cut = False
        #: Active sequences of which the last unit kept fewer tokens than it wrote.
        self._trimmed: frozenset[int] = frozenset()
        self._require(self.monitor.observe_full(self.snapshot), self.snapshot)

    def step(self, step: Step) -> Outcome | None:
        """Take one step and judge it; returns the engine's outcome for an operation.  Raises ``InvariantViolated``."""
        self.log.append(step)
        self.tally.steps += 1
        with exits_judged():
            return self._take(step)

    def _take(self, step: Step) -> Outcome | None:
        if isinstance(step, RunEffects):
            let("running device effects", partial(self._payload.run_effects, step.count))
            return None
        if isinstance(step, ReadBack):
            self._read_back()
            return None
        return self._operate(step)

    def close(self) -> None:
        """End everything that is alive, in lock step, and require that every page is free again; at payload depth what
        is on Host comes back before, and is read.

        The engine is left empty.  Raises ``InvariantViolated``.
        """
        with exits_judged():
            self._close()

    def _close(self) -> None:
        supported = self.adapter.capabilities.operations
        if self._twin is not None:
            self._read_back()
        if self.model.transfers():
            self._progress_to_the_end()
            if self._twin is not None:
                self._read_back()
        for unit in sorted(self.model.units):
            self._operate(EndUnit(unit, commit=not self.adapter.capabilities.aborts))
        for sequence in sorted([*self.model.queue, *self.model.sequences()]):
            if "Cancel" in supported:
                self._operate(Cancel(sequence))
            elif sequence not in self.model.queue:
                self._operate(Finish(sequence, retain=False))
        if self._twin is not None and "Restore" in supported:
            self._bring_back()
        for continuation in sorted(self.model.continuations()):
            self._operate(Pin(continuation, pinned=False))
            self._operate(Release(continuation))
        if "Progress" in supported:
            self._progress_to_the_end()
        if self._since_full:
            self._look_in_full()
        self.tally.add_invariants(self.monitor.tallies)

    def _bring_back(self) -> None:
        """Restore what has gone to Host, as far as there is room, and read it: what nobody came back for would never be
        read on Device.
        """
        brought = False
        for continuation in sorted(self.model.continuations()):
            # What came back before it may have released it to have room.
            if continuation in self.model.continuations() and self.model.restorable(continuation):
                brought |= self._operate(Restore(continuation)).refusal is None
                self._progress_to_the_end()
        if brought:
            self._read_back()

    def _progress_to_the_end(self) -> None:
        """Let all effects take place; one look then ends every transfer and gives every page at rest back."""
        let("running device effects", self._payload.settle)
        self._operate(Progress())
        left = [
            (name, sorted(entries))
            for name, entries in (
                ("transfers", self.snapshot.transfers),
                ("retiring pages", self.snapshot.retiring),
            )
            if entries
        ]
        self._require(
            [mismatch("no-leak-at-quiescence", f"{name} after all effects", keys, []) for name, keys in left],
            self.snapshot,
        )

    # -- one operation -------------------------------------------------------------------------------------------------

    def _operate(self, operation: Operation) -> Outcome:
        before = self.snapshot
        tokens = self._model_tokens() if self._twin is not None else {}
        observation = self._observation(before, operation)
        if isinstance(operation, Progress):
            # Which effects are over is the judge of effects' business; what follows from it is the model's.
            actual = self._execute(operation)
            reported = actual.value if isinstance(actual.value, Progressed) else Progressed()
            expected = self.model.predict_progress(reported)
        else:
            if isinstance(operation, Demote) and before.host is not None:
                if before.host_holes is None:
                    before = self._look_in_full()
                if before.host_holes is None:
                    raise answered_wrongly(SHOWING, before, "one with the holes of its Host tier")
                self.model.see_holes(tuple(size for _, size in before.host_holes))
            actual = self._execute(operation)
            expected = self.model.predict(operation, actual)
        drained = drained_of(self.adapter)
        self._since_full += 1
        if drained is None or self._since_full >= self._full_every:
            after = snapshot_of(self.adapter)
            self._since_full = 0
        else:
            after = advanced(before, *drained)
        violations = judge_outcome(operation, expected, actual)
        violations += self._observe(before, actual, after, drained)
        if self._cuts:
            # An admission may cut too: the continuation that it moves.
            violations += epochs_risen(before, after)
        violations += state_agrees(operation, self.model, after, self.adapter.capabilities)
        if observation is not None and self._reserves:
            violations += self._judge_queue(actual, observation, after)
        violations += self._effects.judge(operation, actual, before)
        if self._fences is not None:
            violations += self._fences.judge(operation, actual, before, after)
        if violations:
            self._require(violations, after)
        self.snapshot = after
        if self._twin is not None and actual.refusal is None:
            follow = partial(self._twin.follow, operation, actual, tokens, after)
            let(operation, follow, "writing after ")
        if actual.refusal is None and isinstance(operation, Truncate):
            self._last_cut = True
        if actual.refusal is None and isinstance(operation, EndUnit):
            selected = {owner for owner, *_ in before.units[operation.unit].work} if before.units else set()
            self._trimmed = (self._trimmed - selected) | {one for one, _ in operation.accepted}
        self._count(operation, actual)
        self._pairs.note(operation, refused=actual.refusal is not None)
        if self._goals and observation is not None:
            for name in coverage.reached(observation, actual, after, self.setting):
                self.tally.goals[name] += 1
        return actual

    def _observation(self, before: Snapshot, operation: Operation) -> Observation | None:
        """Note what is there before an operation: all that goals ask about, or what judging a queue takes; None where
        neither is asked for.
        """
        if self._goals:
            return coverage.observe(self.model, before, operation, self._trimmed)
        if isinstance(operation, Schedule | TryAdmit):
            return coverage.observe_queue(self.model, before, operation)
        return None

    def _look_in_full(self) -> Snapshot:
        """Look at the whole state between two operations, and judge it."""
        self.snapshot = snapshot_of(self.adapter)
        self._since_full = 0
        self._require(self.monitor.observe_full(self.snapshot), self.snapshot)
        return self.snapshot

    def _execute(self, operation: Operation) -> Outcome:
        self._effects.before(operation)
        outcome: object = let(operation, partial(self.adapter.execute, operation))
        if not isinstance(outcome, Outcome):
            raise answered_wrongly(in_words(operation), outcome, "an Outcome")
        return outcome

    def _observe(
        self, before: Snapshot, actual: Outcome, after: Snapshot, drained: tuple[Snapshot, Touched] | None
    ) -> list[Violation]:
        violations: list[Violation] = []
        if actual.refusal is not None:
            violations += unchanged(before, after)
            self.monitor.count("refusal-atomic")
        if drained is not None:
            violations += self.monitor.observe(*drained)
        return violations if self._since_full else violations + self.monitor.observe_full(after)

    def _judge_queue(self, actual: Outcome, observation: Observation, after: Snapshot) -> list[Violation]:
        """Judge who waits, what made way and who was let past, and count what became of requests with a hit."""
        fenced = self._fences.touched if self._fences is not None else ()
        violations = waiting.judge_waiting(actual, observation, after, fenced)
        if self.adapter.capabilities.snapshot_parts >= _HOST_ROOM:
            violations += waiting.judge_host_room(actual, observation.before, after)
        passed = waiting.judge_passing(actual, observation, after, self.setting.max_concurrency)
        if passed is not None:
            self.monitor.count("completion-guarantee")
        who = waiting.waiting_of(actual)
        if who is not None and who.kind is WaitingKind.DEVICE_CAPACITY:
            self.monitor.count("cache-yields")
        for what in waiting.hits(actual, observation) if self._goals else ():
            self.tally.hits[self.setting.beyond_context, what] += 1
        return violations + (passed or [])

    def _read_back(self) -> None:
        payload = self._payload
        let("running device effects", payload.settle)
        if self._twin is None:
            return
        name = "token-exact-truncation" if self._last_cut else "no-stale-read"
        violations, attended = let("reading back", partial(self._compared, self._twin, name))
        self._last_cut = False
        for judged, needs in _READ_BACK:
            if needs <= self.adapter.capabilities.operations:
                self.monitor.count(judged, premise=bool(self.snapshot.pages))
        if self.setting.host_bytes is not None:
            self.monitor.count("replica-valid", premise=self._twin.copies_compared > 0)
        if self._twin.quantised:
            self.monitor.count("codec-exact", premise=bool(self.snapshot.pages))
        if attended is not None:
            self.monitor.count("kernel-oracle")
        self._require(violations + (attended or []), self.snapshot)

    def _compared(self, twin: PayloadTwin, name: str) -> tuple[list[Violation], list[Violation] | None]:
        """Return what is wrong with what is read, and with attention over it; None where that was not asked."""
        violations = twin.compare(self.snapshot, name)
        # A row that reads wrong makes attention wrong too; the row is the better report.
        return violations, None if violations else twin.compare_attention(self.snapshot)

    # -- helpers -------------------------------------------------------------------------------------------------------

    @property
    def _payload(self) -> PayloadAdapter:
        return cast("PayloadAdapter", self.adapter)

    def _payload_twin(self) -> PayloadTwin | None:
        if self.setting.depth is Depth.LEDGER:
            return None
        from kvcrucible.contract.profiles import storage_profile
        from kvcrucible.fuzz.content import Content
        from kvcrucible.fuzz.geometry import payload_geometry
        from kvcrucible.fuzz.payload import PayloadTwin

        profile = storage_profile(self.setting.profile)
        geometry = payload_geometry(profile)
        contents = [Content(geometry, pool, profile) for pool in range(self.setting.pools)]
        return PayloadTwin(self.setting, self._payload, contents)

    def _model_tokens(self) -> dict[int, Tokens]:
        return {
            owner: self.model.known_as(owner)
            for owner in [*self.model.sequences(), *self.model.continuations()]
        }

    def _count(self, operation: Operation, outcome: Outcome) -> None:
        self.tally.operations[type(operation).__name__] += 1
        if outcome.refusal is not None:
            self.tally.refusals[outcome.refusal.value] += 1
        value = outcome.value
        if not isinstance(value, Scheduled | Waiting | Admitted):
            return
        waiting = value.waiting if isinstance(value, Scheduled) else value
        if isinstance(waiting, Waiting):
            self.tally.waits[waiting.kind.value] += 1
        for admitted in coverage.admissions(value):
            self.tally.modes[admitted.mode.value] += 1

    def _require(self, violations: list[Violation], snapshot: Snapshot) -> None:
        """Raise for what no waiver covers; ``snapshot`` is the state in which the violations were found."""
        counting = []
        # The step check and the full check may both see one violation; it is reported once.
        for violation in dict.fromkeys(violations):
            waiver = covering(self._waivers, violation, snapshot)
            if waiver is None:
                counting.append(violation)
            else:
                self.tally.waived[waiver.id] += 1
        if counting:
            raise InvariantViolated(counting)


def _asked(capabilities: Capabilities, setting: Setting) -> Capabilities:
    """Return what to judge an engine by: what it could have and does not have in this setting is not asked about, so
    that nothing counts as judged there.
    """
    backends = capabilities.backends if setting.backend else frozenset()
    return replace(capabilities, backends=backends, host=capabilities.host and setting.host_bytes is not None)
