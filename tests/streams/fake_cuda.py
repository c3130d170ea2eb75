"""A stand-in for the few things that the engine asks of CUDA: a device that lags, reorders streams and fails.

Kernels are functions that a test launches; they wait in the queue of the stream that was current.  What the device does
next a strategy decides (:mod:`kvcrucible.engine.streams.strategies`): any order that streams, events and waits allow.
The device runs on by itself by a few steps whenever the host asks it something, so that the host never knows how far it
is.

Does not stand in for: timing, memory spaces, what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from kvcrucible.engine.streams import CudaDevice, SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk
from kvcrucible.engine.streams.strategy import Strategy

#: Steps that the device may take while the host asks it something, at most.
STEPS_A_CALL = 2


class DeviceError(Exception):
    """What the device reports."""


class FakeEvent:
    def __init__(self, cuda: FakeCuda, inner: Any) -> None:
        self._cuda, self.inner = cuda, inner

    def query(self) -> bool:
        self._cuda.called("query")
        return bool(self.inner.reached)

    def synchronize(self) -> None:
        self._cuda.called("synchronize")
        self._cuda.run_until(lambda: self.inner.reached)


class FakeQueue:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self.inner = cuda, cuda.gpu.stream(name)

    def synchronize(self) -> None:
        self._cuda.called("synchronize")
        self._cuda.run_until(lambda: not self.inner.pending)


class FakeCuda:
    """Implements ``CudaRuntime``.  ``calls``: every call by name, in order.  ``gone``: what the device died of."""

    def __init__(
        self, strategy: Strategy | None = None, seed: int = 0, steps_a_call: int = STEPS_A_CALL
    ) -> None:
        self.gpu = SimulatedDevice(RandomWalk(seed) if strategy is None else strategy)
        self.calls: list[str] = []
        self.gone: DeviceError | None = None
        #: Raised by the next launch, once.
        self.refuse_launch: Exception | None = None
        self._random, self._steps = Random(seed), steps_a_call
        self.default = FakeQueue(self, "default")
        self._current = [self.default]
        self._queues = 0

    # -- the runtime ---------------------------------------------------------------------------------------------------

    def new_queue(self) -> FakeQueue:
        self._queues += 1
        return FakeQueue(self, f"queue {self._queues}")

    def current(self) -> FakeQueue:
        return self._current[-1]

    @contextmanager
    def using(self, queue: FakeQueue) -> Iterator[None]:
        self._current.append(queue)
        try:
            yield
        finally:
            self._current.pop()

    def record(self, queue: FakeQueue) -> FakeEvent:
        self.called("record")
        return FakeEvent(self, queue.inner.record())

    def wait(self, queue: FakeQueue, event: FakeEvent) -> None:
        self.called("wait")
        queue.inner.wait(event.inner)

    def staging(self, entries: int) -> Any:
        import torch

        self.called("staging")
        return torch.zeros(entries, dtype=torch.int32)

    def upload(self, destination: Any, staged: Any) -> None:
        self.launch(lambda: destination.copy_(staged))

    def is_device_error(self, error: Exception) -> bool:
        return isinstance(error, DeviceError)

    # -- the device ----------------------------------------------------------------------------------------------------

    def launch(self, kernel: Callable[[], object]) -> None:
        """Launch ``kernel`` on the current stream; one that raises is the end of the device."""
        self.called("launch")
        if self.refuse_launch is not None:
            refused, self.refuse_launch = self.refuse_launch, None
            raise refused
        self.current().inner.submit(lambda: self._execute(kernel))

    def run(self, steps: int) -> None:
        """Let the device go on by ``steps``."""
        self.gpu.run(steps)

    def finish(self) -> None:
        """Let the device do all that it was given; the host is told nothing."""
        self.gpu.synchronize()

    def run_until(self, holds: Callable[[], object]) -> None:
        while not holds() and self.gone is None:
            assert self.gpu.run(1), "the device waits for nothing"
        self._require_alive()

    def called(self, name: str) -> None:
        self.calls.append(name)
        self.gpu.run(self._random.randint(0, self._steps))
        self.gpu.steps()
        self._require_alive()

    def _execute(self, kernel: Callable[[], object]) -> None:
        if self.gone is None:
            try:
                kernel()
            except DeviceError as error:
                self.gone = error

    def _require_alive(self) -> None:
        if self.gone is not None:
            raise self.gone


def fake_device(seed: int = 0, *, polls: bool = True, **options: Any) -> CudaDevice:
    """Return the engine's CUDA device over a stand-in."""
    return CudaDevice(FakeCuda(seed=seed, **options), polls=polls)


def fake_of(device: CudaDevice) -> FakeCuda:
    """Return the stand-in beneath ``device``."""
    assert isinstance(device.runtime, FakeCuda)
    return device.runtime


def launching(device: CudaDevice, kernel: Callable[[], object]) -> Callable[[], None]:
    """Return an effect that launches ``kernel`` on the stand-in beneath ``device``."""
    return partial(fake_of(device).launch, kernel)


def die() -> None:
    """Be a kernel that is the end of its device."""
    raise DeviceError("an illegal memory access was encountered")
