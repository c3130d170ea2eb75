"""The ways in which a queued request may start, in the contract's order (DESIGN 4.9; decisions 0003, 0013, 0020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcrucible.contract.operations import AdmissionMode, WaitingKind
from kvcrucible.contract.semantics import State
from kvcrucible.invariants.history.index import head
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.records import Holder, Page


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to go on with a request: ``hit`` positions of ``source``, or cold; or to wait until ``missing`` pages of
    the hit are back on Device, which takes a transfer unless they are in one.
    """

    mode: AdmissionMode | WaitingKind
    source: Holder | None = None
    hit: int = 0
    missing: list[Page] = field(default_factory=list)

    @property
    def restores(self) -> bool:
        """Whether it takes a transfer that has not been started."""
        return bool(self.missing) and not any(page.transfer for page in self.missing)

    def __str__(self) -> str:
        return self.mode.value + ("" if self.source is None else f" of {self.source.id} at {self.hit}")


def candidates(ledger: Ledger, holder: Holder) -> Iterator[Candidate]:
    """Yield the ways in which a queued request may go on, best first."""
    passed: set[int] = set()

    def may_hit(own: int) -> bool:
        owner = ledger.holders[ledger.owners_of_marks[own]]
        return owner.unit is None and owner.id not in passed

    runs = head(holder.runs, holder.prompt - 1)
    while True:
        length, members = ledger.index.best(runs, holder.identity, may_hit)
        if not length:
            break
        found = [ledger.holders[ledger.owners_of_marks[own]] for own in members if may_hit(own)]
        source = next((owner for owner in found if not owner.away), found[0])
        missing = missing_below(ledger, source, length)
        if not missing:
            yield from _from_hit(holder, source, length)
            break
        waits = Candidate(WaitingKind.RESTORING, source, length, missing)
        if ledger.shows_returns and not waits.restores:
            yield waits
            break
        if ledger.shows_returns and source.id not in holder.tried:
            yield waits
        passed.add(source.id)
    yield Candidate(AdmissionMode.COLD)


def missing_below(ledger: Ledger, source: Holder, position: int) -> list[Page]:
    """Return the pages that hold the first ``position`` positions and are visible on Host, pool by pool in order."""
    if not source.away:
        return []
    return [
        page
        for pool, held in enumerate(source.pages)
        for page in held[: ledger.needed(position, pool)]
        if page.on_host
    ]


def _from_hit(holder: Holder, source: Holder, length: int) -> Iterator[Candidate]:
    may_move = source.state is State.CONTINUATION and not source.moving
    if may_move and _consumes(holder, source) and set(source.frontiers) == {length}:
        yield Candidate(AdmissionMode.MOVE, source, length)
        return
    yield Candidate(AdmissionMode.FORK, source, length)
    if may_move and not source.pinned:
        yield Candidate(AdmissionMode.MOVE_TRUNCATED, source, length)


def _consumes(holder: Holder, source: Holder) -> bool:
    return holder.consume or (holder.session is not None and holder.session == source.session)
