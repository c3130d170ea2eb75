"""Page slots of host extents against a set.

Verifies: what is given is disjoint and the caller's until freed, an extent lives as long as one of its slots, refusals
change nothing.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcrucible.contract.errors import HostGeometry, StaleHandle
from kvcrucible.engine.host.arena import HostArena
from kvcrucible.engine.host.slots import HostSlot, HostSlots

PAGE_BYTES = (4, 3)


class SlotsAgainstASet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.slots = HostSlots(HostArena(48, 1), PAGE_BYTES)
        self.live: set[HostSlot] = set()
        self.ended: list[HostSlot] = []

    @rule(pages=st.tuples(st.integers(0, 5), st.integers(0, 5)))
    def reserve(self, pages: tuple[int, int]) -> None:
        before = (self.slots.arena.extents(), self.slots.live())
        sizes = [count * size for count, size in zip(pages, PAGE_BYTES, strict=True) if count]
        if not self.slots.arena.fits(sizes):
            with pytest.raises(HostGeometry):
                self.slots.reserve(pages)
            assert (self.slots.arena.extents(), self.slots.live()) == before
            return
        given = self.slots.reserve(pages)
        assert tuple(map(len, given)) == pages
        for pool, slots in enumerate(given):
            assert [(slot.pool, slot.slot, slot.slots) for slot in slots] == [
                (pool, number, pages[pool]) for number in range(pages[pool])
            ]
            assert len({slot.extent for slot in slots}) <= 1
            assert all(slot.extent.asked_bytes == pages[pool] * PAGE_BYTES[pool] for slot in slots)
            assert not self.live & set(slots)
            self.live.update(slots)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        ending = data.draw(st.lists(st.sampled_from(self.slots.live()), unique=True)) if self.live else []
        self.slots.free(ending)
        self.live.difference_update(ending)
        self.ended += ending

    @rule(pick=st.integers(0, 50))
    def free_again(self, pick: int) -> None:
        if self.ended:
            before = (self.slots.arena.extents(), self.slots.live())
            with pytest.raises(StaleHandle):
                self.slots.free([*self.slots.live()[:1], self.ended[pick % len(self.ended)]])
            assert (self.slots.arena.extents(), self.slots.live()) == before

    @invariant()
    def extents_are_those_of_live_slots(self) -> None:
        assert set(self.slots.live()) == self.live
        assert set(self.slots.arena.extents()) == {slot.extent for slot in self.live}
        assert set(self.slots.extents()) == {slot.extent.serial for slot in self.live}
        for serial in self.slots.extents():
            assert set(self.slots.of(serial)) == {slot for slot in self.live if slot.extent.serial == serial}


TestSlotsAgainstASet = SlotsAgainstASet.TestCase


def test_a_slot_ends_once_and_what_is_refused_ends_nothing() -> None:
    slots = HostSlots(HostArena(64, 1), (4,))
    ((one, other),) = slots.reserve([2])
    slots.free([one])
    with pytest.raises(StaleHandle, match="it has ended"):
        slots.free([other, one])
    assert slots.live() == (other,)


def test_what_would_fit_without_some_slots_is_what_fits_once_they_have_ended() -> None:
    draw = random.Random(20)
    yes = no = 0
    for _ in range(300):
        slots = HostSlots(HostArena(4096, 256), (256, 512))
        held = []
        for _ in range(6):
            try:
                given = slots.reserve([draw.randint(0, 3), draw.randint(0, 2)])
            except HostGeometry:
                break
            held += given[0] + given[1]
        ended = draw.sample(held, draw.randint(0, len(held)))
        wanted = [draw.randint(0, 6), draw.randint(0, 4)]
        before = slots.arena.extents()
        fits = slots.fits_without(wanted, ended)
        assert slots.arena.extents() == before
        slots.free(ended)
        try:
            slots.reserve(wanted)
        except HostGeometry:
            assert not fits
            no += 1
        else:
            assert fits
            yes += 1
    assert min(yes, no) > 50
