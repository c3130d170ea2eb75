"""Transfers between Device and Host in a history (DESIGN 4.4, 4.14.13; decision 0013)."""

from __future__ import annotations

from dataclasses import replace

from kvcrucible.contract import history, operations
from kvcrucible.contract.operations import TransferOutcome
from kvcrucible.contract.semantics import Facts, State
from kvcrucible.contract.snapshot import Tier
from kvcrucible.invariants.history import facts as judge
from kvcrucible.invariants.history.arena import Moved, Transfer
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import NO_PAGE, Holder, Page
from kvcrucible.invariants.history.room import make_room, require_all_used, short
from kvcrucible.invariants.history.sequences import with_change


def _movable(ledger: Ledger, kept: Holder | None, source: Tier) -> list[Page]:
    """Return the pages that can leave ``source``, pool by pool in logical order."""
    if kept is None or kept.state is not State.CONTINUATION:
        return []
    on_host = source is Tier.HOST
    return [
        page
        for held in kept.pages
        for page in held
        if page.on_host is on_host and page.transfer is None and not page.active
    ]


def demote(ledger: Ledger, line: history.Demote) -> None:
    """Start a transfer to Host."""
    what = f"demotion of {line.continuation}"
    kept = ledger.holders.get(line.continuation)
    pages = _movable(ledger, kept, Tier.DEVICE)
    sizes = extents_due(ledger, pages)
    facts = replace(judge.about(ledger, line.continuation), movable_pages=len(pages))
    if ledger.arena is not None:
        facts = replace(
            facts, extent_bytes=tuple(size for size in sizes if size), hole_bytes=ledger.arena.holes()
        )
    if not judge.require(ledger, what, [(operations.Demote, facts)], line.refused):
        return
    moves = _take_slots(ledger, pages, line.extents, what)
    _start(ledger, Transfer(ledger.number("transfer", line.transfer), Tier.DEVICE, line.keep, moves))


def sink(ledger: Ledger, told: history.Started, pages: list[Page]) -> None:
    """Start to move ``pages`` to Host for the sake of a request."""
    what = f"sinking of {told.continuation}"
    if told.pages or told.positions:
        raise Broken("publish-order", f"{what} takes Device pages, which a transfer to Host does not")
    moves = _take_slots(ledger, pages, told.extents, what)
    _start(ledger, Transfer(ledger.number("transfer", told.transfer), Tier.DEVICE, False, moves))


def _take_slots(
    ledger: Ledger, pages: list[Page], extents: list[history.NewExtent], what: str
) -> list[Moved]:
    """Take the extents that are due for those of ``pages`` that have no copy on Host."""
    arena = ledger.arena
    assert arena is not None, "without a Host tier nothing moves there"
    copied = [[page for page in pages if page.pool == pool and page.extent is None] for pool in ledger.pools]
    sizes = [_extent_bytes(ledger, pool, len(found)) for pool, found in enumerate(copied)]
    told = {extent.pool: extent for extent in extents}
    due = {pool for pool, size in enumerate(sizes) if size}
    if told.keys() != due or len(told) < len(extents):
        raise Broken(
            "host-conservation",
            f"{what} takes extents of pools {sorted(extent.pool for extent in extents)}, due: {sorted(due)}",
        )
    moves = [Moved(page) for page in pages if page.extent is not None]
    for pool in sorted(due):
        place = arena.take(told[pool].offset, told[pool].size, sizes[pool], len(copied[pool]))
        moves += [Moved(page, extent=place) for page in copied[pool]]
    return moves


def extents_due(ledger: Ledger, pages: list[Page]) -> list[int]:
    """Return, for each pool, the bytes of the extent that those of ``pages`` take which have no copy on Host."""
    bare = [sum(page.pool == pool and page.extent is None for page in pages) for pool in ledger.pools]
    return [_extent_bytes(ledger, pool, count) for pool, count in enumerate(bare)]


