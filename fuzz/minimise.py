"""Takes steps out of a failing example, one or two at a time, while it still fails in the same way.

Hypothesis shrinks what was drawn; a rule that takes several steps leaves some that the failure does not need.  They go
here, on the plain steps, where each can be tried alone, and with another: a request can often go only with the step
that admits it.  With a step goes what addresses what it created, and the numbers of those behind it move up
(:mod:`kvcrucible.fuzz.renumbering`); otherwise the first request of many could never go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.renumbering import NOTHING_YET, Counts, Renumbering, counts_of
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: Runs of an example that minimising may take; a run of one takes milliseconds.
MAX_RUNS = 2_000


@dataclass(frozen=True, slots=True)
class Failing:
    """An example that fails: its steps, the failing one last, what it violates, and how many sequences, units and
    transfers there had been after each step.
    """

    steps: tuple[Step, ...]
    violations: tuple[Violation, ...]
    counts: tuple[Counts, ...]


def minimise(
    setting: Setting, steps: Sequence[Step], violations: tuple[Violation, ...]
) -> tuple[tuple[Step, ...], tuple[Violation, ...]]:
    """Return the shortest example that dropping single steps, then pairs of them, leads to, and what it violates.

    The first violation keeps its invariant.  An example that does not fail when run again comes back as it was.
    """
    kept = rerun(setting, steps)
    if kept is None or kept.violations[0].invariant != violations[0].invariant:
        return tuple(steps), violations
    runs = 1
    shorter = True
    while shorter:
        shorter = False
        for dropped in _one_or_two(len(kept.steps)):
            if runs >= MAX_RUNS:
                break
            again = _without(setting, kept, dropped)
            runs += 1
            if again is None or again.violations[0].invariant != violations[0].invariant:
                # A failure may be about a handle that nothing belongs to: then the others keep their numbers.
                again = rerun(setting, [step for at, step in enumerate(kept.steps) if at not in dropped])
                runs += 1
            if again is not None and again.violations[0].invariant == violations[0].invariant:
                kept, shorter = again, True
                break
    return kept.steps, kept.violations


def _one_or_two(steps: int) -> Iterator[tuple[int, ...]]:
    """Yield the positions to leave out, the last first: every one alone, then every two, the nearest together."""
    for index in reversed(range(steps)):
        yield (index,)
    for distance in range(1, steps):
        for index in reversed(range(steps - distance)):
            yield (index, index + distance)


def rerun(setting: Setting, steps: Sequence[Step]) -> Failing | None:
    """Run an example; return it up to its failure, None where it holds or means nothing."""
    return _run(setting, Failing(tuple(steps), (), ()), ())


def _without(setting: Setting, example: Failing, dropped: Collection[int]) -> Failing | None:
    """Run an example without some of its steps and what addresses what these created; else as :func:`rerun`."""
    return _run(setting, example, dropped)


def _run(setting: Setting, example: Failing, dropped: Collection[int]) -> Failing | None:
    lock = None
    counts: list[Counts] = []
    numbers = Renumbering()
    try:
        lock = LockStep(setting)
        for at, step in enumerate(example.steps):
            after = example.counts[at] if example.counts else NOTHING_YET
            numbered = None if at in dropped else numbers.step(step) if dropped else step
            if numbered is None:
                numbers.left_out(after)
                continue
            lock.step(numbered)
            counts.append(counts_of(lock.model.books))
            numbers.created(after, counts[-1])
        lock.close()
    except InvariantViolated as failed:
        steps = () if lock is None else tuple(lock.log)
        counts += [counts[-1] if counts else NOTHING_YET] * (len(steps) - len(counts))
        return Failing(steps, failed.violations, tuple(counts))
    except (KeyError, ValueError):
        # Without the step that was taken out, a later one addresses what no longer exists for the harness itself.
        return None
    return None
