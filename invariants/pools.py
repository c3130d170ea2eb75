"""Checkers about physical pages and their counters (DESIGN 4.1, 4.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from kvcrucible.contract.snapshot import PageState, PoolState, Snapshot
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.places import Lease, other_leases, page_lease, transfer_leases
from kvcrucible.invariants.violation import Violation


class PoolConservation(Checker):
    """Verifies: per pool, leased + reserved + free is the capacity and none is negative; leased counts the distinct
    physical pages of the logical pages, those that transfers hold beside, and those that retire; reserved is the sum
    of what the active sequences were promised.

    Does not verify: which pages are leased (lease-unique), nor what a sequence was promised (completion-guarantee).
    """

    id = "pool-conservation"
    statement = (
        "In every pool leased + reserved + free equals the capacity, none is negative, and leased and reserved are "
        "what pages, transfers, fences and sequences add up to."
    )
    source = "4.3, 4.4"
    needs = frozenset({"pools", "pages", "sequences"})
    reads = frozenset({"counters", "pages", "sequences", "transfers", "retiring"})
    premise_part = "pools"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge the counters against everything that is counted."""
        for index, pool in enumerate(snapshot.pools):
            if _adds_up_wrongly(pool):
                yield from self._counters(pool)
            leased = len(_devices(snapshot, index))
            if pool.leased != leased:
                yield self.mismatch(
                    f"pool {pool.name}, leased", pool.leased, f"{leased} (distinct leased pages)"
                )
            reserved = _reserved(snapshot, index)
            if pool.reserved != reserved:
                yield self.mismatch(
                    f"pool {pool.name}, reserved", pool.reserved, f"{reserved} (sum over sequences)"
                )

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge the change of each counter against the change of what it counts."""
        leases = scope.pages or scope.transfers or scope.retiring
        for index, (old, pool) in enumerate(zip(before.pools, after.pools, strict=True)):
            if _adds_up_wrongly(pool):
                yield from self._counters(pool)
            # What was not touched is the same on both sides.
            leased, reserved = old.leased, old.reserved
            if leases:
                leased += len(_devices(after, index)) - len(_devices(before, index))
            if pool.leased != leased:
                yield self.mismatch(f"pool {pool.name}, leased", pool.leased, f"{leased} (was {old.leased})")
            if scope.sequences:
                reserved += _reserved(after, index) - _reserved(before, index)
            if pool.reserved != reserved:
                yield self.mismatch(
                    f"pool {pool.name}, reserved", pool.reserved, f"{reserved} (was {old.reserved})"
                )

    def _counters(self, pool: PoolState) -> Iterator[Violation]:
        total = pool.leased + pool.reserved + pool.free
        parts = f"{pool.leased} leased + {pool.reserved} reserved + {pool.free} free"
        if total != pool.capacity:
            yield self.mismatch(f"pool {pool.name}, {parts}", total, f"the capacity {pool.capacity}")
        if min(pool.leased, pool.reserved, pool.free) < 0:
            yield self.mismatch(f"pool {pool.name}", parts, "no negative counter")


def _adds_up_wrongly(pool: PoolState) -> bool:
    leased, reserved, free = pool.leased, pool.reserved, pool.free
    return leased + reserved + free != pool.capacity or leased < 0 or reserved < 0 or free < 0


def _devices(snapshot: Snapshot, pool: int) -> set[int]:
    devices = {page.device for page in snapshot.pages.values() if page.pool == pool}
    devices.discard(-1)
    if snapshot.transfers or snapshot.retiring:
        devices.update([lease.device for lease in other_leases(snapshot) if lease.pool == pool])
    return devices


def _reserved(snapshot: Snapshot, pool: int) -> int:
    # A vector that is too short is bundle-atomic's finding, not this one's.
    vectors = [sequence.reserved for sequence in snapshot.sequences.values()]
    return sum([vector[pool] for vector in vectors if pool < len(vector)])


class LeaseUnique(Checker):
    """Verifies: no physical page backs two logical pages, or one while a transfer holds it for another or it retires;
    every physical page is leased or once in the free list; all ids lie within the pool.

    Does not verify: who may lease, nor the counters (pool-conservation).  Free lists are judged in full snapshots only.
    """

    id = "lease-unique"
    statement = (
        "Each physical page is leased once at most, to a page, a transfer or a fence, and is otherwise in the free "
        "list once."
    )
    source = "4.1, 4.3, 4.4"
    needs = frozenset({"pools", "pages"})
    reads = frozenset({"pages", "transfers", "retiring"})

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge leases, and the free lists where the snapshot has them."""
        others = other_leases(snapshot)
        for index, pool in enumerate(snapshot.pools):
            held = [
                page.device for page in snapshot.pages.values() if page.pool == index and page.device != -1
            ]
            held += [lease.device for lease in others if lease.pool == index]
            devices = set(held)
            if len(devices) < len(held) or (
                devices and not 0 <= min(devices) <= max(devices) < pool.capacity
            ):
                pages = [page for page in snapshot.pages.values() if page.device != -1]
                leases = (*map(page_lease, pages), *other_leases(snapshot))
                yield from self._explain(pool, [lease for lease in leases if lease.pool == index])
            if snapshot.free_pages is not None:
                yield from self._free_list(pool, snapshot.free_pages[index], devices)

    def _explain(self, pool: PoolState, leases: list[Lease]) -> Iterator[Violation]:
        holder: dict[int, Lease] = {}
        for lease in leases:
            if not 0 <= lease.device < pool.capacity:
                yield self.mismatch(
                    f"pool {pool.name}, {lease}", f"device {lease.device}", f"0…{pool.capacity - 1}"
                )
            other = holder.setdefault(lease.device, lease)
            # A page may show the fresh destination of its own transfer as the replica that it is to be.
            if other is not lease and other.page != lease.page:
                yield self.mismatch(f"pool {pool.name}, device {lease.device}", f"{other} and {lease}", "one")

    def _free_list(self, pool: PoolState, free: tuple[int, ...], leased: set[int]) -> Iterator[Violation]:
        distinct = set(free)
        if len(distinct) < len(free):
            twice = sorted(device for device, times in Counter(free).items() if times > 1)
            yield self.mismatch(f"pool {pool.name}, free list", f"devices {twice} twice", "each once")
        if distinct & leased:
            yield self.mismatch(
                f"pool {pool.name}, free list", f"leased devices {sorted(distinct & leased)}", "none"
            )
        every = set(range(pool.capacity))
        if distinct - every:
            yield self.mismatch(
                f"pool {pool.name}, free list",
                f"devices {sorted(distinct - every)}",
                f"0…{pool.capacity - 1}",
            )
        if lost := every - distinct - leased:
            yield self.mismatch(
                f"pool {pool.name}", f"devices {sorted(lost)} neither leased nor free", "one of both"
            )


