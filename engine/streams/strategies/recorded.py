"""Recording and replaying: a schedule as plain data, and a run that has to follow it to the letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvcrucible.contract.errors import CrucibleError
from kvcrucible.engine.streams.strategy import EffectOutcome, Step, StepKind, Strategy


class ScheduleDivergence(CrucibleError):
    """A program did not offer the steps that it offered when its schedule was made: it depends on something hidden."""


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """One decision: the steps that were possible, which of them was taken, and what became of it."""

    possible: tuple[str, ...]
    taken: int
    outcome: str = EffectOutcome.SUCCEED.value


class Recording:
    """Writes down what ``inner`` decides; ``schedule`` grows with every step."""

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self.schedule: list[ScheduleEntry] = []

    def choose(self, steps: Sequence[Step]) -> int:
        """Return what the other strategy chooses."""
        taken = self._inner.choose(steps)
        self.schedule.append(ScheduleEntry(tuple(map(str, steps)), taken))
        return taken

    def outcome(self, step: Step) -> EffectOutcome:
        """Return what the other strategy says becomes of it."""
        outcome = self._inner.outcome(step)
        self.schedule[-1] = replace(self.schedule[-1], outcome=outcome.value)
        return outcome


class Replaying:
    """Decides as ``schedule`` says and raises :class:`ScheduleDivergence` at the first step that is not the same."""

    def __init__(self, schedule: Sequence[ScheduleEntry]) -> None:
        self._schedule = tuple(schedule)
        self._at = 0

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the step that was taken at this place."""
        found = tuple(map(str, steps))
        if self._at == len(self._schedule):
            raise ScheduleDivergence(f"step {self._at}: the schedule has ended; possible: {list(found)}")
        entry = self._schedule[self._at]
        if entry.possible != found:
            raise ScheduleDivergence(
                f"step {self._at}: possible {list(found)}, in the schedule {list(entry.possible)}"
            )
        self._at += 1
        return entry.taken

    def outcome(self, step: Step) -> EffectOutcome:
        """Return what became of it."""
        assert step.kind is StepKind.RUN
        return EffectOutcome(self._schedule[self._at - 1].outcome)

    def finish(self) -> None:
        """Raise :class:`ScheduleDivergence` where the run ended before the schedule did."""
        if self._at < len(self._schedule):
            raise ScheduleDivergence(f"{len(self._schedule) - self._at} steps of the schedule were not taken")
