"""What a simulated device asks of the strategy that decides for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class StepKind(StrEnum):
    """What a step does."""

    #: The next effect of a stream runs.
    RUN = "run"
    #: The host learns that an event has been reached.
    SIGNAL = "signal"


class EffectOutcome(StrEnum):
    """What becomes of an effect that runs."""

    SUCCEED = "succeed"
    #: It fails and has changed nothing.
    FAIL_WITHOUT_EFFECT = "fail-without-effect"
    #: It fails and has done its work all the same: a failure proves nothing about the bytes.
    FAIL_AFTER_EFFECT = "fail-after-effect"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that could happen next.

    ``ticket`` numbers effects and events over all streams, in the order in which the host submitted them.
    """

    kind: StepKind
    stream: str
    ticket: int
    label: str

    @property
    def actor(self) -> tuple[str, StepKind]:
        """Whose step it is: each stream runs effects and, independently, tells the host of its events."""
        return self.stream, self.kind

    def __str__(self) -> str:
        return f"{self.kind.value} {self.stream} {self.ticket} {self.label}".rstrip()


class Strategy(Protocol):
    """Decides the order and the outcome of everything that is open on a device.  Stateful; one for each run.

    A strategy that is asked the same questions in the same order gives the same answers.
    """

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the index of the step to take; ``steps`` are all that are possible, at least one, by ticket."""

    def outcome(self, step: Step) -> EffectOutcome:
        """Return what becomes of the effect of ``step``, which was chosen just now."""
