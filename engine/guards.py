"""Checks that several operations share; each raises the refusal that is due and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from collections.abc import Set

from kvcrucible.contract.errors import (
    BadArgument,
    DeviceCapacity,
    LimitExceeded,
    NoRow,
    RowInFlight,
    SessionBusy,
    StaleHandle,
    WrongState,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine import admission
from kvcrucible.engine.host.tier import HostTier
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.records import Continuation, Sequence


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
        f"{[pool.free for pool in pools]} free, {[len(pool.retiring) for pool in pools]} retiring, {continuations} "
        "continuations of which too few can be released for pages at rest",
        "finish, cancel or unpin something, or let units and transfers complete and ask for progress",
    )


def require_resident(source: int, away: Set[int], asked: str) -> None:
    """Refuse to map what is not all visible on Device."""
    if source in away:
        raise WrongState(
            asked, "some of its pages are visible on Host", "restore it and let the transfer end"
        )


def nothing_to_move(asked: str, kept: Continuation, source: Tier) -> WrongState:
    """Return the refusal for a continuation none of whose pages can move out of ``source``."""
    pages = [page for space in kept.spaces for page in space.pages]
    there = [page for page in pages if page.visible is source]
    busy = sum(page.transfer is not None for page in there)
    held = len(there) - busy
    return WrongState(
        asked,
        f"of its {len(pages)} pages {len(there)} are visible on {source.value.capitalize()}: {busy} in a transfer, "
        f"{held} held by active sequences",
        "let the transfer end, finish who borrows the pages, or leave it where it is",
    )


def require_host(host: HostTier | None, asked: str) -> HostTier:
    """Refuse where there is no Host tier; return it."""
    if host is None:
        raise BadArgument(asked, "this engine has no Host tier", "configure one (EngineConfig.host)")
    return host


def require_transfer(host: HostTier | None, transfer: int) -> HostTier:
    """Refuse a transfer that is over or was never started; return the tier that carries it out."""
    if host is None or transfer not in host.under_way:
        under_way = [] if host is None else list(host.under_way)
        raise StaleHandle(f"cancel transfer {transfer}", f"under way: {under_way}", "drop the handle")
    return host
