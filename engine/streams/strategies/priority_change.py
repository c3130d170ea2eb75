"""Priorities that change at a few random points: finds a fault of ordering depth d with a proved probability.

After Burckhardt, Kothari, Musuvathi and Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees of Finding
Bugs" (ASPLOS 2010): over n actors and k steps one run finds a fault that d ordered events make happen with a
probability of at least 1 / (n · k^(d − 1)).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.streams.strategies.in_order import InOrder
from kvcrucible.engine.streams.strategy import Step, StepKind


class PriorityChange(InOrder):
    """Takes the step of the actor with the highest priority; at ``depth`` − 1 steps that actor falls behind all others.

    ``expected_steps`` is how many steps a run takes: change points lie below it, so one that is too low looks at the
    beginning only and one that is too high wastes points.  The same schedule for the same arguments.  Raises
    ``BadArgument`` for a depth below 1 or fewer steps than change points.
    """

    def __init__(self, seed: int, depth: int, expected_steps: int) -> None:
        if depth < 1 or expected_steps < depth - 1:
            raise BadArgument(
                f"depth {depth} over {expected_steps} steps",
                f"{depth - 1} change points",
                "use a depth from 1 on and at least as many steps as change points",
            )
        self._draw = random.Random(seed)
        points = self._draw.sample(range(1, expected_steps + 1), depth - 1)
        #: Step number -> the priority to which it lowers its actor; lower than every first priority, and all different.
        self._lowered_to = {point: -float(rank) for rank, point in enumerate(points, start=1)}
        self._priorities: dict[tuple[str, StepKind], float] = {}
        self._taken = 0

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the step of the highest priority; an actor that is met for the first time gets a random one."""
        for step in steps:
            if step.actor not in self._priorities:
                self._priorities[step.actor] = self._draw.random()
        self._taken += 1
        best = self._best(steps)
        if self._taken in self._lowered_to:
            self._priorities[steps[best].actor] = self._lowered_to[self._taken]
            best = self._best(steps)
        return best

    def _best(self, steps: Sequence[Step]) -> int:
        return max(range(len(steps)), key=lambda index: self._priorities[steps[index].actor])
