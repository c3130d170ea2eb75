"""The few things that the engine asks of CUDA, and torch's answer to them.

What orders effects (:mod:`kvcrucible.engine.streams.cuda`) and what keeps staging buffers alive
(:mod:`kvcrucible.engine.storage.staging`) ask this interface alone, so that a test can put in its place a device that
lags, reorders and fails.  Torch is imported when a runtime is opened, not when this module is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from kvcrucible.contract.errors import NotRunError
from kvcrucible.contract.extras import install_remedy

if TYPE_CHECKING:
    from torch import Tensor

#: How the messages of plain ``RuntimeError`` begin by which torch's libraries and Triton's launcher tell what the
#: driver said.
_DRIVER_SAYS = (
    "CUDA error",
    "CUDA driver error",
    "HIP error",
    "HIP driver error",
    "Triton Error [CUDA]",
    "Triton Error [HIP]",
)


class CudaEvent(Protocol):
    """A point that a CUDA stream reaches: ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Return whether it has been reached; does not wait.  Raises what went wrong on the device until now."""

    def synchronize(self) -> None:
        """Wait until it has been reached.  Raises as :meth:`query` does."""


class CudaQueue(Protocol):
    """A CUDA stream: ``torch.cuda.Stream``."""

    def synchronize(self) -> None:
        """Wait until all that was launched is over.  Raises what went wrong on the device until now."""


class CudaRuntime(Protocol):
    """One CUDA device as the engine uses it."""

    def new_queue(self) -> CudaQueue:
        """Return a stream that is in no order with others but by events."""

    def current(self) -> CudaQueue:
        """Return the stream on which the caller's own launches go."""

    def using(self, queue: CudaQueue) -> AbstractContextManager[object]:
        """Return a context within which launches go to ``queue``."""

    def record(self, queue: CudaQueue) -> CudaEvent:
        """Return a new event behind everything launched on ``queue`` so far."""

    def wait(self, queue: CudaQueue, event: CudaEvent) -> None:
        """Hold back on the device, not on the host, what ``queue`` is given later until ``event`` has been reached."""

    def staging(self, entries: int) -> Tensor:
        """Return page-locked host memory ``[entries]``, int32, not initialised; the caller's."""

    def upload(self, destination: Tensor, staged: Tensor) -> None:
        """Launch the copy of page-locked ``staged`` into ``destination``, same shape, on the current stream.

        ``staged`` must neither change nor be given up before the stream has passed an event behind it.
        """

    def is_device_error(self, error: Exception) -> bool:
        """Tell whether ``error`` is what a device reports, and no mistake of the code that launched."""


def why_no_torch() -> str | None:
    """Return why nothing can be stored here, in words with a remedy; None where something can."""
    return f"torch is not installed; {install_remedy('engine')}" if find_spec("torch") is None else None


def why_no_cuda() -> str | None:
    """Return why nothing can run on CUDA here, in words with a remedy; None where something can."""
    absent = why_no_torch()
    if absent is not None:
        return absent
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"no CUDA device: torch {torch.__version__} is a build without CUDA; install one that has it "
            "(TORCH_INDEX at the first set-up), on a machine with a GPU"
        )
    return f"no CUDA device: torch {torch.__version__} finds none; check driver and permissions"


class TorchCuda:
    """``device`` through ``torch.cuda``; a name without an index is the device current at the time.

    Raises ``NotRunError`` where there is no such device.
    """

    def __init__(self, device: str | int = "cuda") -> None:
        reason = why_no_cuda()
        if reason is not None:
            raise NotRunError(reason)
        import torch

        self._torch: Any = torch
        asked: Any = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        index = torch.cuda.current_device() if asked.index is None else asked.index
        if asked.type != "cuda" or index >= torch.cuda.device_count():
            raise NotRunError(
                f"no CUDA device {device}: there are {torch.cuda.device_count()}, from cuda:0 on"
            )
        self.device = torch.device("cuda", index)

    def locking(self) -> AbstractContextManager[object]:
        """Return a context within which page-locked memory is allocated for this device.

        It is locked through the context of torch's current device, which may be another one: locking would then open
        a context there, with some hundred MB of that device's memory.
        """
        context: AbstractContextManager[object] = self._torch.cuda.device(self.device)
        return context

    def new_queue(self) -> CudaQueue:
        """Return a stream of the device that does not wait for the default one.

        Torch has 32 of them for each device and gives them out in turn: with many engines in a process two streams may
        be one, which only adds to their order.
        """
        queue: CudaQueue = self._torch.cuda.Stream(device=self.device)
        return queue

    def current(self) -> CudaQueue:
        """Return the device's stream that is current in torch."""
        queue: CudaQueue = self._torch.cuda.current_stream(self.device)
        return queue

    def using(self, queue: CudaQueue) -> AbstractContextManager[object]:
        """Make ``queue``, and its device, current in torch."""
        context: AbstractContextManager[object] = self._torch.cuda.stream(queue)
        return context

    def record(self, queue: CudaQueue) -> CudaEvent:
        """Record an event without timing."""
        stream: Any = queue
        event: CudaEvent = stream.record_event()
        return event

    def wait(self, queue: CudaQueue, event: CudaEvent) -> None:
        """Let the device wait; the host goes on."""
        stream: Any = queue
        stream.wait_event(event)

    def staging(self, entries: int) -> Tensor:
        """Allocate page-locked memory; torch keeps what is given up for the next one who asks."""
        torch = self._torch
        with self.locking():
            buffer: Tensor = torch.empty(entries, dtype=torch.int32, pin_memory=True)
        return buffer

    def upload(self, destination: Tensor, staged: Tensor) -> None:
        """Launch the copy; the host goes on."""
        destination.copy_(staged, non_blocking=True)

    def is_device_error(self, error: Exception) -> bool:
        """As :func:`reported_by_device`."""
        return reported_by_device(error)


def reported_by_device(error: Exception) -> bool:
    """Tell whether ``error`` is what torch, its libraries or Triton raise for what a device reports.

    By its type where torch has one for it, else by how the message of a ``RuntimeError`` begins.
    """
    import torch

    if isinstance(error, (torch.AcceleratorError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and str(error).startswith(_DRIVER_SAYS)
