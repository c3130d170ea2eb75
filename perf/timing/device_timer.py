"""Device time behind a small interface: what a GPU benchmark does around its work, whoever keeps the clock.

The order matters and is fixed here, so that it can be tested without a device:

1. warm up until the clock is steady, not for a number of runs: a GPU that was idle takes a second to reach its clock;
2. before each window, make the cache cold (or leave it warm, and say so), and wait until that has happened: a flush
   that is still running when the window opens is timed with it;
3. inside the window nothing but the work, replayed as a graph where launches should not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Protocol


class Cache(StrEnum):
    """State of the device's last-level cache when a window opens.  Part of a metric's name: the two never compare."""

    COLD = "cold"
    WARM = "warm"


class DeviceTimer(Protocol):
    """A device that can be timed."""

    def flush_cache(self) -> None:
        """Write at least the cache's size elsewhere, asynchronously or not."""

    def synchronise(self) -> None:
        """Return once everything queued has happened."""

    def time(self, work: Callable[[], object]) -> float:
        """Run ``work()`` once and return the device's seconds for it, queueing not included; synchronous."""

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return a replay of ``work``, which launches all of it at once."""

    def clock_mhz(self) -> float | None:
        """Return the clock now, None where nobody says."""

    def now_s(self) -> float:
        """Return the wall clock by which a warm-up is limited."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """When the clock counts as steady, and after how many seconds (``limit_s``) it is given up.

    Steady: the means of the last two groups of ``group`` runs differ by at most ``tolerance``, in clock or, where no
    clock is told, in time.
    """

    group: int = 5
    tolerance: float = 0.01
    limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class DeviceTimings:
    """Windows of one process in seconds, and under which conditions; ``steady`` False makes the process INVALID.

    ``clocks_mhz``: the clock after each window, empty where nobody says.
    """

    seconds: tuple[float, ...]
    clocks_mhz: tuple[float, ...]
    cache: Cache
    graph: bool
    warm_up_runs: int
    steady: bool


def time_device(
    timer: DeviceTimer,
    work: Callable[[], object],
    repeats: int,
    *,
    cache: Cache = Cache.COLD,
    graph: bool = False,
    warm_up: WarmUp | None = None,
) -> DeviceTimings:
    """Return ``repeats`` windows of ``work()`` on the device; raises ``ValueError`` for fewer than one.

    ``graph``: capture once and replay, so that launches are not timed.
    """
    if repeats < 1:
        raise ValueError("repeats >= 1")
    replay = timer.capture(work) if graph else work
    runs, steady = _until_steady(timer, replay, warm_up or WarmUp())
    seconds, clocks = [], []
    for _ in range(repeats):
        if cache is Cache.COLD:
            timer.flush_cache()
        timer.synchronise()
        seconds.append(timer.time(replay))
        if (clock := timer.clock_mhz()) is not None:
            clocks.append(clock)
    return DeviceTimings(tuple(seconds), tuple(clocks), cache, graph, runs, steady)


def _until_steady(timer: DeviceTimer, work: Callable[[], object], plan: WarmUp) -> tuple[int, bool]:
    deadline, seen = timer.now_s() + plan.limit_s, []
    while True:
        seconds = timer.time(work)
        clock = timer.clock_mhz()
        seen.append(seconds if clock is None else clock)
        if len(seen) >= 2 * plan.group and _agree(
            seen[-plan.group :], seen[-2 * plan.group : -plan.group], plan
        ):
            return len(seen), True
        if timer.now_s() > deadline:
            return len(seen), False


def _agree(last: Sequence[float], before: Sequence[float], plan: WarmUp) -> bool:
    return abs(fmean(last) - fmean(before)) <= plan.tolerance * fmean(before)


def rotation(buffer_bytes: int, cache_bytes: int) -> int:
    """Return how many copies of a buffer to go through in turn, so that none is still in the cache when it comes again.

    Between two uses of one copy, the others must fill the cache: at least ``cache_bytes`` of them.  For work that
    cannot stand a flush between its runs; a captured graph has to hold all the copies, not one.
    """
    if buffer_bytes < 1 or cache_bytes < 0:
        raise ValueError("buffer_bytes >= 1, cache_bytes >= 0")
    return 1 + -(-cache_bytes // buffer_bytes)
