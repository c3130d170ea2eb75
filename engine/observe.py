"""Snapshots of an engine: whole, or only what was touched (DESIGN 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from functools import lru_cache
from operator import attrgetter
from typing import Any

from kvcrucible.contract.snapshot import (
    CheckpointState,
    ContinuationState,
    FindableState,
    PageState,
    PoolState,
    RetiringState,
    RowState,
    SequenceState,
    Snapshot,
    SpaceState,
    Touched,
    UnitState,
)
from kvcrucible.engine import observe_host
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.pool import generation_of
from kvcrucible.engine.records import Continuation, Mark, Sequence
from kvcrucible.engine.space import AddressSpace

#: At C speed: a long space has thousands of pages and is observed with every unit.
_page_id: Callable[[LogicalPage], int] = attrgetter("page")

#: All ids of a touched set, in the order of its fields.
_ids_of: Callable[[Touched], tuple[set[Any], ...]] = attrgetter(*Touched.__slots__)

#: A pool is mostly as it was or as it has been before, so that snapshots share its state.  Those of every
#: engine of the process do, so that equal numbers of two types are kept apart: what one shows is never another's.
_pool = lru_cache(maxsize=4096, typed=True)(PoolState)


def snapshot(engine: Engine) -> Snapshot:
    """Return everything visible.  Changes nothing; linear in what is held."""
    page_state = _page if engine.host is None else observe_host.page
    holders: list[Sequence | Continuation] = [
        *engine.sequences.values(),
        *engine.cache.continuations.values(),
    ]
    return Snapshot(
        pools=_pools(engine),
        pages={page: page_state(held) for page, held in engine.ledger.live.items()},
        spaces={
            (_id(holder), space.pool): _space(_id(holder), space, _provisional(engine, holder, space))
            for holder in holders
            for space in holder.spaces
        },
        sequences={sequence: _sequence(record) for sequence, record in engine.sequences.items()},
        continuations={kept: _continuation(record) for kept, record in engine.cache.continuations.items()},
        checkpoints={
            mark.checkpoint: _checkpoint(_id(holder), mark) for holder in holders for mark in holder.marks
        },
        findable={
            checkpoint: _findable(engine, checkpoint) for checkpoint in engine.cache.index.checkpoints()
        },
        rows={
            (table.pool, row): _row(engine, table.pool, row)
            for table in engine.tables
            for row in range(engine.config.max_concurrency)
        },
        units={unit: _unit(engine, unit) for unit in engine.units},
        transfers=observe_host.transfers(engine),
        retiring={
            (number, page): _retiring(engine, number, page)
            for number, pool in enumerate(engine.pools)
            for page in pool.retiring
        },
        extents=observe_host.extents(engine),
        queue=tuple(engine.queue),
        host=observe_host.totals(engine),
        free_pages=tuple(pool.unleased_pages() for pool in engine.pools),
        host_holes=None if engine.host is None else engine.host.arena.holes(),
    )


def drain(engine: Engine) -> tuple[Snapshot, Touched]:
    """Return the touched entries as a partial snapshot and their ids, and start a new collection."""
    live = engine.touched
    for number, pool in enumerate(engine.pools):
        if pool.changed:
            live.retiring.update([(number, page) for page in pool.changed])
            pool.changed.clear()
    if engine.host is not None:
        live.extents |= engine.host.slots.changed
        engine.host.slots.changed.clear()
    parts: list[set[Any]] = []
    for collected in _ids_of(live):
        parts.append(set(collected))
        collected.clear()
    touched = Touched(*parts)
    return partial_snapshot(engine, touched), touched


def partial_snapshot(engine: Engine, touched: Touched) -> Snapshot:
    """Return the pools, the queue and those touched entries that exist."""
    found = Snapshot(_pools(engine), queue=tuple(engine.queue), host=observe_host.totals(engine))
    # Most steps touch three or four parts, so each is asked for only where it was touched.
    if touched.pages:
        live, page_state = engine.ledger.live, _page if engine.host is None else observe_host.page
        found.pages.update([(one, page_state(live[one])) for one in touched.pages if one in live])
    for owner, pool in touched.spaces:
        holder = _find(engine, owner)
        if holder is not None:
            space = holder.spaces[pool]
            found.spaces[owner, pool] = _space(owner, space, _provisional(engine, holder, space))
    active, kept = engine.sequences, engine.cache.continuations
    if touched.sequences:
        found.sequences.update([(one, _sequence(active[one])) for one in touched.sequences if one in active])
    if touched.continuations:
        found.continuations.update(
            [(one, _continuation(kept[one])) for one in touched.continuations if one in kept]
        )
    if touched.checkpoints:
        index = engine.cache.index
        found.checkpoints.update(_checkpoints(engine, touched.checkpoints))
        found.findable.update([(one, _findable(engine, one)) for one in touched.checkpoints if one in index])
    if touched.rows:
        found.rows.update([((pool, row), _row(engine, pool, row)) for pool, row in touched.rows])
    if touched.units:
        found.units.update([(one, _unit(engine, one)) for one in touched.units if one in engine.units])
    if touched.transfers:
        found.transfers.update(observe_host.transfers(engine, touched.transfers))
    for number, page in touched.retiring:
        if page in engine.pools[number].retiring:
            found.retiring[number, page] = _retiring(engine, number, page)
    if touched.extents:
        found.extents.update(observe_host.extents(engine, touched.extents))
    return found


def _find(engine: Engine, owner: int) -> Sequence | Continuation | None:
    return engine.sequences.get(owner) or engine.cache.continuations.get(owner)


def _id(holder: Sequence | Continuation) -> int:
    return holder.sequence if isinstance(holder, Sequence) else holder.continuation


def _checkpoints(engine: Engine, checkpoints: Iterable[int]) -> Iterable[tuple[int, CheckpointState]]:
    for checkpoint in checkpoints:
        owner = engine.cache.owners.get(checkpoint)
        holder = None if owner is None else _find(engine, owner)
        for mark in () if holder is None else holder.marks:
            if mark.checkpoint == checkpoint and owner is not None:
                yield checkpoint, _checkpoint(owner, mark)


def _pools(engine: Engine) -> tuple[PoolState, ...]:
    return tuple(
        [
            _pool(pool.spec.name, pool.spec.page_size, pool.capacity, pool.leased, pool.reserved, pool.free)
            for pool in engine.pools
        ]
    )


def _retiring(engine: Engine, pool: int, page: int) -> RetiringState:
    held = engine.pools[pool].retiring[page]
    return RetiringState(pool, page, generation_of(held.lease), engine.fences.unit(held.fence))


def _page(held: LogicalPage) -> PageState:
    """Return a page of an engine without a Host tier."""
    return PageState(
        held.page,
        held.pool,
        held.epoch,
        held.committed,
        held.references,
        held.device,
        generation_of(held.lease),
    )


def _provisional(engine: Engine, holder: Sequence | Continuation, space: AddressSpace) -> int:
    if isinstance(holder, Continuation) or holder.unit is None:
        return space.frontier
    parts: Seq[int] = [
        part.stops[space.pool] for part in engine.units[holder.unit].parts if part.sequence == holder.sequence
    ]
    return parts[0]


def _space(owner: int, space: AddressSpace, provisional: int) -> SpaceState:
    return SpaceState(owner, space.pool, tuple(map(_page_id, space.pages)), space.frontier, provisional)


def _sequence(record: Sequence) -> SequenceState:
    return SequenceState(
        record.sequence,
        record.row,
        record.prompt,
        record.limit,
        record.session,
        record.entitlement,
        tuple([reservation.remaining for reservation in record.reservations]),
        record.unit is not None,
        record.cancel_recorded,
        record.committed_tokens,
        record.identity,
    )


def _continuation(kept: Continuation) -> ContinuationState:
    return ContinuationState(
        kept.continuation, kept.session, kept.pinned, kept.last_use, kept.tokens, kept.identity
    )


def _checkpoint(owner: int, mark: Mark) -> CheckpointState:
    return CheckpointState(mark.checkpoint, owner, mark.frontier, mark.pages, mark.epochs, mark.columns)


def _findable(engine: Engine, checkpoint: int) -> FindableState:
    tokens, identity = engine.cache.index.tokens(checkpoint)
    return FindableState(checkpoint, tokens, identity)


def _row(engine: Engine, pool: int, row: int) -> RowState:
    return RowState(pool, row, engine.rows.holders[row], tuple(engine.tables[pool].entries[row]))


def _unit(engine: Engine, unit: int) -> UnitState:
    record = engine.units[unit]
    work = tuple(
        (part.sequence, pool, start, stop)
        for part in record.parts
        for pool, (start, stop) in enumerate(zip(part.starts, part.stops, strict=True))
    )
    return UnitState(unit, work, record.frozen)
