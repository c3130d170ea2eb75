"""Coverage goals about pools in which one page decides (:mod:`kvcrucible.fuzz.tight_rules`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kvcrucible.contract.operations import AdmissionMode, Schedule, TryAdmit
from kvcrucible.contract.snapshot import Snapshot, Tier
from kvcrucible.fuzz.coverage_backfill import held_back
from kvcrucible.fuzz.goals import BACKFILL, Needs, Seen, admissions, goal, in_transfer, pages_of

#: What only an engine with a Host tier that lets requests pass the head can reach.
BACKFILL_AND_HOST = replace(BACKFILL, host=True)


@goal(
    "move-fits-without-its-copy",
    "a move takes all that is free: whoever shared its cut page was released for it, so that nothing is copied",
    Schedule,
    TryAdmit,
    needs=Needs(frozenset({"Fork", "Release", "Lookup"})),
)
def _without_its_copy(seen: Seen) -> bool:
    for one in admissions(seen.outcome.value):
        block, columns = divmod(one.hit, seen.page_size)
        if one.mode is not AdmissionMode.MOVE_TRUNCATED or one.source is None or not columns:
            continue
        pages = seen.after.spaces[one.sequence, 0].pages
        kept = pages[block] == seen.before.spaces[one.source, 0].pages[block]
        if kept and seen.references(one.source, one.hit) > 1 and not seen.after.pools[0].free:
            return True
    return False


@goal(
    "cut-off-is-enough",
    "a move gets by on what it cuts off, and copies on Device that could be given up stay",
    Schedule,
    TryAdmit,
    needs=Needs(frozenset({"Demote", "Release", "Lookup"}), host=True),
)
def _cut_off_is_enough(seen: Seen) -> bool:
    started, outcome = admissions(seen.outcome.value), seen.outcome
    # Of several the later ones find less free than there was before.
    if len(started) != 1 or started[0].mode is not AdmissionMode.MOVE_TRUNCATED:
        return False
    (one,) = started
    promised = seen.after.sequences[one.sequence].reserved
    lacking = any(pages > pool.free for pages, pool in zip(promised, seen.before.pools, strict=True))
    others = seen.before.continuations.keys() - {one.source}
    stay = not (outcome.given_up or outcome.evicted) and any(
        _gives_copies(seen.before, name) for name in others
    )
    return lacking and stay


def _gives_copies(before: Snapshot, name: int) -> bool:
    """Say whether a continuation may be released and has a hidden copy on Device."""
    if before.continuations[name].pinned or in_transfer(before, name):
        return False
    return any(page.visible is Tier.HOST and page.device >= 0 for page in pages_of(before, name))


def _let_past(seen: Seen, counted: Callable[[Seen, int], list[int]]) -> Iterator[int]:
    """Yield who is held back and would not be if of those who have passed only ``counted`` pages were, and nothing that
    is protected.
    """
    for request in held_back(seen):
        head = seen.after.queue[0]
        asked = zip(seen.queued[head].cold_pages, seen.queued[request].cold_pages, strict=True)
        wanted = [cold + own for cold, own in asked]
        for one in seen.passers:
            if one in seen.after.sequences:
                wanted = [pages + more for pages, more in zip(wanted, counted(seen, one), strict=True)]
        if all(pages <= pool.capacity for pages, pool in zip(wanted, seen.after.pools, strict=True)):
            yield request


def _entitled(seen: Seen, sequence: int) -> list[int]:
    return list(seen.after.sequences[sequence].entitlement)


def _own(seen: Seen, sequence: int) -> list[int]:
    """Return the pages of each pool that a sequence is entitled to and shares with nobody."""
    spaces = [seen.after.spaces[sequence, pool] for pool in range(len(seen.after.pools))]
    shared = [sum(seen.after.pages[page].references > 1 for page in space.pages) for space in spaces]
    return [whole - pages for whole, pages in zip(_entitled(seen, sequence), shared, strict=True)]


@goal(
    "held-back-by-the-pinned",
    "a request is not let past the head, which would lack nothing but what is pinned",
    Schedule,
    needs=BACKFILL,
)
def _by_the_pinned(seen: Seen) -> bool:
    pinned = any(kept.pinned for kept in seen.after.continuations.values())
    return pinned and bool(list(_let_past(seen, _entitled)))


@goal(
    "held-back-by-what-moves",
    "a request is not let past the head, which would lack nothing but what transfers hold and nobody else does",
    Schedule,
    needs=BACKFILL_AND_HOST,
)
def _by_what_moves(seen: Seen) -> bool:
    moves = [move for transfer in seen.after.transfers.values() for move in transfer.moves]
    pinned = any(kept.pinned for kept in seen.after.continuations.values())
    alone = bool(moves) and all(move.dropped for move in moves)
    return alone and not pinned and bool(list(_let_past(seen, _entitled)))


@goal(
    "held-back-by-shared-pages",
    "a request is not let past the head for pages that another, who passed it, shares",
    Schedule,
    needs=BACKFILL,
)
def _by_shared_pages(seen: Seen) -> bool:
    pinned = any(kept.pinned for kept in seen.after.continuations.values())
    return not pinned and set(_let_past(seen, _own)) > set(_let_past(seen, _entitled))
