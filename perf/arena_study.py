"""The arena study: how much of a host arena each placement policy loses to fragmentation (DESIGN 4.4).

Every request of a trace is demoted when it ends: one extent for each pool, as long as the sequence.  One that continues
a demoted request brings that one back first, so its extents are released.  Where there is no room the least recently
demoted are released, one at a time, until there is.  Where a trace does not say what continues what, every second
request brings back one that is drawn by seed.

The arena is made for so many sequences of the trace's mean length.  A demotion that does not fit although enough bytes
are free is a *geometry refusal*: the arena's shape alone is in the way.  Sequences released after enough bytes were
free were *lost to shape*: with perfect packing they could have stayed.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from kvcrucible.contract.config import DEFAULT_ALIGNMENT_BYTES, DEFAULT_PAGE_SIZE, pages_for
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.engine.host.arena import Extent, HostArena
from kvcrucible.engine.host.policies import POLICIES
from kvcrucible.perf.traces.request import RequestId, TraceRequest

#: Pools of the study, in BF16: Main of a 27B-like model (16 full-attention layers, 4 KV heads, D = 256), one MTP layer.
POOLS = (Geometry(16, 4, 256), Geometry(1, 4, 256))

#: Sequences of mean length for which the arena is made unless another number is given.
RESIDENTS = 32

#: Most requests that a study keeps: with their block ids they take some kilobytes each.
MAX_STUDY_REQUESTS = 100_000

#: Share of requests that bring an earlier one back where the trace does not say which.
DRAWN_RESTORES = 0.5


@dataclass(frozen=True, slots=True)
class Demotion:
    """One request as the arena sees it: its pages in each pool and the demotion (by number) that it continues."""

    pages: int
    continues: int | None


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """What one policy made of a load.

    ``external_fragmentation`` and ``used`` are means over the moments after each demotion, from the first one on that
    did not fit, 0 to 1; None where all fitted.
    """

    policy: str
    demoted: int
    too_large: int
    refused: int
    geometry_refusals: int
    released: int
    lost_to_shape: int
    external_fragmentation: float | None
    used: float | None

    @property
    def geometry_refusal_rate(self) -> float:
        """Geometry refusals for each demotion, 0 to 1."""
        return self.geometry_refusals / self.demoted if self.demoted else 0.0


@cache
def page_bytes() -> tuple[int, ...]:
    """Return the bytes of a page group in each pool of the study."""
    return tuple(PROFILES["BF16"].bytes_per_page_group(geometry, DEFAULT_PAGE_SIZE) for geometry in POOLS)


def demotions(requests: Iterable[TraceRequest], seed: int) -> list[Demotion]:
    """Return the load of a trace, by arrival; raises :class:`InputError` beyond ``MAX_STUDY_REQUESTS`` or for none.

    A request continues its parent.  In a trace that names no parents it continues the latest one whose whole prompt
    blocks, two or more, its own begin with.
    """
    kept: list[TraceRequest] = []
    for request in requests:
        if len(kept) == MAX_STUDY_REQUESTS:
            raise InputError(f"more than {MAX_STUDY_REQUESTS} requests: study a part of the trace (--limit)")
        kept.append(request)
    if not kept:
        raise InputError("no request to study")
    kept.sort(key=lambda request: request.arrival_s)
    continued = _link(kept, random.Random(seed))
    return [
        Demotion(pages_for(request.prompt_tokens + request.output_tokens, DEFAULT_PAGE_SIZE), continues)
        for request, continues in zip(kept, continued, strict=True)
    ]


def _link(requests: Sequence[TraceRequest], draw: random.Random) -> list[int | None]:
    """Return for each request the number of the earlier one that it continues, None where there is none."""
    if any(request.parent is not None for request in requests):
        return list(_by_parent(requests))
    if any(request.block_ids is not None for request in requests):
        return list(_by_blocks(requests))
    return [
        draw.randrange(number) if number and draw.random() < DRAWN_RESTORES else None
        for number in range(len(requests))
    ]


def _by_parent(requests: Sequence[TraceRequest]) -> Iterator[int | None]:
    numbers: dict[RequestId, int] = {}
    for number, request in enumerate(requests):
        yield None if request.parent is None else numbers.get(request.parent)
        numbers[request.id] = number


def _by_blocks(requests: Sequence[TraceRequest]) -> Iterator[int | None]:
    ends_with: dict[int, int] = {}
    for number, request in enumerate(requests):
        whole = _whole_blocks(request)
        yield next((ends_with[block] for block in reversed(whole) if block in ends_with), None)
        if len(whole) > 1:
            ends_with[whole[-1]] = number


def _whole_blocks(request: TraceRequest) -> tuple[int, ...]:
    if request.block_ids is None or request.block_size is None:
        return ()
    return request.block_ids[: request.prompt_tokens // request.block_size]


def capacity_bytes(load: Sequence[Demotion], residents: int) -> int:
    """Return the bytes of ``residents`` sequences of the load's mean length; raises :class:`InputError` below 1."""
    if residents < 1:
        raise InputError(f"an arena for {residents} sequences: use 1 or more")
    pages = max(1, residents * sum(demotion.pages for demotion in load) // len(load))
    return pages * sum(page_bytes())


def study(load: Sequence[Demotion], capacity: int) -> list[PolicyFigures]:
    """Replay ``load`` under every policy in an arena of ``capacity`` bytes; equal arguments give equal figures."""
    return [replay(load, capacity, policy) for policy in POLICIES]


def replay(load: Sequence[Demotion], capacity: int, policy: str) -> PolicyFigures:
    """Replay ``load`` under one policy."""
    arena = HostArena(capacity, DEFAULT_ALIGNMENT_BYTES, policy)
    resident: OrderedDict[int, list[Extent]] = OrderedDict()
    demoted = too_large = refused = geometry = released = lost = 0
    fragmentation: list[float] = []
    used: list[float] = []

    def release(extents: list[Extent]) -> None:
        for extent in extents:
            arena.release(extent)

    for number, demotion in enumerate(load):
        if demotion.continues is not None:
            release(resident.pop(demotion.continues, []))
        sizes = [demotion.pages * size for size in page_bytes()]
        if sum(sizes) > capacity:
            too_large += 1
            continue
        demoted += 1
        if not arena.fits(sizes):
            refused += 1
            geometry += sum(sizes) <= arena.free_bytes
        while not arena.fits(sizes):
            lost += sum(sizes) <= arena.free_bytes
            released += 1
            release(resident.popitem(last=False)[1])
        resident[number] = arena.reserve_all(sizes)
        if refused:
            now = arena.statistics()
            fragmentation.append(now.external_fragmentation)
            used.append(now.used_bytes / capacity)
    return PolicyFigures(
        policy, demoted, too_large, refused, geometry, released, lost, _mean(fragmentation), _mean(used)
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