def _extent_bytes(ledger: Ledger, pool: int, pages: int) -> int:
    size = pages * ledger.header.pools[pool].page_bytes
    return ledger.arena.rounded(size) if ledger.arena is not None else size


def restore(ledger: Ledger, line: history.Restore) -> None:
    """Start a transfer to Device, with a page for each that has none there."""
    what = f"restore of {line.continuation}"
    kept = ledger.holders.get(line.continuation)
    pages = _movable(ledger, kept, Tier.HOST)
    bare = [[page for page in pages if page.pool == pool and not page.leased] for pool in ledger.pools]
    need = [len(found) for found in bare]
    facts = replace(judge.about(ledger, line.continuation), movable_pages=len(pages))
    facts = judge.lacking(facts, need, judge.available(ledger, need, kept))
    if not judge.require(ledger, what, [(operations.Restore, facts)], line.refused):
        return
    evicted = list(line.evicted)
    make_room(ledger, evicted, lambda: short(ledger, need), kept, what)
    require_all_used(evicted, what)
    name = ledger.number("transfer", line.transfer)
    moves = [Moved(page) for page in pages if page.leased]
    moves += take_device_pages(ledger, bare, line.pages, line.generations, what)
    _start(ledger, Transfer(name, Tier.HOST, line.keep, moves))


def restore_hit(ledger: Ledger, told: history.Started, pages: list[Page], evicted: list[int]) -> None:
    """Start to move back what a request lacks of its hit, which keeps its Host slots; takes those who are released
    for it off ``evicted``.
    """
    what = f"restore of {told.continuation} up to {told.positions}"
    bare = [[page for page in pages if page.pool == pool and not page.leased] for pool in ledger.pools]
    need = [len(found) for found in bare]
    make_room(ledger, evicted, lambda: short(ledger, need), ledger.holders[told.continuation], what)
    if told.extents:
        raise Broken("publish-order", f"{what} takes extents, which a transfer to Device does not")
    moves = [Moved(page) for page in pages if page.leased]
    moves += take_device_pages(ledger, bare, told.pages, told.generations, what)
    _start(ledger, Transfer(ledger.number("transfer", told.transfer), Tier.HOST, True, moves))


def take_device_pages(
    ledger: Ledger, bare: list[list[Page]], pages: list[list[int]], generations: list[list[int]], what: str
) -> list[Moved]:
    """Lease a Device page to a transfer for each of the ``bare`` pages of each pool; room has been made."""
    moves = []
    for pool, found in enumerate(bare):
        named = pages[pool] if pool < len(pages) else []
        if len(named) != len(found) and (ledger.shows_pages or named):
            raise Broken(
                "publish-order",
                f"{what} takes {len(named)} pages of pool {ledger.names[pool]}, where {len(found)} are due",
            )
        if ledger.shows_pages:
            ledger.check_free(pool, named, what)
            if ledger.shows_generations and named:
                ledger.check_generations(pool, named, generations)
        ledger.free[pool] -= len(found)
        ledger.leased[pool] += len(found)
        for page, device in zip(found, named if ledger.shows_pages else [NO_PAGE] * len(found), strict=True):
            if device != NO_PAGE:
                ledger.owners[pool][device] = page
            moves.append(Moved(page, device=device))
    return moves


def _start(ledger: Ledger, transfer: Transfer) -> None:
    """Let a transfer hold its pages, as one more holder that is not released."""
    ledger.transfers[transfer.id] = transfer
    ledger.charge(len(transfer.moves))
    pages = [move.page for move in transfer.moves]
    ledger.harden(pages)
    for page in pages:
        page.references += 1
        page.transfer = transfer
    for keeper in _keepers(pages):
        kept = ledger.continuations[keeper]
        with_change(ledger, kept, lambda kept=kept: setattr(kept, "moving", kept.moving + 1))  # type: ignore[misc]


def _keepers(pages: list[Page]) -> set[int]:
    return {keeper for page in pages for keeper in page.keepers or ()}


