"""Random walk: any step, with equal chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvcrucible.engine.streams.strategies.in_order import InOrder
from kvcrucible.engine.streams.strategy import Step


class RandomWalk(InOrder):
    """The same walk for the same seed.

    Mixes streams well and rarely holds one back for long: order faults that need a long delay are the business of
    :class:`~kvcrucible.engine.streams.strategies.priority_change.PriorityChange`.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def choose(self, steps: Sequence[Step]) -> int:
        """Return any step."""
        return self._draw.randrange(len(steps))
