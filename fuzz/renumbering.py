"""Steps of an example under other numbers: what each one creates is known by when it was created, so an example that
loses a step goes on with the handles of those behind it moved up, and without what addressed what is gone.

Does not verify: anything; what an example means is for whoever runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from kvcrucible.contract.operations import (
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Pin,
    Release,
    Restore,
    Truncate,
    TryAdmit,
)
from kvcrucible.fuzz.steps import Step

#: How many sequences, units and transfers there have been; the next ones get these numbers.
Counts: TypeAlias = tuple[int, int, int]

NOTHING_YET: Counts = (0, 0, 0)

_SEQUENCE, _UNIT, _TRANSFER = range(3)

#: By operation: the field that addresses something, and what.
_ADDRESSED: dict[type, tuple[str, int]] = {
    TryAdmit: ("sequence", _SEQUENCE),
    Truncate: ("sequence", _SEQUENCE),
    Checkpoint: ("sequence", _SEQUENCE),
    Finish: ("sequence", _SEQUENCE),
    Cancel: ("sequence", _SEQUENCE),
    Fork: ("source", _SEQUENCE),
    Release: ("continuation", _SEQUENCE),
    Pin: ("continuation", _SEQUENCE),
    Demote: ("continuation", _SEQUENCE),
    Restore: ("continuation", _SEQUENCE),
    EndUnit: ("unit", _UNIT),
    CancelTransfer: ("transfer", _TRANSFER),
}


class Numbers(Protocol):
    """What the reference's books tell of the numbers that come next."""

    next_sequence: int
    next_unit: int
    next_transfer: int


def counts_of(books: Numbers) -> Counts:
    """Return how many of each there have been."""
    return books.next_sequence, books.next_unit, books.next_transfer


@dataclass(slots=True)
class Renumbering:
    """From the numbers of an example to those of a shorter one that is under way.

    ``was``: how many of each there had been in the example before the step that is looked at; ``now``: in the shorter
    one.
    """

    was: Counts = NOTHING_YET
    now: Counts = NOTHING_YET
    _numbers: tuple[dict[int, int], dict[int, int], dict[int, int]] = field(
        default_factory=lambda: ({}, {}, {})
    )

    def created(self, was: Counts, now: Counts) -> None:
        """Note what a step has created: so many there were after it in the example, and are now."""
        for numbers, first, last, new, end in zip(self._numbers, self.was, was, self.now, now, strict=True):
            numbers.update(zip(range(first, last), range(new, end), strict=False))
        self.was, self.now = was, now

    def left_out(self, was: Counts) -> None:
        """Note a step that the shorter example goes without: so many there were after it in the example."""
        self.was = was

    def step(self, step: Step) -> Step | None:
        """Return a step under the numbers that hold now; None where what it addresses is gone."""
        if isinstance(step, BeginUnit):
            work = [self._with(one, "sequence", _SEQUENCE) for one in step.work]
            left = tuple(one for one in work if one is not None)
            return replace(step, work=left) if left or not step.work else None
        if isinstance(step, EndUnit) and step.accepted:
            numbered = [(self._number(one, _SEQUENCE), tokens) for one, tokens in step.accepted]
            step = replace(step, accepted=tuple((one, n) for one, n in numbered if one is not None))
        addressed = _ADDRESSED.get(type(step))
        return step if addressed is None else self._with(step, *addressed)

    def _with(self, step: Any, name: str, kind: int) -> Any:
        number = self._number(getattr(step, name), kind)
        return None if number is None else replace(step, **{name: number})

    def _number(self, number: int, kind: int) -> int | None:
        if number >= self.was[kind]:
            # What the example had not created either stays as far ahead.
            return number - self.was[kind] + self.now[kind]
        return self._numbers[kind].get(number) if number >= 0 else number
