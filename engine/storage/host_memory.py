"""The bytes of the Host tier, and copies between them and a pool's planes (DESIGN 4.4).

Torch is imported when memory is allocated, not when this module is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.host.packing import CopyRun, PackedLayout

if TYPE_CHECKING:
    from torch import Tensor


class TorchHostMemory:
    """``capacity_bytes`` bytes of host memory, allocated once and zeroed; page-locked where ``pinned``.

    Implements ``HostMemory``.  Knows offsets, not extents: who owns which bytes is the arena's knowledge.  Offsets and
    sizes are bytes.  The object owns the memory; drop it to free it, once no copy is under way.  Beside planes on CUDA
    it should be pinned: kernels then read and write it where it lies, and a copy goes on while the host does; what is
    not pinned the driver copies, run by run, and the host waits.  Torch locks the next power of two of bytes: of a size
    just above one, nearly twice as much as is asked for.  Raises ``BadArgument`` for a size below 1, or where
    pinning is refused.
    """

    def __init__(self, capacity_bytes: int, *, pinned: bool = False) -> None:
        import torch

        if capacity_bytes < 1:
            raise BadArgument(f"{capacity_bytes} bytes of host memory", "a size below 1", "give 1 or more")
        self.pinned = pinned
        try:
            self.buffer = torch.zeros(capacity_bytes, dtype=torch.uint8, pin_memory=pinned)
        except RuntimeError as error:
            if not pinned:
                raise
            raise BadArgument(
                f"{capacity_bytes} bytes of pinned host memory",
                f"pinning was refused: {error}",
                "ask for fewer bytes, raise what the system lets a process lock, or take memory that is not pinned: "
                "copies to and from it wait",
            ) from error

    @property
    def capacity_bytes(self) -> int:
        """Bytes that there are."""
        return len(self.buffer)

    def fill(self, offset: int, size: int, value: int) -> None:
        """Set every byte of ``[offset, offset + size)`` to ``value``, 0 to 255 (poison), now: on CUDA too this is the
        host's own write, so no copy of these bytes may be under way.
        """
        self._range(offset, size).fill_(value)

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of ``[offset, offset + size)``; for tests and the harness."""
        return bytes(self._range(offset, size).tolist())

    def pack(
        self, layout: PackedLayout, offset: int, planes: Sequence[Tensor], runs: Sequence[CopyRun]
    ) -> None:
        """Copy ``runs`` from the device to the extent at ``offset``; no other byte of it changes.

        ``planes``: ``[page, head, offset, stored]`` each, strided where head-major, in the order of the layout's
        sections, as ``TorchStorage.planes`` returns them.  Raises ``BadArgument`` where they do not match the layout or
        a run lies outside either side.
        """
        from kvcrucible.engine.kernels import api

        api.pack(self._range(offset, layout.size_bytes), layout, planes, runs)

    def unpack(
        self, layout: PackedLayout, offset: int, planes: Sequence[Tensor], runs: Sequence[CopyRun]
    ) -> None:
        """Copy ``runs`` from the extent at ``offset`` to the device, whole pages; as :meth:`pack`, the other way."""
        from kvcrucible.engine.kernels import api

        api.unpack(self._range(offset, layout.size_bytes), layout, planes, runs)

    def _range(self, offset: int, size: int) -> Tensor:
        if offset < 0 or size < 0 or offset + size > len(self.buffer):
            raise BadArgument(
                f"bytes [{offset}, {offset + size}) of host memory",
                f"{self.capacity_bytes} bytes",
                "stay within an extent of the arena",
            )
        return self.buffer[offset : offset + size]
