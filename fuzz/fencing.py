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
        old, new = (_leases(snapshot, transfers=True) for snapshot in (before, after))
        for place, units in self._touched.items():
            known = {generation for _, generation in old.get(place, ())}
            names = [f"unit {unit}" for unit in sorted(units)]
            for owner, generation in new.get(place, ()):
                if generation not in known:
                    yield from page_given_out(*place, owner, self._owners[place], names)
        for place, owners in _holders(after).items():
            if place in self._touched:
                self._owners[place] = owners

    def _note(self, operation: Operation, outcome: Outcome, before: Snapshot) -> None:
        """Learn which units are outstanding and what they have touched."""
        if isinstance(operation, EndUnit):
            self._outstanding.add(operation.unit)
            holders = _holders(before)
            for sequence, pool, _, _ in before.units[operation.unit].work:
                for page in before.spaces[sequence, pool].pages:
                    place = pool, before.pages[page].device
                    self._touched.setdefault(place, set()).add(operation.unit)
                    self._owners[place] = holders[place]
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


def _holders(snapshot: Snapshot) -> dict[Place, set[int]]:
    """Return the owners of the spaces that hold each physical page."""
    return {
        place: {owner for owner, _ in found} for place, found in _leases(snapshot, transfers=False).items()
    }


def _leases(snapshot: Snapshot, *, transfers: bool) -> dict[Place, set[tuple[int, int]]]:
    """Return (owner, generation) of whoever leases each physical page: the spaces that hold it, or a transfer."""
    leases: dict[Place, set[tuple[int, int]]] = {}
    for (owner, pool), space in snapshot.spaces.items():
        # A space of a wrong engine may name a page that has ended: refcount-exact tells that.
        for page in (snapshot.pages[one] for one in space.pages if one in snapshot.pages):
            leases.setdefault((pool, page.device), set()).add((owner, page.generation))
    for transfer in snapshot.transfers.values() if transfers else ():
        for move in transfer.moves:
            leases.setdefault((move.pool, move.device), set()).add((transfer.continuation, move.generation))
    return leases
