"""Judges what shows only in device effects: when units and transfers are reported as over, and how much is copied.

Verifies: ``progress`` reports exactly the units whose effects the host knows to be complete, once, in the order of
their ends; exactly the transfers whose copies the host knows to be over, once, in the order of their ids, and says of
each whether a copy failed; per pool, a fork copies exactly the columns of its partial tail, a cut those of the shared
page that it cuts, and nothing else copies any.
Does not verify: what a cut copies where it releases others on the way, engines that do not show their effects.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvcrucible.contract.in_words import in_words
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Demote,
    EndUnit,
    Fork,
    Operation,
    Outcome,
    Progress,
    Progressed,
    Restore,
    Scheduled,
    TransferStarted,
    Truncate,
    Value,
    Waiting,
)
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.invariants.effects import transfer_completed
from kvcrucible.invariants.violation import Violation, mismatch


@runtime_checkable
class ShowsEffects(Protocol):
    """An adapter that sees the device effects of its engine."""

    def recorded(self) -> int:
        """Return how many events the compute stream has recorded."""

    def done(self, event: int) -> bool:
        """Say whether the host knows event number ``event`` of the compute stream, from 0, to be done; False where
        there is none.
        """

    def copied_columns(self) -> tuple[int, ...]:
        """Return, per pool, how many token columns page copies have moved since the engine was built; counted as they
        run, and not by the engine.
        """

    def all_ran(self) -> bool:
        """Say whether every effect on the compute stream has run."""

    def copies(self, transfer: int) -> tuple[int, int]:
        """Return how many copies of ``transfer`` have not run, and how many have failed."""

    def copies_known(self, transfer: int) -> bool:
        """Say whether the host knows all copies of ``transfer`` to be over."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A unit that has ended, and the number of the event that its end recorded first."""

    unit: int
    event: int


class EffectsJudge:
    """Follows one engine; without :class:`ShowsEffects` it judges nothing."""

    def __init__(self, adapter: object) -> None:
        self._shows = adapter if isinstance(adapter, ShowsEffects) else None
        self._ended: deque[_Ended] = deque()
        self._transfers: list[int] = []
        self._recorded = 0
        #: Columns copied when everything had run last, and what has had to be copied since; None where that is unknown.
        self._copied: tuple[int, ...] = () if self._shows is None else self._shows.copied_columns()
        self._none = (0,) * len(self._copied)
        self._due: tuple[int, ...] | None = self._none
        self._since: list[Operation] = []
        self._late: list[Violation] = []

    def before(self, operation: Operation) -> None:
        """Note the counts before an operation."""
        if self._shows is not None:
            self._recorded = self._shows.recorded()
            self._late = self._judge_copies()

    def judge(self, operation: Operation, outcome: Outcome, before: Snapshot) -> list[Violation]:
        """Judge an operation that has been carried out in the state ``before``; refusals have no effects."""
        if self._shows is None:
            return []
        value = outcome.value
        if outcome.refusal is not None:
            return self._copies_after(operation, self._none)
        if isinstance(operation, EndUnit):
            self._ended.append(_Ended(operation.unit, self._recorded))
        elif isinstance(operation, Demote | Restore) and isinstance(value, int):
            self._transfers.append(value)
        elif isinstance(operation, Progress) and isinstance(value, Progressed):
            told = self._judge_units(value) + self._judge_transfers(value, before)
            return told + self._copies_after(operation, self._none)
        if isinstance(value, Scheduled | Waiting):
            self._transfers += [one.transfer for one in starts(value)]
        if isinstance(operation, Fork | Truncate) or isinstance(value, Scheduled | Admitted):
            return self._copies_after(operation, _expected_copies(operation, outcome, before))
        return self._copies_after(operation, self._none)

    # -- what is over --------------------------------------------------------------------------------------------------

    def _judge_units(self, found: Progressed) -> list[Violation]:
        assert self._shows is not None
        due = []
        # Units complete in the order in which they ended, so that one holds up those behind it.
        while self._ended and self._shows.done(self._ended[0].event):
            due.append(self._ended.popleft().unit)
        if found.units == tuple(due):
            return []
        return [mismatch("frontier-visibility", "units reported as complete", found.units, tuple(due))]

    def _judge_transfers(self, found: Progressed, before: Snapshot) -> list[Violation]:
        assert self._shows is not None
        due = [transfer for transfer in self._transfers if self._shows.copies_known(transfer)]
        violations = [
            violation
            for ended in found.transfers
            if ended.transfer in before.transfers
            for violation in transfer_completed(
                before.transfers[ended.transfer], ended, *self._shows.copies(ended.transfer)
            )
        ]
        reported = [ended.transfer for ended in found.transfers]
        if reported != due:
            violations.append(mismatch("publish-order", "transfers reported as over", reported, due))
        self._transfers = [transfer for transfer in self._transfers if transfer not in reported]
        return violations

    # -- copies --------------------------------------------------------------------------------------------------------

    def _copies_after(self, operation: Operation, due: tuple[int, ...] | None) -> list[Violation]:
        """Add what ``operation`` has to copy; judge all that has run."""
        late, self._late = self._late, []
        if due is None or self._due is None:
            self._due = None
        elif due is not self._none:
            self._due = tuple(map(int.__add__, self._due, due))
        self._since.append(operation)
        return late + self._judge_copies()

    def _judge_copies(self) -> list[Violation]:
        assert self._shows is not None
        if not self._since or not self._shows.all_ran():
            return []
        now, before, due, since = self._shows.copied_columns(), self._copied, self._due, self._since
        self._copied, self._due, self._since = now, self._none, []
        if due is None or (now == before and due == self._none):
            return []
        found = tuple([later - earlier for later, earlier in zip(now, before, strict=True)])
        if found == due:
            return []
        what = (
            in_words(since[-1]) if len(since) == 1 else f"{len(since)} operations up to {in_words(since[-1])}"
        )
        return [mismatch("cow-isolation", f"{what}, columns copied in each pool", found, due)]


