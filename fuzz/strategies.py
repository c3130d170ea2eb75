"""What rules draw their arguments from: small strategies that both kinds of campaign can draw.

A strategy is plain data that says which values there are.  Hypothesis draws it through its own strategies, so that it
shrinks and keeps examples as ever (:func:`kvcrucible.fuzz.machine.to_hypothesis`); the raw loop draws it from
:class:`Choices`, at the price of a few numbers of a seeded generator.  Rules are written once, against these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")


class Choices(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``, both included."""

    def one_of(self, options: Sequence[T]) -> T:
        """Return one of the options; one that is named twice is twice as likely."""


class SeededChoices:
    """Choices of a seeded generator: the same seed makes the same choices, on every machine and in every process."""

    def __init__(self, seed: int | str) -> None:
        # Only ``random`` is asked: the sequence of what it returns is promised to stay, and it is the quickest.
        self._random = Random(seed).random

    def integer(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def one_of(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[int(self._random() * len(options))]


class Strategy(ABC, Generic[T_co]):
    """Values that may be drawn; immutable, and without state."""

    __slots__ = ()

    @abstractmethod
    def draw(self, choices: Choices) -> T_co:
        """Return one value."""

    @abstractmethod
    def simplest(self) -> T_co:
        """Return the value to which examples are shrunk."""


@dataclass(frozen=True, slots=True)
class SampledFrom(Strategy[T]):
    """One of the options, each as likely as it is often named; the first is the simplest."""

    options: Sequence[T]

    def draw(self, choices: Choices) -> T:
        """Return one of them."""
        return choices.one_of(self.options)

    def simplest(self) -> T:
        """Return the first."""
        return self.options[0]


@dataclass(frozen=True, slots=True)
class Integers(Strategy[int]):
    """A number from ``low`` to ``high``, both included."""

    low: int
    high: int

    def draw(self, choices: Choices) -> int:
        """Return a number."""
        return choices.integer(self.low, self.high)

    def simplest(self) -> int:
        """Return the number nearest to 0."""
        return min(max(0, self.low), self.high)


@dataclass(frozen=True, slots=True)
class Lists(Strategy[list[T]]):
    """From ``least`` to ``most`` values of one strategy."""

    values: Strategy[T]
    least: int
    most: int

    def draw(self, choices: Choices) -> list[T]:
        """Return a list."""
        draw = self.values.draw
        return [draw(choices) for _ in range(choices.integer(self.least, self.most))]

    def simplest(self) -> list[T]:
        """Return a list as short as may be."""
        return [self.values.simplest() for _ in range(self.least)]


@dataclass(frozen=True, slots=True)
class Built(Strategy[T]):
    """What ``build`` makes of one value of each of the ``parts``."""

    build: Callable[..., T]
    parts: tuple[Strategy[Any], ...]

    def draw(self, choices: Choices) -> T:
        """Return what is built."""
        return self.build(*[part.draw(choices) for part in self.parts])

    def simplest(self) -> T:
        """Return what is built of the simplest parts."""
        return self.build(*[part.simplest() for part in self.parts])


def sampled_from(options: Sequence[T]) -> Strategy[T]:
    """Return a strategy of the options; Hypothesis shrinks to the first of them."""
    assert options, "there has to be something to choose from"
    return SampledFrom(options)


def integers(low: int, high: int) -> Strategy[int]:
    """Return a strategy of the numbers from ``low`` to ``high``, both included."""
    return Integers(low, high)


def booleans() -> Strategy[bool]:
    """Return a strategy of False and True."""
    return SampledFrom((False, True))


def just(value: T) -> Strategy[T]:
    """Return a strategy of one value."""
    return SampledFrom((value,))


def none() -> Strategy[None]:
    """Return a strategy of None."""
    return just(None)


def lists(values: Strategy[T], *, min_size: int, max_size: int) -> Strategy[list[T]]:
    """Return a strategy of lists of ``min_size`` to ``max_size`` values."""
    return Lists(values, min_size, max_size)


def tuples(first: Strategy[A], second: Strategy[B]) -> Strategy[tuple[A, B]]:
    """Return a strategy of pairs."""
    return Built(_pair, (first, second))


def builds(build: Callable[..., T], *parts: Strategy[Any]) -> Strategy[T]:
    """Return a strategy of what ``build`` makes of a value of each part."""
    return Built(build, parts)


def _pair(first: A, second: B) -> tuple[A, B]:
    return first, second
