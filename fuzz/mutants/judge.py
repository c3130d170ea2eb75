"""Judges the engine of this process by seeds until one fails: nothing is shrunk, and no goal is sought.

Runs in the child of a fork server, after the mutant was planted: what it imports at module level knows no engine.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from kvcrucible.invariants.judgements import ENGINE_FAULT, raised


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a mutant may go unnoticed before it has survived.

    ``examples``: at most so many, each of at most ``steps`` rules.  ``seed``: of the first.  ``example_seconds`` of
    processor time: one example that takes longer hangs, of whatever machine; an ordinary one takes a second at most.
    """

    examples: int = 600
    steps: int = 120
    seed: int = 0
    example_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Found:
    """What the judge came to: ``invariants`` of the first failing step, in order, none where nothing failed.

    ``examples``, ``steps``: how much had been tried by then, the failing example among them.  ``note``: the first
    violation in words.
    """

    invariants: tuple[str, ...]
    examples: int
    steps: int
    note: str = ""


def judge(budget: Budget, on_example: Callable[[], None] = lambda: None) -> Found:
    """Run examples at ledger depth, with and without a Host tier whose copies fail, until one breaks an invariant.

    ``on_example`` is called before the first and after each.
    """
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

    capabilities = build(Setting("paged", Depth.LEDGER)).capabilities
    settings = settings_for(
        "paged", (Depth.LEDGER.value,), (None, *BACKENDS), hosts=(False, True), lookaheads=LOOKAHEADS
    )
    tally, recorder = Tally(), Recorder(on_example=on_example)
    test = get_state_machine_test(
        machine_class(settings, capabilities, tally, recorder),
        settings=hypothesis.settings(
            max_examples=budget.examples,
            stateful_step_count=budget.steps,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
            print_blob=False,
        ),
    )
    on_example()
    try:
        hypothesis.seed(budget.seed)(test)()
    except Exception as error:
        # The first failure is what counts, whether or not it comes again when Hypothesis runs it once more.
        if recorder.first is None:
            if not _comes_from_the_engine(error):
                raise
            return Found((ENGINE_FAULT,), tally.examples + 1, tally.steps, raised(error))
    first = recorder.first
    if first is None:
        return Found((), tally.examples, tally.steps)
    invariants = tuple(dict.fromkeys(found.invariant for found in first.violations))
    return Found(invariants, first.examples, first.steps_before, str(first.violations[0].message))


def _comes_from_the_engine(error: BaseException) -> bool:
    """Say whether the engine raised it, as when it is asked to show its state; else the judge itself fell over."""
    innermost = list(traceback.walk_tb(error.__traceback__))[-1][0]
    return str(innermost.f_globals.get("__name__", "")).startswith("kvcrucible.engine.")
