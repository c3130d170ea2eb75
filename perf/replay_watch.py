"""An engine under watch: every operation is drained and judged, the whole state now and then (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import Operation, Outcome
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.history import HistoryWriter, ObservedEngine
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.invariants.judgements import ENGINE_FAULT, raised
from kvcrucible.invariants.monitor import Monitor
from kvcrucible.invariants.registry import checkers
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: Requests that a message names; a decode round may concern hundreds.
MAX_NAMED_REQUESTS = 8

#: Violations that a message names; one lost reference count may show on thousands of pages.
MAX_NAMED_VIOLATIONS = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """A request as the trace names it, and the engine's number for it (None before it has one)."""

    request: int | str
    sequence: int | None = None

    def __str__(self) -> str:
        return f"request {self.request}" + ("" if self.sequence is None else f" (sequence {self.sequence})")


class OperationFailed(InvariantViolated):
    """An operation after which something does not hold; ``number`` counts operations from 1."""

    def __init__(
        self, number: int, operation: str, subjects: Sequence[Subject], violations: Sequence[Violation]
    ) -> None:
        super().__init__(violations)
        self.number, self.operation, self.subjects = number, operation, tuple(subjects)

    def __reduce__(self) -> tuple[type[OperationFailed], tuple[Any, ...]]:
        """Rebuild from the parts, so that the exception survives a process boundary."""
        return type(self), (self.number, self.operation, self.subjects, self.violations)

    def __str__(self) -> str:
        about = _listed(self.subjects, MAX_NAMED_REQUESTS, ", ")
        found = _listed(self.violations, MAX_NAMED_VIOLATIONS, "; ")
        return f"operation {self.number}, {self.operation}{' of ' if about else ''}{about}: {found}"


def _listed(items: Sequence[object], most: int, separator: str) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(map(str, items[:most])) + more


class WatchedEngine:
    """Owns an engine and its monitor.  After an :class:`OperationFailed` neither is to be used any more.

    ``full_every``: operations between two checks of the whole state.  ``pools`` of ``last`` are the counters after the
    latest operation; ``peak_leased`` is the most pages of Main that were leased after any.  ``history``: where to write
    the engine's history; :meth:`close` completes it.
    """

    def __init__(self, config: EngineConfig, full_every: int, history: Path | None = None) -> None:
        self.engine = Engine(config)
        self._observed = (
            None if history is None else ObservedEngine(self.engine, HistoryWriter(history, config))
        )
        self.monitor = Monitor(
            checkers(Capabilities("paged", backends=frozenset(pool.name for pool in config.pools[1:])))
        )
        self.operations = self.step_checks = self.full_checks = self.peak_leased = 0
        self._full_every = full_every
        self.last: Snapshot = snapshot(self.engine)
        self.check_all("start", ())

    def perform(self, operation: Operation, subjects: Sequence[Subject] = ()) -> Outcome:
        """Carry out one operation and judge the step.

        Raises ``OperationFailed`` where an invariant is broken, or where the engine raises what is no refusal.
        """
        self.operations += 1
        name = type(operation).__name__
        try:
            outcome = execute(self.engine, operation)
        except Exception as error:
            fault = Violation(ENGINE_FAULT, raised(error))
            raise OperationFailed(self.operations, name, subjects, [fault]) from error
        self.last, touched = drain(self.engine)
        if self._observed is not None:
            self._observed.record(operation, outcome, self.last)
        found = self.monitor.observe(self.last, touched)
        self.step_checks += 1
        self.require(found, name, subjects)
        self.peak_leased = max(self.peak_leased, self.last.pools[0].leased)
        if self.operations % self._full_every == 0:
            self.check_all(name, subjects)
        return outcome

    def close(self, empty: bool) -> None:
        """Complete the history, if one is written; ``empty``: the engine holds nothing any more."""
        if self._observed is not None:
            self._observed.writer.close(empty)

    def must(self, operation: Operation, subjects: Sequence[Subject] = ()) -> Outcome:
        """Perform what the engine has promised to carry out: for an admitted sequence a refusal breaks its promise."""
        outcome = self.perform(operation, subjects)
        if outcome.refusal is not None:
            self.refused(outcome.refusal, type(operation).__name__, subjects)
        return outcome

    def refused(self, kind: RefusalKind, name: str, subjects: Sequence[Subject]) -> None:
        """Report a refusal that was not due."""
        broken = Violation(
            "completion-guarantee", f"{name}: found refused, {kind.value}, expected carried out"
        )
        self.require([broken], name, subjects)

    def check_all(self, name: str, subjects: Sequence[Subject]) -> None:
        """Judge the whole state, and that no change went unreported."""
        found = self.monitor.observe_full(snapshot(self.engine))
        self.full_checks += 1
        self.require(found, f"full check after {name}", subjects)

    def require(self, violations: Sequence[Violation], name: str, subjects: Sequence[Subject]) -> None:
        """Raise ``OperationFailed`` if there are any violations."""
        if violations:
            raise OperationFailed(self.operations, name, subjects, violations)
