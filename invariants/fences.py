"""Checker about physical places that device effects may still touch (DESIGN 4.3, 4.7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kvcrucible.contract.snapshot import PageState, Snapshot
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.places import given_away, other_leases
from kvcrucible.invariants.violation import Violation


class RecycleFenced(Checker):
    """Verifies: a retiring page is leased to nobody and not in the free list, waits for a unit that has ended, and
    leaves for the free list alone; a page or slot of a transfer under way is in no free list and held by no other page;
    no row of a unit in flight maps a retiring or free page, and no step takes a page from under such a row.

    Does not verify: that a page which has to retire does so, and not for longer than it must; device effects show that,
    so the harness judges what is given out (``page_given_out``) and what waits (``overdue``).
    """

    id = "recycle-fenced"
    statement = "What queued device effects may touch is given to nobody else before they have completed."
    source = "4.3, 4.7"
    needs = frozenset({"pools", "pages", "units", "transfers", "retiring"})
    reads = frozenset({"pages", "units", "transfers", "retiring"})
    is_temporal = True

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether a page retires or a transfer is under way."""
        return bool(snapshot.retiring or snapshot.transfers)

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge retiring pages, what transfers name, and the frozen rows."""
        leased = _leased(snapshot) if snapshot.retiring else {}
        for place, retiring in snapshot.retiring.items():
            if place not in leased and retiring.unit not in snapshot.units:
                continue
            subject = f"retiring device {place[1]} of pool {place[0]}"
            if place in leased:
                yield self.mismatch(subject, f"leased to {leased[place]}", "nobody's until its fence")
            if retiring.unit in snapshot.units:
                yield self.mismatch(
                    subject, f"waits for unit {retiring.unit} in flight", "a unit that has ended"
                )
        for page, taken, other in given_away(snapshot):
            yield self.mismatch(
                f"page {page} in a transfer, place {taken}", f"page {other}'s", "its own until the end"
            )
        if snapshot.free_pages is None and not snapshot.retiring:
            return
        named = {(move.pool, move.device) for t in snapshot.transfers.values() for move in t.moves}
        for pool, free in enumerate(snapshot.free_pages or ()):
            fenced = {device for at, device in (*snapshot.retiring, *named) if at == pool}
            if early := sorted(fenced.intersection(free)):
                yield self.mismatch(
                    f"pool {pool}, free list", f"devices {early}", "none retiring or in a transfer"
                )
            yield from self._mapped(snapshot, pool, free, "free")
        for pool in range(len(snapshot.pools)):
            gone = [device for at, device in snapshot.retiring if at == pool]
            yield from self._mapped(snapshot, pool, gone, "retiring")

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge the state after the step, fences that ended in it, and pages that it took away."""
        yield from self.check(after)
        ended = scope.retiring & before.retiring.keys() - after.retiring.keys()
        gone: list[PageState] = []
        if before.units and after.units:
            gone += [before.pages[key] for key in scope.removed]
            gone += [was for was, now in scope.kept if was.device != now.device or was.pool != now.pool]
        if not (ended or gone):
            return
        leased = _leased(after)
        for pool, device in ended:
            if (pool, device) in leased:
                subject = f"device {device} of pool {pool}, retiring until now"
                yield self.mismatch(subject, f"leased to {leased[pool, device]}", "free first")
        for key in before.units.keys() & after.units.keys():
            for pool, row, entries in before.units[key].frozen:
                for page in gone:
                    if page.pool == pool and page.device in entries and (pool, page.device) not in leased:
                        subject = f"unit {key} in flight, row {row} in pool {pool}, device {page.device}"
                        yield self.mismatch(subject, f"page {page.page} is gone", "held until the unit ends")

    def _mapped(self, snapshot: Snapshot, pool: int, gone: Collection[int], how: str) -> Iterator[Violation]:
        if not gone:
            return
        for unit in snapshot.units.values():
            for at, row, entries in unit.frozen:
                if at == pool and (mapped := sorted(set(gone).intersection(entries))):
                    subject = f"unit {unit.unit} in flight, row {row} in pool {pool}, devices {mapped}"
                    yield self.mismatch(subject, how, "leased until the unit ends")


def _leased(snapshot: Snapshot) -> dict[tuple[int, int], str]:
    """Return who leases each physical page, fences left out."""
    leased = {(page.pool, page.device): f"page {page.page}" for page in snapshot.pages.values()}
    for lease in other_leases(snapshot):
        if lease.page is not None:
            leased.setdefault((lease.pool, lease.device), str(lease))
    return leased
