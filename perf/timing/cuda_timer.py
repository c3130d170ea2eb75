"""The device timer of CUDA: events around the work, a graph for replays, a flush that is twice the cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvcrucible.contract.errors import NotRunError
from kvcrucible.contract.extras import install_remedy

#: The flush writes so many times the size of the cache.  Once is not enough where lines are not replaced in order.
FLUSH_FACTOR = 2

#: Runs on a side stream before a capture, which initialise what may not be initialised inside one.
CAPTURE_WARM_UP = 3


class CudaTimer:
    """Times work on the current CUDA device and stream.  Holds the flush buffer until it is dropped.

    ``clock``: returns the SM clock in MHz, from a sampler that stands beside (asking the driver here would disturb what
    is timed); None for none.
    """

    def __init__(self, clock: Callable[[], float | None] | None = None) -> None:
        import torch

        self._torch = torch
        self._clock = clock or (lambda: None)
        cache_bytes = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        self._flush = torch.empty(FLUSH_FACTOR * cache_bytes, dtype=torch.int8, device="cuda")
        self._begin: Any = _event()
        self._end: Any = _event()

    def flush_cache(self) -> None:
        """Queue a write of twice the cache."""
        self._flush.zero_()

    def synchronise(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()

    def time(self, work: Callable[[], object]) -> float:
        """Return the seconds between two events around ``work()``."""
        self._begin.record()
        work()
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1000

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Capture ``work`` in a graph and return its replay."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()

        def replay() -> None:
            graph.replay()

        return replay

    def clock_mhz(self) -> float | None:
        """Return what the sampler said last."""
        return self._clock()

    def now_s(self) -> float:
        """Return the wall clock."""
        return time.monotonic()


def _event() -> Any:
    import torch

    make: Any = torch.cuda.Event
    return make(enable_timing=True)


def cuda_timer(clock: Callable[[], float | None] | None = None) -> CudaTimer:
    """Return the timer of the current CUDA device; raises :class:`NotRunError`, which says why there is none."""
    try:
        import torch
    except ImportError:
        raise NotRunError(f"torch not installed; {install_remedy('engine')}") from None
    if not torch.cuda.is_available():
        raise NotRunError("no CUDA device that torch can use; run this on a machine with one")
    return CudaTimer(clock)
