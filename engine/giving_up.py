"""References that are given up and can still be taken back: what makes an operation exact where a grant fails.

An operation that cuts, takes over or makes room gives pages up before it is granted others, because the others may be
the same ones.  So it gives them up in two steps (decision 0028):

1. on making a :class:`GivenUp` the references and the leases go: the pages can be granted and promised again;
2. ``commit`` lets go of everything else: the logical pages, their Host copies, what transfers know of them.  Or
   ``take_back`` puts references and leases back as they were, for which nobody may hold what they freed any more.

Between the two nothing is written: every page that an operation needs is granted before its first effect is queued.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host.replicas import Replica
from kvcrucible.engine.pages import LogicalPage, PageLedger
from kvcrucible.engine.pool import NO_LEASE, Lease, Reservation, page_of


class GivenUp:
    """One reference of each of ``pages``, which are of one pool; arguments as for :meth:`PageLedger.drop`."""

    def __init__(
        self,
        ledger: PageLedger,
        pool: int,
        pages: Sequence[LogicalPage],
        into: Reservation | None,
        fence: int = 0,
    ) -> None:
        self._ledger, self._pool, self._pages, self._into = ledger, pool, tuple(pages), into
        self._fences = [page.fence for page in self._pages]
        for page in self._pages:
            assert page.references > 0, f"page {page.page} dropped once too often"
            page.references -= 1
            page.fence = max(page.fence, fence)
        ledger.touched.pages.update([page.page for page in self._pages])
        self._ended = [page for page in self._pages if not page.references]
        at_rest = [page for page in self._ended if page.transfer is None and page.device >= 0]
        self._leases = [page.lease for page in at_rest]
        ledger.end_leases(pool, self._leases, [page.fence for page in at_rest], into)

    def take_back(self) -> None:
        """Put everything back as it was.  Mutates."""
        self._ledger.take_back_leases(self._pool, self._leases, self._into)
        for page, fence in zip(self._pages, self._fences, strict=True):
            page.references += 1
            page.fence = fence

    def commit(self) -> None:
        """Let go of the pages without references for good.  Mutates."""
        self._ledger.end_pages(self._ended)


class CopiesGivenUp:
    """Hidden Device copies of ``pages``, which are visible on Host and in no transfer."""

    def __init__(self, ledger: PageLedger, pages: Sequence[LogicalPage]) -> None:
        self._ledger = ledger
        self._copies: list[tuple[LogicalPage, Replica, Lease]] = []
        for page in pages:
            replica, lease = page.replicas.detach(Tier.DEVICE), page.lease
            assert lease != NO_LEASE
            self._copies.append((page, replica, lease))
            ledger.end_leases(page.pool, [lease], [page.fence], None)
            page.settle()
            ledger.touched.pages.add(page.page)

    def take_back(self) -> None:
        """Attach every copy again.  Mutates."""
        for page, replica, lease in reversed(self._copies):
            self._ledger.take_back_leases(page.pool, [lease], None)
            page.replicas.attach(Tier.DEVICE, replica)
            page.settle()
            assert page.device == page_of(lease)

    def commit(self) -> None:
        """Nothing is left to do."""
