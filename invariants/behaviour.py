"""Judgements for invariants that show in what an engine answers or reads rather than in one snapshot (DESIGN 5).

A harness calls them at the place where it has both sides in hand; each returns the violations, an empty list where the
invariant holds, and mutates nothing.  The lock-step campaign turns them into a failure under the invariant's id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.snapshot import KEYED_PARTS, Snapshot
from kvcrucible.invariants.violation import Violation, mismatch

#: One row of payload: its elements, or a digest of them.
Row = Sequence[float] | bytes


class Depth(StrEnum):
    """Where an invariant is judged."""

    SNAPSHOT = "ledger, by snapshot"
    STEP = "ledger, by step"
    LEDGER = "ledger, by harness"
    PAYLOAD = "payload, by harness"
    KERNEL = "kernel tests"


def unchanged(before: Snapshot, after: Snapshot) -> list[Violation]:
    """Return the first difference that a refused operation left behind, by full snapshots (``refusal-atomic``).

    Free lists and holes are compared where both sides have them.  The order of a free list does not count: page ids may
    be handed out in any order (DESIGN 4.1).
    """
    for part in KEYED_PARTS:
        old, new = getattr(before, part), getattr(after, part)
        if old is new or old == new:
            continue
        key = min((key for key in old.keys() | new.keys() if old.get(key) != new.get(key)), key=str)
        return [_first_difference(f"{part} {key} after a refusal", old.get(key), new.get(key))]
    if before.pools != after.pools:
        return [mismatch("refusal-atomic", "counters after a refusal", after.counters, before.counters)]
    for name in ("queue", "host"):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            return [mismatch("refusal-atomic", f"{name} after a refusal", now, was)]
    holes, holes_now = before.host_holes, after.host_holes
    if None not in (holes, holes_now) and holes != holes_now:
        return [mismatch("refusal-atomic", "host_holes after a refusal", holes_now, holes)]
    if before.free_pages is None or after.free_pages is None:
        return []
    for old_free, new_free in zip(before.free_pages, after.free_pages, strict=True):
        if sorted(old_free) != sorted(new_free):
            found, due = sorted(set(new_free) - set(old_free)), sorted(set(old_free) - set(new_free))
            return [
                mismatch(
                    "refusal-atomic", "free list after a refusal", f"{found} more", f"{due} that are gone"
                )
            ]
    return []


def _first_difference(subject: str, old: Any, new: Any) -> Violation:
    if old is not None and new is not None:
        for field in fields(old):
            was, now = getattr(old, field.name), getattr(new, field.name)
            if was != now:
                return mismatch("refusal-atomic", f"{subject}, {field.name}", now, was)
    return mismatch("refusal-atomic", subject, new or "absent", old or "absent")


def epochs_risen(before: Snapshot, after: Snapshot) -> list[Violation]:
    """Judge a step by the pages that it cut (``token-exact-truncation``).

    A page that lives on with fewer committed columns has a higher epoch, or whoever remembers page and epoch takes what
    is written next for what was there.
    """
    if before.pages is after.pages:
        return []
    pages = after.pages
    cut = [
        (old, now)
        for key, old in before.pages.items()
        if (now := pages.get(key)) is not old and now is not None and now.committed < old.committed
    ]
    return [
        mismatch(
            "token-exact-truncation",
            f"page {page.page}, cut from {old.committed} to {page.committed} columns, epoch",
            page.epoch,
            f"above {old.epoch}",
        )
        for old, page in cut
        if page.epoch <= old.epoch
    ]


def stale_refused(refusal: RefusalKind | None, what: str) -> list[Violation]:
    """Judge the answer to an operation on a handle that has ended or never was (``stale-handle-refused``)."""
    if refusal is RefusalKind.STALE_HANDLE:
        return []
    found = "carried out" if refusal is None else refusal.value
    return [mismatch("stale-handle-refused", what, found, RefusalKind.STALE_HANDLE.value)]


def rows_equal(invariant: str, expected: Sequence[Row], actual: Sequence[Row], where: str) -> list[Violation]:
    """Compare payload rows bit for bit, position by position, and return the first that differs.

    NaN equals NaN, and −0.0 differs from 0.0.  For ``token-exact-truncation``, ``cow-isolation``, ``no-stale-read``,
    ``codec-exact`` and ``mapping-invariance``; ``where`` names the sequence, pool and plane.
    """
    if len(expected) != len(actual):
        return [mismatch(invariant, f"{where}, rows", len(actual), len(expected))]
    for position, (due, found) in enumerate(zip(expected, actual, strict=True)):
        if isinstance(due, bytes) or isinstance(found, bytes):
            if due != found:
                return [mismatch(invariant, f"{where}, position {position}", _shown(found), _shown(due))]
        elif len(due) != len(found):
            return [mismatch(invariant, f"{where}, position {position}, elements", len(found), len(due))]
        else:
            for element, (a, b) in enumerate(zip(due, found, strict=True)):
                if not _same(a, b):
                    return [mismatch(invariant, f"{where}, position {position}, element {element}", b, a)]
    return []


def rows_close(
    invariant: str, expected: Sequence[Row], actual: Sequence[Row], tolerance: float, where: str
) -> list[Violation]:
    """Compare rows of numbers within an absolute ``tolerance`` that the caller has derived (``kernel-oracle``).

    An infinity or NaN is close to itself alone.  Returns the first element out of tolerance.
    """
    if len(expected) != len(actual):
        return [mismatch(invariant, f"{where}, rows", len(actual), len(expected))]
    for index, (due, found) in enumerate(zip(expected, actual, strict=True)):
        if len(due) != len(found):
            return [mismatch(invariant, f"{where}, row {index}, elements", len(found), len(due))]
        for element, (a, b) in enumerate(zip(due, found, strict=True)):
            if not (_same(a, b) or abs(a - b) <= tolerance):
                return [
                    mismatch(
                        invariant, f"{where}, row {index}, element {element}", b, f"{a} within {tolerance}"
                    )
                ]
    return []


def _same(left: float, right: float) -> bool:
    if left != left or right != right:
        return left != left and right != right
    return left == right and math.copysign(1.0, left) == math.copysign(1.0, right)


def _shown(row: Row) -> str:
    return row.hex() if isinstance(row, bytes) else str(list(row))


def releasable_pages(snapshot: Snapshot, pool: int, fenced: Collection[tuple[int, int]] = ()) -> int:
    """Pages of ``pool`` that releasing all releasable continuations frees; one that others hold too stays.

    Pinned continuations and those of which a page is in a transfer are passed over (decision 0013).  ``fenced``:
    physical pages, as (pool, device), that effects of outstanding units touch; they retire and free nothing yet.
    """
    held: dict[int, int] = {}
    for key, continuation in snapshot.continuations.items():
        space = snapshot.spaces.get((key, pool))
        if space is not None and not continuation.pinned and not _in_transfer(snapshot, key):
            for page in space.pages:
                held[page] = held.get(page, 0) + 1
    return sum(
        page.references == held[page.page] and page.device != -1 and (pool, page.device) not in fenced
        for page in [snapshot.pages[key] for key in held if key in snapshot.pages]
    )


def _in_transfer(snapshot: Snapshot, owner: int) -> bool:
    if not snapshot.transfers:
        return False
    spaces = [snapshot.spaces.get((owner, pool)) for pool in range(len(snapshot.pools))]
    pages = [snapshot.pages.get(page) for space in spaces if space is not None for page in space.pages]
    return any(page is not None and page.in_transfer for page in pages)


def admitted_by_count(
    need_pages: Sequence[int], refused: bool, before: Snapshot, where: str
) -> list[Violation]:
    """Judge an answer to a need for pages per pool by free counts alone (``admission-by-count``).

    Where ``need_pages`` fits the free pages of ``before`` in every pool, a refusal for capacity is wrong, wherever the
    free pages lie.
    """
    if refused and all(need <= pool.free for need, pool in zip(need_pages, before.pools, strict=True)):
        free = [pool.free for pool in before.pools]
        return [
            mismatch(
                "admission-by-count",
                f"{where}, a need of {list(need_pages)} pages",
                "refused",
                f"granted: free {free}",
            )
        ]
    return []


def cache_yielded(
    cold_pages: Sequence[int],
    refused: bool,
    before: Snapshot,
    where: str,
    fenced: Collection[tuple[int, int]] = (),
) -> list[Violation]:
    """Judge a refusal for capacity by what the context cache could have given up (``cache-yields``).

    ``cold_pages`` is the need of a cold start per pool.  A pool may be short only if free pages and all that releasable
    continuations would free do not cover it; ``fenced`` as for :func:`releasable_pages`.
    """
    if not refused:
        return []
    available = [
        pool.free + releasable_pages(before, index, fenced) for index, pool in enumerate(before.pools)
    ]
    if all(need <= there for need, there in zip(cold_pages, available, strict=True)):
        return [
            mismatch(
                "cache-yields",
                f"{where}, a cold start of {list(cold_pages)} pages",
                "refused",
                f"room for {available}",
            )
        ]
    return []


@dataclass(frozen=True, slots=True)
class Judged:
    """An invariant that a harness judges: its id, statement and source, where, and by which function."""

    id: str
    statement: str
    source: str
    depth: Depth
    judge: Callable[..., list[Violation]]


JUDGED: tuple[Judged, ...] = (
    Judged(
        "cow-isolation",
        "What one sequence writes after a fork is never read by another: the other's rows stay bit for bit.",
        "4.5",
        Depth.PAYLOAD,
        rows_equal,
    ),
    Judged(
        "token-exact-truncation",
        "After a cut, at any position, nothing tells the sequence from one that never held the removed tokens.",
        "4.6",
        Depth.PAYLOAD,
        rows_equal,
    ),
    Judged(
        "admission-by-count",
        "Admission asks for counts, never for adjacency: what fits by number is not refused for capacity.",
        "4.3",
        Depth.LEDGER,
        admitted_by_count,
    ),
    Judged(
        "refusal-atomic",
        "A refused operation leaves the engine exactly as it was.",
        "4.3, 4.13",
        Depth.LEDGER,
        unchanged,
    ),
    Judged(
        "cache-yields",
        "A request waits for capacity only if a cold start does not fit with all unprotected continuations released.",
        "4.9",
        Depth.LEDGER,
        cache_yielded,
    ),
    Judged(
        "kernel-oracle",
        "A kernel's output equals the float64 oracle's within the tolerance derived for its types.",
        "4.11",
        Depth.KERNEL,
        rows_close,
    ),
    Judged(
        "mapping-invariance",
        "The same logical inputs under other physical page ids give bit-identical outputs.",
        "4.1, 4.11",
        Depth.KERNEL,
        rows_equal,
    ),
    Judged(
        "no-stale-read",
        "Every row below a frontier reads as it was written: no bytes of an earlier tenant or an aborted unit.",
        "4.14.11, 7",
        Depth.PAYLOAD,
        rows_equal,
    ),
    Judged(
        "codec-exact",
        "What a quantised profile stores is, bit for bit, what the reference codec makes of the same numbers.",
        "4.2",
        Depth.PAYLOAD,
        rows_equal,
    ),
)
