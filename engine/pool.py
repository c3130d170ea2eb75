"""The device page pool: leases with generations, reservations, bulk grants (DESIGN 4.1, 4.3).

Life cycle of a page, counted and then named:

1. *free*: promised to nobody.
2. ``reserve`` promises a number of pages to one :class:`Reservation`; no page is chosen yet.  reserved + n, free - n.
3. ``materialise`` turns promises into leases of particular pages.  reserved - n, leased + n.
4. ``dematerialise`` turns leases back into promises of the same reservation.  leased - n, reserved + n.
5. ``release`` ends leases for good.  leased - n, free + n.
6. ``close`` ends a reservation and returns what is left of it.  reserved - n, free + n.

A page changes hands only behind its *fence*, the last execution unit that touched it since it was leased (decision
0013).  While that unit is outstanding, a page that was released is *retiring* (counted as leased, given to nobody),
and one that was dematerialised stays with its reservation, which is granted it again before any other page.  Once the
host knows the unit to be complete, ``collect`` makes retiring pages free and puts the others among those at rest.

At every moment ``leased + reserved + free == capacity``.  A page that is only promised stays among the unleased
pages, so which page is granted is decided as late as possible and nothing may depend on adjacency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NewType, TypeAlias

from kvcrucible.contract.config import PageId, PoolSpec
from kvcrucible.contract.errors import DeviceCapacity, StaleHandle
from kvcrucible.engine.free_pages import FreePages, LastInFirstOut
from kvcrucible.engine.streams import UnitFences

Lease = NewType("Lease", int)
"""Ownership of one page: ``generation << LEASE_PAGE_BITS | page``.  Generations count from 1 and never wrap."""

#: Bits of a lease that hold the page id; ``contract.config.MAX_CAPACITY_PAGES`` fits into them.
LEASE_PAGE_BITS = 32

#: The lease of a logical page that has no page on the device: of generation −1, and of a page that no pool has.
NO_LEASE = Lease(-1)

_PAGE_MASK = (1 << LEASE_PAGE_BITS) - 1
_NEXT_GENERATION = 1 << LEASE_PAGE_BITS


def page_of(lease: Lease) -> PageId:
    """Return the physical page that a lease names."""
    return PageId(lease & _PAGE_MASK)


def generation_of(lease: Lease) -> int:
    """Return the generation in which the lease was given."""
    return lease >> LEASE_PAGE_BITS


@dataclass(frozen=True, slots=True)
class RetiringPage:
    """The lease that has ended, and the unit (by ordinal) that is to complete before the page is free."""

    lease: Lease
    fence: int


class Reservation:
    """Pages promised to one holder.  ``remaining`` is what has not been materialised; the pool alone changes it.

    ``returned`` are those of the promised pages that units may still touch, as (page, fence), the latest last.
    """

    __slots__ = ("_open", "remaining", "returned")

    def __init__(self, pages: int) -> None:
        self.remaining = pages
        self.returned: list[tuple[int, int]] = []
        self._open = True

    @property
    def is_open(self) -> bool:
        """False once the pool has closed it; every use is then refused."""
        return self._open


class PagePool:
    """One pool's pages.  Every method either takes full effect or raises and changes nothing.

    ``units`` tells which units are outstanding; without it none ever is.  ``unleased`` decides which page is granted
    next and begins with all of them; None grants what was given back last.  ``changed`` collects the pages that began
    or ceased to retire, until whoever watches clears it.
    """

    def __init__(
        self, spec: PoolSpec, units: UnitFences | None = None, unleased: FreePages | None = None
    ) -> None:
        self.spec = spec
        self.leased = 0
        self.reserved = 0
        self.retiring: dict[int, RetiringPage] = {}
        self.changed: set[int] = set()
        self._units = units if units is not None else UnitFences()
        # How many units had ended when the page was leased last: those have not touched it since.
        self._leased_after: list[int] = [0] * spec.capacity_pages
        # The last unit that had touched the page when it was leased, where the lease did not wait for it: its own
        # sequence had given the page back.  What other leases leave here is complete: they did wait.
        self._carried: list[int] = [0] * spec.capacity_pages
        # Reservations to which pages were returned that were not at rest; they may have none left until the next look.
        self._with_returned: list[Reservation] = []
        self._unleased = LastInFirstOut(spec.capacity_pages) if unleased is None else unleased
        # Per page: its live lease, or the negated last one while nobody holds it (generation 0 at the start).
        self._current: list[int] = [-page for page in range(spec.capacity_pages)]

    @property
    def capacity(self) -> int:
        """Pages in the pool."""
        return self.spec.capacity_pages

    @property
    def free(self) -> int:
        """Pages promised to nobody."""
        return self.spec.capacity_pages - self.leased - self.reserved

    def unleased_pages(self) -> tuple[int, ...]:
        """Return the ids of all pages that nobody leases and that do not retire: the free and the promised ones."""
        returned = [page for reservation in self._with_returned for page, _ in reservation.returned]
        return (*self._unleased, *returned)

    def at_rest(self, lease: Lease, fence: int) -> bool:
        """Tell whether no outstanding unit touches the leased page, ``fence`` being the last unit that touched its
        holders: since it was leased, or before where it was granted again to the sequence that had given it back.
        """
        return self._fence_of(lease & _PAGE_MASK, fence) <= self._units.completed

    def _fence_of(self, page: int, fence: int) -> int:
        """Return the last unit that may touch the page, ``fence`` being the last that touched its holders."""
        return fence if fence > self._leased_after[page] else self._carried[page]

    def reserve(self, pages: int) -> Reservation:
        """Promise ``pages``; raises ``DeviceCapacity`` where fewer are free."""
        reservation = Reservation(0)
        self.extend(reservation, pages)
        return reservation

    def extend(self, reservation: Reservation, pages: int) -> None:
        """Add ``pages`` to an open reservation; raises ``DeviceCapacity`` where fewer are free."""
        self._require_open(reservation)
        assert pages >= 0, f"extend by {pages}"
        if pages > self.free:
            raise DeviceCapacity(
                f"{pages} pages of pool {self.spec.name}",
                f"{self.free} free of {self.capacity} ({self.leased} leased, {self.reserved} reserved)",
                "finish or release something, or ask for less",
            )
        self.reserved += pages
        reservation.remaining += pages

    def shrink(self, reservation: Reservation, pages: int) -> None:
        """Return ``pages`` promises of an open reservation to free."""
        self._require_open(reservation)
        assert 0 <= pages <= reservation.remaining, f"shrink by {pages} of {reservation.remaining}"
        self._take_promises(reservation, pages)

    def materialise(self, reservation: Reservation, pages: int) -> list[Lease]:
        """Turn ``pages`` promises into leases and return them; the caller owns them until released.

        Pages that were returned to the reservation and are not at rest come first, the latest of them first.
        """
        self._require_open(reservation)
        assert 0 <= pages <= reservation.remaining, f"materialise {pages} of {reservation.remaining}"
        if pages == 0:
            return []
        granted = self._take_returned(reservation, pages) if reservation.returned else []
        granted += self._unleased.take(pages - len(granted))
        current, leased_after, ended = self._current, self._leased_after, self._units.ended
        leases: list[Lease] = []
        for page in granted:
            lease = _NEXT_GENERATION - current[page]
            assert lease >= _NEXT_GENERATION, f"page {page} is leased already"
            current[page] = lease
            leased_after[page] = ended
            leases.append(Lease(lease))
        self.reserved -= pages
        self.leased += pages
        reservation.remaining -= pages
        return leases

    def _take_returned(self, reservation: Reservation, pages: int) -> list[int]:
        """Take up to ``pages`` out of what was returned to the reservation, the latest first, and carry their fences
        on.
        """
        again = [reservation.returned.pop() for _ in range(min(pages, len(reservation.returned)))]
        for page, fence in again:
            self._carried[page] = fence
        return [page for page, _ in again]

    def dematerialise(
        self, reservation: Reservation, leases: Sequence[Lease], fences: Sequence[int] | None = None
    ) -> None:
        """Turn ``leases`` back into promises of ``reservation``; raises ``StaleHandle`` for a lease that has ended.

        ``fences``: for each the last unit that touched the page; None where no outstanding unit did.
        """
        self._require_open(reservation)
        self._end(leases)
        self.reserved += len(leases)
        reservation.remaining += len(leases)
        quiet, waiting = self._split(leases, fences)
        self._unleased.put(quiet)
        if waiting:
            if reservation not in self._with_returned:
                self._with_returned.append(reservation)
            reservation.returned += [(lease & _PAGE_MASK, fence) for lease, fence in waiting]

    def release(self, leases: Sequence[Lease], fences: Sequence[int] | None = None) -> None:
        """End ``leases``; their pages are free, or retire where an outstanding unit has touched them.

        ``fences`` as for :meth:`dematerialise`.  Raises ``StaleHandle`` for a lease that has ended.
        """
        self._end(leases)
        quiet, waiting = self._split(leases, fences)
        self._unleased.put(quiet)
        for lease, fence in waiting:
            self._retire(lease, fence)

    def take_back(self, leases: Sequence[Lease], reservation: Reservation | None) -> None:
        """Undo :meth:`release`, or where there is a ``reservation`` :meth:`dematerialise`: ``leases`` are live again.

        Nobody holds their pages: what was granted of them since has been given back, unseen by anybody else.
        """
        pages = {lease & _PAGE_MASK for lease in leases}
        for lease in leases:
            assert self._current[lease & _PAGE_MASK] <= -lease, "the page is leased, or was never given up"
            self._current[lease & _PAGE_MASK] = lease
        if reservation is None:
            held_up = {page for page in pages if page in self.retiring}
            for page in held_up:
                del self.retiring[page]
            self.changed |= held_up
            self.leased += len(pages) - len(held_up)
        else:
            held_up = {page for page, _ in reservation.returned if page in pages}
            reservation.returned = [
                (page, fence) for page, fence in reservation.returned if page not in pages
            ]
            self.reserved -= len(pages)
            reservation.remaining -= len(pages)
            self.leased += len(pages)
        if pages != held_up:
            self._unleased.remove(pages - held_up)

    def close(self, reservation: Reservation) -> int:
        """End the reservation; return how many promised pages became free or retire."""
        self._require_open(reservation)
        returned = reservation.remaining
        self._take_promises(reservation, returned)
        reservation._open = False
        return returned

    def collect(self) -> None:
        """Give back what the units that are complete by now have held up."""
        completed = self._units.completed
        for page, held in list(self.retiring.items()):
            if held.fence <= completed:
                del self.retiring[page]
                self.changed.add(page)
                self._unleased.put((page,))
                self.leased -= 1
        for reservation in self._with_returned:
            self._unleased.put([page for page, fence in reservation.returned if fence <= completed])
            reservation.returned = [
                (page, fence) for page, fence in reservation.returned if fence > completed
            ]
        self._with_returned = [reservation for reservation in self._with_returned if reservation.returned]

    def _take_promises(self, reservation: Reservation, pages: int) -> None:
        """Make ``pages`` promises free: pages at rest first, then the earliest returned, which retire."""
        moving = max(0, pages - (reservation.remaining - len(reservation.returned)))
        self.reserved -= pages
        reservation.remaining -= pages
        for page, fence in reservation.returned[:moving]:
            self._retire(Lease(-self._current[page]), fence)
        del reservation.returned[:moving]

    def _split(
        self, leases: Sequence[Lease], fences: Sequence[int] | None
    ) -> tuple[list[int], list[tuple[Lease, int]]]:
        """Return the pages that are at rest, and the leases whose page is not, with its fence."""
        if fences is None or self._units.completed == self._units.ended:
            return [lease & _PAGE_MASK for lease in leases], []
        quiet: list[int] = []
        waiting: list[tuple[Lease, int]] = []
        for lease, fence in zip(leases, fences, strict=True):
            page = lease & _PAGE_MASK
            last = self._fence_of(page, fence)
            if last <= self._units.completed:
                quiet.append(page)
            else:
                waiting.append((lease, last))
        return quiet, waiting

    def _retire(self, lease: Lease, fence: int) -> None:
        page = page_of(lease)
        self.retiring[page] = RetiringPage(lease, fence)
        self.changed.add(page)
        self.leased += 1

    def _end(self, leases: Sequence[Lease]) -> None:
        """Mark ``leases`` as ended; where their pages go is the caller's to say."""
        current = self._current
        for lease in leases:
            if current[lease & _PAGE_MASK] != lease:
                raise StaleHandle(
                    f"end the lease of page {page_of(lease)}, generation {generation_of(lease)}",
                    f"the page is at {self._describe(page_of(lease))}",
                    "drop the handle: its page belongs to somebody else or to nobody",
                )
        assert len(set(leases)) == len(leases), "one lease ended twice in one call"
        for lease in leases:
            current[lease & _PAGE_MASK] = -lease
        self.leased -= len(leases)
        assert self.leased >= 0

    def _describe(self, page: PageId) -> str:
        lease = self._current[page]
        return f"generation {abs(lease) >> LEASE_PAGE_BITS}, {'leased' if lease > 0 else 'not leased'}"

    def _require_open(self, reservation: Reservation) -> None:
        if not reservation.is_open:
            raise StaleHandle("use a reservation", "it was closed", "reserve again")


#: Builds the pool for one specification; the fences are those of its engine.
PoolFactory: TypeAlias = Callable[[PoolSpec, UnitFences], PagePool]
