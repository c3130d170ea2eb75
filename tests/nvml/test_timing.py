"""Timing on the CPU, and the order of what surrounds a device's window, on a device that is made up."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from kvcrucible.contract.errors import NotRunError
from kvcrucible.engine.work import WorkCounters
from kvcrucible.perf.timing.bytecodes import count_bytecodes
from kvcrucible.perf.timing.cpu import time_cpu
from kvcrucible.perf.timing.device_timer import Cache, WarmUp, rotation, time_device
from kvcrucible.perf.timing.instructions import open_counter
from kvcrucible.perf.timing.work import exact_metrics


class FakeDevice:
    """A device whose clock rises to 2,000 MHz over ``ramp`` runs; it writes down what was asked."""

    def __init__(self, ramp: int, clock: bool = True) -> None:
        self.ramp, self.tells_clock = ramp, clock
        self.runs, self.log, self.queued, self.seconds = 0, "", False, 0.0

    def flush_cache(self) -> None:
        self.log += "f"
        self.queued = True

    def synchronise(self) -> None:
        self.log += "s"
        self.queued = False

    def time(self, work: Callable[[], object]) -> float:
        assert not self.queued, "a flush leaked into the window"
        work()
        self.runs += 1
        self.log += "t"
        self.seconds += 0.01
        return 1 / self._mhz()

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        self.log += "c"
        return work

    def clock_mhz(self) -> float | None:
        return self._mhz() if self.tells_clock else None

    def now_s(self) -> float:
        return self.seconds

    def _mhz(self) -> float:
        return 1_000 + 1_000 * min(1.0, self.runs / self.ramp) if self.ramp else 2_000 + 100 * self.runs**2


@pytest.mark.parametrize("clock", [True, False])
def test_the_warm_up_lasts_until_the_clock_is_steady(clock: bool) -> None:
    slow, fast = FakeDevice(60, clock), FakeDevice(1, clock)
    timings = time_device(slow, lambda: None, 3)
    assert timings.steady
    assert timings.warm_up_runs > 60
    assert time_device(fast, lambda: None, 3).warm_up_runs < 15
    assert len(timings.clocks_mhz) == (3 if clock else 0)


def test_a_clock_that_never_settles_is_said() -> None:
    found = time_device(FakeDevice(0), lambda: None, 2, warm_up=WarmUp(tolerance=0.001, limit_s=1.0))
    assert not found.steady


def test_the_flush_is_over_before_the_window_opens() -> None:
    device = FakeDevice(1)
    found = time_device(device, lambda: None, 3, cache=Cache.COLD)
    assert device.log.endswith("fstfstfst")
    assert found.cache is Cache.COLD
    device = FakeDevice(1)
    time_device(device, lambda: None, 2, cache=Cache.WARM, graph=True)
    assert device.log.startswith("c")
    assert device.log.endswith("stst")
    assert "f" not in device.log


def test_rotating_buffers_fill_the_cache_between_two_uses() -> None:
    for buffer, cache in ((1, 0), (10, 50), (10, 51), (100, 50)):
        copies = rotation(buffer, cache)
        assert (copies - 1) * buffer >= cache
        assert copies == 1 or (copies - 2) * buffer < cache


def test_cuda_events_and_graphs() -> None:
    torch = pytest.importorskip("torch", reason="needs the engine extra")
    from kvcrucible.perf.timing.cuda_timer import cuda_timer

    if not torch.cuda.is_available():
        with pytest.raises(NotRunError, match="no CUDA device"):
            cuda_timer()
        pytest.skip("no CUDA device")
    values = torch.zeros(1 << 20, device="cuda")
    for graph in (False, True):
        found = time_device(cuda_timer(), lambda: values.add_(1), 5, graph=graph)
        assert all(0 < one < 0.1 for one in found.seconds)


def test_cpu_time_is_the_process_and_wall_time_the_clock() -> None:
    (slept,) = time_cpu(lambda: time.sleep(0.05), 1, warm_up=0)
    assert slept.wall_s >= 0.05 > slept.cpu_s
    (spun,) = time_cpu(lambda: sum(range(300_000)), 1, warm_up=0)
    assert spun.cpu_s > 0


def test_a_planted_slowdown_spins_for_its_share() -> None:
    def work() -> None:
        until = time.process_time_ns() + 20_000_000
        while time.process_time_ns() < until:
            pass

    (found,) = time_cpu(work, 1, slowdown=0.5)
    assert found.cpu_s >= 0.030


def test_the_collector_is_still_inside_and_as_it_was_afterwards() -> None:
    seen = []
    time_cpu(lambda: seen.append(gc.isenabled()), 2, warm_up=0)
    assert seen == [False, False]
    assert gc.isenabled()


def test_instructions_are_counted_or_the_reason_is_stated() -> None:
    counter = open_counter()
    if isinstance(counter, str):
        assert counter
        pytest.skip(counter)
    found = [
        time_cpu(lambda n=n: sum(range(n)), 1, counter=counter)[0].instructions for n in (20_000, 80_000)
    ]
    counter.close()
    few, many = found
    assert few is not None
    assert many is not None
    assert many > 2 * few


BYTECODES = (
    "from kvcrucible.perf.timing.bytecodes import count_bytecodes\n"
    "from kvcrucible.perf.builtin_benchmark import CASES\n"
    "print(sorted(count_bytecodes(CASES['control-plane/fork-and-cut'], 'kvcrucible.engine').items()))"
)


def test_steps_are_the_same_in_every_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", BYTECODES], env=environment, capture_output=True, check=True, text=True
        ).stdout
        for _ in range(2)
    )
    assert first == second
    assert "pool:PagePool.materialise" in first


def test_steps_count_only_the_package_and_put_the_tracer_back() -> None:
    before = sys.gettrace()
    counts = count_bytecodes(lambda: exact_metrics("x", WorkCounters(), WorkCounters()), "kvcrucible.perf")
    assert set(counts) == {
        "timing.work:exact_metrics",
        "timing.work:exact_metrics.<locals>.<dictcomp>",
    } or set(counts) == {"timing.work:exact_metrics"}
    assert sys.gettrace() is before


def test_work_counters_become_exact_metrics() -> None:
    found = exact_metrics("decode", WorkCounters(pages_granted=3), WorkCounters(pages_granted=10))
    assert found["work/decode/pages-granted"] == 7
    assert sum(found.values()) == 7
