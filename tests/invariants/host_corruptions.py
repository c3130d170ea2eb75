"""Ways to break a sound snapshot of an engine with a Host tier, each with the invariant that it breaks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from snapshot_corruptions import Catalogue, breaks, define, put

from kvcrucible.contract.snapshot import RetiringState, Snapshot, Tier

HOST_CORRUPTIONS: Catalogue = {}

_define = partial(define, into=HOST_CORRUPTIONS)
_breaks = partial(breaks, into=HOST_CORRUPTIONS)


def _moves(snapshot: Snapshot) -> list[tuple[Any, Any]]:
    return [(transfer, move) for transfer in snapshot.transfers.values() for move in transfer.moves]


def _with_move(snapshot: Snapshot, transfer: Any, move: Any, **changes: Any) -> Snapshot:
    moves = tuple(replace(one, **changes) if one is move else one for one in transfer.moves)
    return put(snapshot, "transfers", transfer.transfer, replace(transfer, moves=moves))


def _copy(page: Any, tier: Tier, **changes: Any) -> Any:
    name = "on_device" if tier is Tier.DEVICE else "on_host"
    return replace(page, **{name: replace(getattr(page, name), **changes)})


def _hidden(page: Any) -> Tier | None:
    """The tier of a clean copy that no transfer uses."""
    copy = page.on_host if page.visible is Tier.DEVICE else page.on_device
    return page.visible.other if copy is not None and not copy.pins else None


def _is_hidden(page: Any, snapshot: Snapshot) -> bool:
    return _hidden(page) is not None


def _still(page: Any, snapshot: Snapshot) -> bool:
    return not page.in_transfer


def _active(snapshot: Snapshot) -> set[int]:
    return {
        page for (owner, _), s in snapshot.spaces.items() if owner in snapshot.sequences for page in s.pages
    }


# -- host-conservation -------------------------------------------------------------------------------------------------


@_breaks("host-conservation")
def bytes_used_by_nothing(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """The sum holds, the parts do not."""
    host = snapshot.host
    return replace(snapshot, host=replace(host, used=host.used + 64, free=host.free - 64))


@_breaks("host-conservation")
def bytes_lost(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Bytes that are neither used nor free."""
    return replace(snapshot, host=replace(snapshot.host, free=snapshot.host.free - 64))


