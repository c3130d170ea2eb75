"""What an allocator that knows rows alone has no notion of: a queue, sequence ids, frontiers, tokens, units, limits.

An adapter of such an engine keeps one :class:`Book` beside it.  Refusals come from the rows of ``contract.semantics``,
but for want of pages, which is for the engine to say.  Rows are handed out lowest first.

Verifies nothing: whatever the book answers is the harness speaking to itself, and the adapter says so in its
``unchecked``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvcrucible.contract.config import EngineConfig, pages_for
from kvcrucible.contract.errors import REFUSALS
from kvcrucible.contract.media import labelled
from kvcrucible.contract.operations import (
    DEFAULT_IDENTITY,
    AdmissionMode,
    Admitted,
    BeginUnit,
    Cancel,
    EndUnit,
    Finish,
    Prefill,
    Scheduled,
    Submit,
    TryAdmit,
    UnitEnded,
    Waiting,
    WaitingKind,
    Work,
)
from kvcrucible.contract.semantics import Facts, State, first_refusal
from kvcrucible.contract.snapshot import SequenceState, UnitState
from kvcrucible.contract.tokens import EMPTY, Tokens, concat, count, prefix


@dataclass(frozen=True, slots=True)
class Unit:
    """One work, checked and not yet begun or in flight: ``tokens`` are the sequence's once it is committed."""

    sequence: int
    row: int
    start: int
    tokens: Tokens

    @property
    def stop(self) -> int:
        """The position after the last that it writes."""
        return count(self.tokens)


@dataclass(slots=True)
class Record:
    """One queued (no row) or active request; ``provisional`` tells from the frontier while ``unit`` is in flight."""

    prompt: Tokens
    limit: int
    row: int | None = None
    tokens: Tokens = EMPTY
    provisional: int = 0
    unit: int | None = None
    cancelled: bool = False

    @property
    def frontier(self) -> int:
        """Number of committed tokens."""
        return count(self.tokens)

    @property
    def state(self) -> State:
        """Where the request is in its life."""
        if self.row is None:
            return State.QUEUED
        return State.PREFILL if self.frontier < count(self.prompt) else State.DECODE


