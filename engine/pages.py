"""Logical pages: identity, epoch, committed columns, replicas, and the references that keep them (DESIGN 3-4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvcrucible.contract.config import PageId
from kvcrucible.contract.snapshot import Tier, Touched
from kvcrucible.engine.host.replicas import Replica, Replicas, note_change
from kvcrucible.engine.host.slots import HostSlot
from kvcrucible.engine.pool import NO_LEASE, Lease, PagePool, Reservation, page_of
from kvcrucible.engine.streams import UnitFences

if TYPE_CHECKING:
    from kvcrucible.engine.host.tier import HostTier


class LogicalPage:
    """P consecutive positions.

    ``references`` counts the address spaces that hold the page.  With one the holder may write beyond
    ``committed``; with more, or in a transfer, the page is full or retained and nobody writes it.  ``epoch`` rises when
    committed columns are taken back, so that whoever remembers (page, epoch) can tell that the content is not what it
    was.  ``device`` is the physical page that holds the Device replica: the one that ``lease`` names; −1 and
    ``NO_LEASE`` where there is none.  ``fence`` is the last unit, by ordinal, of those who held the page and hold it no
    more or only retain it.  ``transfer`` is the transfer that has the page, None where none has.
    """

    __slots__ = (
        "_replicas",
        "committed",
        "device",
        "epoch",
        "fence",
        "lease",
        "page",
        "pool",
        "references",
        "transfer",
    )

    def __init__(self, page: int, pool: int, lease: Lease) -> None:
        self.page = page
        self.pool = pool
        self.lease = lease
        self.device = page_of(lease)
        self.epoch = 0
        self.committed = 0
        self.references = 1
        self.fence = 0
        self.transfer: int | None = None
        self._replicas: Replicas | None = None

    @property
    def shared(self) -> bool:
        """Whether more than one space holds it; a transfer counts as one more holder (decision 0013)."""
        return self.references > 1 or self.transfer is not None

    @property
    def visible(self) -> Tier:
        """The tier of the replica that reads, tables and hits resolve to."""
        return Tier.DEVICE if self._replicas is None else self._replicas.visible

    @property
    def replicas(self) -> Replicas:
        """Its replicas; the object is made when it is first asked for, since most pages never leave the device."""
        if self._replicas is None:
            self._replicas = Replicas(Tier.DEVICE, Replica(self.lease, self.epoch, self.committed))
        return self._replicas

    @property
    def only_on_device(self) -> bool:
        """Whether no transfer has ever given it another replica that it still has; then ``replicas`` says no more than
        the page itself.
        """
        return self._replicas is None

    @property
    def on_host(self) -> Replica | None:
        """Its Host replica, visible or not; None where there is none.  Unlike ``replicas``, asking makes no object."""
        return None if self._replicas is None else self._replicas.at(Tier.HOST)

    def settle(self) -> None:
        """Bring ``lease`` and ``device`` in line with the replicas, which have changed.  Mutates."""
        replicas = self.replicas
        on_device = replicas.at(Tier.DEVICE)
        if on_device is None:
            self.lease, self.device = NO_LEASE, PageId(-1)
            return
        assert isinstance(on_device.place, int)
        self.lease = on_device.place
        self.device = page_of(self.lease)
        if replicas.at(Tier.HOST) is None and not on_device.pins:
            self._replicas = None


class PageLedger:
    """All logical pages of an engine, over all pools.  Grants, shares and drops them; marks what it touches.

    ``host`` is the engine's Host tier, None without one.
    """

    def __init__(self, pools: Sequence[PagePool], units: UnitFences, touched: Touched) -> None:
        self._pools, self._units = pools, units
        self._next = 0
        self.touched = touched
        self.live: dict[int, LogicalPage] = {}
        self.host: HostTier | None = None

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

    def drop(self, pool: int, pages: Sequence[LogicalPage], into: Reservation | None, fence: int = 0) -> None:
        """Take one reference from each page; a page without any returns to ``into``, or to free where it is None.

        ``fence`` is the last unit that selected the one who drops them.  What a page in a transfer occupies stays the
        transfer's, whatever ``into`` is; its Host copy ends with it otherwise.
        """
        ended: list[LogicalPage] = []
        touched = self.touched.pages
        for page in pages:
            assert page.references > 0, f"page {page.page} dropped once too often"
            page.references -= 1
            if fence > page.fence:  # max() would take longer than all the rest
                page.fence = fence
            touched.add(page.page)
            if page.references == 0:
                ended.append(page)
        leases: list[Lease] = []
        fences: list[int] = []
        for page in ended:
            if page.transfer is None and page.device >= 0:
                leases.append(page.lease)
                fences.append(page.fence)
        self.end_leases(pool, leases, fences, into)
        self.end_pages(ended)

    def end_leases(
        self, pool: int, leases: Sequence[Lease], fences: Sequence[int], into: Reservation | None
    ) -> None:
        """End leases, into the reservation ``into`` or for good; ``fences`` as for :meth:`PagePool.release`."""
        if into is None:
            self._pools[pool].release(leases, fences)
        else:
            self._pools[pool].dematerialise(into, leases, fences)

    def take_back_leases(self, pool: int, leases: Sequence[Lease], into: Reservation | None) -> None:
        """Undo :meth:`end_leases`, as :meth:`PagePool.take_back` does."""
        self._pools[pool].take_back(leases, into)

    def end_pages(self, pages: Iterable[LogicalPage]) -> None:
        """Forget pages without references, whose leases have ended; their Host copies end with them, and the transfer
        that has one learns of it.
        """
        for page in pages:
            del self.live[page.page]
            if page.transfer is not None:
                assert self.host is not None
                self.host.page_ended(page)
            elif (copy := page.on_host) is not None:
                self._free_host(copy)

    def stamp(self, pages: Iterable[LogicalPage], fence: int) -> None:
        """Note that a holder who only retains ``pages`` from now on was selected by unit ``fence`` last."""
        if fence > self._units.completed:
            for page in pages:
                page.fence = max(page.fence, fence)

    def changed(self, page: LogicalPage) -> None:
        """Bring the replicas of ``page`` up to date after a committed write or a cut in its place.

        A Host copy that is no clean one any more ends, and its slot is free (decision 0013).
        """
        if page.only_on_device:
            return
        stale = note_change(page)
        if stale is not None:
            self._free_host(stale)
            page.settle()

    def frees(self, page: LogicalPage) -> bool:
        """Tell whether a page would be free at once on the device if its last reference went now."""
        if page.transfer is not None or page.device < 0:
            return False
        units = self._units
        return units.completed == units.ended or self._pools[page.pool].at_rest(page.lease, page.fence)

    def _free_host(self, replica: Replica) -> None:
        assert self.host is not None
        assert isinstance(replica.place, HostSlot)
        self.host.slots.free([replica.place])
