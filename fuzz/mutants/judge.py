"""Judges the engine of this process by seeds of the raw loop until one fails: nothing is shrunk, no goal is asked for.

Runs in the child of a fork server, after the mutant was planted: what it imports at module level knows no engine.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from kvcrucible.invariants.judgements import ENGINE_FAULT, raised

#: More seeds than a budget has: of so many one is asked for coverage goals, which judge generators and not engines.
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a mutant may go unnoticed before it has survived.

    ``seeds``: at most so many from ``seed`` on, each of at most ``rules`` rules.  ``seed_seconds`` of processor time:
    a seed that takes longer hangs, on whatever machine; an ordinary one takes a tenth of a second.
    """

    seeds: int = 600
    rules: int = 120
    seed: int = 0
    seed_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """What the judge came to: ``invariants`` of the first failing step, in order, none where nothing failed.

    ``seeds``, ``steps``: how much had been tried by then, the failing seed among them.  ``note``: the first violation
    in words.
    """

    invariants: tuple[str, ...]
    seeds: int
    steps: int
    note: str = ""


def judge(budget: Budget, on_seed: Callable[[], None] = lambda: None) -> Found:
    """Run seeds, with and without a second pool and a Host tier whose copies fail, until one breaks an invariant.

    ``on_seed`` is called before each.
    """
    from kvcrucible.fuzz.lockstep import Tally
    from kvcrucible.fuzz.raw import run_seed
    from kvcrucible.fuzz.volume import VolumePlan, conditions_of

    # A child lives for a minute at most, and what seeds leave behind has few cycles.
    gc.disable()
    tally = Tally()
    on_seed()
    tried = 1
    try:
        # An engine that cannot be built fails its first seed.
        conditions = conditions_of(VolumePlan(rules=budget.rules, goals_every=_NEVER))
        for number in range(budget.seeds):
            on_seed()
            tried = number + 1
            failed = run_seed(budget.seed + number, conditions, tally)
            if failed is not None:
                violations = failed.first.violations
                invariants = tuple(dict.fromkeys(found.invariant for found in violations))
                return Found(invariants, tried, tally.steps, str(violations[0].message))
    except Exception as error:
        if not _comes_from_the_engine(error):
            raise
        return Found((ENGINE_FAULT,), tried, tally.steps, raised(error))
    return Found((), budget.seeds, tally.steps)


def _comes_from_the_engine(error: BaseException) -> bool:
    """Say whether the engine raised it, as when it is built; else the judge itself fell over."""
    innermost = list(traceback.walk_tb(error.__traceback__))[-1][0]
    return str(innermost.f_globals.get("__name__", "")).startswith("kvcrucible.engine.")
