"""Best fit: the smallest hole that is large enough, of several the lowest."""

from __future__ import annotations

from bisect import bisect_left, insort


class BestFit:
    """Leaves the smallest rest and saves large holes for large extents.  One binary search."""

    def __init__(self) -> None:
        self.cursor = 0
        #: (size, start), ascending.
        self._holes: list[tuple[int, int]] = []

    def add(self, start: int, size: int) -> None:
        """Note a new hole."""
        insort(self._holes, (size, start))

    def remove(self, start: int, size: int) -> None:
        """Forget a hole."""
        index = bisect_left(self._holes, (size, start))
        assert self._holes[index] == (size, start)
        del self._holes[index]

    def choose(self, size: int) -> int | None:
        """Return the smallest hole of at least ``size``."""
        index = bisect_left(self._holes, (size, -1))
        return self._holes[index][1] if index < len(self._holes) else None

    def placed(self, stop: int) -> None:
        """Nothing to learn: only the sizes of the holes count."""
