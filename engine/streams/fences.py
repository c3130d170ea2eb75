"""Units in the order in which they end, and how far the device is known to have come (DESIGN 4.7, decision 0013).

A unit is *outstanding* from its end until the host knows that its effects have taken place.  Units complete in the
order in which they ended, so one number says it all: the ordinal up to which every unit is complete.  A *fence* is the
ordinal of the last unit that touched a page; 0 is no unit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvcrucible.engine.streams.interface import Event


@dataclass(frozen=True, slots=True)
class _Ended:
    """A unit whose host side has ended, and the point in the stream behind its effects."""

    unit: int
    event: Event


class UnitFences:
    """Ordinals of units by their ends.  ``ended``: the last one given out; ``completed``: all up to it are complete.

    What :meth:`collect` has not returned yet is remembered, complete or not.
    """

    __slots__ = ("_unreported", "completed", "ended")

    def __init__(self) -> None:
        self.ended = self.completed = 0
        self._unreported: deque[_Ended] = deque()

    def end(self, unit: int, event: Event) -> int:
        """Note that ``unit`` ends with ``event``; return its ordinal, from 1.

        It is complete at once where its event is done and no earlier unit is outstanding: so with a device that runs
        everything immediately no page ever waits.
        """
        self._unreported.append(_Ended(unit, event))
        if self.completed == self.ended and event.done:
            self.completed += 1
        self.ended += 1
        return self.ended

    def collect(self) -> tuple[int, ...]:
        """Take note of the units that are done by now; return those not returned before, in the order of their ends."""
        done: list[int] = []
        while self._unreported and self._unreported[0].event.done:
            done.append(self._unreported.popleft().unit)
        self.completed = max(self.completed, self.ended - len(self._unreported))
        return tuple(done)

    def unit(self, ordinal: int) -> int:
        """Return the outstanding unit with ``ordinal``."""
        assert self.completed < ordinal <= self.ended, f"unit number {ordinal} is not outstanding"
        return self._unreported[ordinal - (self.ended - len(self._unreported)) - 1].unit
