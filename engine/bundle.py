"""Bundles: the spaces and reservations of one sequence over all pools, started and cut as one (DESIGN 4.3, 4.6)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from kvcrucible.contract.errors import DeviceCapacity
from kvcrucible.contract.operations import AdmissionMode
from kvcrucible.engine import admission
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.pages import LogicalPage, PageLedger
from kvcrucible.engine.pool import PagePool, Reservation
from kvcrucible.engine.records import Continuation, Mark, Sequence
from kvcrucible.engine.space import AddressSpace, CopyColumns, Cut
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
    """Carry out ``plan`` for ``sequence``; its victims have been given up.  The bundle is the caller's to end.

    Raises what a failing promise or grant raises, and then nothing has changed: whatever is needed is granted before
    the first effect is queued.
    """
    source = plan.source
    if plan.mode is AdmissionMode.COLD or source is None:
        spaces = [AddressSpace(index, pool.spec.page_size) for index, pool in enumerate(pools)]
        return Bundle(spaces, reserve_bundle(pools, plan.need))
    if plan.mode is AdmissionMode.FORK:
        reservations = reserve_bundle(pools, plan.need)
        at = [min(plan.hit, space.frontier) for space in source.spaces]
        tails = _grant_tails(pools, ledger, source.spaces, at, reservations)
        spaces = [
            space.fork(ledger, tail, position, copy)
            for space, tail, position in zip(source.spaces, tails, at, strict=True)
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
    cuts = _begin_cuts(pools, ledger, source.spaces, reservations, plan.hit)
    cache.take(source)
    marks = cache.rename(cache.unmark_beyond(source.marks, plan.hit), sequence)
    for pool, space, reservation, whole, cut in zip(
        pools, source.spaces, reservations, admission.entitlement(pools, limit), cuts, strict=True
    ):
        if cut is not None:
            space.end_cut(ledger, reservation, cut, copy)
        # A cut can give back more than the new owner was promised: the source may have been the longer one.
        pool.shrink(reservation, reservation.remaining + len(space.pages) - whole)
    cache.restamp(marks, source.spaces)
    return Bundle(source.spaces, reservations, marks)


def begin_cut_bundle(
    pools: Seq[PagePool], ledger: PageLedger, record: Sequence, position: int
) -> list[Cut | None]:
    """Begin to cut every space of an idle sequence that stands above ``position``; room has been made.

    First each reservation is extended, so that the sequence can grow again to all that it was admitted for.  Raises
    what a failing promise or grant raises, and then nothing has changed.
    """
    regrowth = [sum(page.shared for page in space.cut_drops(position)) for space in record.spaces]
    extended: list[tuple[PagePool, Reservation, int]] = []
    try:
        for pool, reservation, pages in zip(pools, record.reservations, regrowth, strict=True):
            pool.extend(reservation, pages)
            extended.append((pool, reservation, pages))
        return _begin_cuts(pools, ledger, record.spaces, record.reservations, position, closes=False)
    except Exception:
        for pool, reservation, pages in reversed(extended):
            pool.shrink(reservation, pages)
        raise


def end_cut_bundle(
    ledger: PageLedger,
    tables: Seq[ExecutionTables],
    record: Sequence,
    cuts: Seq[Cut | None],
    copy: CopyColumns,
) -> None:
    """Carry out the cuts that have begun, one of each space (None where it stands below), and cut the rows."""
    for space, reservation, whole, cut in zip(
        record.spaces, record.reservations, record.entitlement, cuts, strict=True
    ):
        if cut is not None:
            space.end_cut(ledger, reservation, cut, copy)
            assert reservation.remaining + len(space.pages) == whole
            tables[space.pool].repeat(record.row, space.devices())


def _begin_cuts(
    pools: Seq[PagePool],
    ledger: PageLedger,
    spaces: Seq[AddressSpace],
    reservations: Seq[Reservation],
    position: int,
    *,
    closes: bool = True,
) -> list[Cut | None]:
    """Begin a cut in each space that stands above ``position``, all or none; ``closes``: where it fails the
    reservations, made for it, are closed.
    """
    cuts: list[Cut | None] = []
    try:
        for space, reservation in zip(spaces, reservations, strict=True):
            above = position < space.frontier
            cuts.append(space.begin_cut(ledger, reservation, position) if above else None)
    except Exception:
        for space, reservation, cut in reversed(list(zip(spaces, reservations, cuts, strict=False))):
            if cut is not None:
                space.undo_cut(ledger, reservation, cut)
        if closes:
            _close(pools, reservations)
        raise
    return cuts


def _grant_tails(
    pools: Seq[PagePool],
    ledger: PageLedger,
    spaces: Seq[AddressSpace],
    at: Seq[int],
    reservations: Seq[Reservation],
) -> list[LogicalPage | None]:
    """Grant a page for each partial tail below the positions ``at``, all or none; the reservations are closed where it
    fails.
    """
    tails: list[LogicalPage | None] = []
    try:
        for space, position, reservation in zip(spaces, at, reservations, strict=True):
            partial = position % space.page_size
            tails.append(ledger.grant(space.pool, reservation, 1)[0] if partial else None)
    except Exception:
        for space, tail, reservation in zip(spaces, tails, reservations, strict=False):
            if tail is not None:
                ledger.drop(space.pool, [tail], reservation)
        _close(pools, reservations)
        raise
    return tails


def _close(pools: Seq[PagePool], reservations: Seq[Reservation]) -> None:
    for pool, reservation in zip(pools, reservations, strict=True):
        pool.close(reservation)
