"""Runs the state machine for a number of examples and reports what was done and what was found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.stateful import get_state_machine_test

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.planes import BACKENDS
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.fuzz.adapters.external import probe
from kvcrucible.fuzz.coverage import GOALS, within_reach
from kvcrucible.fuzz.draws import LOOKAHEADS, settings_for
from kvcrucible.fuzz.driver import FirstFailure, Recorder
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.machine import machine_class, to_hypothesis
from kvcrucible.fuzz.minimise import minimise
from kvcrucible.fuzz.pairs import Pair, missing
from kvcrucible.fuzz.seeking import journeys_toward, suits
from kvcrucible.fuzz.setting import DEVICES, Depth, Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.fuzz.waivers import Waiver, waivers_of
from kvcrucible.invariants import registry
from kvcrucible.invariants.judgements import NOT_REPRODUCED
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: Examples that one run of the state machine makes before time and interruption are looked at again.
BATCH_EXAMPLES = 50

#: Odd number by which batches of one campaign are told apart, so that neighbouring seeds do not share batches.
_BATCH_STRIDE = 1_000_003

#: Examples from which on a campaign is long enough to be held to its coverage goals.
GOALS_FROM_EXAMPLES = 300

#: How many times its examples a campaign may take to reach the goals that it has missed.
GOALS_PATIENCE = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to do.  ``seconds`` None: no limit.  ``database``: folder in which failing examples are kept.
    ``backends``: what settings have beside Main; None stands for no other pool.  ``profiles``: storage profiles of
    settings.  ``hosts``: whether settings have a Host tier.  Of each, what the engine cannot have is left out.
    ``capacity_at``: pages that every pool has beyond those of one longest sequence; empty for pools of any size.
    ``shrink``: whether a failing example is made small, which takes most of the time of a campaign that finds one.
    ``device``: where planes and tables of all settings are.  ``held_to_goals``: whether a campaign of the usual size
    goes on for coverage goals that it has missed, and is inconclusive without them.
    """

    engine: str = "paged"
    depths: tuple[Depth, ...] = (Depth.LEDGER,)
    examples: int = 300
    steps: int = 60
    seed: int = 0
    seconds: float | None = None
    database: Path | None = None
    backends: tuple[str | None, ...] = (None, *BACKENDS)
    profiles: tuple[str, ...] = tuple(PROFILES)
    hosts: tuple[bool, ...] = (False, True)
    capacity_at: tuple[int, ...] = ()
    shrink: bool = True
    device: str = DEVICES[0]
    held_to_goals: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """A minimal failing example, or the first that was seen where the plan does not shrink or was interrupted.

    ``examples_before``, ``steps_before``: how much had been tried when a failure was first seen, before shrinking, and
    ``first_seen`` what that one violated: what is minimal may violate less.
    """

    setting: Setting
    steps: tuple[Step, ...]
    violations: tuple[Violation, ...]
    examples_before: int = 0
    steps_before: int = 0
    first_seen: tuple[Violation, ...] = ()


