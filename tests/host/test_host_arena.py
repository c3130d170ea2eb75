"""The host arena under every policy, against a byte map that is too simple to be wrong in the same way.

Verifies: extents are disjoint, aligned and inside; holes are joined and tile the rest; refusals come exactly where no
hole is large enough and change nothing; a dry run says what the real one does; handles are never reused; released bytes
reach the hook first.  Does not verify: which hole a policy takes, beyond the small examples that name it.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcrucible.contract.errors import BadArgument, HostGeometry, InputError, StaleHandle
from kvcrucible.engine.host.arena import Extent, HostArena
from kvcrucible.engine.host.policies import DEFAULT_POLICY, POLICIES
from kvcrucible.engine.host.policies.segregated import size_class

ALIGNMENT = 4
CAPACITY = 40 * ALIGNMENT
HOLE, POISON = 0, 255


def look(arena: HostArena) -> object:
    """Return everything that a refused or dry call must leave as it is."""
    return arena.extents(), arena.holes(), arena.statistics(), arena._policy.cursor, arena._next_serial


class ArenaAgainstBytes(RuleBasedStateMachine):
    """``bytes`` holds per byte 0 for a hole that was never used, 255 for one that was, else 1 + serial modulo 254."""

    policy: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.bytes = bytearray(CAPACITY)
        self.arena = HostArena(CAPACITY, ALIGNMENT, self.policy, self.poison)
        self.live: list[Extent] = []
        self.ended: list[Extent] = []

    def poison(self, offset: int, size: int) -> None:
        assert self.arena.is_live(next(e for e in self.live if e.offset_bytes == offset)), "poisoned too late"
        self.bytes[offset : offset + size] = bytes([POISON]) * size

    def largest_run(self) -> int:
        runs = bytes(byte in (HOLE, POISON) for byte in self.bytes).split(b"\x00")
        return max(map(len, runs))

    def own(self, extent: Extent, asked: int) -> None:
        assert extent.asked_bytes == asked <= extent.size_bytes < asked + ALIGNMENT
        assert extent.offset_bytes % ALIGNMENT == extent.size_bytes % ALIGNMENT == 0
        where = slice(extent.offset_bytes, extent.stop_bytes)
        assert len(self.bytes[where]) == extent.size_bytes, "outside the arena"
        assert set(self.bytes[where]) <= {HOLE, POISON}, "bytes of another extent"
        self.bytes[where] = bytes([1 + extent.serial % 254]) * extent.size_bytes
        assert all(extent.serial > other.serial for other in (*self.live, *self.ended)), "a handle came back"
        self.live.append(extent)

    @rule(size=st.integers(1, CAPACITY + 1))
    def reserve(self, size: int) -> None:
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        fits = rounded <= self.largest_run()
        assert self.arena.fits([size]) == fits
        if fits:
            self.own(self.arena.reserve(size), size)
            return
        before = look(self.arena)
        with pytest.raises(HostGeometry):
            self.arena.reserve(size)
        assert look(self.arena) == before

    @rule(sizes=st.lists(st.integers(1, CAPACITY // 3), max_size=5))
    def reserve_all(self, sizes: list[int]) -> None:
        before = look(self.arena)
        fits = self.arena.fits(sizes)
        assert look(self.arena) == before
        if not fits:
            with pytest.raises(HostGeometry):
                self.arena.reserve_all(sizes)
            assert look(self.arena) == before
            return
        for extent, size in sorted(
            zip(self.arena.reserve_all(sizes), sizes, strict=True), key=lambda pair: pair[0].serial
        ):
            self.own(extent, size)

    @rule(pick=st.integers(0, 40))
    def release(self, pick: int) -> None:
        if not self.live:
            return
        extent = self.live[pick % len(self.live)]
        self.arena.release(extent)
        self.live.remove(extent)
        self.ended.append(extent)
        assert set(self.bytes[extent.offset_bytes : extent.stop_bytes]) == {POISON}

    @rule(pick=st.integers(0, 40))
    def release_again(self, pick: int) -> None:
        if not self.ended:
            return
        before = look(self.arena)
        with pytest.raises(StaleHandle):
            self.arena.release(self.ended[pick % len(self.ended)])
        assert look(self.arena) == before

    @invariant()
    def figures_agree(self) -> None:
        figures = self.arena.statistics()
        assert sorted(map(repr, self.arena.extents())) == sorted(map(repr, self.live))
        used = sum(byte not in (HOLE, POISON) for byte in self.bytes)
        assert (figures.used_bytes, figures.free_bytes) == (used, CAPACITY - used)
        assert (self.arena.used_bytes, self.arena.free_bytes) == (used, CAPACITY - used)
        assert figures.padding_bytes == sum(e.size_bytes - e.asked_bytes for e in self.live)
        assert figures.largest_hole_bytes == self.largest_run()
        assert figures.extents == len(self.live)

    @invariant()
    def holes_and_extents_tile_the_arena(self) -> None:
        ranges = [(start, size, "hole") for start, size in self.arena.holes()]
        ranges += [(e.offset_bytes, e.size_bytes, "extent") for e in self.live]
        ranges.sort()
        position, before = 0, ""
        for start, size, kind in ranges:
            assert start == position
            assert size > 0
            assert not (kind == before == "hole"), "two holes touch"
            position, before = start + size, kind
        assert position == CAPACITY


class FirstFitArena(ArenaAgainstBytes):
    policy = "first-fit"


class BestFitArena(ArenaAgainstBytes):
    policy = "best-fit"


class NextFitArena(ArenaAgainstBytes):
    policy = "next-fit"


class SegregatedFitArena(ArenaAgainstBytes):
    policy = "segregated-fit"


TestFirstFitArena = FirstFitArena.TestCase
TestBestFitArena = BestFitArena.TestCase
TestNextFitArena = NextFitArena.TestCase
TestSegregatedFitArena = SegregatedFitArena.TestCase


def test_every_policy_has_its_machine() -> None:
    machines = {machine.policy for machine in ArenaAgainstBytes.__subclasses__()}
    assert machines == set(POLICIES)
    assert DEFAULT_POLICY in POLICIES


def with_holes(policy: str, *sizes: int) -> HostArena:
    """Return an arena whose holes have these sizes, in this order, each followed by an extent of one byte."""
    arena = HostArena(sum(sizes) + len(sizes), 1, policy)
    extents = []
    for size in sizes:
        extents.append(arena.reserve(size))
        arena.reserve(1)
    for extent in extents:
        arena.release(extent)
    assert [size for _, size in arena.holes()] == list(sizes)
    return arena


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        ("first-fit", 0, 5),
        ("best-fit", 67, 0),
        # The last extent placed was the one at the end, so the search comes round to the bottom and goes on from there.
        ("next-fit", 0, 5),
        # 5 is in a class of its own; the next class with a hole is that of 6.
        ("segregated-fit", 67, 0),
    ],
)
def test_each_policy_takes_the_hole_that_it_says(policy: str, first: int, second: int) -> None:
    arena = with_holes(policy, 32, 33, 6)
    assert arena.reserve(5).offset_bytes == first
    assert arena.reserve(5).offset_bytes == second


def test_next_fit_goes_on_where_it_left_off() -> None:
    arena = with_holes("next-fit", 4, 4, 4)
    assert [arena.reserve(3).offset_bytes for _ in range(3)] == [0, 5, 10]
    assert arena.reserve(1).offset_bytes == 13, "the rest behind the cursor, not the lowest one"


@given(st.integers(1, 1 << 44), st.integers(0, 1 << 44))
def test_classes_ascend_with_the_size_and_are_narrow(size: int, more: int) -> None:
    assert size_class(size) <= size_class(size + more)
    if size_class(size) == size_class(size + more):
        assert more < max(1, size / 8)


def test_free_bytes_do_not_prove_that_an_extent_fits() -> None:
    arena = with_holes("best-fit", 10, 10)
    assert arena.free_bytes == 20
    assert not arena.fits([11])
    assert arena.fits([10, 10])
    assert not arena.fits([10, 9, 1, 1])
    assert arena.statistics().external_fragmentation == 0.5
    with pytest.raises(HostGeometry, match=r"20 of 22 bytes free in 2 holes, the largest 10.*beside a hole"):
        arena.reserve(11)
    with pytest.raises(HostGeometry, match=r"2 extents of 23 bytes in all, the largest 12.*more bytes"):
        arena.reserve_all([11, 12])


def test_a_full_arena_is_not_fragmented() -> None:
    arena = HostArena(8, 8)
    arena.reserve(8)
    assert arena.statistics().external_fragmentation == 0.0
    assert arena.statistics().largest_hole_bytes == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_of_several_the_largest_is_placed_first(policy: str) -> None:
    arena = HostArena(18, 1, policy)
    small, large, also_small = arena.reserve_all([4, 8, 4])
    assert (large.offset_bytes, small.offset_bytes, also_small.offset_bytes) == (0, 8, 12)


def test_an_extent_ends_once_and_its_padding_with_it() -> None:
    arena = HostArena(128, 64)
    extent = arena.reserve(10)
    assert arena.statistics().padding_bytes == 54
    arena.release(extent)
    assert arena.statistics().padding_bytes == 0
    assert not arena.is_live(extent)
    with pytest.raises(StaleHandle):
        arena.release(extent)


def test_padding_is_that_of_all_live_extents() -> None:
    arena = HostArena(256, 64)
    first = arena.reserve(10)
    arena.reserve(60)
    assert arena.statistics().padding_bytes == 54 + 4
    arena.release(first)
    assert arena.statistics().padding_bytes == 4


def test_serials_count_from_1_and_none_is_given_out_again() -> None:
    arena = HostArena(64, 1)
    first, second = arena.reserve_all([10, 20])
    arena.release(first)
    with pytest.raises(HostGeometry):
        arena.reserve(64)
    assert [first.serial, second.serial, arena.reserve(10).serial] == [1, 2, 3]


def test_a_hook_that_fails_leaves_the_extent_alive() -> None:
    def fails(offset: int, size: int) -> None:
        raise OSError(f"{size} bytes at {offset}")

    arena = HostArena(64, 64, on_release=fails)
    extent = arena.reserve(10)
    before = look(arena)
    with pytest.raises(OSError, match="64 bytes at 0"):
        arena.release(extent)
    assert look(arena) == before
    assert arena.is_live(extent)


def test_a_forged_handle_is_stale() -> None:
    arena = HostArena(64, 1)
    extent = arena.reserve(10)
    with pytest.raises(StaleHandle):
        arena.release(Extent(extent.serial, 0, 20, 20))
    with pytest.raises(StaleHandle):
        arena.release(Extent(99, 0, 10, 10))
    arena.release(extent)


@pytest.mark.parametrize(
    ("capacity", "alignment"), [(0, 1), (63, 64), (65, 64), (64, 0), (96, 48), (-64, 64)]
)
def test_an_impossible_arena_is_refused(capacity: int, alignment: int) -> None:
    with pytest.raises(BadArgument):
        HostArena(capacity, alignment)


def test_impossible_sizes_and_policies_are_refused() -> None:
    arena = HostArena(64, 1)
    for call in (arena.reserve, arena.rounded, lambda size: arena.fits([4, size])):
        with pytest.raises(BadArgument):
            call(0)
    with pytest.raises(InputError, match="first-fit, best-fit"):
        HostArena(64, 1, "worst-fit")
