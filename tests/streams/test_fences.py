"""Units complete in the order of their ends, whatever the order in which their events are done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.engine.streams import UnitFences


class FakeEvent:
    def __init__(self, done: bool = False) -> None:
        self.done = done


def test_what_is_done_when_it_ends_is_complete_at_once_and_reported_once() -> None:
    fences = UnitFences()
    assert [fences.end(unit, FakeEvent(True)) for unit in (7, 3)] == [1, 2]
    assert (fences.completed, fences.ended) == (2, 2)
    assert fences.collect() == (7, 3)
    assert fences.collect() == ()


def test_a_unit_is_outstanding_behind_one_that_was_done_when_it_ended() -> None:
    """Its pages would be free at once, with its effects still to come."""
    fences, slow = UnitFences(), FakeEvent()
    fences.end(4, FakeEvent(True))
    assert fences.completed == 1
    ordinal = fences.end(9, slow)
    assert (ordinal, fences.completed, fences.unit(ordinal)) == (2, 1, 9)
    assert (fences.collect(), fences.completed, fences.unit(ordinal)) == ((4,), 1, 9)
    slow.done = True
    assert (fences.collect(), fences.completed) == ((9,), 2)


def test_a_unit_that_is_done_waits_for_those_that_ended_before() -> None:
    fences, slow = UnitFences(), FakeEvent()
    fences.end(0, slow)
    fences.end(1, FakeEvent(True))
    assert (fences.completed, fences.collect()) == (0, ())
    assert [fences.unit(ordinal) for ordinal in (1, 2)] == [0, 1]
    slow.done = True
    assert fences.completed == 0, "only a look takes note"
    assert (fences.collect(), fences.completed) == ((0, 1), 2)
    with pytest.raises(AssertionError, match="not outstanding"):
        fences.unit(2)


@given(st.lists(st.one_of(st.booleans(), st.integers(0, 5), st.none()), max_size=30))
def test_the_completed_are_a_prefix_of_the_ended(steps: list[bool | int | None]) -> None:
    """A truth value ends a unit, done or not; a number lets that event be done; None looks."""
    fences, events, reported = UnitFences(), list[FakeEvent](), list[int]()
    for step in steps:
        if isinstance(step, bool):
            events.append(FakeEvent(step))
            assert fences.end(len(events) - 1, events[-1]) == len(events)
        elif step is not None and step < len(events):
            events[step].done = True
        elif step is None:
            reported += fences.collect()
        first_open = next((n for n, event in enumerate(events) if not event.done), len(events))
        assert reported == list(range(len(reported)))
        assert len(reported) <= fences.completed <= first_open
        assert step is not None or len(reported) == fences.completed == first_open
        for ordinal in range(fences.completed + 1, fences.ended + 1):
            assert fences.unit(ordinal) == ordinal - 1
