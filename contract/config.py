"""The geometry that an engine is built with, and the arithmetic of pages that everyone shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.planes import BACKENDS, MAIN, ORDERS, PlaneSpec
from kvcrucible.contract.profiles import PlaneOrder

PageId = NewType("PageId", int)
"""Index of one physical page group within its pool."""

LogicalPageId = NewType("LogicalPageId", int)
"""Identity of a logical page; never reused."""

SequenceId = NewType("SequenceId", int)
"""Identity of a request through its whole life (queued, active, retained); never reused."""

CheckpointId = NewType("CheckpointId", int)
"""Identity of a checkpoint; never reused."""

UnitId = NewType("UnitId", int)
"""Identity of an execution unit; never reused."""

TransferId = NewType("TransferId", int)
"""Identity of a transfer between Device and Host; never reused."""

#: What offsets and sizes of host extents are multiples of unless a host tier says otherwise: a page of memory.
DEFAULT_ALIGNMENT_BYTES = 4096

#: Tokens in a page unless a pool says otherwise (DESIGN 3).
DEFAULT_PAGE_SIZE = 64

#: Names of the orders in which continuations yield when room is made (DESIGN 4.9, decision 0020).
LRU, COST_AWARE = "lru", "cost-aware"
POLICIES = (LRU, COST_AWARE)

#: Most requests behind a waiting head that one ``schedule`` may look at.
MAX_LOOKAHEAD = 1024

#: Largest number of pages in one pool; the block table's entries are int32 (DESIGN 4.7).
MAX_CAPACITY_PAGES = 2**31 - 1


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that hold ``tokens`` positions: ``ceil(tokens / page_size)``."""
    return -(-tokens // page_size)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One typed pool: ``main``, ``mtp`` or ``draft``, its size in pages and the tokens in a page (a power of two).

    ``planes`` declares what the pool stores; empty where nothing but counts matters.  Planes with another page size,
    frontier, lifetime or order than the pool's are refused here, with ``BadArgument`` (DESIGN 3, 4.1).
    """

    name: str = MAIN
    capacity_pages: int = 64
    page_size: int = DEFAULT_PAGE_SIZE
    planes: tuple[PlaneSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in ORDERS:
            raise BadArgument(
                f"a pool called {self.name!r}", "no such kind of pool", f"use one of {', '.join(ORDERS)}"
            )
        if self.page_size < 1 or self.page_size & (self.page_size - 1):
            raise BadArgument(f"pages of {self.page_size} tokens", "not a power of two", "use 16, 64, …")
        if not 1 <= self.capacity_pages <= MAX_CAPACITY_PAGES:
            raise BadArgument(
                f"a pool of {self.capacity_pages} pages",
                f"allowed: 1 to {MAX_CAPACITY_PAGES}",
                "choose another capacity",
            )
        for plane in self.planes:
            plane.require_fit(self.name, self.page_size)

    @property
    def order(self) -> PlaneOrder:
        """Which axis of this pool's planes is slowest."""
        return ORDERS[self.name]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page group over all declared planes; 0 where none are declared."""
        return sum(
            plane.profile.bytes_per_page_group(plane.geometry, self.page_size) for plane in self.planes
        )


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The Host tier: an arena of ``capacity_bytes``, of which extents take whole multiples of ``alignment_bytes``.

    Raises ``BadArgument`` for an alignment that is no power of two, or a capacity that is no multiple of it, at least
    once.
    """

    capacity_bytes: int
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES

    def __post_init__(self) -> None:
        if self.alignment_bytes < 1 or self.alignment_bytes & (self.alignment_bytes - 1):
            raise BadArgument(
                f"extents aligned to {self.alignment_bytes} bytes", "not a power of two", "use 64, 4096, …"
            )
        if self.capacity_bytes < self.alignment_bytes or self.capacity_bytes % self.alignment_bytes:
            raise BadArgument(
                f"a host arena of {self.capacity_bytes} bytes",
                f"extents are aligned to {self.alignment_bytes}",
                "give a multiple, at least once",
            )

    def rounded(self, size_bytes: int) -> int:
        """Return the bytes that an extent of ``size_bytes`` takes."""
        return pages_for(size_bytes, self.alignment_bytes) * self.alignment_bytes


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is built for.

    ``pools`` holds Main first, then at most one speculative backend, MTP or Draft; counters everywhere are vectors in
    this order.  ``max_context`` (S) limits positions of one sequence, ``max_concurrency`` (C) is the number of rows in
    each pool's block-table matrix.  ``host``: the Host tier, None for an engine without one; with it every pool has to
    declare its planes, since extents have their sizes from them.  ``policy``: who yields first when room is made,
    one of ``POLICIES``.

    ``lookahead``: how many requests behind a waiting head one ``schedule`` may look at, to let one pass that delays the
    head in no case (DESIGN 4.8, decision 0021).  0, the default, serves the queue strictly in order: what a caller
    gets without asking is what it can foresee.
    """

    pools: tuple[PoolSpec, ...] = (PoolSpec(),)
    max_context: int = 4096
    max_concurrency: int = 8
    host: HostSpec | None = None
    policy: str = LRU
    lookahead: int = 0

    def __post_init__(self) -> None:
        if not self.pools or self.pools[0].name != "main":
            raise BadArgument(
                "an engine without a Main pool", f"pools: {[p.name for p in self.pools]}", "put Main first"
            )
        if len({pool.name for pool in self.pools}) != len(self.pools):
            raise BadArgument(
                "two pools of one name", f"pools: {[p.name for p in self.pools]}", "name each pool once"
            )
        if sum(pool.name in BACKENDS for pool in self.pools) > 1:
            raise BadArgument(
                "two speculative backends",
                f"pools: {[p.name for p in self.pools]}",
                f"choose one of {', '.join(BACKENDS)}",
            )
        if self.max_context < 1 or self.max_concurrency < 1:
            raise BadArgument(
                f"max_context {self.max_context}, max_concurrency {self.max_concurrency}",
                "both start at 1",
                "raise them",
            )
        if self.policy not in POLICIES:
            raise BadArgument(
                f"a policy called {self.policy!r}", "no such policy", f"use one of {', '.join(POLICIES)}"
            )
        if not 0 <= self.lookahead <= MAX_LOOKAHEAD:
            raise BadArgument(
                f"a look-ahead of {self.lookahead} requests",
                f"allowed: 0 (strictly in order) to {MAX_LOOKAHEAD}",
                "choose another",
            )
        bare = [pool.name for pool in self.pools if not pool.planes]
        if self.host is not None and bare:
            raise BadArgument(
                "a host tier", f"pools without planes: {', '.join(bare)}", "declare the planes of every pool"
            )

    @property
    def main(self) -> PoolSpec:
        """The Main pool, which every engine has."""
        return self.pools[0]

    @property
    def backend(self) -> PoolSpec | None:
        """The speculative backend's pool, None on an engine without one."""
        return self.pools[1] if len(self.pools) > 1 else None

    @property
    def max_blocks_per_row(self) -> int:
        """L = ceil(S / P) of Main (DESIGN 4.10): the width of a row of its block table."""
        return self.blocks_per_row(0)

    def blocks_per_row(self, pool: int) -> int:
        """ceil(S / P) with the pool's own P: the width of a row of its block table."""
        return pages_for(self.max_context, self.pools[pool].page_size)
