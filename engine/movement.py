"""Demotion and restoration of continuations: what moves, what it takes, and how it ends (DESIGN 4.4, decision 0013)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvcrucible.contract.operations import TransferEnded, TransferOutcome
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine import guards
from kvcrucible.engine.host.phases import Phase
from kvcrucible.engine.host.tier import COPY_STREAMS, HostTier
from kvcrucible.engine.host.transfer import Transfer
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.records import Continuation
from kvcrucible.engine.room import make_room
from kvcrucible.engine.storage.interface import HostMemory
from kvcrucible.engine.storage.null import host_memory_of

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine

_OUTCOMES = {
    Phase.MOVED: TransferOutcome.MOVED,
    Phase.KEPT: TransferOutcome.KEPT,
    Phase.ABANDONED: TransferOutcome.ABANDONED,
}


def host_tier(engine: Engine, memory: HostMemory | None) -> HostTier | None:
    """Return the Host tier of an engine that is being built, None where its configuration has none."""
    spec, residency = engine.config.host, engine.cache.residency
    if spec is None or residency is None:
        return None
    return HostTier(
        spec,
        engine.pools,
        engine.storages,
        host_memory_of(spec, memory, engine.storages),
        engine.stream,
        {tier: engine.device.stream(name) for tier, name in COPY_STREAMS.items()},
        residency,
        engine.touched,
        engine.work,
    )


def demote(engine: Engine, kept: Continuation, keep: bool) -> int:
    """Start moving what is on Device and held by no active sequence; return the transfer's number."""
    asked = f"demote {kept.continuation}"
    in_use = engine.cache.in_use
    pages = [page for page in _at(kept, Tier.DEVICE) if not in_use(page)]
    if not pages:
        raise guards.nothing_to_move(asked, kept, Tier.DEVICE)
    host = guards.require_host(engine.host, asked)
    return host.start(Tier.DEVICE, pages, kept.continuation, keep)


def restore(engine: Engine, kept: Continuation, keep: bool) -> int:
    """Make room, then start moving back what is on Host; return the transfer's number."""
    asked = f"restore {kept.continuation}"
    pages = _at(kept, Tier.HOST)
    if not pages:
        raise guards.nothing_to_move(asked, kept, Tier.HOST)
    host = guards.require_host(engine.host, asked)
    with make_room(engine, asked, restore_need(engine, pages), protected=kept.continuation):
        return host.start(Tier.HOST, pages, kept.continuation, keep)


def restore_need(engine: Engine, pages: Iterable[LogicalPage]) -> list[int]:
    """Return how many Device pages of each pool ``pages`` take that are visible on Host: those without a copy there."""
    need = [0] * len(engine.pools)
    for page in pages:
        need[page.pool] += page.device < 0
    return need


def end_transfers(engine: Engine) -> tuple[TransferEnded, ...]:
    """End what is over as far as the host knows, in order of the numbers."""
    if engine.host is None:
        return ()
    over = engine.host.progress()
    return tuple([_ended(number, transfer) for number, transfer in over])


def _at(kept: Continuation, tier: Tier) -> list[LogicalPage]:
    """Return the pages that are visible in ``tier`` and in no transfer, pool by pool in logical order."""
    return [
        page
        for space in kept.spaces
        for page in space.pages
        if page.visible is tier and page.transfer is None
    ]


def _ended(number: int, transfer: Transfer) -> TransferEnded:
    return TransferEnded(number, _OUTCOMES[transfer.phase], transfer.failure is not None)