def starts(value: Value) -> tuple[TransferStarted, ...]:
    """Return the transfers that an admission has started (decision 0020)."""
    waiting = value.waiting if isinstance(value, Scheduled) else value
    return waiting.started if isinstance(waiting, Waiting) else ()


def _expected_copies(operation: Operation, outcome: Outcome, before: Snapshot) -> tuple[int, ...] | None:
    """Return the columns that the operation has to copy in each pool, None where that depends on more than is known."""
    sizes = [pool.page_size for pool in before.pools]
    match operation, outcome.value:
        case Fork(source=source, position=position), _:
            frontiers = [before.spaces[source, pool].frontier for pool in range(len(sizes))]
            return tuple(min(position, at) % size for at, size in zip(frontiers, sizes, strict=True))
        case Truncate(sequence=sequence, position=position), _:
            if outcome.evicted:
                return None
            return tuple(_cut_columns(before, sequence, pool, position) for pool in range(len(sizes)))
        case _, Scheduled(admitted=admitted):
            return _admission_copies(admitted, sizes)
        case _, Admitted() as one:
            return _admission_copies((one,), sizes)
    return (0,) * len(sizes)


def _cut_columns(before: Snapshot, sequence: int, pool: int, position: int) -> int:
    """Return the columns that stay in the page that is cut, where others hold it too; a transfer counts as a holder."""
    space, size = before.spaces[sequence, pool], before.pools[pool].page_size
    columns = position % size
    if position >= space.frontier or not columns:
        return 0
    page = before.pages[space.pages[position // size]]
    return columns if page.references > 1 or page.in_transfer else 0


def _admission_copies(admitted: tuple[Admitted, ...], sizes: list[int]) -> tuple[int, ...] | None:
    if any(one.mode is AdmissionMode.MOVE_TRUNCATED for one in admitted):
        return None
    forks = [one.hit for one in admitted if one.mode is AdmissionMode.FORK]
    return tuple(sum(hit % size for hit in forks) for size in sizes)
