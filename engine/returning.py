"""Coming back on demand: where a request starts, and the restore that it may wait for (DESIGN 4.9; decision 0020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.operations import Hit, TransferStarted, Waiting, WaitingKind
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine import admission, movement, relief
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.records import Continuation, Request, Sequence
from kvcrucible.engine.room import Room

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine

#: A hit with its owner.
Source: TypeAlias = tuple[Hit, Sequence | Continuation]


def source_of(engine: Engine, request: Request, *, at_once: bool = False) -> Source | Waiting | None:
    """Return the best hit that is there to be used, None without one; or that the request waits for a better one.

    A hit is there where every page below it is visible on Device.  One that is not is waited for where what lacks is on
    its way already; else its restore is started, once for each request and source.  Where that cannot be, the next best
    owner's hit is looked at.  Owners in flight are left out: what is frozen cannot be forked.  ``at_once``: a restore
    that would be started is not, and the request waits.
    """
    cache, submit = engine.cache, request.submit
    left_out: list[Sequence | Continuation] = [
        sequence for sequence in engine.sequences.values() if sequence.unit is not None
    ]
    while True:
        hit = cache.lookup(submit.prompt, submit.identity, left_out)
        if hit is None:
            return None
        if hit.source not in cache.away:
            return hit, engine.holder(hit.source)
        kept = cache.continuations[hit.source]
        missing = missing_below(kept, hit.length)
        if not missing:
            return hit, kept
        if any(page.transfer is not None for page in missing):
            return Waiting(request.sequence, WaitingKind.RESTORING)
        tried = hit.source in request.tried
        if at_once and not tried:
            return Waiting(request.sequence, WaitingKind.RESTORING)
        waiting = None if tried else _start(engine, request, kept, missing, hit.length)
        if waiting is not None:
            return waiting
        left_out.append(kept)


def missing_below(kept: Continuation, position: int) -> list[LogicalPage]:
    """Return the pages that hold the first ``position`` positions and are visible on Host, pool by pool in order."""
    return [
        page
        for space in kept.spaces
        for page in space.pages[: pages_for(position, space.page_size)]
        if page.visible is Tier.HOST
    ]


def _start(
    engine: Engine, request: Request, kept: Continuation, missing: list[LogicalPage], position: int
) -> Waiting | None:
    """Make room for ``missing`` and start moving them back; None where the room cannot be had.

    Returns what the request waits for: the restore, or what sinks before.
    """
    need = movement.restore_need(engine, missing)
    if admission.fits(engine.cache, engine.pools, need, (), kept.continuation) is None:
        return None
    assert engine.host is not None
    with Room(engine) as room:
        waiting = relief.relieve(engine, room, request, need, (), kept.continuation, missing)
        if waiting is not None:
            return waiting
        # The Host slots stay as clean copies, so that sinking again costs no copy.
        number = engine.host.start(Tier.HOST, missing, kept.continuation, keep=True)
    engine.acted = True
    request.tried.add(kept.continuation)
    pages = [sum(page.pool == pool for page in missing) for pool in range(len(engine.pools))]
    started = TransferStarted(number, kept.continuation, Tier.HOST, tuple(pages), position)
    return Waiting(request.sequence, WaitingKind.RESTORING, (started,))
