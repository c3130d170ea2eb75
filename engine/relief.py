"""What an admission does for Device pages that it lacks: copies are given up, continuations sink, and then yield.

DESIGN 4.9, decision 0020.  In this order, each only for as long as pages are lacking:

1. hidden Device copies, of pages that are visible on Host, are given up: nothing is lost; left alone are those of a
   continuation that shares one which the request would take over and a unit holds up;
2. continuations start to sink to Host, once for each request, and the request waits for them;
3. continuations are released.

Host room for 2. is made in :mod:`kvcrucible.engine.host_room`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import HostGeometry
from kvcrucible.contract.operations import TransferStarted, Waiting, WaitingKind
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host_room import find_host_room, make_host_room
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.records import Continuation, Request
from kvcrucible.engine.residency import Residency
from kvcrucible.engine.room import Room

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


def sinking(engine: Engine, request: Request) -> bool:
    """Tell whether something that was sunk for ``request`` is still on its way."""
    return engine.host is not None and not request.sinks.isdisjoint(engine.host.under_way)


def relieve(
    engine: Engine,
    room: Room,
    request: Request,
    need: Sequence[int],
    dropped: Sequence[LogicalPage],
    protected: int | None,
    using: Sequence[LogicalPage] = (),
) -> Waiting | None:
    """Make ``room`` for ``need`` pages, as for :func:`admission.fits`, which says that it can be had.

    ``using``: pages of which ``need`` counts on a copy that is on Device; those are not given up.

    Returns None once the room is there, or that the request waits for what sinks.  Raises ``HostGeometry`` where
    extents that fit are refused all the same and nothing sinks; then nothing has changed once the room is left.
    """
    cache, host = engine.cache, engine.host
    short = cache.lacking(engine.short_of(need), dropped)
    if max(short) <= 0:
        return None
    if host is not None:
        # The dropped return to the request's own reservation, for which no unit holds them up; given up, they would
        # retire.  Without a copy that is used, more pages would be needed than room is made for.
        held_up = {page for page in dropped if not engine.ledger.frees(page)}.union(using)
        for kept, copies in cache.with_device_copies(protected):
            if not held_up.isdisjoint(copies):
                continue
            room.give_up_copies(kept, copies)
            short = cache.lacking(engine.short_of(need), dropped)
            if max(short) <= 0:
                return None
    victims = cache.room(engine.short_of(need), dropped, protected)
    assert victims is not None, "giving up copies takes no room away"
    if host is not None:
        started = _sink(engine, request, short, victims, protected)
        if started:
            return Waiting(request.sequence, WaitingKind.SINKING, started)
    room.release(victims)
    return None


def _sink(
    engine: Engine,
    request: Request,
    short: list[int],
    victims: Sequence[Continuation],
    protected: int | None,
) -> tuple[TransferStarted, ...]:
    """Start to move what can sink of those who would have to yield, until the pages on their way will do.

    What sinks is what releasing them would free: pages that nobody holds but those who yield.  So what is shared with
    somebody who stays does not move, and what two share goes with the later of them.  None of it is in a transfer: who
    has such a page does not yield, and what has just begun to move is held by nobody who comes later.
    """
    host, residency = engine.host, engine.cache.residency
    assert host is not None
    assert residency is not None
    started: list[TransferStarted] = []
    times: dict[int, int] = {}
    for index, kept in enumerate(victims):
        if max(short) <= 0:
            break
        on_device = residency.of(kept).on_device
        for page in on_device:
            times[page.page] = times.get(page.page, 0) + 1
        if kept.continuation in request.sunk:
            continue
        pages = [
            page for page in on_device if times[page.page] == page.references and page.visible is Tier.DEVICE
        ]
        room = find_host_room(engine, kept, pages, protected) if pages else None
        if room is None:
            continue
        try:
            number = host.start(
                Tier.DEVICE,
                pages,
                kept.continuation,
                keep=False,
                make_room=partial(make_host_room, engine, room),
            )
        except HostGeometry:
            if started:
                break
            raise
        engine.acted = True
        request.sunk.add(kept.continuation)
        request.sinks.add(number)
        engine.work.continuations_sunk += 1
        counts = [0] * len(short)
        for page in pages:
            counts[page.pool] += 1
            short[page.pool] -= 1
        started.append(
            TransferStarted(
                number,
                kept.continuation,
                Tier.DEVICE,
                tuple(counts),
                beside=_beside(residency, kept, victims[:index]),
                given_up=room.given_up,
                evicted=room.evicted,
            )
        )
    return tuple(started)


def _beside(residency: Residency, kept: Continuation, before: Sequence[Continuation]) -> tuple[int, ...]:
    """Return those of ``before`` with whom ``kept`` shares pages."""
    others: set[int] = set()
    others.update(*[residency.retaining(page) for page in kept.pages() if page.references > 1])
    return tuple([other.continuation for other in before if other.continuation in others])
