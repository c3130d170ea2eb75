"""The geometry that an engine is built with, and the arithmetic of pages that everyone shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from kvcrucible.contract.errors import BadArgument

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

#: Tokens in a page unless a pool says otherwise (DESIGN 3).
DEFAULT_PAGE_SIZE = 64

#: Largest number of pages in one pool; the block table's entries are int32 (DESIGN 4.7).
MAX_CAPACITY_PAGES = 2**31 - 1


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that hold ``tokens`` positions: ``ceil(tokens / page_size)``."""
    return -(-tokens // page_size)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One typed pool: its name, its size in pages and the tokens in a page (a power of two)."""

    name: str = "main"
    capacity_pages: int = 64
    page_size: int = DEFAULT_PAGE_SIZE

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.page_size & (self.page_size - 1):
            raise BadArgument(f"pages of {self.page_size} tokens", "not a power of two", "use 16, 64, …")
        if not 1 <= self.capacity_pages <= MAX_CAPACITY_PAGES:
            raise BadArgument(
                f"a pool of {self.capacity_pages} pages",
                f"allowed: 1 to {MAX_CAPACITY_PAGES}",
                "choose another capacity",
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is built for.

    ``pools`` holds Main first; counters everywhere are vectors in this order.  ``max_context`` (S) limits positions
    of one sequence, ``max_concurrency`` (C) is the number of rows in the block-table matrix.
    """

    pools: tuple[PoolSpec, ...] = (PoolSpec(),)
    max_context: int = 4096
    max_concurrency: int = 8

    def __post_init__(self) -> None:
        if not self.pools or self.pools[0].name != "main":
            raise BadArgument(
                "an engine without a Main pool", f"pools: {[p.name for p in self.pools]}", "put Main first"
            )
        if len({pool.name for pool in self.pools}) != len(self.pools):
            raise BadArgument(
                "two pools of one name", f"pools: {[p.name for p in self.pools]}", "name each pool once"
            )
        if self.max_context < 1 or self.max_concurrency < 1:
            raise BadArgument(
                f"max_context {self.max_context}, max_concurrency {self.max_concurrency}",
                "both start at 1",
                "raise them",
            )

    @property
    def main(self) -> PoolSpec:
        """The Main pool, which every engine has."""
        return self.pools[0]

    @property
    def max_blocks_per_row(self) -> int:
        """L = ceil(S / P) of Main (DESIGN 4.10): the width of a block-table row."""
        return pages_for(self.max_context, self.main.page_size)
