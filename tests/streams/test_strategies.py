"""Strategies: that they find what they are for, that schedules can be counted, repeated and not faked.

Verifies: a wait that is missing shows under each searching strategy and one that is there never fails; enumerations are
complete and bounded as they say; priority changes keep their proved probability on a fault of known depth; a recorded
schedule gives the same run twice and refuses any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import pairwise
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.streams import SimulatedDevice
from kvcrucible.engine.streams.strategies import (
    Exhaustive,
    Failing,
    InOrder,
    PriorityChange,
    RandomWalk,
    Recording,
    Replaying,
    ScheduleDivergence,
    ScheduleEntry,
)
from kvcrucible.engine.streams.strategy import Strategy


def demotion(strategy: Strategy, *, waits: bool) -> bool:
    """Write a page on one stream and copy it to the host on another; return whether the host has the right bytes."""
    device = SimulatedDevice(strategy)
    compute, copy = device.stream("compute"), device.stream("copy")
    memory = {"page": "old", "host": ""}
    for part in range(3):
        compute.submit(lambda part=part: memory.update(page=f"new {part}"), "write")
    written = compute.record()
    if waits:
        copy.wait(written)
    copy.submit(lambda: memory.update(host=memory["page"]), "copy")
    copy.record()
    device.synchronize()
    return memory["host"] == "new 2"


SEARCHES: dict[str, Callable[[], Iterable[Strategy]]] = {
    "random": lambda: (RandomWalk(seed) for seed in range(20)),
    "priority-change": lambda: (PriorityChange(seed, 2, 6) for seed in range(40)),
    "exhaustive": lambda: Exhaustive(1_000),
    "one-preemption": lambda: Exhaustive(1_000, 1),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_missing_wait_is_found_and_a_wait_that_is_there_suffices(search: str) -> None:
    assert not all(demotion(strategy, waits=False) for strategy in SEARCHES[search]())
    assert all(demotion(strategy, waits=True) for strategy in SEARCHES[search]())


def test_in_order_finds_nothing() -> None:
    assert demotion(InOrder(), waits=False), "what hides the fault is why the other strategies exist"


def order(strategy: Strategy, *lengths: int) -> str:
    """Run one stream for each length; return the order as one letter for each effect."""
    device, ran = SimulatedDevice(strategy), []
    for name, length in zip("ab", lengths, strict=False):
        for _ in range(length):
            device.stream(name).submit(lambda name=name: ran.append(name))
    device.synchronize()
    return "".join(ran)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (2, 3), (4, 4)])
def test_an_enumeration_has_every_order_once(left: int, right: int) -> None:
    every = Exhaustive(1_000)
    orders = [order(strategy, left, right) for strategy in every]
    assert every.complete
    assert len(orders) == len(set(orders)) == comb(left + right, left)


@pytest.mark.parametrize("preemptions", range(4))
def test_preemptions_are_bounded(preemptions: int) -> None:
    def turned_early(ran: str) -> int:
        return sum(x != y and x in ran[i + 1 :] for i, (x, y) in enumerate(pairwise(ran)))

    every = Exhaustive(1_000, preemptions)
    orders = [order(strategy, 4, 4) for strategy in every]
    assert every.complete
    assert len(orders) == len(set(orders))
    assert set(orders) == {
        ran for ran in (order(s, 4, 4) for s in Exhaustive(1_000)) if turned_early(ran) <= preemptions
    }


def test_an_enumeration_that_is_cut_short_says_so() -> None:
    every = Exhaustive(5)
    assert len([order(strategy, 3, 3) for strategy in every]) == 5
    assert not every.complete


def test_an_enumeration_notices_a_program_that_changes() -> None:
    walks = iter(Exhaustive(10))
    order(next(walks), 2, 2)
    with pytest.raises(ScheduleDivergence, match="not the same each time"):
        order(next(walks), 2, 0)


def test_priority_changes_find_a_deep_fault_as_often_as_proved() -> None:
    """Depth 2: the copy has to run after the first write and before the last; n = 4 actors, k = 6 steps: 1 in 24."""

    def torn(strategy: Strategy) -> bool:
        device, seen = SimulatedDevice(strategy), []
        state = [0]
        for _ in range(2):
            device.stream("compute").submit(lambda: state.__setitem__(0, state[0] + 1))
        device.stream("copy").submit(lambda: seen.append(state[0]))
        device.stream("compute").record()
        device.stream("copy").record()
        device.synchronize()
        return seen == [1]

    runs = 600
    found = sum(torn(PriorityChange(seed, 2, 6)) for seed in range(runs))
    assert found >= runs / 24
    assert not any(torn(PriorityChange(seed, 1, 6)) for seed in range(50)), "depth 1 cannot turn twice"


def test_equal_seeds_give_equal_schedules_and_others_others() -> None:
    for kind in (RandomWalk, lambda seed: PriorityChange(seed, 3, 10)):
        orders = [order(kind(seed), 5, 5) for seed in range(30)]
        assert orders == [order(kind(seed), 5, 5) for seed in range(30)]
        assert len(set(orders)) > 5


# -- recording ---------------------------------------------------------------------------------------------------------


def run_with_failure(strategy: Strategy) -> tuple[list[str], bool]:
    device, ran = SimulatedDevice(strategy), []
    compute, copy = device.stream("compute"), device.stream("copy")
    for number in range(4):
        compute.submit(lambda number=number: ran.append(f"write {number}"), "write")
        copy.submit(lambda number=number: ran.append(f"copy {number}"), "copy")
    event = copy.record()
    device.synchronize()
    return ran, event.failure is not None


@given(st.integers(0, 1_000), st.sets(st.integers(1, 5)))
def test_a_recorded_schedule_gives_the_same_run_again(seed: int, failing: set[int]) -> None:
    recording = Recording(Failing(RandomWalk(seed), "copy", failing))
    first = run_with_failure(recording)
    # As plain data and back, as a file would have it.
    schedule = [ScheduleEntry(**asdict(entry)) for entry in recording.schedule]
    for _ in range(2):
        replaying = Replaying(schedule)
        again = Recording(replaying)
        assert run_with_failure(again) == first
        replaying.finish()
        assert again.schedule == recording.schedule
    assert first[1] == bool(failing & {1, 2, 3, 4})


def test_a_replay_of_another_program_diverges() -> None:
    recording = Recording(RandomWalk(3))
    run_with_failure(recording)
    with pytest.raises(ScheduleDivergence, match="in the schedule"):
        order(Replaying(recording.schedule), 2, 2)
    with pytest.raises(ScheduleDivergence, match="has ended"):
        run_with_failure(Replaying(recording.schedule[:-1]))
    replaying = Replaying([*recording.schedule, recording.schedule[-1]])
    run_with_failure(replaying)
    with pytest.raises(ScheduleDivergence, match="1 steps"):
        replaying.finish()


def test_impossible_searches_are_refused() -> None:
    for make in (
        lambda: Exhaustive(0),
        lambda: Exhaustive(1, -1),
        lambda: PriorityChange(0, 0, 5),
        lambda: PriorityChange(0, 4, 2),
    ):
        with pytest.raises(BadArgument):
            make()
