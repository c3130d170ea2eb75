"""The pool against a naive model of sets, and its refusals.

Verifies: counters, that a page is leased once, generations, that a refused call changes nothing.
Does not verify: which page is handed out; nothing may depend on it.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.errors import BadArgument, DeviceCapacity, StaleHandle
from kvcrucible.engine.pool import Lease, PagePool, Reservation, generation_of, page_of

CAPACITY = 7


def pool(capacity: int = CAPACITY) -> PagePool:
    return PagePool(PoolSpec("main", capacity, 16))


class PoolAgainstSets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = pool()
        self.reservations: list[tuple[Reservation, int]] = []
        self.leases: set[Lease] = set()
        self.ended: set[Lease] = set()

    @property
    def promised(self) -> int:
        return sum(pages for _, pages in self.reservations)

    @rule(pages=st.integers(0, CAPACITY + 1))
    def reserve(self, pages: int) -> None:
        if pages > CAPACITY - len(self.leases) - self.promised:
            with pytest.raises(DeviceCapacity):
                self.pool.reserve(pages)
        else:
            self.reservations.append((self.pool.reserve(pages), pages))

    @rule(pick=st.integers(0, 5), share=st.integers(0, CAPACITY))
    def materialise(self, pick: int, share: int) -> None:
        if not self.reservations:
            return
        index = pick % len(self.reservations)
        reservation, left = self.reservations[index]
        granted = self.pool.materialise(reservation, min(share, left))
        self.reservations[index] = (reservation, left - len(granted))
        assert len({page_of(lease) for lease in granted} | {page_of(lease) for lease in self.leases}) == len(
            granted
        ) + len(self.leases)
        assert not self.ended & set(granted), "a lease came back"
        self.leases.update(granted)

    @rule(pick=st.integers(0, 5), back=st.integers(0, CAPACITY))
    def dematerialise(self, pick: int, back: int) -> None:
        if not self.reservations:
            return
        index = pick % len(self.reservations)
        reservation, left = self.reservations[index]
        ending = sorted(self.leases)[:back]
        self.pool.dematerialise(reservation, ending)
        self.reservations[index] = (reservation, left + len(ending))
        self._end(ending)

    @rule(back=st.integers(0, CAPACITY))
    def release(self, back: int) -> None:
        ending = sorted(self.leases)[:back]
        self.pool.release(ending)
        self._end(ending)

    @rule(pick=st.integers(0, 5))
    def close(self, pick: int) -> None:
        if self.reservations:
            reservation, left = self.reservations.pop(pick % len(self.reservations))
            assert self.pool.close(reservation) == left

    @rule(pick=st.integers(0, 20))
    def release_again(self, pick: int) -> None:
        if self.ended:
            stale = sorted(self.ended)[pick % len(self.ended)]
            with pytest.raises(StaleHandle):
                self.pool.release([stale])

    def _end(self, leases: list[Lease]) -> None:
        self.leases.difference_update(leases)
        self.ended.update(leases)

    @invariant()
    def counters_agree(self) -> None:
        assert (self.pool.leased, self.pool.reserved) == (len(self.leases), self.promised)
        assert self.pool.leased + self.pool.reserved + self.pool.free == CAPACITY
        unleased = self.pool.unleased_pages()
        assert len(set(unleased)) == len(unleased)
        assert set(unleased) | {page_of(lease) for lease in self.leases} == set(range(CAPACITY))


TestPoolAgainstSets = PoolAgainstSets.TestCase


def test_a_stale_lease_among_good_ones_changes_nothing() -> None:
    pages = pool()
    reservation = pages.reserve(3)
    first, second, third = pages.materialise(reservation, 3)
    pages.release([second])
    before = (pages.leased, pages.reserved, pages.free, pages.unleased_pages())
    with pytest.raises(StaleHandle, match="generation"):
        pages.release([first, second, third])
    assert (pages.leased, pages.reserved, pages.free, pages.unleased_pages()) == before
    pages.release([first, third])


def test_a_page_comes_back_under_a_higher_generation() -> None:
    pages = pool(1)
    reservation = pages.reserve(1)
    (first,) = pages.materialise(reservation, 1)
    pages.dematerialise(reservation, [first])
    (second,) = pages.materialise(reservation, 1)
    assert page_of(first) == page_of(second)
    assert generation_of(second) > generation_of(first)


def test_a_closed_reservation_is_stale() -> None:
    pages = pool()
    reservation = pages.reserve(2)
    pages.close(reservation)
    uses = (
        pages.close,
        lambda r: pages.extend(r, 0),
        lambda r: pages.shrink(r, 0),
        lambda r: pages.materialise(r, 0),
        lambda r: pages.dematerialise(r, []),
    )
    for use in uses:
        with pytest.raises(StaleHandle):
            use(reservation)
    assert pages.free == CAPACITY


def test_more_pages_than_are_free_are_promised_to_nobody() -> None:
    pages = pool()
    reservation = pages.reserve(5)
    pages.materialise(reservation, 1)
    for more in (lambda: pages.reserve(3), lambda: pages.extend(reservation, 3)):
        with pytest.raises(DeviceCapacity, match=f"2 free of {CAPACITY}"):
            more()
        assert (pages.leased, pages.reserved, pages.free, reservation.remaining) == (1, 4, 2, 4)
    pages.extend(reservation, 2)
    assert pages.free == 0


@pytest.mark.parametrize(("capacity", "page_size"), [(0, 16), (1, 0), (1, 48), (2**31, 16)])
def test_an_impossible_pool_is_refused(capacity: int, page_size: int) -> None:
    with pytest.raises(BadArgument):
        PoolSpec("main", capacity, page_size)
