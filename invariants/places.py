"""Who holds or names which place: physical pages, host slots and extents (DESIGN 4.3, 4.4).

A physical page is held by a living page, by a transfer (a fresh destination, or what a page that has ended left to
it) or by a fence.  A host slot is held by a living page's replica or, likewise, by a transfer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvcrucible.contract.quick import quick
from kvcrucible.contract.snapshot import ExtentState, MoveState, PageState, Snapshot, Tier, TransferState
from kvcrucible.invariants.checker import Scope


@quick
@dataclass(frozen=True, slots=True)
class Lease:
    """One lease of a physical page: of ``page``, of a transfer in the place of ``page``, or of a fence (None).

    ``ended``: nothing reads or writes through it any more.  ``fresh``: granted for a transfer, as what it copies to.
    """

    pool: int
    device: int
    generation: int
    page: int | None
    ended: bool
    fresh: bool = False

    def __str__(self) -> str:
        if self.page is None:
            return "a fence"
        return f"a transfer, for ended page {self.page}" if self.ended else f"page {self.page}"


def transfer_leases(transfers: Iterable[TransferState]) -> Iterator[Lease]:
    """Yield what transfers hold beside the Device replicas of living pages (decision 0013)."""
    for transfer in transfers:
        for move in transfer.moves:
            fresh = move.fresh and transfer.source is Tier.HOST
            if move.dropped or fresh:
                yield Lease(move.pool, move.device, move.generation, move.page, move.dropped, fresh)


def other_leases(snapshot: Snapshot) -> list[Lease]:
    """Return the leases that no living page shows as its Device replica's: of transfers and fences."""
    found = list(transfer_leases(snapshot.transfers.values())) if snapshot.transfers else []
    for retiring in snapshot.retiring.values() if snapshot.retiring else ():
        found.append(Lease(retiring.pool, retiring.device, retiring.generation, None, True))
    return found


def page_lease(page: PageState) -> Lease:
    """Return the lease of a page that has a Device replica."""
    return Lease(page.pool, page.device, page.generation, page.page, False)


def host_slot(page: PageState | None) -> tuple[int, int, int] | None:
    """Return (pool, extent, slot) of a page's Host replica, None where there is none."""
    if page is None or page.on_host is None:
        return None
    return page.pool, page.on_host.extent, page.on_host.slot


def given_away(snapshot: Snapshot) -> Iterable[tuple[int, tuple[int, ...], int]]:
    """Return (page, place, other page) where a page holds a place that a transfer names for another page.

    A place is (pool, device) or (pool, extent, slot).
    """
    return _given_away(snapshot) if snapshot.transfers else ()


def _given_away(snapshot: Snapshot) -> Iterator[tuple[int, tuple[int, ...], int]]:
    named: dict[tuple[int, ...], int] = {}
    #: Places that several pages are named with, which no sound engine has.
    disputed: dict[tuple[int, ...], set[int]] = {}
    for transfer in snapshot.transfers.values():
        for move in transfer.moves:
            for place in ((move.pool, move.device), (move.pool, move.extent, move.slot)):
                first = named.setdefault(place, move.page)
                if first != move.page:
                    disputed.setdefault(place, {first}).add(move.page)
    for page in snapshot.pages.values() if named else ():
        for held in ((page.pool, page.device), host_slot(page)):
            if held is None or ((first := named.get(held, page.page)) == page.page and held not in disputed):
                continue
            if others := disputed.get(held, {first}) - {page.page}:
                yield min(others), held, page.page


class Index:
    """Ids by some value of their entry."""

    def __init__(self) -> None:
        self.ids: dict[Hashable, set[int]] = {}

    def add(self, value: Hashable, key: int) -> None:
        """Note that the entry ``key`` has ``value``."""
        self.ids.setdefault(value, set()).add(key)

    def remove(self, value: Hashable, key: int) -> None:
        """Forget that the entry ``key`` has ``value``; it has been added."""
        held = self.ids[value]
        held.discard(key)
        if not held:
            del self.ids[value]

    def get(self, value: Hashable) -> Iterable[int]:
        """Return the ids of the entries that have ``value``."""
        return self.ids.get(value, ())


def view(state: Snapshot, part: str, ids: Collection[Any], before: Snapshot, after: Snapshot) -> None:
    """Add untouched entries of ``state``, as they are, to both sides of a step."""
    if not ids:
        return
    known, left, right = getattr(state, part), getattr(before, part), getattr(after, part)
    for key in ids:
        entry = known.get(key)
        if entry is not None:
            left[key] = right[key] = entry


