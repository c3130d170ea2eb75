"""Failing: another strategy's order, in which chosen effects fail."""

from __future__ import annotations

from collections.abc import Container, Sequence

from kvcrucible.engine.streams.strategy import EffectOutcome, Step, Strategy


class Failing:
    """Makes the effects with ``label`` fail whose ordinal (from 1, in the order in which they run) is in ``ordinals``.

    Everything else is as ``inner`` decides, which may itself make effects fail.
    """

    def __init__(
        self,
        inner: Strategy,
        label: str,
        ordinals: Container[int],
        outcome: EffectOutcome = EffectOutcome.FAIL_WITHOUT_EFFECT,
    ) -> None:
        self._inner, self._label, self._ordinals, self._outcome = inner, label, ordinals, outcome
        #: Effects with the label that have run so far.
        self.seen = 0

    def choose(self, steps: Sequence[Step]) -> int:
        """Return what the other strategy chooses."""
        return self._inner.choose(steps)

    def outcome(self, step: Step) -> EffectOutcome:
        """Fail the chosen effects."""
        decided = self._inner.outcome(step)
        if step.label != self._label:
            return decided
        self.seen += 1
        return self._outcome if self.seen in self._ordinals else decided