class LeaseGenerations(Checker):
    """Verifies: a physical page that is leased anew has a higher generation than at any lease seen before, and a lease
    that goes on keeps its generation, also where it passes from a transfer to its page, or from a page to a transfer
    or a fence; so a handle of an earlier lease can be told from the present one.  What a transfer is granted to copy to
    is leased anew, also where the same page had a copy there that has just been given up.

    Does not verify: that stale handles are in fact refused; the harness tries them.  Generation −1 means that the
    engine has none to show, and is passed over.
    """

    id = "stale-handle-refused"
    statement = (
        "A handle whose generation is old is refused and changes nothing; generations rise with every lease."
    )
    source = "4.3, 4.14.1"
    needs = frozenset({"pages"})
    reads = frozenset({"pages", "transfers", "retiring"})
    is_temporal = True

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge new leases against the leases that ended, in this step or in an earlier one."""
        last = self._last
        moved = [
            (was, now)
            for was, now in scope.kept
            if was.device != now.device or was.generation != now.generation or was.pool != now.pool
        ]
        if not (moved or scope.created or scope.removed or scope.transfers or scope.retiring):
            return
        old = self._changed(before, scope, scope.removed, [was for was, _ in moved])
        new = self._changed(after, scope, scope.created, [now for _, now in moved])
        for place, lease in new.items():
            was = old.get(place)
            previous = max(last.get(place, -1), was.generation if was is not None else -1)
            if was is not None and was.page == lease.page and was.fresh >= lease.fresh:
                if lease.generation != was.generation:
                    due = f"{was.generation}: its lease goes on"
                    yield self.mismatch(
                        f"{lease}, device {lease.device}", f"generation {lease.generation}", due
                    )
            elif previous != -1 and lease.generation < previous + (not lease.ended):
                subject = f"{lease}, device {lease.device} leased anew"
                yield self.mismatch(subject, f"generation {lease.generation}", f"above {previous}")
        for place, lease in old.items():
            last[place] = max(last.get(place, -1), lease.generation)

    def _changed(
        self, snapshot: Snapshot, scope: Scope, alone: set[int], moved: list[PageState]
    ) -> dict[tuple[int, int], Lease]:
        """Return the leases of touched entries by place, but those of pages that keep theirs as it is.

        ``alone``: touched pages that exist on this side only; ``moved``: those on both whose lease is another one.
        """
        pages = [snapshot.pages[key] for key in alone] + moved
        leases = [page_lease(page) for page in pages if page.device != -1]
        if scope.transfers:
            leases += transfer_leases(
                [snapshot.transfers[key] for key in scope.transfers if key in snapshot.transfers]
            )
        for key in scope.retiring & snapshot.retiring.keys() if scope.retiring else ():
            retiring = snapshot.retiring[key]
            leases.append(Lease(retiring.pool, retiring.device, retiring.generation, None, True))
        return {(lease.pool, lease.device): lease for lease in leases}


class RefcountExact(Checker):
    """Verifies: a logical page's references are the spaces that hold it, it exists only while there is one, no space
    holds a page twice, and every page that a space names exists.

    Does not verify: that the right spaces hold it (table-mirror and the payload checks do).
    """

    id = "refcount-exact"
    statement = "A logical page has as many references as spaces hold it, and does not exist without one."
    source = "4.5, 4.6"
    needs = frozenset({"pages", "spaces"})
    reads = frozenset({"pages", "spaces"})

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Count every page in every space."""
        holders = Counter(chain.from_iterable(space.pages for space in snapshot.spaces.values()))
        for key, page in snapshot.pages.items():
            if page.references != holders.get(key, 0) or page.references < 1:
                yield self.mismatch(f"page {key}, references", page.references, _due(holders.get(key, 0)))
        for key in holders.keys() - snapshot.pages.keys():
            yield self.mismatch(f"page {key}", f"absent, held by {holders[key]} space(s)", "to exist")
        for space in snapshot.spaces.values():
            if len(set(space.pages)) < len(space.pages):
                yield self.mismatch(f"space of {space.owner}", f"pages {space.pages}", "each page once")

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge each change of references by the spaces that took the page up or gave it up."""
        gained, lost = _counted(scope.gained), _counted(scope.lost)
        old, new = before.pages, after.pages
        suspects = {page.page for was, page in scope.kept if was.references != page.references}
        suspects.update(key for key in scope.created if new[key].references != gained.get(key, 0))
        suspects.update(key for key in scope.removed if old[key].references != lost.get(key, 0))
        suspects.update(gained.keys() - scope.created, lost.keys() - scope.removed)
        for key in suspects:
            was, page = old.get(key), new.get(key)
            due = (was.references if was else 0) + gained.get(key, 0) - lost.get(key, 0)
            if page is None:
                if due != 0:
                    yield self.mismatch(f"page {key}", f"absent, held by {due} space(s)", "to exist")
            elif page.references != due or due < 1:
                yield self.mismatch(f"page {key}, references", page.references, _due(due))
        for key in scope.created:
            if new[key].references < 1 and key not in suspects:
                yield self.mismatch(f"page {key}, references", new[key].references, _due(0))
        # A page created in this step is covered by its count; only one that was there can be held twice unnoticed.
        if gained.keys().isdisjoint(before.pages) and all(times == 1 for times in gained.values()):
            return
        for space in (after.spaces[key] for key in scope.starts if key in after.spaces):
            if len(set(space.pages)) < len(space.pages):
                yield self.mismatch(f"space of {space.owner}", f"pages {space.pages}", "each page once")


def _counted(pages: list[int]) -> dict[int, int]:
    """Return how often each page is named; for the few of a step quicker than a counter."""
    found: dict[int, int] = {}
    for page in pages:
        found[page] = found.get(page, 0) + 1
    return found


def _due(holders: int) -> str:
    return f"{holders} (spaces that hold it)" if holders else "none, or no such page: no space holds it"


class PoolIsolation(Checker):
    """Verifies: a space holds only pages of its own pool, a checkpoint names for each pool a page of that pool, and
    pages, spaces and table rows name a pool that exists.

    Does not verify: that payload stays within its pool's planes (the payload checks do).
    """

    id = "pool-isolation"
    statement = (
        "What belongs to a pool names pages of that pool; equal ids in two pools mean nothing to each other."
    )
    source = "4.1"
    needs = frozenset({"pools", "pages", "spaces"})
    reads = frozenset({"pages", "spaces", "checkpoints", "rows"})

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Compare the pool of every space with that of its pages."""
        whole = Scope(starts=dict.fromkeys(snapshot.spaces, 0))
        return self.check_delta(snapshot, snapshot, whole)

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Compare every changed block with its space, and judge every checkpoint and row in view."""
        pools, pages = len(after.pools), after.pages
        for checkpoint in after.checkpoints.values():
            for pool, named in enumerate(checkpoint.pages):
                there = pages.get(named)
                if there is not None and there.pool != pool:
                    subject = f"checkpoint {checkpoint.checkpoint}, page {named}"
                    yield self.mismatch(subject, f"a page of pool {there.pool}", f"pool {pool}")
        for row in [row for row in after.rows.values() if not 0 <= row.pool < pools]:
            yield self.mismatch(f"row {row.row}", f"pool {row.pool}", f"0…{pools - 1}")
        for page in [page for page in pages.values() if not 0 <= page.pool < pools]:
            yield self.mismatch(f"page {page.page}", f"pool {page.pool}", f"0…{pools - 1}")
        for key in scope.starts.keys() | scope.displaced.keys():
            space = after.spaces.get(key)
            if space is None:
                continue
            if not 0 <= space.pool < pools:
                yield self.mismatch(f"space of {space.owner}", f"pool {space.pool}", f"0…{pools - 1}")
            for block in scope.blocks(key, len(space.pages)):
                held = pages.get(space.pages[block])
                if held is not None and held.pool != space.pool:
                    subject = f"space of {space.owner}, block {block}, page {held.page}"
                    yield self.mismatch(subject, f"a page of pool {held.pool}", f"pool {space.pool}")


class NoLeakAtQuiescence(Checker):
    """Verifies: with no sequence, continuation, unit or transfer alive and no page behind a fence, nothing is leased,
    reserved, mapped, marked or findable, every physical page is free, and the host arena is empty.  Queued requests own
    nothing, so the rule holds with a queue too.

    Does not verify: leaks while something is alive (refcount-exact and pool-conservation do), nor that transfers and
    fences come to an end (the harness settles them first, and judges fences by ``overdue``).

    Not local: what is left over is what no step touches any more.  The monitor judges the whole state whenever a step
    leaves nothing alive.
    """

    id = "no-leak-at-quiescence"
    statement = (
        "When nothing is active, retained or under way, every page and host byte is free and no space, mapping or "
        "checkpoint is left."
    )
    source = "4.3, 4.8"
    needs = frozenset({"pools", "pages", "sequences", "continuations"})
    is_local = False

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether nothing is alive."""
        alive = snapshot.sequences or snapshot.continuations or snapshot.units
        return not (alive or snapshot.transfers or snapshot.retiring)

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge what is left when nothing is alive."""
        if not self.premise(snapshot):
            return
        for index, pool in enumerate(snapshot.pools):
            if (pool.leased, pool.reserved, pool.free) != (0, 0, pool.capacity):
                found = f"{pool.leased} leased, {pool.reserved} reserved, {pool.free} free"
                yield self.mismatch(f"pool {pool.name}, nothing alive", found, f"all {pool.capacity} free")
            if snapshot.free_pages is not None and len(snapshot.free_pages[index]) != pool.capacity:
                found = f"{len(snapshot.free_pages[index])} pages in the free list"
                yield self.mismatch(f"pool {pool.name}, nothing alive", found, str(pool.capacity))
        if snapshot.host is not None and snapshot.host.free != snapshot.host.capacity:
            found = f"{snapshot.host.used} bytes used, {snapshot.host.free} free"
            yield self.mismatch("host arena, nothing alive", found, f"all {snapshot.host.capacity} free")
        for part in ("pages", "spaces", "checkpoints", "findable", "extents"):
            if left := getattr(snapshot, part):
                yield self.mismatch(f"{part}, nothing alive", sorted(left)[:8], "none")
        if mapped := [row.row for row in snapshot.rows.values() if row.entries or row.sequence is not None]:
            yield self.mismatch("rows, nothing alive", f"leased or mapped: {mapped}", "none")
