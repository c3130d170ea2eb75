"""Exhaustive: every schedule of a small program, depth first, within stated bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.streams.strategies.in_order import InOrder
from kvcrucible.engine.streams.strategies.recorded import ScheduleDivergence
from kvcrucible.engine.streams.strategy import Step, StepKind


class Exhaustive:
    """Yields one strategy for each schedule; the caller runs the same program to its end under each.

    ``max_schedules`` bounds how many are yielded.  ``max_preemptions`` bounds how often a schedule turns from an actor
    that could go on to another one; most faults need one or two, and few schedules are within that.  ``complete`` is
    True once every schedule within the bound on preemptions has been yielded.
    """

    def __init__(self, max_schedules: int, max_preemptions: int | None = None) -> None:
        if max_schedules < 1 or (max_preemptions is not None and max_preemptions < 0):
            raise BadArgument(
                f"{max_schedules} schedules, {max_preemptions} preemptions",
                "nothing to do",
                "use one schedule and no preemption, or more",
            )
        self._max_schedules, self._max_preemptions = max_schedules, max_preemptions
        self.complete = False

    def __iter__(self) -> Iterator[Walk]:
        self.complete = False
        trail: list[tuple[int, int]] = []
        for _ in range(self._max_schedules):
            walk = Walk(trail, self._max_preemptions)
            yield walk
            trail = walk.trail
            while trail and trail[-1][0] + 1 == trail[-1][1]:
                trail.pop()
            if not trail:
                self.complete = True
                return
            taken, options = trail.pop()
            trail.append((taken + 1, options))


class Walk(InOrder):
    """One schedule of an enumeration: first along ``trail``, then always the first option.

    Afterwards ``trail`` holds (option taken, options) of every step.  Raises :class:`ScheduleDivergence` where the
    program does not offer what it offered before.
    """

    def __init__(self, trail: Sequence[tuple[int, int]], max_preemptions: int | None) -> None:
        self.trail = list(trail)
        self._at = 0
        self._left = max_preemptions
        self._last: tuple[str, StepKind] | None = None

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the next step of the trail, beyond its end the first option: going on with the actor of the last."""
        # The actor of the last step comes first, so that the first schedule is the one without a preemption.
        options = sorted(range(len(steps)), key=lambda index: steps[index].actor != self._last)
        can_go_on = steps[options[0]].actor == self._last
        if can_go_on and self._left == 0:
            options = options[:1]
        if self._at == len(self.trail):
            self.trail.append((0, len(options)))
        taken, expected = self.trail[self._at]
        if expected != len(options):
            raise ScheduleDivergence(
                f"step {self._at}: {len(options)} options, {expected} before: the program is not the same each time"
            )
        self._at += 1
        if can_go_on and taken and self._left is not None:
            self._left -= 1
        self._last = steps[options[taken]].actor
        return options[taken]
