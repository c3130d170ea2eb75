"""Coverage goals about who passes a waiting head of the queue, and who does not (DESIGN 4.8, decision 0021)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcrucible.contract.operations import Schedule, Scheduled, TryAdmit, WaitingKind
from kvcrucible.fuzz.goals import BACKFILL, Seen, admissions, goal


def _passed(seen: Seen) -> tuple[int, ...]:
    """Return who was let past the head that waits, in order."""
    value = seen.outcome.value
    if not isinstance(value, Scheduled) or value.waiting is None:
        return ()
    order = list(seen.before.queue)
    behind = order[order.index(value.waiting.sequence) + 1 :]
    return tuple(one.sequence for one in value.admitted if one.sequence in behind)


@goal("backfill", "a request is admitted past the head of the queue, which waits", Schedule, needs=BACKFILL)
def _backfill(seen: Seen) -> bool:
    return bool(_passed(seen))


@goal(
    "backfill-of-a-busy-session",
    "a request passes a head that waits since its session is busy",
    Schedule,
    needs=BACKFILL,
)
def _busy(seen: Seen) -> bool:
    waiting = getattr(seen.outcome.value, "waiting", None)
    return waiting is not None and waiting.kind is WaitingKind.SESSION_BUSY and bool(_passed(seen))


@goal(
    "backfill-shares-pages",
    "a request that passes the head starts from pages that others keep",
    Schedule,
    needs=BACKFILL,
)
def _shares(seen: Seen) -> bool:
    passed = _passed(seen)
    return any(
        seen.after.pages[page].references > 1
        for sequence in passed
        for page in seen.after.spaces[sequence, 0].pages
    )


@goal("backfill-beside-another", "a request passes a head that another has passed", Schedule, needs=BACKFILL)
def _beside(seen: Seen) -> bool:
    return bool(seen.passers) and bool(_passed(seen))


@goal(
    "backfill-refused",
    "a request within the look-ahead has all that it takes and is not let past, since the head would lack it",
    Schedule,
    needs=BACKFILL,
)
def _refused(seen: Seen) -> bool:
    return bool(list(held_back(seen)))


def held_back(seen: Seen) -> Iterator[int]:
    """Yield the requests of the look-ahead that fit as things stand, of no session, and stay in the queue."""
    waiting = getattr(seen.outcome.value, "waiting", None)
    free_row = any(row.sequence is None for row in seen.after.rows.values())
    if waiting is None or not free_row:
        return
    for request in seen.after.queue[1 : 1 + seen.setting.lookahead]:
        asked = seen.queued[request]
        fits = all(pages <= pool.free for pages, pool in zip(asked.cold_pages, seen.after.pools, strict=True))
        if fits and asked.session is None:
            yield request


@goal(
    "head-starts-beside-who-passed-it",
    "the head of the queue is admitted while one who passed it is still active",
    Schedule,
    TryAdmit,
    needs=BACKFILL,
)
def _head_starts(seen: Seen) -> bool:
    head = seen.before.queue[0] if seen.before.queue else None
    return bool(seen.passers) and any(one.sequence == head for one in admissions(seen.outcome.value))
