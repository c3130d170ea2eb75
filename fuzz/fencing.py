"""Judges who is given physical pages that units may still touch (``recycle-fenced``, decision 0013), by device truth.

Follows which units have touched which physical page, from the mappings that the snapshot shows as each unit ends, until
``progress`` reports them; that it does not report them too early is judged elsewhere (:mod:`kvcrucible.fuzz.effects`).

Verifies: a page that an outstanding unit has touched is leased to nobody but the sequence that had it last; nothing
retires for a unit that is not outstanding.
Does not verify: effects of copies between the tiers, which hold their pages in the open until they are over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from kvcrucible.contract.operations import AdmissionMode, EndUnit, Operation, Outcome, Progressed
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.fuzz.goals import admissions
from kvcrucible.invariants.effects import overdue, page_given_out
from kvcrucible.invariants.violation import Violation

#: Index of a pool and a physical page in it.
Place: TypeAlias = tuple[int, int]


class FenceJudge:
    """Follows one engine whose effects lag and that shows pages, spaces, units and transfers."""

    def __init__(self) -> None:
        self._touched: dict[Place, set[int]] = {}
        self._owners: dict[Place, set[int]] = {}
        self._outstanding: set[int] = set()

    @property
    def touched(self) -> Collection[Place]:
        """Physical pages that outstanding units have touched."""
        return self._touched.keys()

    def judge(
        self, operation: Operation, outcome: Outcome, before: Snapshot, after: Snapshot
    ) -> list[Violation]:
        """Judge one operation, refused or not, by the states around it."""
        if outcome.refusal is not None:
            return []
        self._note(operation, outcome, before)
        return [*self._given_out(before, after), *overdue(after, self._outstanding)] if self._touched else []

    def _given_out(self, before: Snapshot, after: Snapshot) -> Iterator[Violation]:
        old = _leases(before, self._touched)
        held = _leases(after, self._touched, transfers=False)
        new = _with_transfers(held, after, self._touched) if after.transfers else held
        for place, units in self._touched.items():
            known = {generation for _, generation in old.get(place, ())}
            for owner, generation in new.get(place, ()):
                if generation not in known:
                    names = [f"unit {unit}" for unit in sorted(units)]
                    yield from page_given_out(*place, owner, self._owners[place], names)
        for place, found in held.items():
            self._owners[place] = {owner for owner, _ in found}

    def _note(self, operation: Operation, outcome: Outcome, before: Snapshot) -> None:
        """Learn which units are outstanding and what they have touched."""
        if isinstance(operation, EndUnit):
            self._outstanding.add(operation.unit)
            holders = _leases(before, transfers=False)
            for sequence, pool, _, _ in before.units[operation.unit].work:
                for page in before.spaces[sequence, pool].pages:
                    place = pool, before.pages[page].device
                    self._touched.setdefault(place, set()).add(operation.unit)
                    self._owners[place] = {owner for owner, _ in holders[place]}
        elif isinstance(outcome.value, Progressed):
            self._outstanding.difference_update(outcome.value.units)
            for place in list(self._touched):
                self._touched[place] &= self._outstanding
                if not self._touched[place]:
                    del self._touched[place]
                    del self._owners[place]
        moves = (AdmissionMode.MOVE, AdmissionMode.MOVE_TRUNCATED)
        for one in admissions(outcome.value):
            if one.mode in moves and one.source is not None:
                # Who takes a source over takes what it had before, too.
                for owners in self._owners.values():
                    owners.update({one.sequence} if one.source in owners else ())


def _leases(
    snapshot: Snapshot, only: Collection[Place] | None = None, *, transfers: bool = True
) -> dict[Place, set[tuple[int, int]]]:
    """Return (owner, generation) of each lease of a physical page, or of those in ``only``: the spaces that hold it, or
    a transfer.
    """
    leases: dict[Place, set[tuple[int, int]]] = {}
    pages = snapshot.pages
    for (owner, pool), space in snapshot.spaces.items():
        for one in space.pages:
            page = pages.get(one)
            # A space of a wrong engine may name a page that has ended: refcount-exact tells that.
            if page is not None and (only is None or (pool, page.device) in only):
                leases.setdefault((pool, page.device), set()).add((owner, page.generation))
    return _with_transfers(leases, snapshot, only) if transfers and snapshot.transfers else leases


def _with_transfers(
    leases: dict[Place, set[tuple[int, int]]], snapshot: Snapshot, only: Collection[Place] | None
) -> dict[Place, set[tuple[int, int]]]:
    """Return ``leases``, which stay as they are, and what transfers hold."""
    found = {place: set(of_place) for place, of_place in leases.items()}
    for transfer in snapshot.transfers.values():
        for move in transfer.moves:
            if only is None or (move.pool, move.device) in only:
                place = (move.pool, move.device)
                found.setdefault(place, set()).add((transfer.continuation, move.generation))
    return found