class Book:
    """Requests and units over one pool.  Every method that can refuse raises a ``Refusal`` and changes nothing then."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._records: dict[int, Record] = {}
        self._queue: list[int] = []
        self._units: dict[int, tuple[Unit, tuple[int, ...]]] = {}
        self._next_sequence = self._next_unit = 0

    # -- admission -----------------------------------------------------------------------------------------------------

    def submit(self, operation: Submit) -> int:
        """Queue a request."""
        prompt, pool = count(operation.prompt), self._config.main
        limit = prompt + operation.max_new
        facts = Facts(
            prompt=prompt,
            spans=operation.spans,
            max_new=operation.max_new,
            limit=limit,
            max_context=self._config.max_context,
            entitlement_pages=(pages_for(limit, pool.page_size),),
            capacity_pages=(pool.capacity_pages,),
        )
        _refuse(Submit, facts)
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        self._records[sequence] = Record(labelled(operation.prompt, operation.spans), limit)
        self._queue.append(sequence)
        return sequence

    def try_admit(self, sequence: int) -> Admitted | Waiting:
        """Give the head of the queue a row."""
        record = self._records.get(sequence)
        # Want of a row is a reason to wait, not a refusal.
        _refuse(TryAdmit, Facts(state=State.GONE if record is None else record.state, free_rows=1))
        if self._queue[0] != sequence:
            return Waiting(sequence, WaitingKind.BEHIND_HEAD)
        taken = {record.row for record in self._records.values()}
        free = [row for row in range(self._config.max_concurrency) if row not in taken]
        if not free:
            return Waiting(sequence, WaitingKind.NO_ROW)
        self._queue.pop(0)
        self._records[sequence].row = free[0]
        return Admitted(sequence, AdmissionMode.COLD)

    def schedule(self) -> Scheduled:
        """Admit from the head until one has to wait."""
        admitted: list[Admitted] = []
        while self._queue:
            answer = self.try_admit(self._queue[0])
            if isinstance(answer, Waiting):
                return Scheduled(tuple(admitted), answer)
            admitted.append(answer)
        return Scheduled(tuple(admitted))

    # -- units ---------------------------------------------------------------------------------------------------------

    def plan(self, work: tuple[Work, ...]) -> Unit:
        """Check a unit of one work; changes nothing, so that the engine can still refuse its pages."""
        _refuse(BeginUnit, Facts(empty=not work))
        (item,) = work
        _refuse(type(item), replace(self._facts(item.sequence, item.count), backend=item.backend))
        record = self._records[item.sequence]
        assert record.row is not None, "an active sequence has a row"
        if isinstance(item, Prefill):
            tokens = prefix(record.prompt, record.frontier + item.count)
        else:
            tokens = concat(record.tokens, item.tokens)
        return Unit(item.sequence, record.row, record.frontier, tokens)

    def begin(self, unit: Unit, entries: tuple[int, ...]) -> int:
        """Note a unit as in flight over a row that maps ``entries``; returns its id."""
        number, self._next_unit = self._next_unit, self._next_unit + 1
        self._units[number] = unit, entries
        record = self._records[unit.sequence]
        record.unit, record.provisional = number, unit.stop
        return number

    def end(self, number: int) -> tuple[UnitEnded, int | None]:
        """Commit a unit; returns the outcome, and the row to erase where a cancel was recorded."""
        _refuse(EndUnit, Facts(unit_known=number in self._units))
        unit, _ = self._units.pop(number)
        record = self._records[unit.sequence]
        if record.cancelled:
            return UnitEnded((), (unit.sequence,)), self._drop(unit.sequence)
        record.tokens, record.unit = unit.tokens, None
        return UnitEnded(((unit.sequence, record.frontier),)), None

    # -- ends ----------------------------------------------------------------------------------------------------------

    def finish(self, sequence: int) -> int | None:
        """End an active sequence; returns the row to erase."""
        _refuse(Finish, self._facts(sequence))
        return self._drop(sequence)

    def cancel(self, sequence: int) -> tuple[bool, int | None]:
        """End a queued or active sequence, or note that it is to end with its unit; returns the row to erase."""
        _refuse(Cancel, self._facts(sequence))
        record = self._records[sequence]
        if record.unit is not None:
            record.cancelled = True
            return False, None
        if record.row is None:
            self._queue.remove(sequence)
        return True, self._drop(sequence)

    def _drop(self, sequence: int) -> int | None:
        return self._records.pop(sequence).row

    # -- what is there -------------------------------------------------------------------------------------------------

    @property
    def queue(self) -> tuple[int, ...]:
        """Waiting requests, head first."""
        return tuple(self._queue)

    def row(self, sequence: int) -> int:
        """The row of an active sequence."""
        row = self._records[sequence].row
        assert row is not None, f"sequence {sequence} is queued"
        return row

    def reach(self, sequence: int) -> tuple[int, int]:
        """Frontier and provisional frontier."""
        record = self._records[sequence]
        return record.frontier, record.frontier if record.unit is None else record.provisional

    def owners(self) -> dict[int, int]:
        """Active sequences by their rows."""
        return {record.row: sequence for sequence, record in self._records.items() if record.row is not None}

    def sequence_state(self, sequence: int) -> SequenceState:
        """An active sequence as a snapshot shows it; nothing is reserved for it."""
        record = self._records[sequence]
        return SequenceState(
            sequence,
            self.row(sequence),
            count(record.prompt),
            record.limit,
            session=None,
            entitlement=(pages_for(record.limit, self._config.main.page_size),),
            reserved=(0,),
            in_flight=record.unit is not None,
            cancel_recorded=record.cancelled,
            tokens=record.tokens,
            identity=DEFAULT_IDENTITY,
        )

    def unit_states(self) -> dict[int, UnitState]:
        """Units in flight as a snapshot shows them."""
        return {
            number: UnitState(number, ((unit.sequence, 0, unit.start, unit.stop),), ((0, unit.row, entries),))
            for number, (unit, entries) in self._units.items()
        }

    def _facts(self, sequence: int, writes: int = 0) -> Facts:
        record = self._records.get(sequence)
        if record is None:
            return Facts(count=writes)
        return Facts(
            state=record.state,
            in_flight=record.unit is not None,
            frontier=record.frontier,
            prompt=count(record.prompt),
            count=writes,
            limit=record.limit,
        )


def _refuse(operation: type, facts: Facts) -> None:
    kind = first_refusal(operation, facts)
    if kind is not None:
        raise REFUSALS[kind](operation.__name__, repr(facts), "see the semantics table")
