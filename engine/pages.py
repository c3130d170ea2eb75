"""Logical pages: identity, epoch, committed columns and the references that keep them (DESIGN 3, 4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvcrucible.contract.snapshot import Touched
from kvcrucible.engine.pool import Lease, PagePool, Reservation, page_of


class LogicalPage:
    """P consecutive positions.

    ``references`` counts the address spaces that hold the page.  With one the holder may write beyond
    ``committed``; with more the page is full and nobody writes it.  ``epoch`` rises when committed columns are
    taken back, so that whoever remembers (page, epoch) can tell that the content is not what it was.  ``device`` is the
    physical page that holds the device replica: the one that ``lease`` names.
    """

    __slots__ = ("committed", "device", "epoch", "lease", "page", "pool", "references")

    def __init__(self, page: int, pool: int, lease: Lease) -> None:
        self.page = page
        self.pool = pool
        self.lease = lease
        self.device = page_of(lease)
        self.epoch = 0
        self.committed = 0
        self.references = 1


class PageLedger:
    """All logical pages of an engine, over all pools.  Grants, shares and drops them; marks what it touches."""

    def __init__(self, pools: Sequence[PagePool], touched: Touched) -> None:
        self._pools = pools
        self._next = 0
        self.touched = touched
        self.live: dict[int, LogicalPage] = {}

    def grant(self, pool: int, reservation: Reservation, pages: int) -> list[LogicalPage]:
        """Materialise ``pages`` out of ``reservation`` as new logical pages with one reference and nothing
        committed.
        """
        leases = self._pools[pool].materialise(reservation, pages)
        first = self._next
        granted = [LogicalPage(first + index, pool, lease) for index, lease in enumerate(leases)]
        self._next = first + pages
        self.live.update((page.page, page) for page in granted)
        self.touched.pages.update(range(first, first + pages))
        return granted

    def share(self, pages: Iterable[LogicalPage]) -> None:
        """Add one reference to each page."""
        for page in pages:
            page.references += 1
            self.touched.pages.add(page.page)

    def drop(self, pool: int, pages: Sequence[LogicalPage], into: Reservation | None) -> None:
        """Take one reference from each page; a page without any returns to ``into``, or to free where it is None."""
        ended: list[LogicalPage] = []
        for page in pages:
            assert page.references > 0, f"page {page.page} dropped once too often"
            page.references -= 1
            self.touched.pages.add(page.page)
            if page.references == 0:
                ended.append(page)
        for page in ended:
            del self.live[page.page]
        leases = [page.lease for page in ended]
        if into is None:
            self._pools[pool].release(leases)
        else:
            self._pools[pool].dematerialise(into, leases)
