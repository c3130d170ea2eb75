"""The device page pool: leases with generations, reservations, bulk grants (DESIGN 4.1, 4.3).

Life cycle of a page, counted and then named:

1. *free*: promised to nobody.
2. ``reserve`` promises a number of pages to one :class:`Reservation`; no page is chosen yet.  reserved + n, free - n.
3. ``materialise`` turns promises into leases of particular pages.  reserved - n, leased + n.
4. ``dematerialise`` turns leases back into promises of the same reservation.  leased - n, reserved + n.
5. ``release`` ends leases for good.  leased - n, free + n.
6. ``close`` ends a reservation and returns what is left of it.  reserved - n, free + n.

At every moment ``leased + reserved + free == capacity``.  A page that is only promised stays among the unleased
pages, so which page is granted is decided as late as possible and nothing may depend on adjacency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType

from kvcrucible.contract.config import PageId, PoolSpec
from kvcrucible.contract.errors import DeviceCapacity, StaleHandle

Lease = NewType("Lease", int)
"""Ownership of one page: ``generation << LEASE_PAGE_BITS | page``.  Generations count from 1 and never wrap."""

#: Bits of a lease that hold the page id; ``contract.config.MAX_CAPACITY_PAGES`` fits into them.
LEASE_PAGE_BITS = 32

_PAGE_MASK = (1 << LEASE_PAGE_BITS) - 1
_NEXT_GENERATION = 1 << LEASE_PAGE_BITS


def page_of(lease: Lease) -> PageId:
    """Return the physical page that a lease names."""
    return PageId(lease & _PAGE_MASK)


def generation_of(lease: Lease) -> int:
    """Return the generation in which the lease was given."""
    return lease >> LEASE_PAGE_BITS


class Reservation:
    """Pages promised to one holder.  ``remaining`` is what has not been materialised; the pool alone changes it."""

    __slots__ = ("_open", "remaining")

    def __init__(self, pages: int) -> None:
        self.remaining = pages
        self._open = True

    @property
    def is_open(self) -> bool:
        """False once the pool has closed it; every use is then refused."""
        return self._open


class PagePool:
    """One pool's pages.  Every method either takes full effect or raises and changes nothing."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.leased = 0
        self.reserved = 0
        # Last in, first out: a page is reused at once, which makes a stale handle show itself soon.
        self._unleased: list[int] = list(range(spec.capacity_pages - 1, -1, -1))
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
        """Return the ids of all pages that nobody leases: the free and the promised ones."""
        return tuple(self._unleased)

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
        self.reserved -= pages
        reservation.remaining -= pages

    def materialise(self, reservation: Reservation, pages: int) -> list[Lease]:
        """Turn ``pages`` promises into leases and return them; the caller owns them until released."""
        self._require_open(reservation)
        assert 0 <= pages <= reservation.remaining, f"materialise {pages} of {reservation.remaining}"
        if pages == 0:
            return []
        granted = self._unleased[-pages:]
        del self._unleased[-pages:]
        current = self._current
        leases: list[Lease] = []
        for page in granted:
            lease = _NEXT_GENERATION - current[page]
            assert lease >= _NEXT_GENERATION, f"page {page} is leased already"
            current[page] = lease
            leases.append(Lease(lease))
        self.reserved -= pages
        self.leased += pages
        reservation.remaining -= pages
        return leases

    def dematerialise(self, reservation: Reservation, leases: Sequence[Lease]) -> None:
        """Turn ``leases`` back into promises of ``reservation``; raises ``StaleHandle`` for a lease that has ended."""
        self._require_open(reservation)
        self._end(leases)
        self.reserved += len(leases)
        reservation.remaining += len(leases)

    def release(self, leases: Sequence[Lease]) -> None:
        """End ``leases``; their pages are free.  Raises ``StaleHandle`` for a lease that has ended."""
        self._end(leases)

    def close(self, reservation: Reservation) -> int:
        """End the reservation; return how many promised pages became free."""
        self._require_open(reservation)
        returned = reservation.remaining
        self.reserved -= returned
        reservation.remaining = 0
        reservation._open = False
        return returned

    def _end(self, leases: Sequence[Lease]) -> None:
        current = self._current
        for lease in leases:
            if current[lease & _PAGE_MASK] != lease:
                raise StaleHandle(
                    f"end the lease of page {page_of(lease)}, generation {generation_of(lease)}",
                    f"the page is at {self._describe(page_of(lease))}",
                    "drop the handle: its page belongs to somebody else or to nobody",
                )
        assert len(set(leases)) == len(leases), "one lease ended twice in one call"
        pages = [lease & _PAGE_MASK for lease in leases]
        for page, lease in zip(pages, leases, strict=True):
            current[page] = -lease
        self._unleased.extend(pages)
        self.leased -= len(pages)
        assert self.leased >= 0

    def _describe(self, page: PageId) -> str:
        lease = self._current[page]
        return f"generation {abs(lease) >> LEASE_PAGE_BITS}, {'leased' if lease > 0 else 'not leased'}"

    def _require_open(self, reservation: Reservation) -> None:
        if not reservation.is_open:
            raise StaleHandle("use a reservation", "it was closed", "reserve again")