@_breaks("host-conservation")
def extents_overlap(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Two extents over the same bytes."""
    if len(snapshot.extents) < 2:
        return None
    first, second = random.sample(list(snapshot.extents.values()), 2)
    return put(snapshot, "extents", first.extent, replace(first, offset=second.offset))


_define("extent_misaligned", "host-conservation", "extents", lambda e, _: replace(e, offset=e.offset + 1))
_define("extent_beyond", "host-conservation", "extents", lambda e, s: replace(e, offset=s.host.capacity))
_define("extent_grown", "host-conservation", "extents", lambda e, _: replace(e, size=e.size + 64))
_define("extent_without_slots", "host-conservation", "extents", lambda e, _: replace(e, live=()))
_define("extent_gone", "host-conservation", "extents", lambda e, _: None)
_define("extent_of_other_pool", "host-conservation", "extents", lambda e, _: replace(e, pool=1 - e.pool))
_define(
    "slot_of_nobody",
    "host-conservation",
    "extents",
    lambda e, _: replace(e, slots=e.slots + 1, live=(*e.live, e.slots)),
)
_define("slot_beyond", "host-conservation", "extents", lambda e, _: replace(e, slots=e.live[-1]))
_define("slot_ended_too_soon", "host-conservation", "extents", lambda e, _: replace(e, live=e.live[1:]))
_define(
    "slot_not_ended",
    "host-conservation",
    "pages",
    lambda p, _: replace(p, on_host=None),
    lambda p, _: p.on_host is not None,
)
_define(
    "replica_in_no_extent",
    "host-conservation",
    "pages",
    lambda p, _: _copy(p, Tier.HOST, extent=9_999),
    lambda p, _: p.on_host is not None,
)


@_breaks("host-conservation")
def slot_of_two(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Two pages in one slot."""
    there = [page for page in snapshot.pages.values() if page.on_host is not None]
    pairs = [(a, b) for a in there for b in there if a.page < b.page and a.pool == b.pool]
    if not pairs:
        return None
    thief, victim = random.choice(pairs)
    moved = _copy(thief, Tier.HOST, extent=victim.on_host.extent, slot=victim.on_host.slot)
    return put(snapshot, "pages", thief.page, moved)


# -- one-visible-replica, replica-valid --------------------------------------------------------------------------------

_define(
    "visible_where_nothing_is",
    "one-visible-replica",
    "pages",
    lambda p, _: replace(p, visible=p.visible.other),
    lambda p, _: p.on_host is None or p.on_device is None,
)
_define(
    "visible_replica_lost",
    "one-visible-replica",
    "pages",
    lambda p, _: replace(p, **{"on_host" if p.visible is Tier.HOST else "on_device": None}),
)
_define("replica_without_lease", "one-visible-replica", "pages", lambda p, _: replace(p, device=-1))
_define("lease_without_replica", "one-visible-replica", "pages", lambda p, _: replace(p, on_device=None))
for _name in ("replica_without_lease", "lease_without_replica"):
    _invariant, _change = HOST_CORRUPTIONS[_name]
    HOST_CORRUPTIONS[_name] = (
        _invariant,
        lambda s, r, change=_change: change(s, r) if all(p.device >= 0 for p in s.pages.values()) else None,
    )
_define(
    "active_page_on_host",
    "one-visible-replica",
    "pages",
    lambda p, _: replace(p, visible=Tier.HOST, on_host=replace(p.on_device, extent=9_999, slot=0)),
    lambda p, s: p.page in _active(s),
)
_define(
    "visible_of_old_epoch",
    "replica-valid",
    "pages",
    lambda p, _: _copy(p, p.visible, epoch=p.epoch - 1),
)
_define(
    "visible_not_whole",
    "replica-valid",
    "pages",
    lambda p, _: _copy(p, p.visible, coverage=p.committed - 1),
)
_define(
    "clean_copy_of_old_epoch",
    "replica-valid",
    "pages",
    lambda p, _: _copy(p, _hidden(p), epoch=p.epoch - 1),
    _is_hidden,
)
_define(
    "clean_copy_outgrown",
    "replica-valid",
    "pages",
    lambda p, _: replace(_copy(p, p.visible, coverage=p.committed + 1), committed=p.committed + 1),
    _is_hidden,
)

# -- transfer-pinned ---------------------------------------------------------------------------------------------------

_define("pinned_by_nobody", "transfer-pinned", "pages", lambda p, _: _copy(p, p.visible, pins=1), _still)
_define(
    "pinned_twice",
    "transfer-pinned",
    "pages",
    lambda p, _: _copy(p, p.visible, pins=2),
    lambda p, s: not _still(p, s),
)
_define(
    "source_not_pinned",
    "transfer-pinned",
    "pages",
    lambda p, _: _copy(p, p.visible, pins=0),
    lambda p, s: not _still(p, s),
)
_define(
    "destination_not_pinned",
    "transfer-pinned",
    "pages",
    lambda p, _: _copy(p, p.visible.other, pins=0),
    lambda p, s: not _still(p, s) and p.on_host is not None and p.on_device is not None,
)
_define("transfer_forgotten", "transfer-pinned", "transfers", lambda t, _: None, lambda t, _: _lives(t))
_define(
    "page_left_out",
    "transfer-pinned",
    "transfers",
    lambda t, _: replace(t, moves=tuple(m for m in t.moves[1:])),
    lambda t, _: not t.moves[0].dropped,
)


def _lives(transfer: Any) -> bool:
    return any(not move.dropped for move in transfer.moves)


@_breaks("transfer-pinned")
def page_in_two_transfers(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A second transfer over the same pages."""
    for transfer in snapshot.transfers.values():
        if _lives(transfer):
            return put(snapshot, "transfers", 9_999, replace(transfer, transfer=9_999))
    return None


def _define_move(name: str, invariant: str, where: Any, changes: Any) -> None:
    def corrupt(snapshot: Snapshot, random: Random) -> Snapshot | None:
        fitting = [pair for pair in _moves(snapshot) if where(pair[1], snapshot)]
        if not fitting:
            return None
        transfer, move = random.choice(fitting)
        return _with_move(snapshot, transfer, move, **changes(move, snapshot))

    HOST_CORRUPTIONS[name] = (invariant, corrupt)


def _source_is(tier: Tier) -> Any:
    return lambda move, s: not move.dropped and s.pages[move.page].visible is tier


_define_move(
    "living_page_dropped", "transfer-pinned", lambda m, s: not m.dropped, lambda m, s: {"dropped": True}
)
_define_move(
    "ended_page_not_dropped", "transfer-pinned", lambda m, s: m.dropped, lambda m, s: {"dropped": False}
)
_define_move(
    "source_elsewhere",
    "transfer-pinned",
    _source_is(Tier.DEVICE),
    lambda m, s: {"device": next(p.device for p in s.pages.values() if p.device not in (m.device, -1))},
)
_define_move(
    "source_of_other_lease",
    "transfer-pinned",
    _source_is(Tier.DEVICE),
    lambda m, s: {"generation": m.generation - 1},
)
_define_move(
    "source_slot_elsewhere", "transfer-pinned", _source_is(Tier.HOST), lambda m, s: {"slot": m.slot + 1}
)
_define_move("slot_that_is_not", "transfer-pinned", lambda m, s: m.fresh, lambda m, s: {"extent": 9_999})


@_breaks("transfer-pinned")
def destination_ended(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """The Host slot that a copy writes is idle."""
    for transfer, move in _moves(snapshot):
        extent = snapshot.extents[move.extent]
        if transfer.source is Tier.DEVICE and move.fresh and len(extent.live) > 1:
            live = tuple(slot for slot in extent.live if slot != move.slot)
            return put(snapshot, "extents", extent.extent, replace(extent, live=live))
    return None


# -- publish-order, recycle-fenced -------------------------------------------------------------------------------------

_define(
    "published_before_the_end",
    "publish-order",
    "pages",
    lambda p, _: replace(p, visible=p.visible.other),
    lambda p, s: not _still(p, s),
)


@_breaks("recycle-fenced")
def retiring_page_leased(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page that gets a place before its fence."""
    for (pool, device), _ in snapshot.retiring.items():
        for page in snapshot.pages.values():
            if page.pool == pool and page.device >= 0 and not page.in_transfer:
                return put(snapshot, "pages", page.page, replace(page, device=device))
    return None


@_breaks("recycle-fenced")
def retiring_page_leased_to_a_transfer(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A restore that copies into a place before its fence."""
    for transfer, move in _moves(snapshot):
        for pool, device in snapshot.retiring:
            if transfer.source is Tier.HOST and move.fresh and move.pool == pool:
                return _with_move(snapshot, transfer, move, device=device)
    return None


@_breaks("recycle-fenced")
def place_of_a_transfer_leased(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page on the place that a copy reads or writes."""
    for _, move in _moves(snapshot):
        for page in snapshot.pages.values():
            if page.pool == move.pool and page.device >= 0 and page.page != move.page:
                return put(snapshot, "pages", page.page, replace(page, device=move.device))
    return None


@_breaks("recycle-fenced")
def slot_of_a_transfer_taken(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page in the slot that a copy reads or writes."""
    for _, move in _moves(snapshot):
        for page in snapshot.pages.values():
            if page.pool == move.pool and page.on_host is not None and page.page != move.page:
                return put(
                    snapshot, "pages", page.page, _copy(page, Tier.HOST, extent=move.extent, slot=move.slot)
                )
    return None


@_breaks("recycle-fenced")
def retiring_page_in_a_frozen_row(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page that a unit in flight maps, discarded."""
    for unit in snapshot.units.values():
        for pool, _, entries in unit.frozen:
            if entries:
                return put(snapshot, "retiring", (pool, entries[-1]), RetiringState(pool, entries[-1], 1, 0))
    return None


@_breaks("recycle-fenced")
def frozen_row_on_a_retiring_page(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A unit that maps a page behind its fence."""
    for unit in snapshot.units.values():
        for pool, device in snapshot.retiring:
            frozen = tuple(
                (at, row, (*entries, device) if at == pool else entries) for at, row, entries in unit.frozen
            )
            return put(snapshot, "units", unit.unit, replace(unit, frozen=frozen))
    return None


@_breaks("recycle-fenced")
def fence_of_a_unit_in_flight(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page that was discarded although a unit that maps it is in flight."""
    for place, retiring in snapshot.retiring.items():
        for unit in snapshot.units:
            return put(snapshot, "retiring", place, replace(retiring, unit=unit))
    return None


# -- invariants that know of more than the Host tier -------------------------------------------------------------------

_define("retiring_page_lost", "pool-conservation", "retiring", lambda r, _: None)


@_breaks("pool-conservation")
def ended_page_lost(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A transfer that forgets what an ended page left to it."""
    for transfer, move in _moves(snapshot):
        if move.dropped:
            moves = tuple(one for one in transfer.moves if one is not move)
            return put(snapshot, "transfers", transfer.transfer, replace(transfer, moves=moves))
    return None


@_breaks("lease-unique")
def retiring_and_leased(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page that lives on, and a fence on its place."""
    for page in snapshot.pages.values():
        if page.device >= 0:
            place = (page.pool, page.device)
            return put(snapshot, "retiring", place, RetiringState(*place, page.generation, 0))
    return None


@_breaks("lease-unique")
def two_destinations_in_one_place(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A restore of two pages into one."""
    fresh = [(t, m) for t, m in _moves(snapshot) if m.fresh and t.source is Tier.HOST]
    for transfer, move in fresh:
        for _, other in fresh:
            if other is not move and other.pool == move.pool:
                return _with_move(snapshot, transfer, move, device=other.device)
    return None


_define(
    "page_rewritten_in_a_transfer",
    "shared-immutable",
    "pages",
    lambda p, _: replace(p, epoch=p.epoch + 1),
    lambda p, _: p.in_transfer,
)
_define(
    "written_page_in_a_transfer",
    "single-writer",
    "pages",
    lambda p, _: _copy(p, Tier.DEVICE, pins=1),
    lambda p, s: any(
        space.pages and space.pages[-1] == p.page and owner in s.sequences
        for (owner, _), space in s.spaces.items()
        if space.frontier % s.pools[space.pool].page_size
    ),
)
_define(
    "mapped_page_without_device",
    "table-mirror",
    "pages",
    lambda p, _: replace(p, device=-1),
    lambda p, s: p.page in _active(s),
)


@_breaks("no-leak-at-quiescence")
def arena_not_empty(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Everything has ended, and an extent is still there."""
    if not snapshot.extents:
        return None
    bare = Snapshot(
        tuple(replace(pool, leased=0, reserved=0, free=pool.capacity) for pool in snapshot.pools),
        extents=snapshot.extents,
        host=snapshot.host,
        host_holes=snapshot.host_holes,
    )
    return bare
