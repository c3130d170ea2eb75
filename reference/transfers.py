"""What demotions, restores and progress do to the accounting model's books, once they are due (decision 0013).

As in :mod:`kvcrucible.reference.acts`, each act asserts that the counted change is what ``contract.counters`` says.

Does not verify: when a copy is done and whether it failed; that is the engine's word.
"""

from __future__ import annotations

from dataclasses import replace

from kvcrucible.contract.counters import Change, release, restore_change, retire_change, transfer_change
from kvcrucible.contract.operations import (
    Demote,
    Hit,
    Progressed,
    Restore,
    TransferEnded,
    TransferOutcome,
    TransferStarted,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.reference.acts import expect
from kvcrucible.reference.books import Books
from kvcrucible.reference.pages import AT_REST, Move, Page, Transfer


def demote(books: Books, operation: Demote) -> int:
    """Start to move what can leave Device, as one transfer; return it."""
    before = books.about_to_change()
    pages = books.all_movable(books.continuations[operation.continuation], Tier.DEVICE)
    transfer = _start(books, operation.continuation, Tier.DEVICE, operation.keep, pages)
    expect(books, before, [Change() for _ in books.pools])
    return transfer


def restore(books: Books, operation: Restore) -> int:
    """Start to move what can leave Host, with a Device page for each that has none; return the transfer."""
    pages = books.all_movable(books.continuations[operation.continuation], Tier.HOST)
    return _restore(books, operation.continuation, operation.keep, pages)


def restore_hit(books: Books, sequence: int, hit: Hit) -> Waiting:
    """Start to move back what a queued request lacks of its hit, and note that it has (0020)."""
    pages = books.missing(books.continuations[hit.source], hit.length)
    request = books.queued[sequence]
    request.tried = request.tried | {hit.source}
    transfer = _restore(books, hit.source, keep=True, pages=pages)
    counts = tuple(len(of_pool) for of_pool in pages)
    started = TransferStarted(transfer, hit.source, Tier.HOST, counts, hit.length)
    return Waiting(sequence, WaitingKind.RESTORING, (started,))


def _restore(books: Books, continuation: int, keep: bool, pages: list[list[Page]]) -> int:
    before = books.about_to_change()
    transfer = _start(books, continuation, Tier.HOST, keep, pages)
    moves = books.transfers[transfer].moves
    fresh = [len([move for move in moves if move.fresh and move.pool == pool]) for pool in books.pools]
    expect(books, before, map(restore_change, fresh))
    return transfer


def _start(books: Books, continuation: int, source: Tier, keep: bool, pages: list[list[Page]]) -> int:
    moves = []
    for pool, extent in enumerate(books.extents(pages)):
        for page in pages[pool]:
            fresh = not page.has(source.other)
            slot = extent if fresh and source is Tier.DEVICE else None
            moves.append(Move(page, pool, fresh, slot, page.version, books.columns(page, pool)))
    transfer, books.next_transfer = books.next_transfer, books.next_transfer + 1
    books.transfers[transfer] = Transfer(continuation, source, keep, tuple(moves))
    return transfer


def sink(books: Books, sequence: int, told: TransferStarted, pages: list[list[Page]]) -> TransferStarted:
    """Start to move ``pages`` to Host for the sake of a queued request, and note that (0020)."""
    before = books.about_to_change()
    transfer = _start(books, told.continuation, Tier.DEVICE, keep=False, pages=pages)
    request = books.queued[sequence]
    request.sunk, request.sinks = request.sunk | {told.continuation}, request.sinks | {transfer}
    expect(books, before, [Change() for _ in books.pools])
    return replace(told, transfer=transfer, pages=tuple(len(of_pool) for of_pool in pages), positions=0)


def give_up(books: Books, pages: list[list[Page]], tier: Tier) -> None:
    """Free the hidden copies in ``tier``; what is not at rest retires."""
    before, changes = books.about_to_change(), []
    for pool, found in enumerate(pages):
        retiring = 0
        for page in found:
            if tier is Tier.HOST:
                page.host = None
            else:
                retiring += not books.is_at_rest(page.touched)
                _free_device(books, pool, page)
        changes.append(release(len(found) if tier is Tier.DEVICE else 0) + retire_change(retiring))
    expect(books, before, changes)


def cancel(books: Books, transfer: int) -> None:
    """Mark a transfer, so that it will be abandoned."""
    books.transfers[transfer] = replace(books.transfers[transfer], cancelled=True)


def progress(books: Books, reported: Progressed) -> Progressed:
    """Take note of units, then of transfers, then give back what is at rest; return what of the report is possible.

    Possible are units in the order in which they ended, and transfers under way in the order of their ids.
    """
    units: list[int] = []
    for unit in reported.units:
        if books.ended[:1] == [unit]:
            units.append(books.ended.pop(0))
    over: list[TransferEnded] = []
    for told in reported.transfers:
        if told.transfer in books.transfers and (not over or told.transfer > over[-1].transfer):
            over.append(_end(books, told.transfer, told.failed))
    _settle(books)
    return Progressed(tuple(units), tuple(over))


def _settle(books: Books) -> None:
    """Free the retiring pages that are at rest; those at rest in a reservation are promises like any other."""
    before, rested = books.about_to_change(), []
    for pool, fences in enumerate(books.retiring):
        left = [fence for fence in fences if not books.is_at_rest(fence)]
        rested.append(len(fences) - len(left))
        books.retiring[pool] = left
    for entry in books.active.values():
        entry.returned = [[one for one in fences if not books.is_at_rest(one)] for fences in entry.returned]
    expect(books, before, map(release, rested))


def is_abandoned(books: Books, transfer: Transfer) -> bool:
    """Whether a transfer whose copies have succeeded ends with its source visible as before.

    It was cancelled, every page of it has ended, or an active sequence holds one.  Nothing else can have changed a
    page: whoever wrote or cut it would have been active and alone on it.
    """
    living = books.living(transfer)
    for move in living:
        assert (move.page.version, books.columns(move.page, move.pool)) == (move.version, move.columns), move
    active = [page for entry in books.active.values() for held in entry.pages for page in held]
    return books.is_cancelled(transfer) or any(move.page in active for move in living)


def _end(books: Books, name: int, failed: bool) -> TransferEnded:
    """Decide how a transfer ends, and free what it leaves."""
    before = books.about_to_change()
    transfer = books.transfers[name]
    failed = failed and any(move.fresh for move in transfer.moves)
    abandoned = failed or is_abandoned(books, transfer)
    del books.transfers[name]
    changes = []
    for pool in books.pools:
        sources = destinations = ended = fenced = 0
        for move in [move for move in transfer.moves if move.pool == pool]:
            takes_page = move.fresh and transfer.source is Tier.HOST
            waits = not books.is_at_rest(move.page.touched)
            if not books.references(move.page, pool):
                ended += move.page.device or takes_page
                fenced += waits
                books.let_go(pool, [move.page])
            elif abandoned:
                destinations += takes_page
            else:
                leaves = transfer.source is Tier.DEVICE and not transfer.keep
                sources += leaves
                fenced += leaves and waits
                _publish(books, transfer, move)
        changes.append(transfer_change(sources, destinations, ended) + retire_change(fenced))
    expect(books, before, changes)
    if abandoned:
        return TransferEnded(name, TransferOutcome.ABANDONED, failed)
    return TransferEnded(name, TransferOutcome.KEPT if transfer.keep else TransferOutcome.MOVED)


def _publish(books: Books, transfer: Transfer, move: Move) -> None:
    """Make one page visible at the destination; its source is freed, or stays as a clean copy."""
    page = move.page
    page.visible = transfer.source.other
    if transfer.source is Tier.DEVICE:
        page.host = move.extent if move.fresh else page.host
        if not transfer.keep:
            _free_device(books, move.pool, page)
    else:
        page.device = True
        page.host = page.host if transfer.keep else None


def _free_device(books: Books, pool: int, page: Page) -> None:
    if not books.is_at_rest(page.touched):
        books.retiring[pool].append(page.touched)
    page.device, page.touched = False, AT_REST
