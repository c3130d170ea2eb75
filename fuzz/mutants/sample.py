"""Draws mutants: each part of the engine and each operator in proportion, the first ones of a longer draw the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from kvcrucible.fuzz.mutants.mutant import Mutant

#: Fractional part of the golden ratio: its multiples, taken modulo 1, never leave a large gap.
_GOLDEN = 0.6180339887498949


def draw(mutants: Sequence[Mutant], number: int, seed: int) -> list[Mutant]:
    """Return ``number`` of the mutants (all where there are no more), decided by ``seed``.

    They are laid out by module and operator, shuffled within each, and picked up by steps of the golden ratio, so that
    every stretch of the line gets its share however many are drawn: a sample in proportion to the strata, of which a
    larger sample by the same seed is a continuation.
    """
    decide = random.Random(seed)
    line = sorted(mutants, key=lambda one: (one.module, one.operator, decide.random()))
    picks = _picks(len(line), decide.random())
    return [line[next(picks)] for _ in range(min(number, len(line)))]


def _picks(length: int, start: float) -> Iterator[int]:
    """Yield every index below ``length`` once, spread evenly at any moment."""
    taken = [False] * length
    left, at = length, start
    while left:
        at = (at + _GOLDEN) % 1
        index = int(at * length)
        # Towards the end most places are taken: the next one that is not lies close by.
        while taken[index]:
            index = (index + 1) % length
        taken[index] = True
        left -= 1
        yield index
