"""What a kernel campaign has to cover: kernel × profile × plane order × class of lengths."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from itertools import combinations, product

from kvcrucible.contract.profiles import PROFILES, PlaneOrder

#: Operators of ``engine/kernels/api.py``; attention three times, by what its queries see.
KERNELS = ("append", "decode", "prefill", "cached-only", "copy", "pack", "unpack")

#: Lengths in tokens around which tiling and page arithmetic go wrong, by the name of their class.
BOUNDARIES: dict[str, tuple[int, ...]] = {
    "0": (0,),
    "1": (1,),
    "31-33": (31, 32, 33),
    "63-65": (63, 64, 65),
    "127-129": (127, 128, 129),
    "255-257": (257, 255, 256),
}
#: Every length up to here that is no boundary.
OTHER, LONGEST = "other", 300
CLASSES = (*BOUNDARIES, OTHER)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination that is to be tried; every value is a name."""

    kernel: str
    profile: str
    order: str
    length: str

    def __str__(self) -> str:
        return " × ".join(astuple(self))


def lengths_of(name: str) -> tuple[int, ...]:
    """Return the lengths of a class."""
    if name in BOUNDARIES:
        return BOUNDARIES[name]
    near = {length for lengths in BOUNDARIES.values() for length in lengths}
    return tuple(length for length in range(LONGEST + 1) if length not in near)


def all_cells(
    kernels: Iterable[str] = KERNELS,
    profiles: Iterable[str] = tuple(PROFILES),
    lengths: Iterable[str] = CLASSES,
) -> list[Cell]:
    """Return every cell of the given kernels, profiles and classes of lengths."""
    orders = [order.value for order in PlaneOrder]
    return [Cell(*values) for values in product(kernels, profiles, orders, lengths)]


def pairwise(cells: Iterable[Cell], seed: int) -> list[Cell]:
    """Return few of ``cells`` that hold every pair of values that any of them holds, chosen greedily."""
    pool = list(cells)
    random.Random(seed).shuffle(pool)
    missing = {pair for cell in pool for pair in _pairs(cell)}
    chosen: list[Cell] = []
    while missing:
        best = max(pool, key=lambda cell: len(missing & _pairs(cell)))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def uncovered_pairs(wanted: Iterable[Cell], tried: Counter[Cell]) -> int:
    """Return how many pairs of values that ``wanted`` cells hold no tried cell holds."""
    had = {pair for cell in tried for pair in _pairs(cell)}
    return len({pair for cell in wanted for pair in _pairs(cell)} - had)


def _pairs(cell: Cell) -> set[tuple[int, str, int, str]]:
    values = enumerate(astuple(cell))
    return {(i, a, j, b) for (i, a), (j, b) in combinations(values, 2)}
