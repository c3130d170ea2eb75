"""Host room for what sinks: extents are found by geometry, or copies and lower continuations on Host make way.

DESIGN 4.4, 4.9, decision 0020.  What makes way is looked for without changing anything; only where the extents would
then fit is it carried out.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import Refusal
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host.slots import HostSlot
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.records import Continuation
from kvcrucible.engine.residency import Residency

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class HostRoom:
    """Whose Host copies are given up, with the pages, and which continuations on Host are released, in order."""

    copies: tuple[tuple[Continuation, tuple[LogicalPage, ...]], ...] = ()
    victims: tuple[Continuation, ...] = ()

    @property
    def given_up(self) -> tuple[int, ...]:
        """Continuations whose Host copies are given up."""
        return tuple([kept.continuation for kept, _ in self.copies])

    @property
    def evicted(self) -> tuple[int, ...]:
        """Continuations that are released."""
        return tuple([kept.continuation for kept in self.victims])


def find_host_room(
    engine: Engine, sinks: Continuation, pages: Sequence[LogicalPage], protected: int | None
) -> HostRoom | None:
    """Find what has to make way so that the extents for ``pages`` of ``sinks`` fit; None where that cannot be.  Changes
    nothing.

    First Host copies of pages that are visible on Device are given up, those of ``sinks`` itself left out.  Then
    continuations that have no page on Device and yield before ``sinks`` are released, in the order of the policy.
    ``protected`` is left alone.
    """
    host = engine.host
    assert host is not None
    wanted = [0] * len(engine.pools)
    for page in pages:
        wanted[page.pool] += page.only_on_device or page.replicas.at(Tier.HOST) is None
    if not any(wanted) or host.slots.fits_without(wanted, ()):
        return HostRoom()
    ended: set[HostSlot] = set()
    copies: list[tuple[Continuation, tuple[LogicalPage, ...]]] = []
    for kept, found in _copies(engine, sinks, protected):
        copies.append((kept, tuple(found)))
        ended.update(_slot(page) for page in found)
        if host.slots.fits_without(wanted, ended):
            return HostRoom(tuple(copies))
    victims: list[Continuation] = []
    given_up: dict[int, int] = {}
    for kept in _lower(engine, sinks, protected):
        victims.append(kept)
        for page in kept.pages():
            times = given_up[page.page] = given_up.get(page.page, 0) + 1
            if times == page.references:
                ended.add(_slot(page))
        if host.slots.fits_without(wanted, ended):
            return HostRoom(tuple(copies), tuple(victims))
    return None


def _copies(
    engine: Engine, sinks: Continuation, protected: int | None
) -> Iterator[tuple[Continuation, list[LogicalPage]]]:
    """Yield continuations with their Host copies that may be given up, in the order of the policy."""
    residency = _residency(engine)
    others = [
        kept
        for kept in residency.with_copies(Tier.HOST)
        if kept is not sinks and kept.continuation != protected
    ]
    for kept in engine.cache.in_order(others):
        # A page of ``sinks`` itself is left out.
        found = [
            page
            for page in residency.of(kept).host_copies
            if sinks.continuation not in residency.retaining(page)
        ]
        if found:
            yield kept, found


def _lower(engine: Engine, sinks: Continuation, protected: int | None) -> Iterator[Continuation]:
    """Yield the continuations that are on Host alone, may be released, and yield before ``sinks``."""
    offered = [
        kept
        for kept in _residency(engine).on_host_alone()
        if not kept.pinned and kept.continuation != protected
    ]
    # It has Device pages, and is among them to say where to stop.
    insort(offered, sinks, key=lambda kept: kept.last_use)
    for kept in engine.cache.in_order(offered):
        if kept is sinks:
            return
        yield kept


def make_host_room(engine: Engine, room: HostRoom) -> None:
    """Carry out what was found: afterwards the extents fit.  For good: an extent that ends may lose its bytes."""
    host = engine.host
    assert host is not None
    if not (room.copies or room.victims):
        return
    engine.acted = True
    try:
        for _, found in room.copies:
            # A page that two of them hold has lost its copy with the first.
            host.give_up_copies([page for page in found if not page.only_on_device])
        for kept in room.victims:
            engine.cache.policy.yields(kept)
            engine.cache.release(kept)
            engine.evicted.append(kept.continuation)
            engine.work.continuations_evicted += 1
    except Refusal as error:
        # Half the room is made and cannot be unmade: a mistake of the engine's own, and no answer to what it was asked.
        raise AssertionError(f"room on Host: {error}") from error


def _residency(engine: Engine) -> Residency:
    residency = engine.cache.residency
    assert residency is not None
    return residency


def _slot(page: LogicalPage) -> HostSlot:
    place = page.replicas.get(Tier.HOST).place
    assert isinstance(place, HostSlot)
    return place
