"""Checker about the bytes and slots of the host arena (DESIGN 4.4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from kvcrucible.contract.snapshot import ExtentState, HostState, Snapshot, Tier
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.violation import Violation


class HostConservation(Checker):
    """Verifies: extents and holes tile the arena, aligned and without overlap, neighbouring holes being one; used +
    free is the capacity and used the sum of the extents; an extent has a live slot; every live slot belongs to one Host
    replica or to one transfer (a fresh destination, or what an ended page left), and every Host replica lies in a live
    slot of an extent of its pool.  The arena itself never changes.

    Does not verify: that an extent is large enough for its slots (a snapshot has no bytes of a page), nor which hole is
    chosen.  Holes are judged in full snapshots only.
    """

    id = "host-conservation"
    statement = (
        "Extents and holes tile the host arena, used + free is its capacity, "
        "and each live slot has exactly one owner."
    )
    source = "4.4"
    needs = frozenset({"pools", "pages", "transfers", "extents", "host"})
    reads = frozenset({"pages", "transfers", "extents", "arena"})
    premise_part = "extents"
    is_temporal = True
    needs_host = True

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge the totals, every extent, every hole and every slot."""
        extents, host = snapshot.extents, snapshot.host
        if host is not None:
            yield from self._totals(host, sum(extent.size for extent in extents.values()))
            if snapshot.host_holes is not None:
                yield from self._holes(host, extents.values(), snapshot.host_holes)
        yield from self._extents(snapshot, extents.values())
        claimed = {page.on_host.extent for page in snapshot.pages.values() if page.on_host is not None}
        claimed.update(m.extent for transfer in snapshot.transfers.values() for m in transfer.moves)
        yield from self._slots(snapshot, extents.keys() | claimed)

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge the change of the totals, the touched extents with their neighbours, and slots that changed hands."""
        old, host = before.host, after.host
        if old is not None and host is not None:
            if (old.capacity, old.alignment) != (host.capacity, host.alignment):
                yield self.mismatch("host arena", f"{host}", f"as before: {old}")
            change = sum(extent.size for extent in after.extents.values())
            change -= sum(extent.size for extent in before.extents.values())
            yield from self._totals(host, old.used + change)
        yield from self._extents(after, after.extents.values())
        yield from self._slots(after, scope.arena)

    def _totals(self, host: HostState, used: int) -> Iterator[Violation]:
        if host.used != used:
            yield self.mismatch("host arena, used bytes", host.used, f"{used} (sum of the extents)")
        if host.used + host.free != host.capacity or min(host.used, host.free) < 0:
            found = f"{host.used} used + {host.free} free"
            yield self.mismatch("host arena", found, f"the capacity {host.capacity}, none negative")

    def _extents(self, snapshot: Snapshot, extents: Iterable[ExtentState]) -> Iterator[Violation]:
        host, end = snapshot.host, 0
        for extent in sorted(extents, key=lambda one: (one.offset, one.extent)):
            name = f"extent {extent.extent}"
            if host is None:
                yield self.mismatch(name, "there", "none: the engine has no Host tier")
                continue
            if extent.offset % host.alignment or extent.size % host.alignment or extent.size < 1:
                found = f"{extent.size} bytes at {extent.offset}"
                yield self.mismatch(name, found, f"whole multiples of {host.alignment}")
            if extent.offset < end or extent.offset + extent.size > host.capacity:
                found = f"bytes {extent.offset}…{extent.offset + extent.size}"
                yield self.mismatch(
                    name, found, f"from {end} on, the end of the one before, to {host.capacity}"
                )
            end = max(end, extent.offset + extent.size)
            live = set(extent.live)
            if not live or len(live) < len(extent.live) or not live <= set(range(extent.slots)):
                yield self.mismatch(
                    f"{name}, live slots", extent.live, f"some of 0…{extent.slots - 1}, each once"
                )
            if not 0 <= extent.pool < len(snapshot.pools):
                yield self.mismatch(f"{name}, pool", extent.pool, f"0…{len(snapshot.pools) - 1}")

    def _holes(
        self, host: HostState, extents: Iterable[ExtentState], holes: tuple[tuple[int, int], ...]
    ) -> Iterator[Violation]:
        pieces = [(extent.offset, extent.size, False) for extent in extents]
        pieces += [(offset, size, True) for offset, size in holes]
        end, after_hole = 0, False
        for offset, size, hole in sorted(pieces):
            if offset != end or size < 1:
                kind = "hole" if hole else "extent"
                yield self.mismatch(f"host arena, {kind} of {size} bytes", f"at {offset}", f"at {end}")
            if hole and after_hole:
                yield self.mismatch(f"host arena, hole at {offset}", "behind another", "one hole of both")
            end, after_hole = max(end, offset + size), hole
        if end != host.capacity:
            yield self.mismatch("host arena, extents and holes end", f"at {end}", f"at {host.capacity}")

    def _slots(self, snapshot: Snapshot, arena: Collection[int]) -> Iterator[Violation]:
        """Judge every slot of the extents ``arena``; all that names one is in the snapshot."""
        owner: dict[tuple[int, int], int] = {}
        live = {key: frozenset(snapshot.extents[key].live) for key in arena if key in snapshot.extents}
        for pool, extent, slot, page, transfer in _claims(snapshot):
            if extent not in arena:
                continue
            there = snapshot.extents.get(extent)
            if there is None or slot not in live[extent] or there.pool != pool:
                who = f"page {page}" if transfer is None else f"transfer {transfer}"
                found = "no such extent" if there is None else f"pool {there.pool}, live {there.live}"
                yield self.mismatch(f"{who}, slot {slot} of extent {extent}", found, f"live, of pool {pool}")
            # A page may show the fresh destination of its own transfer as the replica that it is to be.
            if owner.setdefault((extent, slot), page) != page:
                other = owner[extent, slot]
                yield self.mismatch(f"extent {extent}, slot {slot}", f"pages {other} and {page}", "one")
        for key in arena:
            there = snapshot.extents.get(key)
            if there and (idle := sorted(slot for slot in there.live if (key, slot) not in owner)):
                yield self.mismatch(
                    f"extent {key}, live slots {idle}", "nobody's", "a replica's or a transfer's"
                )


def _claims(snapshot: Snapshot) -> Iterator[tuple[int, int, int, int, int | None]]:
    """Yield (pool, extent, slot, page, the transfer that says so) for every Host slot that something holds; None where
    the page itself says so.
    """
    for page in snapshot.pages.values():
        if page.on_host is not None:
            yield page.pool, page.on_host.extent, page.on_host.slot, page.page, None
    for transfer in snapshot.transfers.values():
        for move in transfer.moves:
            if move.dropped or (move.fresh and transfer.source is Tier.DEVICE):
                yield move.pool, move.extent, move.slot, move.page, transfer.transfer
