"""What every device keeps, whichever it is: the engine is written against this and nothing else.

Verifies, on the immediate, the simulated and the CUDA device (over a stand-in, and over CUDA itself where there is
some): effects of one stream in order, none before what its stream waits for, each once; events done only after what
they stand for, and for good; failures at the event of their batch and at no other; whose errors reach whom; that the
engine runs on it.  Does not verify: how far a device may lag or reorder; each has its own tests for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from fake_cuda import FakeCuda, fake_device
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.streams import (
    Completion,
    CudaDevice,
    Device,
    Effect,
    EffectFailed,
    ImmediateDevice,
    SimulatedDevice,
)
from kvcrucible.engine.streams.cuda_runtime import why_no_cuda
from kvcrucible.engine.streams.strategies import RandomWalk

STREAMS = ("compute", "to-host", "to-device")

#: A program: submit on a stream, record on a stream, let a stream wait for an event recorded before, or look.
PROGRAMS = st.lists(
    st.tuples(st.sampled_from(STREAMS), st.sampled_from(["submit", "submit", "record", "wait", "look"])),
    max_size=25,
)


class Bench(Protocol):
    """A device, and effects on it whose order can be told afterwards."""

    device: Device

    def effect(self, number: int, before: frozenset[int]) -> Effect:
        """Return an effect that takes note whether those in ``before`` have taken place."""

    def took_place(self) -> dict[int, bool]:
        """Return, of each effect that has taken place, whether those before it had."""

    def advance(self, steps: int) -> None:
        """Let the device go on."""


class HostBench:
    """A device whose effects run on the host, when it says so; with a stand-in for CUDA they launch."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._ran: dict[int, bool] = {}

    def effect(self, number: int, before: frozenset[int]) -> Effect:
        def kernel() -> None:
            assert number not in self._ran, "an effect took place twice"
            self._ran[number] = before <= self._ran.keys()

        if isinstance(self.device, CudaDevice):
            cuda: Any = self.device.runtime
            return lambda: cuda.launch(kernel)
        return kernel

    def took_place(self) -> dict[int, bool]:
        return dict(self._ran)

    def advance(self, steps: int) -> None:
        if isinstance(self.device, SimulatedDevice):
            self.device.run(steps)
        elif isinstance(self.device, CudaDevice) and isinstance(self.device.runtime, FakeCuda):
            self.device.runtime.run(steps)


class CudaBench:
    """CUDA itself: every effect reads the flags of those before it on the device, and then sets its own."""

    def __init__(self, device: CudaDevice, most: int = 32) -> None:
        import torch

        self.device, self._torch = device, torch
        self._set = torch.zeros(most, dtype=torch.int32, device="cuda")
        self._sound = torch.zeros(most, dtype=torch.int32, device="cuda")
        #: Makes each effect long enough for another stream to overtake it.
        self._work = torch.zeros((512, 512), device="cuda")

    def effect(self, number: int, before: frozenset[int]) -> Effect:
        torch = self._torch
        wanted = torch.tensor([*sorted(before), number], dtype=torch.int64, device="cuda")[:-1]

        def launches() -> None:
            for _ in range(8):
                self._work @ self._work
            self._sound[number] = self._set[wanted].min() if before else 1
            self._set[number] += 1

        return launches

    def took_place(self) -> dict[int, bool]:
        taken = self._set.tolist()
        assert max(taken) <= 1, "an effect took place twice"
        return {number: bool(self._sound[number]) for number, times in enumerate(taken) if times}

    def advance(self, steps: int) -> None:
        """It goes on by itself."""


BENCHES: dict[str, Callable[[], Bench]] = {
    "immediate": lambda: HostBench(ImmediateDevice()),
    "simulated": lambda: HostBench(SimulatedDevice()),
    "simulated-any-order": lambda: HostBench(SimulatedDevice(RandomWalk(7))),
    "cuda-stand-in": lambda: HostBench(fake_device(3)),
    "cuda-stand-in-slow": lambda: HostBench(fake_device(11, steps_a_call=0)),
    "cuda-stand-in-waited-for": lambda: HostBench(fake_device(5, polls=False)),
    "cuda": lambda: CudaBench(CudaDevice()),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.gpu if name == "cuda" else ()) for name in BENCHES],
)
def bench_of(request: pytest.FixtureRequest) -> Callable[[], Bench]:
    reason = why_no_cuda() if request.param == "cuda" else None
    if reason is not None:
        pytest.skip(reason)
    return BENCHES[request.param]


