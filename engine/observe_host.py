"""The Host tier's part of a snapshot: replicas, transfers and extents (DESIGN 4.4, 6)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from kvcrucible.contract.snapshot import (
    ExtentState,
    HostState,
    MoveState,
    PageState,
    ReplicaState,
    Tier,
    TransferState,
)
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.host.phases import Phase
from kvcrucible.engine.host.replicas import Replica
from kvcrucible.engine.host.slots import HostSlot
from kvcrucible.engine.host.tier import UnderWay
from kvcrucible.engine.host.transfer import Move
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.pool import generation_of, page_of

#: Device replicas have no place of their own to tell apart, so that most pages share a few equal ones.
#: Numbers of two types are kept apart, since every engine of the process shares them.
_device_replica = lru_cache(maxsize=4096, typed=True)(ReplicaState)

#: Most operations leave the arena alone, so that snapshots share its totals.
_totals = lru_cache(maxsize=4096, typed=True)(HostState)


def page(held: LogicalPage) -> PageState:
    """Return a page with its replicas."""
    on_device: ReplicaState | None
    on_host: ReplicaState | None
    if held.only_on_device:
        on_device, on_host = _device_replica(held.epoch, held.committed, 0), None
    else:
        replicas = held.replicas
        on_device, on_host = _replica(replicas.at(Tier.DEVICE)), _replica(replicas.at(Tier.HOST))
    return PageState(
        held.page,
        held.pool,
        held.epoch,
        held.committed,
        held.references,
        held.device,
        generation_of(held.lease),
        held.visible,
        on_device,
        on_host,
    )


def transfers(engine: Engine, only: Iterable[int] | None = None) -> dict[int, TransferState]:
    """Return the transfers under way, or those of ``only`` that are."""
    if engine.host is None:
        return {}
    under_way = engine.host.under_way
    wanted = under_way if only is None else only
    return {number: _transfer(under_way[number]) for number in wanted if number in under_way}


def extents(engine: Engine, only: Iterable[int] | None = None) -> dict[int, ExtentState]:
    """Return the extents that have not ended, or those of ``only`` that have not."""
    if engine.host is None:
        return {}
    slots = engine.host.slots
    found = {serial: slots.of(serial) for serial in (slots.extents() if only is None else only)}
    return {serial: _extent(live) for serial, live in found.items() if live}


def totals(engine: Engine) -> HostState | None:
    """Return the arena's totals, None without a Host tier."""
    if engine.host is None:
        return None
    arena = engine.host.arena
    return _totals(arena.capacity_bytes, arena.alignment_bytes, arena.used_bytes, arena.free_bytes)


def _replica(replica: Replica | None) -> ReplicaState | None:
    if replica is None:
        return None
    if isinstance(replica.place, HostSlot):
        extent, slot = replica.place.extent.serial, replica.place.slot
        return ReplicaState(replica.epoch, replica.coverage, replica.pins, extent, slot)
    return _device_replica(replica.epoch, replica.coverage, replica.pins)


def _transfer(one: UnderWay) -> TransferState:
    transfer = one.transfer
    return TransferState(
        transfer.number,
        one.continuation,
        transfer.source,
        transfer.keep_source,
        transfer.phase is Phase.CANCELLING,
        tuple([_move(move) for move in transfer.moves]),
    )


def _move(move: Move) -> MoveState:
    destination = move.destination
    assert destination is not None
    assert isinstance(move.page, LogicalPage)
    lease, slot = move.source.place, destination.place
    if isinstance(lease, HostSlot):
        lease, slot = slot, lease
    assert isinstance(lease, int)
    assert isinstance(slot, HostSlot)
    return MoveState(
        move.page.page,
        move.page.pool,
        page_of(lease),
        generation_of(lease),
        slot.extent.serial,
        slot.slot,
        destination.epoch,
        destination.coverage,
        move.fresh,
        move.dropped,
    )


def _extent(live: tuple[HostSlot, ...]) -> ExtentState:
    first = live[0]
    return ExtentState(
        first.extent.serial,
        first.extent.offset_bytes,
        first.extent.size_bytes,
        first.pool,
        first.slots,
        tuple(slot.slot for slot in live),
    )
