"""Fences: a page comes back only when nothing that was queued can touch it any more.

Verifies: over random interleavings of touching, retiring and letting time pass, that no page is given back while an
effect that was submitted before its retirement and touches it has not run, and that every page comes back in the end.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.engine.streams import Fence, RetireQueue, SimulatedDevice, TouchLog
from kvcrucible.engine.streams.strategies import RandomWalk

STREAMS = ("compute", "copy")


class FakeEvent:
    def __init__(self) -> None:
        self.done = False


def test_a_fence_is_passed_when_all_its_events_are_done() -> None:
    first, second = FakeEvent(), FakeEvent()
    assert Fence().passed
    fence = Fence(frozenset({first})) | Fence(frozenset({second}))
    for event in (first, second):
        assert not fence.passed
        event.done = True
    assert fence.passed


def test_only_the_last_event_of_each_stream_counts_and_done_ones_are_forgotten() -> None:
    log, events = TouchLog(), [FakeEvent() for _ in range(3)]
    log.note([1, 2], "compute", events[0])
    log.note([1], "compute", events[1])
    log.note([1], "copy", events[2])
    assert log.fence([1]).events == {events[1], events[2]}
    assert log.fence([2, 3]).events == {events[0]}
    events[1].done = events[0].done = True
    assert log.fence([1, 2]).events == {events[2]}
    assert len(log) == 1
    events[2].done = True
    log.prune()
    assert len(log) == 0


def test_what_is_behind_one_fence_does_not_wait_for_another() -> None:
    queue: RetireQueue[str] = RetireQueue()
    slow, fast = FakeEvent(), FakeEvent()
    queue.retire("slow", Fence(frozenset({slow})))
    queue.retire("fast", Fence(frozenset({fast})))
    queue.retire("free", Fence())
    assert queue.waiting() == ("slow", "fast", "free")
    assert queue.collect() == ["free"]
    fast.done = True
    assert queue.collect() == ["fast"]
    assert queue.collect() == []
    slow.done = True
    assert (queue.collect(), len(queue)) == (["slow"], 0)


@given(
    st.integers(0, 10_000),
    st.lists(
        st.one_of(
            st.tuples(st.just("touch"), st.sampled_from(STREAMS), st.sets(st.integers(0, 4), min_size=1)),
            st.tuples(st.just("retire"), st.integers(0, 4)),
            st.tuples(st.just("time"), st.integers(0, 4)),
        ),
        max_size=30,
    ),
)
def test_a_page_comes_back_only_behind_its_last_effect(seed: int, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    device, log, queue = SimulatedDevice(RandomWalk(seed)), TouchLog(), RetireQueue[int]()
    held, outstanding = set(range(5)), dict.fromkeys(range(5), 0)

    def touch(pages: set[int]) -> None:
        for page in pages:
            assert page in held or page in queue.waiting(), "an effect reached a page that had come back"
            outstanding[page] -= 1

    def collect() -> None:
        for page in queue.collect():
            assert outstanding[page] == 0
            held.add(page)

    for step in steps:
        if step[0] == "touch":
            pages = step[2] & held
            for page in pages:
                outstanding[page] += 1
            device.stream(step[1]).submit(lambda pages=pages: touch(pages))
            log.note(pages, step[1], device.stream(step[1]).record())
        elif step[0] == "retire" and step[1] in held:
            held.remove(step[1])
            queue.retire(step[1], log.fence([step[1]]))
        elif step[0] == "time":
            device.run(step[1])
            collect()
    device.synchronize()
    collect()
    assert held == set(range(5))
    log.prune()
    assert len(log) == 0


@pytest.mark.parametrize("stream", STREAMS)
def test_a_retiring_page_without_its_fence_would_be_caught(stream: str) -> None:
    """The property above is not vacuous: with an empty fence a page does come back too early."""
    device, queue = SimulatedDevice(), RetireQueue[int]()
    ran: list[int] = []
    device.stream(stream).submit(lambda: ran.append(0))
    device.stream(stream).record()
    queue.retire(0, Fence())
    assert queue.collect() == [0]
    assert ran == []