@dataclass(slots=True)
class Report:
    """What a campaign did.  ``cut_short``: it stopped before all examples for another reason than a failure.
    ``shrinking``: a failure was seen, and what runs now makes it smaller.
    """

    plan: Plan
    capabilities: Capabilities
    tally: Tally = field(default_factory=Tally)
    failure: Failure | None = None
    cut_short: str | None = None
    seconds: float = 0.0
    shrinking: bool = False

    def backends(self) -> tuple[str | None, ...]:
        """Return what settings have beside Main: what was asked for and the engine can have.

        Raises ``InputError`` where that is nothing.
        """
        able = tuple(
            name for name in self.plan.backends if name is None or name in self.capabilities.backends
        )
        if not able:
            raise InputError(
                f"{self.plan.engine} cannot have {', '.join(map(str, self.plan.backends))} beside Main; "
                "ask for Main alone"
            )
        return able

    def profiles(self) -> tuple[str, ...]:
        """Return the storage profiles of settings: what was asked for and the engine can hold.

        Raises ``InputError`` where that is nothing.
        """
        able = tuple(name for name in self.plan.profiles if name in self.capabilities.profiles)
        if not able:
            raise InputError(
                f"{self.plan.engine} cannot hold {', '.join(self.plan.profiles)}; "
                f"ask for {', '.join(self.capabilities.profiles)}"
            )
        return able

    def hosts(self) -> tuple[bool, ...]:
        """Return whether settings have a Host tier: what was asked for and the engine can have.

        Raises ``InputError`` where that is nothing.
        """
        able = tuple(host for host in self.plan.hosts if self.capabilities.host or not host)
        if not able:
            raise InputError(f"{self.plan.engine} cannot have a Host tier; ask for none")
        return able

    def missing_pairs(self) -> list[Pair]:
        """Return the possible ordered pairs of operations that never came up."""
        return missing(self.tally.pairs, self.capabilities, self.hosts())

    def goals(self) -> dict[str, int]:
        """Return how often each goal was reached that the engine can reach."""
        return {
            name: self.tally.goals[name]
            for name, goal in GOALS.items()
            if within_reach(goal, self.capabilities, self.backends(), self.hosts())
        }

    def missed(self) -> list[str]:
        """Return the goals within reach that were never reached."""
        return [name for name, times in self.goals().items() if not times]

    def unchecked(self) -> list[str]:
        """Return what could not be checked on this engine, in words: its own limits, and checkers that do not apply."""
        left_out = registry.inapplicable(self.capabilities)
        return [*self.capabilities.unchecked, *(f"{name}: {reason}" for name, reason in left_out.items())]

    def known_differences(self) -> list[tuple[Waiver, int]]:
        """Return the engine's waivers, each with how many violations it covered."""
        return [(waiver, self.tally.waived[waiver.id]) for waiver in waivers_of(self.plan.engine)]


def default_depths() -> tuple[Depth, ...]:
    """Return both depths where torch is installed, else ledger depth alone."""
    return (Depth.LEDGER, Depth.PAYLOAD) if _has_torch() else (Depth.LEDGER,)


def run(plan: Plan, on_progress: Callable[[Report], None] | None = None) -> Report:
    """Run the campaign; stops at the first failure, which comes out minimal.

    ``on_progress`` is called after each example, failing ones included.  Raises ``NotRunError`` where the engine or
    a depth is not to be had.  Interruption ends it with ``cut_short``, and with what had failed first where that was
    being made smaller.
    """
    if Depth.PAYLOAD in plan.depths:
        _use_one_thread()
    capabilities = probe(Setting(plan.engine, plan.depths[-1], device=plan.device)).capabilities
    report = Report(plan, capabilities)
    began = time.perf_counter()

    def finished_example() -> None:
        report.seconds = time.perf_counter() - began
        report.shrinking = recorder.first is not None
        if on_progress is not None:
            on_progress(report)

    recorder = Recorder(on_example=finished_example)
    try:
        asked = 0
        for batch in count():
            left = plan.examples - asked
            if left <= 0 and not _goes_on(plan, report, -left):
                break
            if plan.seconds is not None and time.perf_counter() - began > plan.seconds:
                report.cut_short = f"time limit of {plan.seconds:g} s"
                break
            examples = min(BATCH_EXAMPLES, left if left > 0 else plan.examples)
            _run_batch(plan, report, recorder, batch, examples, () if left > 0 else report.missed())
            asked += examples
            if report.failure is not None:
                break
    except KeyboardInterrupt:
        report.cut_short = "interrupted"
        if recorder.first is not None:
            # While it was made smaller: what was seen is a finding all the same.
            report.failure = _first(recorder.first, recorder.first.violations)
    report.seconds = time.perf_counter() - began
    return report


