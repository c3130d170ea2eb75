"""Judges what shows only in device effects: when units are reported as complete, and how much is copied.

Verifies: ``progress`` reports every ended unit once, in the order of their ends, not before all effects of the unit
have run and not later than the effects of its end; a fork copies exactly the columns of its partial tail, and nothing
but a fork or a cut copies any.
Does not verify: what a cut copies, copies of engines with several pools, engines that do not count their effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvcrucible.contract.in_words import in_words
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    EndUnit,
    Fork,
    Operation,
    Outcome,
    Progress,
    Scheduled,
    Truncate,
)
from kvcrucible.invariants.violation import Violation, mismatch


@runtime_checkable
class CountsEffects(Protocol):
    """An adapter whose engine counts its device effects."""

    def effects(self) -> tuple[int, int]:
        """Return (effects that have run, effects submitted)."""

    def copied_columns(self) -> int:
        """Return how many token columns page copies have moved since the engine was built."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A unit that has ended: effects submitted before its end, and after it."""

    unit: int
    earliest: int
    latest: int


class EffectsJudge:
    """Follows one engine; without :class:`CountsEffects` it judges nothing."""

    def __init__(self, adapter: object, page_sizes: Sequence[int]) -> None:
        self._counts = adapter if isinstance(adapter, CountsEffects) else None
        self._page_size = page_sizes[0] if len(page_sizes) == 1 else None
        self._ended: deque[_Ended] = deque()
        self._submitted = self._copied = 0

    def before(self, operation: Operation) -> None:
        """Note the counts before an operation."""
        if self._counts is not None:
            _, self._submitted = self._counts.effects()
            self._copied = self._counts.copied_columns()

    def judge(self, operation: Operation, outcome: Outcome) -> list[Violation]:
        """Judge an operation that has been carried out; refusals have no effects."""
        if self._counts is None:
            return []
        if outcome.refusal is not None:
            return self._judge_copies(operation, 0)
        if isinstance(operation, EndUnit):
            _, submitted = self._counts.effects()
            self._ended.append(_Ended(operation.unit, self._submitted, submitted))
        if isinstance(operation, Progress):
            return self._judge_progress(outcome.value)
        return self._judge_copies(operation, self._expected_copies(operation, outcome))

    def _judge_progress(self, value: object) -> list[Violation]:
        assert self._counts is not None
        run, _ = self._counts.effects()
        reported = list(value) if isinstance(value, tuple) else [value]
        must = [ended.unit for ended in self._ended if ended.latest <= run]
        may = [ended.unit for ended in self._ended if ended.earliest <= run]
        if reported != may[: len(reported)] or len(reported) < len(must):
            return [
                mismatch(
                    "frontier-visibility", "units reported as complete", reported, f"{must}, at most {may}"
                )
            ]
        for _ in reported:
            self._ended.popleft()
        return []

    def _judge_copies(self, operation: Operation, due: int | None) -> list[Violation]:
        assert self._counts is not None
        found = self._counts.copied_columns() - self._copied
        if due is None or found == due:
            return []
        return [mismatch("cow-isolation", f"{in_words(operation)}, columns copied", found, due)]

    def _expected_copies(self, operation: Operation, outcome: Outcome) -> int | None:
        """Return the columns that the operation has to copy, None where that depends on more than its outcome."""
        if self._page_size is None or isinstance(operation, Truncate):
            return None
        if isinstance(operation, Fork):
            return operation.position % self._page_size
        value = outcome.value
        admitted = (
            value.admitted
            if isinstance(value, Scheduled)
            else (value,)
            if isinstance(value, Admitted)
            else ()
        )
        if any(one.mode is AdmissionMode.MOVE_TRUNCATED for one in admitted):
            return None
        return sum(one.hit % self._page_size for one in admitted if one.mode is AdmissionMode.FORK)
