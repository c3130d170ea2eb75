"""Holes in the order of their addresses: the part that first fit and next fit share."""

from __future__ import annotations

from bisect import bisect_left, insort


class HolesByAddress:
    """Starts in ascending order, and the size at each start.

    Not a policy of its own: the order in which :meth:`choose` looks at the holes is what tells the policies apart.
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.cursor = 0

    def add(self, start: int, size: int) -> None:
        """Note a new hole."""
        insort(self.starts, start)
        self.sizes[start] = size

    def remove(self, start: int, size: int) -> None:
        """Forget a hole."""
        assert self.sizes[start] == size
        del self.sizes[start], self.starts[bisect_left(self.starts, start)]

    def first_between(self, first: int, last: int, size: int) -> int | None:
        """Return the lowest start of a hole of ``size`` or more among the holes number ``first`` to ``last`` − 1."""
        for index in range(first, last):
            if self.sizes[self.starts[index]] >= size:
                return self.starts[index]
        return None
