"""Takes steps out of a failing example, one or two at a time, while it still fails in the same way.

Hypothesis shrinks what was drawn; a rule that takes several steps leaves some that the failure does not need.  They go
here, on the plain steps, where each can be tried alone, and with another: a request can often go only with the step
that admits it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: Runs of an example that minimising may take; a run of one takes milliseconds.
MAX_RUNS = 2_000


def minimise(
    setting: Setting, steps: Sequence[Step], violations: tuple[Violation, ...]
) -> tuple[tuple[Step, ...], tuple[Violation, ...]]:
    """Return the shortest example that dropping single steps, then pairs of them, leads to, and what it violates.

    The first violation keeps its invariant.  An example that does not fail when run again comes back as it was.
    """
    kept, found = tuple(steps), violations
    runs = 0
    shorter = True
    while shorter:
        shorter = False
        for dropped in _one_or_two(len(kept)):
            runs += 1
            if runs > MAX_RUNS:
                return kept, found
            again = rerun(setting, [step for index, step in enumerate(kept) if index not in dropped])
            if again is not None and again[1][0].invariant == violations[0].invariant:
                kept, found = again
                shorter = True
                break
    return kept, found


def _one_or_two(steps: int) -> Iterator[tuple[int, ...]]:
    """Yield the positions to leave out, the last first: every one alone, then every two, the nearest together."""
    for index in reversed(range(steps)):
        yield (index,)
    for distance in range(1, steps):
        for index in reversed(range(steps - distance)):
            yield (index, index + distance)


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
