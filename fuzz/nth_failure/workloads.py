"""Sequences of operations into which failures are injected: examples of a ledger campaign, by seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.stateful import get_state_machine_test

from kvcrucible.contract.planes import BACKENDS
from kvcrucible.fuzz.adapters.registry import build
from kvcrucible.fuzz.draws import LOOKAHEADS, settings_for
from kvcrucible.fuzz.driver import Recorder
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.machine import machine_class
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import Step

#: Examples that are drawn at a time.
BATCH = 20

#: Most rules in one workload.  Short ones reach every operation, and a failure in one is short already.
RULES = 25

#: Odd number by which batches of one campaign are told apart, so that neighbouring seeds do not share batches.
_BATCH_STRIDE = 1_000_003


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
    batch = 0
    while True:
        yield from _batch(seed + batch * _BATCH_STRIDE, failing_copies)
        batch += 1


def _batch(seed: int, failing_copies: bool) -> list[Workload]:
    drawn: list[Workload] = []

    def finished() -> None:
        lock = recorder.current
        assert lock is not None
        # An example that Hypothesis gives up on has the first steps of another.
        if lock.log:
            drawn.append(Workload(lock.setting, tuple(lock.log)))

    recorder = Recorder(on_example=finished)
    settings = settings_for(
        "paged", (Depth.LEDGER.value,), (None, *BACKENDS), hosts=(False, True), lookaheads=LOOKAHEADS
    )
    if not failing_copies:
        settings = settings.map(lambda setting: replace(setting, fail_every=0))
    machine = machine_class(settings, build(Setting()).capabilities, Tally(), recorder)
    limits = hypothesis.settings(
        max_examples=BATCH,
        stateful_step_count=RULES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    hypothesis.seed(seed)(get_state_machine_test(machine, settings=limits))()
    return drawn
