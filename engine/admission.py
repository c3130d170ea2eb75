"""How a queued request can start: candidates in order, and what each takes from free (DESIGN 4.9, decision 0003)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.operations import AdmissionMode, Hit
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.records import Continuation, Request, Sequence
from kvcrucible.engine.space import AddressSpace


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to start, that fits once everyone who may be released is.

    ``need``: pages per pool that the new reservation takes, before what a cut of the source returns to it, by the
    references ``dropped``.
    ``source`` is the holder that is forked or moved, ``source_id`` its id, ``hit`` the positions that it gives.
    """

    mode: AdmissionMode
    need: tuple[int, ...]
    dropped: tuple[LogicalPage, ...] = ()
    source: Sequence | Continuation | None = None
    source_id: int | None = None
    hit: int = 0


def fits(
    cache: ContextCache,
    pools: Seq[PagePool],
    need: Seq[int],
    dropped: Seq[LogicalPage] = (),
    protected: int | None = None,
) -> tuple[Continuation, ...] | None:
    """Return whom to release so that ``need`` pages are free in every pool, None where that cannot be had."""
    short = [pages - pool.free for pages, pool in zip(need, pools, strict=True)]
    victims = cache.room(short, dropped, protected)
    return None if victims is None else tuple(victims)


def plan(
    cache: ContextCache,
    pools: Seq[PagePool],
    request: Request,
    hit: Hit | None,
    source: Sequence | Continuation | None,
) -> Plan | None:
    """Return the first candidate that fits, None where the request has to wait.  Changes nothing."""
    if hit is not None and source is not None:
        for mode, need, dropped in _with_hit(cache, pools, request, hit.length, source):
            victims = fits(cache, pools, need, dropped, hit.source)
            if victims is not None:
                return Plan(mode, need, tuple(dropped), source, hit.source, hit.length)
    need = entitlement(pools, request.limit)
    victims = fits(cache, pools, need)
    return None if victims is None else Plan(AdmissionMode.COLD, need)


def entitlement(pools: Seq[PagePool], limit: int) -> tuple[int, ...]:
    """Pages per pool that ``limit`` positions take: the most that a sequence is guaranteed (DESIGN 4.14.3)."""
    return tuple(pages_for(limit, pool.spec.page_size) for pool in pools)


def fork_need(spaces: Seq[AddressSpace], pools: Seq[PagePool], limit: int, position: int) -> tuple[int, ...]:
    """Pages per pool that a child takes: it shares the full pages below ``position``, as far as ``spaces`` reach."""
    return tuple(
        whole - min(position, space.frontier) // space.page_size
        for whole, space in zip(entitlement(pools, limit), spaces, strict=True)
    )


def regrowth(record: Sequence, position: int) -> tuple[int, ...]:
    """Pages per pool that cutting ``record`` to ``position`` adds to its reservation, before the pages that only it
    holds return there: one for each page beyond the cut, and one for a copy where the cut page is shared.
    """
    return tuple(len(space.cut_drops(position)) for space in record.spaces)


def move_need(spaces: Seq[AddressSpace], pools: Seq[PagePool], limit: int, position: int) -> tuple[int, ...]:
    """Pages per pool that the new owner of ``spaces`` takes once they are cut to ``position``: the growth beyond, and a
    copy where the cut page is shared.
    """
    need = []
    for whole, space in zip(entitlement(pools, limit), spaces, strict=True):
        keep, columns = pages_for(position, space.page_size), position % space.page_size
        copied = position < space.frontier and columns > 0 and space.pages[keep - 1].shared
        need.append(whole - keep + int(copied))
    return tuple(need)


def _with_hit(
    cache: ContextCache, pools: Seq[PagePool], request: Request, hit: int, source: Sequence | Continuation
) -> Iterator[tuple[AdmissionMode, tuple[int, ...], list[LogicalPage]]]:
    """Yield the candidates that use the hit: mode, need, and the references that the source gives up."""
    # What a transfer has may be shared, not taken over (decision 0013).
    kept = source if isinstance(source, Continuation) and not cache.in_transfer(source) else None
    if kept is not None and _consumes(request, kept) and _is_whole(kept, hit):
        yield AdmissionMode.MOVE, move_need(source.spaces, pools, request.limit, hit), []
        return
    yield AdmissionMode.FORK, fork_need(source.spaces, pools, request.limit, hit), []
    if kept is not None and not kept.pinned:
        dropped = [page for space in source.spaces for page in space.cut_drops(hit)]
        yield AdmissionMode.MOVE_TRUNCATED, move_need(source.spaces, pools, request.limit, hit), dropped


def _is_whole(source: Continuation, hit: int) -> bool:
    """Say whether the hit is all that the source has, in every pool."""
    return all(space.frontier == hit for space in source.spaces)


def _consumes(request: Request, source: Continuation) -> bool:
    submit = request.submit
    return submit.consume or (submit.session is not None and submit.session == source.session)
