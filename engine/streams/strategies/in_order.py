"""In order: everything happens as it was submitted."""

from __future__ import annotations

from collections.abc import Sequence

from kvcrucible.engine.streams.strategy import EffectOutcome, Step


class InOrder:
    """Takes the oldest step, so that several streams look like one.  Every effect succeeds."""

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the step of the lowest ticket."""
        return 0

    def outcome(self, step: Step) -> EffectOutcome:
        """Succeed."""
        return EffectOutcome.SUCCEED
