"""Sequences of operations into which failures are injected, and cheaters led: seeds of the raw loop, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from kvcrucible.contract.operations import Outcome
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.raw import Conditions, run_seed
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.fuzz.strategies import Built
from kvcrucible.fuzz.volume import VolumePlan, conditions_of
from kvcrucible.invariants.violation import InvariantViolated

#: Most rules in one workload.  Short ones reach every operation, and a failure in one is short already.
RULES = 25


@dataclass(frozen=True, slots=True)
class Workload:
    """One example that held without any failure; all of it is plain data."""

    setting: Setting
    steps: tuple[Step, ...]


def workloads(seed: int, *, failing_copies: bool = False) -> Iterator[Workload]:
    """Yield workloads without end, the same ones for the same seed; judged by the reference as they are drawn.

    ``failing_copies``: in some settings some copies between the tiers fail of themselves.  Raises
    ``InvariantViolated`` where the engine is wrong even without a failure.
    """
    conditions = conditions_of(VolumePlan(rules=RULES))
    if not failing_copies:
        # Copies fail where the n-th failure says so, and nowhere else.
        conditions = replace(conditions, settings=Built(_soundly, (conditions.settings,)))
    for number in count(seed):
        drawn = _of_seed(number, conditions)
        if drawn is not None:
            yield drawn


def _of_seed(seed: int, conditions: Conditions) -> Workload | None:
    """Return what one seed does, None where that is nothing."""
    steps: list[Step] = []
    settings: list[Setting] = []

    def follow(lock: LockStep, step: Step, outcome: Outcome | None) -> None:
        steps.append(step)
        settings.append(lock.setting)

    failed = run_seed(seed, conditions, Tally(), follow)
    if failed is not None:
        raise InvariantViolated(list(failed.first.violations))
    return Workload(settings[0], tuple(steps)) if steps else None


def _soundly(setting: Setting) -> Setting:
    return replace(setting, fail_every=0)
