"""Staging buffers of table uploads on CUDA: one for each that is queued (DESIGN 4.7).

A copy out of page-locked memory is queued, and reads its source when the device gets there.  So the buffer belongs to
that one upload until the event behind it has passed, and only then to the next one.

Verifies nothing of rows or pages: that is the storage's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcrucible.engine.streams.cuda_runtime import CudaEvent, CudaRuntime

if TYPE_CHECKING:
    from torch import Tensor

#: Entries of the smallest buffer; larger ones are powers of two, so that few sizes are kept.
LEAST_ENTRIES = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    """A buffer that an upload may still read, and the event behind that."""

    event: CudaEvent
    buffer: Tensor


class Staging:
    """Page-locked buffers of one storage, which owns them; drop it once its device is at rest."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._queued: deque[_Queued] = deque()
        self._idle: dict[int, list[Tensor]] = {}
        #: Buffers of uploads that failed as they were queued: whether the device reads them nobody knows, so nobody
        #: gets them again.
        self._doubtful: list[Tensor] = []

    @property
    def queued(self) -> int:
        """Buffers that uploads may still read."""
        return len(self._queued)

    def upload(self, destination: Tensor, numbers: Sequence[int]) -> None:
        """Queue the write of ``numbers`` into ``destination`` ``[n]``, int32, on the current stream; does not wait.

        Raises what the device raises, and ``RuntimeError`` where no page-locked memory is to be had.
        """
        import torch

        self._reclaim()
        buffer = self._take(len(numbers))
        staged = buffer[: len(numbers)]
        staged.copy_(torch.tensor(numbers, dtype=torch.int32))
        try:
            self._runtime.upload(destination, staged)
            event = self._runtime.record(self._runtime.current())
        except BaseException:
            self._doubtful.append(buffer)
            raise
        self._queued.append(_Queued(event, buffer))

    def _take(self, entries: int) -> Tensor:
        """Return a buffer of at least ``entries`` that nobody reads."""
        size = max(LEAST_ENTRIES, 1 << (entries - 1).bit_length())
        idle = self._idle.get(size)
        return idle.pop() if idle else self._runtime.staging(size)

    def _reclaim(self) -> None:
        """Take back the buffers whose uploads the device has passed."""
        while self._queued and self._queued[0].event.query():
            buffer = self._queued.popleft().buffer
            self._idle.setdefault(len(buffer), []).append(buffer)
