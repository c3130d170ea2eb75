"""How many pages each pool gets: by a number of tokens, or by the bytes that are free (DESIGN 4.10).

With S = ``max_context``, C = ``max_concurrency`` and pages of P tokens::

    L      = ceil(S / P)                          pages of one sequence of the whole context
    M_min  = max(L, C)                            one such sequence can always run, and each row can have a page
    M_max  = C * L                                more could never be used
    M      = ceil(K / P)                          explicit, for K tokens
    M      = min(M_max, M_min + floor((F - R - B_min) / B_step))      automatic, of F free bytes with headroom R
    MTP    = M + C * ceil((K_draft - 1) / P)      it runs ahead inside a round; K_draft tokens are drafted in one
    Draft  = M

B_step is what one more page costs: a page of Main and, with a backend, one of its pages.  B_min is what M_min pages
cost, with what does not grow: the pages by which an MTP pool is larger, and one block table a pool.

An engine itself takes any capacity from one page on: campaigns live on pools that are smaller than a context.  These
bounds are for whoever sizes a real one.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.config import MAX_CAPACITY_PAGES, pages_for
from kvcrucible.contract.errors import InputError
from kvcrucible.perf.layout import MAX_NUMBER, TABLE_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Demand:
    """What the pools have to serve, and what their pages cost.

    ``page_bytes``, ``backend_page_bytes``: one page group over all planes.  ``backend``: "mtp", "draft" or None.
    ``draft_tokens``: tokens drafted in a round, K_draft; counts for MTP alone.  Raises ``InputError`` for numbers that
    make no sense.
    """

    max_context: int
    max_concurrency: int
    page_size: int
    page_bytes: int
    backend: str | None = None
    backend_page_bytes: int = 0
    draft_tokens: int = 1

    def __post_init__(self) -> None:
        for name, value in (
            ("max context", self.max_context),
            ("max concurrency", self.max_concurrency),
            ("page size", self.page_size),
            ("page bytes", self.page_bytes),
            ("draft tokens", self.draft_tokens),
        ):
            if not 1 <= value <= MAX_NUMBER:
                raise InputError(f"{name} {value}: give 1 to {MAX_NUMBER}")
        if self.page_size & (self.page_size - 1):
            raise InputError(f"page size {self.page_size}: give a power of two")
        if self.backend not in (None, "mtp", "draft"):
            raise InputError(f"backend {self.backend!r}: there are mtp and draft")
        if (self.backend is None) != (self.backend_page_bytes == 0) or self.backend_page_bytes < 0:
            raise InputError(
                f"{self.backend_page_bytes} bytes for a page of backend {self.backend}: a backend's pages cost "
                "something, and nothing costs nothing"
            )

    @property
    def blocks(self) -> int:
        """L: pages of one sequence of the whole context."""
        return pages_for(self.max_context, self.page_size)

    @property
    def fewest_pages(self) -> int:
        """M_min."""
        return max(self.blocks, self.max_concurrency)

    @property
    def most_pages(self) -> int:
        """M_max."""
        return self.max_concurrency * self.blocks

    @property
    def lead_pages(self) -> int:
        """Pages by which an MTP pool is larger than Main: what its rows can be ahead inside a round."""
        if self.backend != "mtp":
            return 0
        return self.max_concurrency * pages_for(self.draft_tokens - 1, self.page_size)

    @property
    def table_bytes(self) -> int:
        """Bytes of the block tables: one int32 a row and block, one table a pool."""
        pools = 1 if self.backend is None else 2
        return pools * self.max_concurrency * self.blocks * TABLE_ENTRY_BYTES

    @property
    def step_bytes(self) -> int:
        """B_step: bytes of one more page."""
        return self.page_bytes + self.backend_page_bytes

    @property
    def fewest_bytes(self) -> int:
        """B_min: bytes of M_min pages, with what does not grow."""
        return self.bytes_for(self.fewest_pages)

    def bytes_for(self, pages: int) -> int:
        """Return the bytes that everything takes with ``pages`` pages in Main."""
        return pages * self.step_bytes + self.lead_pages * self.backend_page_bytes + self.table_bytes


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What the pools get, in pages; ``backend_pages`` is None without one.  ``bytes``: all pages and block tables."""

    demand: Demand
    main_pages: int
    backend_pages: int | None
    bytes: int

    @property
    def tokens(self) -> int:
        """Positions that Main's pages hold."""
        return self.main_pages * self.demand.page_size


def plan_explicit(demand: Demand, tokens: int) -> CapacityPlan:
    """Return the plan for ``tokens`` tokens (K).

    Raises ``InputError`` where they are fewer than one context, or the pages lie outside [M_min, M_max].
    """
    if tokens < demand.max_context:
        raise InputError(
            f"{tokens} tokens: one sequence can have {demand.max_context}; give as many, or lower the max context"
        )
    pages = pages_for(tokens, demand.page_size)
    if pages < demand.fewest_pages:
        raise InputError(
            f"{tokens} tokens are {pages} pages: {demand.max_concurrency} rows need a page each; give at least "
            f"{demand.fewest_pages * demand.page_size} tokens, or lower the concurrency"
        )
    if pages > demand.most_pages:
        raise InputError(
            f"{tokens} tokens are {pages} pages: {demand.max_concurrency} sequences of {demand.max_context} never "
            f"use more than {demand.most_pages}; give at most {demand.most_pages * demand.page_size} tokens"
        )
    return _plan(demand, pages)


def plan_automatic(demand: Demand, free_bytes: int, headroom_bytes: int = 0) -> CapacityPlan:
    """Return the largest plan that leaves ``headroom_bytes`` (R) of ``free_bytes`` (F).

    Raises ``InputError`` for negative numbers, and where not even M_min pages fit.
    """
    if free_bytes < 0 or headroom_bytes < 0:
        raise InputError(f"{free_bytes} bytes free, {headroom_bytes} headroom: give 0 or more")
    spare = free_bytes - headroom_bytes - demand.fewest_bytes
    if spare < 0:
        raise InputError(
            f"{free_bytes} bytes free, {headroom_bytes} of them headroom: {demand.fewest_pages} pages, the fewest, "
            f"take {demand.fewest_bytes}; {-spare} are lacking: free them, or lower context, concurrency or headroom"
        )
    return _plan(demand, min(demand.most_pages, demand.fewest_pages + spare // demand.step_bytes))


def _plan(demand: Demand, pages: int) -> CapacityPlan:
    backend = None if demand.backend is None else pages + demand.lead_pages
    if max(pages, backend or 0) > MAX_CAPACITY_PAGES:
        raise InputError(
            f"{max(pages, backend or 0)} pages in one pool: block tables name at most {MAX_CAPACITY_PAGES}; "
            "use larger pages"
        )
    return CapacityPlan(demand, pages, backend, demand.bytes_for(pages))
