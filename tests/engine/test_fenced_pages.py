"""Pages behind their fence in the engine: retiring ones, and those that stay with a reservation (decision 0013).

Verifies, where the device lags: what waits for which unit, what is counted, who is granted what; that content survives
whatever order both streams take.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcrucible.contract.operations import (
    Append,
    Progressed,
    TransferOutcome,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.tokens import run
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.streams import SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk, Starving
from kvcrucible.engine.streams.strategy import StepKind

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import TierBench, bench, config  # noqa: E402

MOVED, KEPT, ABANDONED = TransferOutcome


# -- retiring and returned pages ---------------------------------------------------------------------------------------


def busy(b: TierBench, tokens: int = 10) -> int:
    """Return an active sequence whose last unit is outstanding."""
    sequence = b.start(tokens)
    assert isinstance(b.engine.device, SimulatedDevice)
    assert b.engine.device.pending
    return sequence


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_what_a_unit_may_still_touch_retires(end: str) -> None:
    b = bench("mtp")
    e = b.engine
    sequence = busy(b)
    if end == "cancel":
        e.cancel(sequence)
    else:
        e.finish(sequence, retain=False)
    now = snapshot(e)
    assert [(page.pool, page.unit) for page in now.retiring.values()] == [(0, 0)] * 3 + [(1, 0)] * 2
    assert counters(e) == ((3, 0, 21), (2, 0, 22))
    assert e.progress() == Progressed()
    assert counters(e) == ((3, 0, 21), (2, 0, 22))
    assert b.settle() == Progressed((0,))
    assert counters(e) == ((0, 0, 24), (0, 0, 24))
    assert snapshot(e).retiring == {}


def test_nothing_retires_where_effects_are_immediate() -> None:
    b = bench(lagging=False)
    b.engine.cancel(b.start(10))
    assert counters(b.engine) == ((0, 0, 24),)
    assert b.engine.progress() == Progressed((0,))


def test_room_counts_quiet_pages_only() -> None:
    b = bench(pages=4)
    e = b.engine
    e.finish(busy(b, 16))
    request = e.submit(run(1, 0, 16), 0)
    assert e.schedule().waiting == Waiting(request, WaitingKind.DEVICE_CAPACITY)
    assert len(e.cache.continuations) == 1, "nothing is released in vain"
    b.settle()
    waiting = e.schedule().waiting
    assert waiting is not None
    assert waiting.kind is WaitingKind.SINKING, "all of its pages are at rest now"
    b.settle()
    assert e.schedule().waiting is None


def test_a_page_that_was_leased_since_was_not_touched() -> None:
    """The copy of a cut page is no business of the unit before; the page that it replaces is."""
    b = bench()
    e = b.engine
    parent = busy(b, 8)
    e.finish(e.fork(parent, 8, 0))
    e.truncate(parent, 6)
    own = e.sequences[parent].spaces[0].pages[1].device
    e.cancel(parent)
    e.release(1)
    now = snapshot(e)
    assert len(now.retiring) == 2
    assert (0, own) not in now.retiring
    b.drain()


def test_cut_pages_stay_with_their_reservation_and_are_granted_first() -> None:
    b = bench(pages=8)
    e = b.engine
    sequence = busy(b, 16)
    was = e.sequences[sequence].spaces[0].devices()
    e.truncate(sequence, 4)
    assert counters(e) == ((1, 3, 4),)
    other = b.start(16, source=1)
    assert set(was).isdisjoint(e.sequences[other].spaces[0].devices()), (
        "a page changes hands behind its fence"
    )
    assert set(was[1:]) <= set(snapshot(e).free_pages[0])  # type: ignore[index]
    b.append(sequence, 6)
    assert e.sequences[sequence].spaces[0].devices() == [was[0], was[3], was[2]], "the latest returned first"
    e.finish(sequence)
    assert counters(e) == ((8, 0, 0),)
    assert list(snapshot(e).retiring) == [(0, was[1])], "what the closed reservation still had"
    b.settle()
    assert counters(e) == ((7, 0, 1),)
    b.check(sequence, other)
    b.drain()


def test_a_page_that_is_granted_again_keeps_its_fence() -> None:
    """A cut returns pages and its copy takes one: the unit that wrote it may still do so, under another lease."""
    b = bench(pages=5)
    e = b.engine
    parent = busy(b, 8)
    child = e.fork(parent, 8, 4)
    b.settle()
    b.append(child, 4)
    was = e.sequences[child].spaces[0].pages[2].device
    e.truncate(child, 6)
    own = e.sequences[child].spaces[0].pages[1].device
    assert own == was
    e.finish(child)
    request = e.submit(run(1, 0, 12), 0)
    assert e.schedule().waiting == Waiting(request, WaitingKind.DEVICE_CAPACITY), "no room at the page's cost"
    e.release(child)
    assert (0, own) in snapshot(e).retiring
    b.settle()
    assert snapshot(e).retiring == {}
    b.check(parent)
    assert e.schedule().waiting is None


def test_a_fence_that_a_page_brought_along_counts_for_room() -> None:
    """The unit is a child's that has ended; those of the parent, which is granted the page again, are complete."""
    b = bench(pages=5)
    e = b.engine
    parent = busy(b, 12)
    child = e.fork(parent, 12, 4)
    b.settle()
    b.append(child, 4)
    e.cancel(child)
    e.finish(e.fork(parent, 8, 0))
    third = e.sequences[parent].spaces[0].pages[2].device
    e.truncate(parent, 6)
    assert e.sequences[parent].spaces[0].pages[1].device == third
    e.finish(parent)
    request = e.submit(run(1, 0, 8), 0)
    assert e.schedule().waiting == Waiting(request, WaitingKind.DEVICE_CAPACITY)
    assert len(e.cache.continuations) == 2, "nothing is released in vain"
    b.settle()
    assert e.schedule().waiting is None


