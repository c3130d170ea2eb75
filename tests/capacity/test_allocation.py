"""The three allocation strategies against models that are plainer still: a list of slots, and counting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument, DeviceCapacity, LimitExceeded, Refusal, StaleHandle
from kvcrucible.reference.allocation import ContiguousFirstFit, Handle, Paged, StaticReservation, Strategy

BUDGET = 100

MAKERS: dict[str, Callable[[], Strategy]] = {
    "static": lambda: StaticReservation(BUDGET, 30),
    "contiguous": lambda: ContiguousFirstFit(BUDGET),
    "paged": lambda: Paged(BUDGET, 8),
}

#: A length is admitted; a negative number frees the sequence at that place of those that are there.
STEPS = st.lists(st.integers(1, 60) | st.integers(-8, -1), max_size=60)


def state(strategy: Strategy) -> tuple[int, ...]:
    return (
        strategy.held_slots,
        strategy.used_tokens,
        strategy.free_slots,
        strategy.largest_grant_slots,
        *strategy.handles,
    )


@pytest.mark.parametrize("name", MAKERS)
@given(steps=STEPS)
def test_figures_add_up_and_the_largest_grant_is_what_admit_grants(name: str, steps: list[int]) -> None:
    strategy = MAKERS[name]()
    empty = state(strategy)
    lost = BUDGET - strategy.free_slots
    lengths: dict[Handle, int] = {}
    for step in steps:
        if step > 0:
            before, fits = state(strategy), step <= strategy.largest_grant_slots
            try:
                lengths[strategy.admit(step)] = step
            except (DeviceCapacity, LimitExceeded):
                assert not fits
                assert state(strategy) == before
            else:
                assert fits
        elif lengths:
            handle = list(lengths)[step % len(lengths)]
            strategy.free(handle)
            del lengths[handle]
        assert strategy.handles == list(lengths)
        assert strategy.used_tokens == sum(lengths.values())
        assert strategy.held_slots + strategy.free_slots + lost == BUDGET
        waste = sum(map(strategy.waste_of, lengths))
        assert strategy.held_slots == strategy.used_tokens + waste
    for handle in lengths:
        strategy.free(handle)
    assert state(strategy) == empty


@given(steps=STEPS)
def test_contiguous_takes_the_lowest_run_that_a_list_of_slots_has(steps: list[int]) -> None:
    strategy = ContiguousFirstFit(BUDGET)
    slots: list[Handle | None] = [None] * BUDGET
    for step in steps:
        if step > 0:
            fitting = [i for i in range(BUDGET - step + 1) if not any_taken(slots[i : i + step])]
            try:
                handle = strategy.admit(step)
            except DeviceCapacity:
                assert not fitting
            else:
                slots[fitting[0] : fitting[0] + step] = [handle] * step
        elif strategy.handles:
            handle = strategy.handles[step % len(strategy.handles)]
            strategy.free(handle)
            slots = [None if owner == handle else owner for owner in slots]
        assert strategy.holes == holes_of(slots)


def any_taken(slots: list[Handle | None]) -> bool:
    return any(owner is not None for owner in slots)


def holes_of(slots: list[Handle | None]) -> list[tuple[int, int]]:
    holes: list[tuple[int, int]] = []
    for place, owner in enumerate(slots):
        if owner is not None:
            continue
        if holes and sum(holes[-1]) == place:
            holes[-1] = (holes[-1][0], holes[-1][1] + 1)
        else:
            holes.append((place, 1))
    return holes


@given(length=st.integers(1, 96), page_size=st.sampled_from([1, 2, 8, 16, 32]))
def test_a_page_is_never_wasted_whole(length: int, page_size: int) -> None:
    paged = Paged(96, page_size)
    assert 0 <= paged.waste_of(paged.admit(length)) <= page_size - 1


@pytest.mark.parametrize("name", MAKERS)
def test_each_refusal_has_its_kind_and_changes_nothing(name: str) -> None:
    strategy = MAKERS[name]()
    gone = strategy.admit(20)
    strategy.free(gone)
    while strategy.largest_grant_slots >= 25:
        strategy.admit(25)
    before = state(strategy)
    wrong: list[tuple[type[Refusal], Callable[[], object]]] = [
        (BadArgument, lambda: strategy.admit(0)),
        (LimitExceeded, lambda: strategy.admit(BUDGET + 1)),
        (DeviceCapacity, lambda: strategy.admit(25)),
        (StaleHandle, lambda: strategy.free(gone)),
        (StaleHandle, lambda: strategy.waste_of(gone)),
        (StaleHandle, lambda: strategy.free(Handle(99))),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
        assert state(strategy) == before


def test_a_strategy_that_can_never_hold_a_sequence_says_so() -> None:
    with pytest.raises(LimitExceeded):
        StaticReservation(BUDGET, BUDGET + 1).admit(1)
    with pytest.raises(LimitExceeded):
        Paged(7, 8).admit(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ContiguousFirstFit(0),
        lambda: StaticReservation(BUDGET, 0),
        lambda: Paged(BUDGET, 0),
        lambda: Paged(BUDGET, 12),
    ],
)
def test_bad_geometry_is_refused(make: Callable[[], Strategy]) -> None:
    with pytest.raises(BadArgument):
        make()
