"""Checks that several operations share; each raises the refusal that is due and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvcrucible.contract.errors import (
    BadArgument,
    DeviceCapacity,
    LimitExceeded,
    NoRow,
    RowInFlight,
    SessionBusy,
)
from kvcrucible.engine import admission
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.records import Sequence


def require_growth(max_new: int) -> None:
    """Refuse a negative number of positions."""
    if max_new < 0:
        raise BadArgument(f"grow by {max_new} positions", "at least 0", "give a count")


def require_placeable(limit: int, max_context: int, pools: Seq[PagePool]) -> None:
    """Refuse what no pool, however empty, could hold (DESIGN 4.14.2)."""
    if limit > max_context:
        raise LimitExceeded(f"{limit} positions", f"max_context is {max_context}", "ask for fewer")
    for pages, pool in zip(admission.entitlement(pools, limit), pools, strict=True):
        if pages > pool.capacity:
            raise LimitExceeded(
                f"{limit} positions, {pages} pages of pool {pool.spec.name}",
                f"it has {pool.capacity}",
                "ask for fewer",
            )


def require_idle(record: Sequence, asked: str) -> None:
    """Refuse a sequence that a unit has selected."""
    if record.unit is not None:
        raise RowInFlight(asked, f"unit {record.unit} has selected it", "end the unit first")


def require_session(session: str | None, active: dict[str, int], asked: str) -> None:
    """Refuse a second active sequence of one session key (DESIGN 4.14.9)."""
    if session is not None and session in active:
        raise SessionBusy(
            f"{asked} under session {session!r}", f"sequence {active[session]} is active", "end it first"
        )


def require_row(free_rows: int, asked: str) -> None:
    """Refuse where every row of the block-table matrix is leased."""
    if not free_rows:
        raise NoRow(asked, "every row is leased", "finish or cancel a sequence")


def no_pages(asked: str, need: Seq[int], pools: Seq[PagePool], continuations: int) -> DeviceCapacity:
    """Return the refusal for ``need`` pages that even releasing all that may be released would not free."""
    return DeviceCapacity(
        f"{asked}, which takes {list(need)} pages per pool",
        f"{[pool.free for pool in pools]} free, {continuations} continuations, not enough of them releasable",
        "finish, cancel or unpin something",
    )
