"""The simulated device: what it may reorder, and what no strategy can make it reorder.

Verifies: effects of one stream stay in order, none passes a wait, each runs once, events are done only after all that
they stand for, failures go to the event of their batch; under every strategy, and over complete enumerations of small
programs.  Does not verify: that the engine places its waits rightly; the planted fault here only shows that it would be
seen.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.engine.streams import (
    Completion,
    EffectFailed,
    ImmediateDevice,
    SimulatedDevice,
)
from kvcrucible.engine.streams.strategies import (
    Failing,
    InOrder,
    PriorityChange,
    RandomWalk,
    Starving,
)
from kvcrucible.engine.streams.strategy import EffectOutcome, StepKind, Strategy

STREAMS = ("compute", "copy", "upload")

STRATEGIES: st.SearchStrategy[Strategy] = st.one_of(
    st.builds(InOrder),
    st.builds(RandomWalk, st.integers(0, 10_000)),
    st.builds(PriorityChange, st.integers(0, 10_000), st.integers(1, 4), st.integers(3, 30)),
    st.builds(Starving, st.sets(st.tuples(st.sampled_from(STREAMS), st.sampled_from(list(StepKind))))),
)

#: A program: submit on a stream, record on a stream, or let a stream wait for one of the events recorded so far.
PROGRAMS = st.lists(
    st.tuples(st.sampled_from(STREAMS), st.sampled_from(["submit", "submit", "record", "wait"])), max_size=25
)


class Trace:
    """Runs a program and knows, from the program alone, what has to come before what."""

    def __init__(self, strategy: Strategy) -> None:
        self.device = SimulatedDevice(strategy)
        self.ran: list[int] = []
        self.before: dict[int, set[int]] = {}
        self.events: list[tuple[Completion, set[int]]] = []
        self._on_stream: dict[str, set[int]] = {name: set() for name in STREAMS}

    def do(self, stream: str, action: str) -> None:
        queue, past = self.device.stream(stream), self._on_stream[stream]
        if action == "submit":
            number = len(self.before)
            self.before[number] = set(past)
            past.add(number)
            queue.submit(lambda: self.ran.append(number))
        elif action == "record":
            self.events.append((queue.record(), set(past)))
        elif self.events:
            event, covered = self.events[len(self.before) % len(self.events)]
            queue.wait(event)
            past |= covered

    def check(self) -> None:
        at = {number: index for index, number in enumerate(self.ran)}
        assert len(at) == len(self.ran), "an effect ran twice"
        for number in self.ran:
            assert all(at.get(other, len(at)) < at[number] for other in self.before[number])
        for event, covered in self.events:
            if event.done:
                assert covered <= at.keys()


@given(PROGRAMS, STRATEGIES, st.data())
def test_what_must_come_before_comes_before(
    program: list[tuple[str, str]], strategy: Strategy, data: st.DataObject
) -> None:
    trace = Trace(strategy)
    for stream, action in program:
        trace.do(stream, action)
        trace.device.run(data.draw(st.integers(0, 3), label="steps"))
        trace.check()
    trace.device.synchronize()
    trace.check()
    assert len(trace.ran) == len(trace.before)
    assert all(event.done and event.failure is None for event, _ in trace.events)
    assert trace.device.pending == 0
    assert trace.device.run(5) == 0


@given(PROGRAMS, STRATEGIES, st.sampled_from(STREAMS))
def test_synchronising_one_stream_finishes_that_one(
    program: list[tuple[str, str]], strategy: Strategy, name: str
) -> None:
    trace = Trace(strategy)
    for stream, action in program:
        trace.do(stream, action)
    trace.device.stream(name).synchronize()
    assert trace.device.stream(name).pending == 0
    trace.check()


def test_nothing_happens_before_the_test_says_so() -> None:
    device, ran = SimulatedDevice(), []
    copy = device.stream("copy")
    copy.submit(lambda: ran.append(1))
    event = copy.record()
    assert (ran, event.done, event.reached, device.pending) == ([], False, False, 2)
    assert device.run(1) == 1
    assert (ran, event.done) == ([1], False)
    assert device.run(9) == 1
    assert event.done


def test_an_event_can_be_reached_long_before_the_host_knows() -> None:
    device = SimulatedDevice(Starving({("copy", StepKind.SIGNAL)}))
    ran: list[str] = []
    copy, compute = device.stream("copy"), device.stream("compute")
    copy.submit(lambda: ran.append("copy"))
    event = copy.record()
    compute.wait(event)
    compute.submit(lambda: ran.append("compute"))
    device.run(2)
    assert ran == ["copy", "compute"]
    assert event.reached
    assert not event.done
    device.synchronize()
    assert event.done


def test_streams_overtake_one_another_unless_they_wait() -> None:
    for waits, expected in ((False, ["late", "early"]), (True, ["early", "late"])):
        device, ran = SimulatedDevice(Starving({("copy", StepKind.RUN)})), []
        device.stream("copy").submit(lambda ran=ran: ran.append("early"))
        event = device.stream("copy").record()
        if waits:
            device.stream("compute").wait(event)
        device.stream("compute").submit(lambda ran=ran: ran.append("late"))
        device.synchronize()
        assert ran == expected


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", range(1, 5))
@pytest.mark.parametrize(
    ("outcome", "runs"), [(EffectOutcome.FAIL_WITHOUT_EFFECT, False), (EffectOutcome.FAIL_AFTER_EFFECT, True)]
)
def test_a_failure_reaches_the_event_of_its_batch_alone(
    failing: int, outcome: EffectOutcome, runs: bool
) -> None:
    device = SimulatedDevice(Failing(InOrder(), "copy", {failing}, outcome))
    copy, ran, events = device.stream("copy"), [], []
    for batch in (0, 1):
        for index in (1, 2):
            copy.submit(lambda number=2 * batch + index: ran.append(number), "copy")
            copy.submit(lambda: None, "other")
        events.append(copy.record())
    assert [event.failure for event in events] == [None, None]
    device.synchronize()
    assert ran == [number for number in range(1, 5) if runs or number != failing]
    struck = (failing - 1) // 2
    assert events[1 - struck].failure is None
    assert isinstance(events[struck].failure, EffectFailed)
    assert outcome.value in str(events[struck].failure)


def test_a_failure_is_told_when_the_event_is_and_does_not_stop_the_rest() -> None:
    device = SimulatedDevice(
        Failing(Starving({("copy", StepKind.SIGNAL)}), "bad", {1, 2}, EffectOutcome.FAIL_WITHOUT_EFFECT)
    )
    copy, compute, ran = device.stream("copy"), device.stream("compute"), []
    copy.submit(lambda: None, "bad")
    copy.submit(lambda: None, "bad")
    event = copy.record()
    compute.wait(event)
    compute.submit(lambda: ran.append("after"))
    device.run(3)
    assert ran == ["after"]
    assert event.failure is None, "the host has not been told"
    device.synchronize()
    assert " 1 bad" in str(event.failure), "the first failure counts"
    later = copy.record()
    device.synchronize()
    assert later.failure is None


def test_an_event_of_another_device_is_refused() -> None:
    foreign = SimulatedDevice().stream("copy").record()
    for device in (SimulatedDevice(), ImmediateDevice()):
        with pytest.raises(AssertionError, match="another device"):
            device.stream("copy").wait(foreign)
    with pytest.raises(AssertionError, match="another kind"):
        SimulatedDevice().stream("copy").wait(ImmediateDevice().stream("compute").record())
