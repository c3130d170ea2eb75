"""Segregated fit: holes in classes of size, found through one bitmap, as two-level segregated allocators do.

A buddy allocator would be the other way to classes.  It is left out: it rounds extents up to powers of two, which for
sizes of every kind leaves a quarter of what it holds unused, and it joins halves of one block only, not any neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort

#: Classes in each power of two, as bits: 8, so that a hole of the next class is at most an eighth too large.
SUBCLASS_BITS = 3


def size_class(size: int) -> int:
    """Return the class of a hole of ``size`` bytes, at least 1; ascending in the size."""
    exponent = size.bit_length() - 1
    fraction = (size << SUBCLASS_BITS >> exponent) - (1 << SUBCLASS_BITS)
    return exponent << SUBCLASS_BITS | fraction


class SegregatedFit:
    """Takes the lowest hole of the first class in which every hole is large enough: no search in the usual case.

    Where no such class has a hole, the class of the size itself is searched, so that a fit is never missed.
    """

    def __init__(self) -> None:
        self.cursor = 0
        #: Class -> (start, size) of its holes, by address; a class without holes is absent.
        self._classes: dict[int, list[tuple[int, int]]] = {}
        #: Bit c is set where class c has a hole.
        self._bitmap = 0

    def add(self, start: int, size: int) -> None:
        """Note a new hole."""
        number = size_class(size)
        insort(self._classes.setdefault(number, []), (start, size))
        self._bitmap |= 1 << number

    def remove(self, start: int, size: int) -> None:
        """Forget a hole."""
        number = size_class(size)
        holes = self._classes[number]
        index = bisect_left(holes, (start, size))
        assert holes[index] == (start, size)
        del holes[index]
        if not holes:
            del self._classes[number]
            self._bitmap ^= 1 << number

    def choose(self, size: int) -> int | None:
        """Return a hole of a class that is large enough as a whole, else one of the same class that happens to be."""
        number = size_class(size)
        above = self._bitmap >> (number + 1)
        if above:
            lowest = number + (above & -above).bit_length()
            return self._classes[lowest][0][0]
        return next((start for start, found in self._classes.get(number, ()) if found >= size), None)

    def placed(self, stop: int) -> None:
        """Nothing to learn: only the classes count."""
