"""Takes steps out of a failing example, one or two at a time, while it still fails in the same way.

Hypothesis shrinks what was drawn; a rule that takes several steps leaves some that the failure does not need.  They go
here, on the plain steps, where each can be tried alone, and with another: a request can often go only with the step
that admits it.  With a step goes what addresses what it created, and the numbers of those behind it move up
(:mod:`kvcrucible.fuzz.renumbering`); otherwise the first request of many could never go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.renumbering import NOTHING_YET, Counts, Renumbering, counts_of
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.invariants.judgements import ENGINE_FAULT, NOT_REPRODUCED
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: Runs of an example that minimising may take; a run of one takes milliseconds.
MAX_RUNS = 2_000

#: Type and file in what a violation says that an engine has raised (:func:`kvcrucible.invariants.judgements.raised`).
_RAISED = re.compile(r" raised (\w+).*\(([^()]*):\d+\)$", re.DOTALL)


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

    It fails as :func:`alike` says.  An example that does not fail so when run again comes back as it was, and says so.
    """
    kept = rerun(setting, steps)
    if kept is None or not alike(kept.violations, violations):
        note = Violation(NOT_REPRODUCED, "the steps did not fail again by themselves; nothing was shrunk")
        return tuple(steps), (*violations, note)
    runs = 1
    shorter = True
    while shorter:
        shorter = False
        for dropped in _one_or_two(len(kept.steps)):
            if runs >= MAX_RUNS:
                break
            again, renumbered = _run(setting, kept, dropped)
            runs += 1
            if renumbered and (again is None or not alike(again.violations, violations)):
                # A failure may be about a handle that nothing belongs to: then the others keep their numbers.
                again = rerun(setting, [step for at, step in enumerate(kept.steps) if at not in dropped])
                runs += 1
            if again is not None and alike(again.violations, violations):
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


def alike(found: Sequence[Violation], wanted: Sequence[Violation]) -> bool:
    """Say whether what is found first is of the same invariant; an error that the engine raised also of the same type
    and from the same file, since one error is soon mistaken for another.
    """
    if found[0].invariant != wanted[0].invariant:
        return False
    return found[0].invariant != ENGINE_FAULT or _error(found[0]) == _error(wanted[0])


def _error(violation: Violation) -> tuple[str, ...]:
    """Return type and file of what a violation says that an engine has raised."""
    told = _RAISED.search(violation.message)
    return () if told is None else told.groups()


def rerun(setting: Setting, steps: Sequence[Step]) -> Failing | None:
    """Run an example; return it up to its failure, None where it holds, means nothing, or no engine is built for the
    setting.
    """
    return _run(setting, Failing(tuple(steps), (), ()), ())[0]


def _run(setting: Setting, example: Failing, dropped: Collection[int]) -> tuple[Failing | None, bool]:
    """Run an example without some of its steps and what addresses what these created, else as :func:`rerun`; and say
    whether another step than the dropped ones was left out or got another number.
    """
    lock = None
    counts: list[Counts] = []
    numbers, renumbered = Renumbering(), False
    try:
        lock = LockStep(setting)
        for at, step in enumerate(example.steps):
            after = example.counts[at] if example.counts else NOTHING_YET
            if at in dropped:
                numbers.left_out(after)
                continue
            numbered = numbers.step(step) if dropped else step
            renumbered = renumbered or numbered != step
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
        return Failing(steps, failed.violations, tuple(counts)), renumbered
    except (KeyError, ValueError):
        # Without the step that was taken out, a later one addresses what no longer exists for the harness itself.
        return None, renumbered
    except (InputError, NotRunError):
        # An engine of somebody else's need not be had in every setting.
        return None, renumbered
    return None, renumbered
