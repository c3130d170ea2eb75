"""Starving: chosen streams make no progress as long as anything else can."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvcrucible.engine.streams.strategies.in_order import InOrder
from kvcrucible.engine.streams.strategy import Step, StepKind


class Starving(InOrder):
    """Takes the oldest step, but those of ``actors`` (stream and kind) only where there is no other.

    ``{("copy", StepKind.RUN)}`` is a copy engine that lags; ``{("copy", StepKind.SIGNAL)}`` one that is done and does
    not say so.
    """

    def __init__(self, actors: Collection[tuple[str, StepKind]]) -> None:
        self._actors = frozenset(actors)

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the oldest step of an actor that is not starved, else the oldest."""
        return next((index for index, step in enumerate(steps) if step.actor not in self._actors), 0)
