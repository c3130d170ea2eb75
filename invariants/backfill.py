"""Judges who was let past a waiting head of the queue, by one snapshot (DESIGN 4.8, decision 0021).

Verifies: right after a passing, the head's cold start fits once all but those who have passed it have ended and all
that may be released is, whatever those who passed do with what they were promised.
Does not verify: that the head starts then; the rows of the semantics table say when it is due.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.invariants.violation import Violation, mismatch


def head_can_start(
    after: Snapshot, head: int, cold_pages: Sequence[int], passers: Collection[int], rows: int
) -> list[Violation]:
    """Judge the state after a passing (``completion-guarantee``).

    ``cold_pages``: what the cold start of ``head`` takes of each pool.  ``passers``: active sequences that have passed
    it.  ``rows``: rows of the block-table matrix.
    """
    found = []
    if len(passers) >= rows:
        found.append(
            mismatch(
                "completion-guarantee",
                f"rows for {head}, the head of the queue",
                f"all {rows} can stay with those who have passed it",
                "one is left",
            )
        )
    entitlements = [after.sequences[one].entitlement for one in passers]
    for index, (pool, cold) in enumerate(zip(after.pools, cold_pages, strict=True)):
        for_ever = sum([entitlement[index] for entitlement in entitlements])
        held = _protected(after, index)
        if for_ever + held + cold > pool.capacity:
            found.append(
                mismatch(
                    "completion-guarantee",
                    f"pool {pool.name}, which {head} at the head of the queue takes {cold} pages of",
                    f"{for_ever} may stay with those who have passed it, {held} are protected",
                    f"at most {pool.capacity} in all",
                )
            )
    return found


def _protected(snapshot: Snapshot, pool: int) -> int:
    """Device pages that a pinned continuation, one of which a page is in a transfer, or a transfer holds."""
    held: set[int] = set()
    for key, kept in snapshot.continuations.items():
        spaces = [snapshot.spaces[key, one] for one in range(len(snapshot.pools))]
        # A space of a wrong engine may name a page that has ended: refcount-exact tells that.
        pages = [snapshot.pages[page] for space in spaces for page in space.pages if page in snapshot.pages]
        if kept.pinned or any(page.in_transfer for page in pages):
            held.update([page.page for page in pages if page.pool == pool and page.device >= 0])
    for transfer in snapshot.transfers.values():
        # One end of each is a Device page, also where the logical page has ended meanwhile.
        held.update([move.page for move in transfer.moves if move.pool == pool])
    return len(held)
