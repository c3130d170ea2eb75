"""Takes steps out of a failing example one by one while it still fails in the same way.

Hypothesis shrinks what was drawn; a rule that takes several steps leaves some that the failure does not need.  They go
here, on the plain steps, where each can be tried alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: Runs of an example that minimising may take; examples are short, so this is never the limit in practice.
MAX_RUNS = 400


def minimise(
    setting: Setting, steps: Sequence[Step], violations: tuple[Violation, ...]
) -> tuple[tuple[Step, ...], tuple[Violation, ...]]:
    """Return the shortest example that dropping single steps leads to, and what it violates.

    The first violation keeps its invariant.  An example that does not fail when run again comes back as it was.
    """
    kept, found = tuple(steps), violations
    runs = 0
    shorter = True
    while shorter:
        shorter = False
        for index in range(len(kept) - 1, -1, -1):
            runs += 1
            if runs > MAX_RUNS:
                return kept, found
            candidate = kept[:index] + kept[index + 1 :]
            again = rerun(setting, candidate)
            if again is not None and again[1][0].invariant == violations[0].invariant:
                kept, found = again
                shorter = True
                break
    return kept, found


def rerun(setting: Setting, steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Violation, ...]] | None:
    """Run an example; return the steps up to its failure and what it violates, None where it holds or means nothing."""
    example = None
    try:
        example = LockStep(setting)
        for step in steps:
            example.step(step)
        example.close()
    except InvariantViolated as failed:
        return () if example is None else tuple(example.log), failed.violations
    except (KeyError, ValueError):
        # Without the step that was taken out, a later one addresses what no longer exists for the harness itself.
        return None
    return None