def test_what_returns_to_the_own_reservation_need_not_be_at_rest() -> None:
    b = bench(pages=4)
    e = b.engine
    sequence = busy(b, 16)
    e.truncate(sequence, 4)
    assert counters(e) == ((1, 3, 0),)
    b.append(sequence, 12)
    b.settle()
    b.check(sequence)
    b.drain()


def test_an_aborted_unit_touched_what_it_was_granted() -> None:
    b = bench()
    e = b.engine
    sequence = b.start(4, 8)
    b.settle()
    b.unit(Append(sequence, run(1, 0, 8)), commit=False)
    assert counters(e) == ((1, 2, 21),)
    e.cancel(sequence)
    assert counters(e) == ((3, 0, 21),), "one page was the sequence's, two had gone back to its reservation"
    b.drain()


def test_what_a_unit_may_read_retires_when_its_transfer_ends() -> None:
    b = TierBench(config(), SimulatedDevice(Starving({("compute", StepKind.SIGNAL)})))
    e = b.engine
    assert isinstance(e.device, SimulatedDevice)
    sequence = b.start(10)
    e.finish(sequence)
    e.demote(sequence)
    while not (ended := e.progress().transfers):
        assert e.device.run(1)
    assert ended[0].outcome is MOVED
    assert counters(e) == ((3, 0, 21),)
    assert {page.unit for page in snapshot(e).retiring.values()} == {0}
    assert b.settle().units == (0,)
    assert counters(e) == ((0, 0, 24),)
    b.check(sequence)


@pytest.mark.parametrize("seed", range(12))
def test_pages_come_back_with_their_bytes_whatever_the_device_does(seed: int) -> None:
    """Writing, sinking, taking the freed pages, coming back: in every order that the two streams may take."""
    b = TierBench(config("draft", pages=6), SimulatedDevice(RandomWalk(seed)))
    e = b.engine
    assert isinstance(e.device, SimulatedDevice)
    first = b.start(14)
    e.finish(first)

    def until_over(act: Callable[[int], int]) -> None:
        transfer = act(first)
        while transfer not in [one.transfer for one in e.progress().transfers]:
            assert e.device.run(1)

    until_over(e.demote)
    request = e.submit(run(7, 0, 20), 0)
    while e.schedule().waiting is not None:
        assert e.device.run(1)
        e.progress()
    b.prefill(request)
    e.finish(request)
    until_over(e.demote if request == first else lambda _: e.demote(request))
    while e.pools[0].free < 4 or e.pools[1].free < 4:
        assert e.device.run(1)
        e.progress()
    until_over(e.restore)
    b.settle()
    b.check(first, request)
    b.drain()