class Places:
    """Indexes over transfers, host slots and extents of one shadow's last known state.

    In sizes proportional to what transfers and extents hold, so empty without a Host tier.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.transfers_by_page, self.transfers_by_device, self.transfers_by_extent = Index(), Index(), Index()
        self.pages_by_extent = Index()
        self.offsets: list[tuple[int, int]] = sorted((e.offset, e.extent) for e in snapshot.extents.values())
        for transfer in snapshot.transfers.values():
            self._add_transfer(transfer)
        for page in snapshot.pages.values():
            self._add_page(page)

    # -- closing a step ------------------------------------------------------------------------------------------------

    def close(
        self,
        state: Snapshot,
        before: Snapshot,
        after: Snapshot,
        scope: Scope,
        holders: Mapping[tuple[int, int], int],
    ) -> None:
        """Fill ``scope.replicas`` and ``scope.arena``, and add to both sides what shares a place with them.

        ``holders``: the page that each physical page is leased to.
        """
        scope.replicas, scope.arena, devices = set(scope.pages), set(scope.extents), set(scope.retiring)
        if scope.transfers:
            moves = _changed_moves(before, after, scope)
            scope.replicas.update([move.page for move in moves])
            scope.arena.update([move.extent for move in moves])
            devices.update([(move.pool, move.device) for move in moves])
        for old, new in _changed_pages(before, after, scope):
            if _on_host(old) or _on_host(new):
                was, now = host_slot(old), host_slot(new)
                if was != now:
                    scope.arena.update([slot[1] for slot in (was, now) if slot is not None])
            if old is None or new is None or old.device != new.device or old.pool != new.pool:
                devices.update([(p.pool, p.device) for p in (old, new) if p is not None and p.device >= 0])
        pages = {holders[place] for place in devices if place in holders}
        pages |= scope.replicas
        transfers: set[int] = set()
        if self.transfers_by_page.ids:
            for index, values in (
                (self.transfers_by_page, scope.replicas),
                (self.transfers_by_device, devices),
                (self.transfers_by_extent, scope.arena),
            ):
                transfers.update(*[index.get(value) for value in values])
        for extent in scope.arena:
            pages.update(self.pages_by_extent.get(extent))
        view(state, "pages", pages - scope.pages, before, after)
        view(state, "transfers", transfers - scope.transfers, before, after)
        if state.retiring:
            fences = (devices & state.retiring.keys()) | _retiring_in_rows(state, after, scope)
            view(state, "retiring", fences - scope.retiring, before, after)
        if not (scope.arena or before.transfers or after.transfers):
            return
        extents = scope.arena | self._neighbours(after, scope)
        for side in (before, after):
            for transfer in side.transfers.values():
                extents.update([move.extent for move in transfer.moves if move.page in scope.replicas])
        view(state, "extents", extents - scope.extents, before, after)

    def _neighbours(self, after: Snapshot, scope: Scope) -> set[int]:
        """Return the untouched extents next to the touched ones: if any overlaps, one of these does."""
        found: set[int] = set()
        for extent in [after.extents[key] for key in scope.extents if key in after.extents]:
            at = bisect_left(self.offsets, (extent.offset, extent.extent))
            for side in (range(at, len(self.offsets)), range(at - 1, -1, -1)):
                found.update(
                    next(([self.offsets[i][1]] for i in side if self.offsets[i][1] not in scope.extents), ())
                )
        return found

    # -- taking it over ------------------------------------------------------------------------------------------------

    def reindex(self, before: Snapshot, after: Snapshot, scope: Scope) -> None:
        """Follow the touched entries of a step."""
        for key in scope.transfers:
            if (old := before.transfers.get(key)) is not None:
                for index, value in self._transfer_values(old):
                    index.remove(value, key)
            if (new := after.transfers.get(key)) is not None:
                self._add_transfer(new)
        for was, now in _changed_pages(before, after, scope):
            if (_on_host(was) or _on_host(now)) and host_slot(was) != host_slot(now):
                if was is not None and was.on_host is not None:
                    self.pages_by_extent.remove(was.on_host.extent, was.page)
                if now is not None:
                    self._add_page(now)
        for key in scope.extents:
            self._move_extent(before.extents.get(key), after.extents.get(key))

    def _move_extent(self, old: ExtentState | None, new: ExtentState | None) -> None:
        if old is not None:
            del self.offsets[bisect_left(self.offsets, (old.offset, old.extent))]
        if new is not None:
            insort(self.offsets, (new.offset, new.extent))

    def _add_page(self, page: PageState) -> None:
        if page.on_host is not None:
            self.pages_by_extent.add(page.on_host.extent, page.page)

    def _add_transfer(self, transfer: TransferState) -> None:
        for index, value in self._transfer_values(transfer):
            index.add(value, transfer.transfer)

    def _transfer_values(self, transfer: TransferState) -> Iterator[tuple[Index, Hashable]]:
        # Sets: a transfer that names a place twice is still one entry.
        for page in {move.page for move in transfer.moves}:
            yield self.transfers_by_page, page
        for place in {(move.pool, move.device) for move in transfer.moves}:
            yield self.transfers_by_device, place
        for extent in {move.extent for move in transfer.moves}:
            yield self.transfers_by_extent, extent


def _changed_pages(
    before: Snapshot, after: Snapshot, scope: Scope
) -> list[tuple[PageState | None, PageState | None]]:
    """Return the touched pages that may have changed places, before and after: most that live on have not moved."""
    changed: list[tuple[PageState | None, PageState | None]] = []
    for old, new in scope.kept:
        if old.on_host is not new.on_host or old.device != new.device or old.pool != new.pool:
            changed.append((old, new))
    if scope.created:
        changed += [(None, after.pages[key]) for key in scope.created]
    if scope.removed:
        changed += [(before.pages[key], None) for key in scope.removed]
    return changed


def _on_host(page: PageState | None) -> bool:
    return page is not None and page.on_host is not None


def _changed_moves(before: Snapshot, after: Snapshot, scope: Scope) -> set[MoveState]:
    """Return the moves that touched transfers have on one side only."""
    changed: set[MoveState] = set()
    for key in scope.transfers:
        old, new = before.transfers.get(key), after.transfers.get(key)
        was, now = set(old.moves if old else ()), set(new.moves if new else ())
        changed |= was ^ now
        if old and new and (old.source, old.keep) != (new.source, new.keep):
            # Which end is whose has changed for all of them.
            changed |= was | now
    return changed


def _retiring_in_rows(state: Snapshot, after: Snapshot, scope: Scope) -> set[tuple[int, int]]:
    """Return the retiring pages in the rows that touched units have frozen."""
    found: set[tuple[int, int]] = set()
    for unit in [after.units[key] for key in scope.units if key in after.units]:
        for pool, _, entries in unit.frozen:
            mapped = set(entries)
            found.update([place for place in state.retiring if place[0] == pool and place[1] in mapped])
    return found
