"""What the pool takes back: leases that were given up for a moment are live again, and nothing tells that they were.

Verifies by hand each way that such a lease can have gone: to free, to a reservation, and behind its fence in both.
Whole operations that take back are judged by tests/nth_failure.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from kvcrucible.contract.config import PoolSpec
from kvcrucible.engine.free_pages import LastInFirstOut
from kvcrucible.engine.pool import PagePool, Reservation, page_of
from kvcrucible.engine.streams import UnitFences


class Outstanding:
    """The end of a unit that the device has not reached."""

    done = False


class Strict(LastInFirstOut):
    """Is never asked to remove what is not there."""

    def remove(self, pages: Collection[int]) -> None:
        assert pages
        assert set(pages) <= set(self), "only pages that are there can be removed"
        super().remove(pages)


def state(pages: PagePool, reservation: Reservation) -> object:
    """Return all that the pool says, of one reservation too."""
    return (
        (pages.leased, pages.reserved, pages.free),
        (reservation.remaining, list(reservation.returned)),
        sorted(pages.unleased_pages()),
        dict(pages.retiring),
    )


@pytest.mark.parametrize("fenced", [(), (0, 1, 2, 3), (1,), (0, 2)], ids=str)
@pytest.mark.parametrize("into", [False, True], ids=["release", "dematerialise"])
def test_leases_are_as_they_were(into: bool, fenced: tuple[int, ...]) -> None:
    """``fenced`` are those of four leases that the unit has touched; of two others one has been given back before, and
    one is kept all the time.
    """
    fences = UnitFences()
    pages = PagePool(PoolSpec("main", 8, 16), fences, Strict(8))
    reservation = pages.reserve(7)
    earlier, kept, *leases = pages.materialise(reservation, 6)
    unit = fences.end(0, Outstanding())
    pages.dematerialise(reservation, [earlier], [unit])
    assert reservation.returned == [(page_of(earlier), unit)]
    before = state(pages, reservation)
    given_up = [unit if index in fenced else 0 for index in range(4)]
    if into:
        pages.dematerialise(reservation, leases, given_up)
    else:
        pages.release(leases, given_up)
    assert state(pages, reservation) != before
    pages.take_back(leases, reservation if into else None)
    assert state(pages, reservation) == before
    pages.release([kept, *leases])
    assert pages.close(reservation) == 2
    assert list(pages.retiring) == [page_of(earlier)]