class Trace:
    """Runs a program and knows, from the program alone, what has to come before what."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.submitted = 0
        self.events: list[tuple[Completion, frozenset[int]]] = []
        self._past: dict[str, set[int]] = {name: set() for name in STREAMS}

    def do(self, name: str, action: str) -> None:
        stream, past = self.bench.device.stream(name), self._past[name]
        match action:
            case "submit":
                stream.submit(self.bench.effect(self.submitted, frozenset(past)))
                past.add(self.submitted)
                self.submitted += 1
            case "record":
                self.events.append((stream.record(), frozenset(past)))
            case "wait" if self.events:
                event, covered = self.events[self.submitted % len(self.events)]
                stream.wait(event)
                past |= covered
            case "look":
                assert stream.look() is None

    def check(self) -> None:
        done = [covered for event, covered in self.events if event.done]
        took_place = self.bench.took_place()
        assert all(took_place.values()), "an effect before what has to come before it"
        assert all(covered <= took_place.keys() for covered in done)


@given(program=PROGRAMS, data=st.data())
@settings(max_examples=60)
def test_what_must_come_before_comes_before(
    bench_of: Callable[[], Bench], program: list[tuple[str, str]], data: st.DataObject
) -> None:
    trace = Trace(bench_of())
    was_done: set[int] = set()
    for stream, action in program:
        trace.do(stream, action)
        trace.bench.advance(data.draw(st.integers(0, 2), label="steps"))
        trace.check()
        done = {number for number, (event, _) in enumerate(trace.events) if event.done}
        assert was_done <= done
        was_done = done
    trace.bench.device.synchronize()
    trace.check()
    assert len(trace.bench.took_place()) == trace.submitted
    assert all(event.done and event.failure is None for event, _ in trace.events)


@given(program=PROGRAMS, name=st.sampled_from(STREAMS))
@settings(max_examples=30)
def test_who_waits_for_a_stream_finds_it_finished(
    bench_of: Callable[[], Bench], program: list[tuple[str, str]], name: str
) -> None:
    trace = Trace(bench_of())
    for stream, action in program:
        trace.do(stream, action)
    stream = trace.bench.device.stream(name)
    event = stream.record()
    stream.synchronize()
    trace.check()
    assert event.done
    assert trace._past[name] <= trace.bench.took_place().keys()
    trace.bench.device.synchronize()


@pytest.mark.parametrize("failing", range(4))
def test_a_failure_reaches_the_event_of_its_batch_alone(bench_of: Callable[[], Bench], failing: int) -> None:
    def fails() -> None:
        raise EffectFailed("no link to the host")

    bench, events = bench_of(), []
    stream = bench.device.stream("to-host")
    assert bench.device.stream("to-host") is stream
    assert stream.name == "to-host"
    for number in range(4):
        stream.submit(fails if number == failing else bench.effect(number, frozenset()), f"copy {number}")
        events.append(stream.record())
    bench.device.stream("compute").wait(events[failing])
    bench.device.synchronize()
    assert all(event.done for event in events)
    failed = [number for number, event in enumerate(events) if event.failure is not None]
    assert failed == [failing]
    assert str(events[failing].failure) == "no link to the host"
    assert bench.took_place().keys() == {0, 1, 2, 3} - {failing}
    assert stream.look() is None


def test_other_exceptions_are_not_failures_of_the_device(bench_of: Callable[[], Bench]) -> None:
    def wrong() -> None:
        raise ZeroDivisionError

    bench = bench_of()
    stream = bench.device.stream("compute")

    def submit_and_wait() -> None:
        stream.submit(wrong)
        bench.device.synchronize()

    with pytest.raises(ZeroDivisionError):
        submit_and_wait()
    bench.device.synchronize()
    stream.record()
    stream.submit(bench.effect(0, frozenset()))
    later = stream.record()
    bench.device.synchronize()
    assert later.failure is None
    assert bench.took_place() == {0: True}


def test_an_event_of_another_device_is_refused(bench_of: Callable[[], Bench]) -> None:
    device = bench_of().device
    with pytest.raises(AssertionError, match="another"):
        device.stream("compute").wait(SimulatedDevice().stream("compute").record())
    with pytest.raises(AssertionError, match="another"):
        device.stream("compute").wait(fake_device().stream("compute").record())


def test_the_engine_runs_on_it(bench_of: Callable[[], Bench]) -> None:
    bench = bench_of()
    engine = Engine(EngineConfig((PoolSpec("main", 8, 16),), 64, 2), None, bench.device)
    sequence = engine.submit(run(1, 0, 20), 4)
    engine.schedule()
    units = []
    for number, work in enumerate((Prefill(sequence, 20), Append(sequence, run(2, 0, 1)))):
        unit = engine.begin_unit([work])
        engine.stream.submit(bench.effect(number, frozenset(range(number))))
        engine.end_unit(unit)
        units.append(unit)
    bench.device.synchronize()
    assert engine.progress().units == tuple(units)
    assert bench.took_place() == {0: True, 1: True}
    engine.finish(sequence, retain=False)
    engine.progress()
    assert engine.pools[0].free == 8
