"""Pages behind their fence: the pool against a naive model that keeps one record for each page (decision 0013).

Verifies: counters, which pages retire and which stay with a reservation, the order in which a reservation is granted
its own again and gives them up, and that nothing comes back before the units that touched it are complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcrucible.contract.config import PoolSpec
from kvcrucible.engine.pool import Lease, PagePool, Reservation, page_of
from kvcrucible.engine.streams import UnitFences

CAPACITY = 6


class FakeEvent:
    def __init__(self) -> None:
        self.done = False


@dataclass
class Holder:
    reservation: Reservation
    promised: int
    returned: list[tuple[int, int]] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)


class FencesAgainstRecords(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fences = UnitFences()
        self.pool = PagePool(PoolSpec("main", CAPACITY, 16), self.fences)
        self.events: list[FakeEvent] = []
        self.noted = 0
        self.holders: list[Holder] = []
        self.retiring: dict[int, int] = {}
        #: The last unit that touched each leased page since it was leased, or before by the same holder.
        self.touched: dict[int, int] = {}
        #: What the engine knows of it: the last unit that selected the holder since the page was leased.
        self.selected: dict[int, int] = {}

    @rule(pages=st.integers(0, 4))
    def reserve(self, pages: int) -> None:
        if pages <= self.pool.free:
            self.holders.append(Holder(self.pool.reserve(pages), pages))

    @rule(pick=st.integers(0, 3), pages=st.integers(1, 3))
    def materialise(self, pick: int, pages: int) -> None:
        if not self.holders:
            return
        holder = self.holders[pick % len(self.holders)]
        pages = min(pages, holder.promised)
        again = dict(holder.returned)
        own = [page for page, _ in reversed(holder.returned)][:pages]
        granted = self.pool.materialise(holder.reservation, pages)
        assert [page_of(lease) for lease in granted][: len(own)] == own
        holder.returned = holder.returned[: len(holder.returned) - len(own)]
        holder.promised -= pages
        holder.leases += granted
        self.touched.update((page_of(lease), again.get(page_of(lease), 0)) for lease in granted)
        self.selected.update((page_of(lease), 0) for lease in granted)

    @rule(pick=st.integers(0, 3))
    def unit(self, pick: int) -> None:
        """A unit touches what a holder has, and ends."""
        self.events.append(FakeEvent())
        ordinal = self.fences.end(len(self.events), self.events[-1])
        for holder in self.holders[pick : pick + 1]:
            for known in (self.touched, self.selected):
                known.update((page_of(lease), ordinal) for lease in holder.leases)

    @rule(pick=st.integers(0, 3), pages=st.integers(1, 3))
    def give_back(self, pick: int, pages: int) -> None:
        if not self.holders:
            return
        holder = self.holders[pick % len(self.holders)]
        leases, holder.leases = holder.leases[:pages], holder.leases[pages:]
        self.pool.dematerialise(holder.reservation, leases, self._fences_of(leases))
        holder.promised += len(leases)
        holder.returned += [
            (page_of(lease), touched)
            for lease in leases
            if (touched := self.touched.pop(page_of(lease))) > self.noted
        ]

    @rule(pick=st.integers(0, 3), pages=st.integers(1, 3))
    def release(self, pick: int, pages: int) -> None:
        if not self.holders:
            return
        holder = self.holders[pick % len(self.holders)]
        leases, holder.leases = holder.leases[:pages], holder.leases[pages:]
        self.pool.release(leases, self._fences_of(leases))
        for lease in leases:
            if (touched := self.touched.pop(page_of(lease))) > self.noted:
                self.retiring[page_of(lease)] = touched

    @rule(pick=st.integers(0, 3), pages=st.integers(0, 4), whole=st.booleans())
    def shrink_or_close(self, pick: int, pages: int, whole: bool) -> None:
        open_ones = [holder for holder in self.holders if whole <= (not holder.leases)]
        if not open_ones:
            return
        holder = open_ones[pick % len(open_ones)]
        pages = holder.promised if whole else min(pages, holder.promised)
        if whole:
            assert self.pool.close(holder.reservation) == pages
            self.holders.remove(holder)
        else:
            self.pool.shrink(holder.reservation, pages)
        at_rest = holder.promised - len(holder.returned)
        leaving = max(0, pages - at_rest)
        self.retiring.update(holder.returned[:leaving])
        holder.returned, holder.promised = holder.returned[leaving:], holder.promised - pages

    @rule(pick=st.integers(0, 30))
    def finish_effects(self, pick: int) -> None:
        if self.events:
            self.events[pick % len(self.events)].done = True

    @rule()
    def progress(self) -> None:
        self.fences.collect()
        self.pool.collect()
        while self.noted < len(self.events) and self.events[self.noted].done:
            self.noted += 1
        self.retiring = {page: unit for page, unit in self.retiring.items() if unit > self.noted}
        for holder in self.holders:
            holder.returned = [(page, unit) for page, unit in holder.returned if unit > self.noted]

    def _fences_of(self, leases: list[Lease]) -> list[int]:
        """What the engine says of a page: the last unit that selected its holder, perhaps before it was leased."""
        pages = [page_of(lease) for lease in leases]
        return [max(self.selected[page], self.pool._leased_after[page]) for page in pages]

    @invariant()
    def the_pool_says_the_same(self) -> None:
        leased = sum(len(holder.leases) for holder in self.holders) + len(self.retiring)
        promised = sum(holder.promised for holder in self.holders)
        assert (self.pool.leased, self.pool.reserved) == (leased, promised)
        assert {page: one.fence for page, one in self.pool.retiring.items()} == self.retiring
        assert [holder.reservation.returned for holder in self.holders] == [h.returned for h in self.holders]
        held = {page_of(lease) for holder in self.holders for lease in holder.leases} | set(self.retiring)
        unleased = self.pool.unleased_pages()
        assert len(unleased) == len(set(unleased)) == CAPACITY - leased
        assert held.isdisjoint(unleased)


TestFencesAgainstRecords = FencesAgainstRecords.TestCase


def test_without_units_nothing_retires() -> None:
    pool = PagePool(PoolSpec("main", 4, 16))
    leases = pool.materialise(pool.reserve(2), 2)
    pool.release(leases, [0, 0])
    assert (pool.free, pool.retiring) == (4, {})


@pytest.mark.parametrize("pages", [1, 2])
def test_a_reservation_gives_up_pages_at_rest_before_those_that_units_touch(pages: int) -> None:
    fences = UnitFences()
    pool = PagePool(PoolSpec("main", 3, 16), fences)
    reservation = pool.reserve(3)
    leases = pool.materialise(reservation, 2)
    fences.end(0, FakeEvent())
    pool.dematerialise(reservation, leases, [1, 1])
    pool.shrink(reservation, pages)
    assert len(pool.retiring) == pages - 1
    assert (pool.leased, pool.reserved, pool.free) == (pages - 1, 3 - pages, 1)


def test_a_reservation_is_remembered_only_while_it_waits_for_a_unit() -> None:
    """Else every sequence that was ever cut would be looked at in each ``collect``, for as long as the engine lives."""
    fences, event = UnitFences(), FakeEvent()
    pool = PagePool(PoolSpec("main", 4, 16), fences)
    reservation = pool.reserve(2)
    leases = pool.materialise(reservation, 2)
    unit = fences.end(0, event)
    pool.dematerialise(reservation, leases, [unit, unit])
    pool.collect()
    assert pool._with_returned == [reservation]
    event.done = True
    fences.collect()
    pool.collect()
    assert pool._with_returned == []
    assert (pool.close(reservation), pool.free, pool.retiring) == (2, 4, {})
