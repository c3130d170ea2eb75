"""Bundles: the spaces and reservations of one sequence over all pools, started and cut as one (DESIGN 4.3, 4.6)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from kvcrucible.contract.errors import DeviceCapacity
from kvcrucible.contract.operations import AdmissionMode
from kvcrucible.engine import admission
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.pages import PageLedger
from kvcrucible.engine.pool import PagePool, Reservation
from kvcrucible.engine.records import Continuation, Mark, Sequence
from kvcrucible.engine.space import AddressSpace, CopyColumns
from kvcrucible.engine.tables import ExecutionTables


@dataclass(slots=True)
class Bundle:
    """One space and one reservation per pool, in pool order, and the checkpoints that came with them."""

    spaces: list[AddressSpace]
    reservations: list[Reservation]
    marks: list[Mark] = field(default_factory=list)


def reserve_bundle(pools: Seq[PagePool], need: Seq[int]) -> list[Reservation]:
    """Reserve ``need`` pages in every pool, all or nothing; raises ``DeviceCapacity`` and then holds nothing."""
    reservations: list[Reservation] = []
    try:
        for pool, pages in zip(pools, need, strict=True):
            reservations.append(pool.reserve(pages))
    except DeviceCapacity:
        for pool, reservation in zip(pools, reservations, strict=False):
            pool.close(reservation)
        raise
    return reservations


def start_bundle(
    pools: Seq[PagePool],
    ledger: PageLedger,
    cache: ContextCache,
    sequence: int,
    plan: admission.Plan,
    limit: int,
    copy: CopyColumns,
) -> Bundle:
    """Carry out ``plan`` for ``sequence``; its victims have been released.  The bundle is the caller's to end."""
    source = plan.source
    if plan.mode is AdmissionMode.COLD or source is None:
        spaces = [AddressSpace(index, pool.spec.page_size) for index, pool in enumerate(pools)]
        return Bundle(spaces, reserve_bundle(pools, plan.need))
    if plan.mode is AdmissionMode.FORK:
        reservations = reserve_bundle(pools, plan.need)
        spaces = [
            space.fork(ledger, reservation, min(plan.hit, space.frontier), copy)
            for space, reservation in zip(source.spaces, reservations, strict=True)
        ]
        if isinstance(source, Continuation):
            cache.use(source)
        return Bundle(spaces, reservations)
    assert isinstance(source, Continuation)
    return _move(pools, ledger, cache, sequence, plan, source, limit, copy)


def _move(
    pools: Seq[PagePool],
    ledger: PageLedger,
    cache: ContextCache,
    sequence: int,
    plan: admission.Plan,
    source: Continuation,
    limit: int,
    copy: CopyColumns,
) -> Bundle:
    """Pass the continuation's spaces to ``sequence``, each cut to the hit where it stands above; nothing is copied
    unless the cut page is shared.
    """
    cache.take(source)
    # Counted anew: releasing the plan's victims may have left this source alone with pages that it shared before.
    needed = admission.move_need(source.spaces, pools, limit, plan.hit)
    # What of the source is beyond the hit may be on Host alone, and then gives no page back.
    gained = [
        sum([not page.shared and page.device >= 0 for page in space.cut_drops(plan.hit)])
        for space in source.spaces
    ]
    reservations = reserve_bundle(
        pools, [max(0, need - back) for need, back in zip(needed, gained, strict=True)]
    )
    marks = cache.rename(cache.unmark_beyond(source.marks, plan.hit), sequence)
    for pool, space, reservation, whole in zip(
        pools, source.spaces, reservations, admission.entitlement(pools, limit), strict=True
    ):
        if plan.hit < space.frontier:
            space.truncate(ledger, reservation, plan.hit, copy)
        # A cut can give back more than the new owner was promised: the source may have been the longer one.
        pool.shrink(reservation, reservation.remaining + len(space.pages) - whole)
    cache.restamp(marks, source.spaces)
    return Bundle(source.spaces, reservations, marks)


def cut_bundle(
    pools: Seq[PagePool],
    ledger: PageLedger,
    tables: Seq[ExecutionTables],
    record: Sequence,
    position: int,
    copy: CopyColumns,
) -> None:
    """Cut every space of an idle sequence that stands above ``position``, and its rows; room has been made.

    First each reservation is extended, so that the sequence can grow again to all that it was admitted for.
    """
    for space, reservation, whole in zip(record.spaces, record.reservations, record.entitlement, strict=True):
        if position < space.frontier:
            dropped = space.cut_drops(position)
            pools[space.pool].extend(reservation, sum(page.shared for page in dropped))
            space.truncate(ledger, reservation, position, copy)
            assert reservation.remaining + len(space.pages) == whole
            tables[space.pool].repeat(record.row, space.devices())