def _goes_on(plan: Plan, report: Report, beyond: int) -> bool:
    """Say whether a campaign that is through goes on for the goals that it has missed.

    Silence about a situation that never came up means nothing, so a campaign of the usual size tries longer, where what
    it has missed is likely (:mod:`kvcrucible.fuzz.seeking`), and one that still misses a goal is inconclusive
    (``cut_short``).  One whose pools have a fixed size is not held to goals, some of which take another.
    """
    held_to_goals = plan.held_to_goals and plan.examples >= GOALS_FROM_EXAMPLES and not plan.capacity_at
    if not held_to_goals or not report.missed():
        return False
    if beyond < plan.examples * (GOALS_PATIENCE - 1):
        return True
    report.cut_short = f"coverage goals not reached: {', '.join(report.missed())}"
    return False


def _run_batch(
    plan: Plan, report: Report, recorder: Recorder, batch: int, examples: int, sought: Sequence[str]
) -> None:
    depths = tuple(depth.value for depth in plan.depths)
    drawn = settings_for(
        plan.engine,
        depths,
        report.backends(),
        report.profiles(),
        report.hosts(),
        LOOKAHEADS if report.capabilities.backfills else (0,),
        # One capacity a batch, so that each gets its share.
        plan.capacity_at and (plan.capacity_at[batch % len(plan.capacity_at)],),
        plan.device,
    )
    settings = to_hypothesis(drawn)
    if sought:
        settings = settings.filter(lambda setting: suits(setting, sought))
    machine = machine_class(settings, report.capabilities, report.tally, recorder, journeys_toward(sought))
    database = None if plan.database is None else DirectoryBasedExampleDatabase(plan.database)
    phases = [
        *([] if database is None else [Phase.reuse]),
        Phase.generate,
        *([Phase.shrink] if plan.shrink else []),
    ]
    limits = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=plan.steps,
        deadline=None,
        database=database,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    test = get_state_machine_test(machine, settings=limits)
    try:
        hypothesis.seed(plan.seed + batch * _BATCH_STRIDE)(test)()
    except InvariantViolated as found:
        report.failure = _failure(plan, recorder, found)
    except (Flaky, BaseExceptionGroup):
        # The engine answered one sequence in two ways, so nothing can be shrunk: what failed first is the report.
        if recorder.first is None:
            raise
        report.failure = _unstable(recorder, recorder.first)


def _failure(plan: Plan, recorder: Recorder, found: InvariantViolated) -> Failure:
    assert recorder.first is not None
    if not plan.shrink:
        return _first(recorder.first, recorder.first.violations)
    # Hypothesis runs the minimal example last, so the recorder holds just that one; an engine that is wrong before its
    # first step leaves none.
    example = recorder.current
    setting = recorder.first.setting if example is None else example.setting
    log = () if example is None else tuple(example.log)
    steps, violations = minimise(setting, log, found.violations)
    return replace(_first(recorder.first, violations), setting=setting, steps=steps)


def _unstable(recorder: Recorder, first: FirstFailure) -> Failure:
    note = Violation(
        NOT_REPRODUCED,
        "the same steps did not fail again: the engine is not deterministic; nothing was shrunk",
    )
    return _first(first, (*first.violations, note))


def _first(first: FirstFailure, violations: tuple[Violation, ...]) -> Failure:
    return Failure(first.setting, first.log, violations, first.examples, first.steps_before, first.violations)


def _use_one_thread() -> None:
    """Keep torch to one thread: the tensors are tiny, and a shared machine's cores are better left to other
    examples.
    """
    if _has_torch():
        import torch

        torch.set_num_threads(1)


def _has_torch() -> bool:
    try:
        return find_spec("torch") is not None
    except ModuleNotFoundError:
        return False


def keep_out_of_the_working_folder() -> None:
    """Let Hypothesis keep its own files in the user's cache, so that a command writes nothing where it is started.

    For the whole process, so it is the commands that call it.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    set_hypothesis_home_dir(Path(cache) / "kvcrucible" / "hypothesis")