def cancel(ledger: Ledger, line: history.CancelTransfer) -> None:
    """Mark a transfer."""
    transfer = ledger.transfers.get(line.transfer)
    facts = Facts(transfer_known=transfer is not None)
    what = f"cancel of transfer {line.transfer}"
    carried_out = judge.require(ledger, what, [(operations.CancelTransfer, facts)], line.refused)
    if carried_out and transfer is not None:
        transfer.cancelled = True


def over(ledger: Ledger, told: list[history.Ended]) -> None:
    """Take note of transfers that are over, in the order of their ids."""
    last = -1
    for ended in told:
        if ended.transfer <= last:
            raise Broken("publish-order", f"progress ends transfer {ended.transfer} after {last}")
        last = ended.transfer
        transfer = ledger.transfers.pop(ended.transfer, None)
        if transfer is None:
            raise Broken(
                "unknown-transfer", f"progress ends transfer {ended.transfer}, which is not under way"
            )
        _end(ledger, transfer, ended)


def _end(ledger: Ledger, transfer: Transfer, told: history.Ended) -> None:
    """Judge how a transfer ends, and carry it out: visibility moves for all of its pages, or for none."""
    living = [move for move in transfer.moves if move.page.references > 1]
    if told.failed and not any(move.fresh for move in transfer.moves):
        raise Broken("publish-order", f"transfer {transfer.id} failed, which had nothing to copy")
    taken = any(move.page.active for move in living)
    abandoned = told.failed or transfer.cancelled or not living or taken
    due = TransferOutcome.KEPT if transfer.keep else TransferOutcome.MOVED
    if abandoned:
        due = TransferOutcome.ABANDONED
    if told.outcome is not due:
        why = (
            "a copy failed"
            if told.failed
            else "it was cancelled"
            if transfer.cancelled
            else "every page of it has ended"
            if not living
            else "an active sequence holds a page of it"
            if taken
            else "its copies are done and its pages are as they were"
        )
        raise Broken(
            "publish-order",
            f"transfer {transfer.id} ends {told.outcome.value}; due: {due.value}, since {why}",
        )
    ledger.charge(-len(transfer.moves))
    for keeper in _keepers([move.page for move in transfer.moves]):
        kept = ledger.continuations[keeper]
        with_change(ledger, kept, lambda kept=kept: setattr(kept, "moving", kept.moving - 1))  # type: ignore[misc]
    to_host = transfer.source is Tier.DEVICE
    for move in transfer.moves:
        page = move.page
        page.transfer = None
        page.references -= 1
        if abandoned or not page.references:
            _free_destination(ledger, move)
        elif to_host:
            _publish_on_host(ledger, move, transfer.keep)
        else:
            _publish_on_device(ledger, move, transfer.keep)
        page.firm -= 1
        if not page.references:
            ledger.finish(page)
        elif not page.firm and page.leased:
            ledger.offer(page)


def _free_destination(ledger: Ledger, move: Moved) -> None:
    """Give back what the transfer took for a page at the other end."""
    if move.extent is not None:
        move.extent.drop()
    if move.device is not None:
        pool = move.page.pool
        ledger.leased[pool] -= 1
        ledger.free[pool] += 1
        if move.device != NO_PAGE:
            del ledger.owners[pool][move.device]


def _publish_on_host(ledger: Ledger, move: Moved, keep: bool) -> None:
    page = move.page
    page.on_host = True
    if move.extent is not None:
        page.extent = move.extent
    for keeper in page.keepers or ():
        ledger.holders[keeper].away += 1
    if not keep:
        ledger.leave(page)


def _publish_on_device(ledger: Ledger, move: Moved, keep: bool) -> None:
    page = move.page
    page.on_host = False
    if move.device is not None:
        page.device, page.leased, page.stamp, page.born = move.device, True, 0, ledger.begun
        ledger.charge(2)
    for keeper in page.keepers or ():
        ledger.holders[keeper].away -= 1
    if not keep and page.extent is not None:
        page.extent.drop()
        page.extent = None
