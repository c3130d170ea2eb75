"""The bytes of the Host tier, and copies between them and a pool's planes (DESIGN 4.4).

Torch is imported when memory is allocated, not when this module is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PlaneOrder
from kvcrucible.engine.host.packing import CopyRun, PackedLayout, Section

if TYPE_CHECKING:
    from torch import Tensor


class TorchHostMemory:
    """``capacity_bytes`` bytes of host memory, allocated once and zeroed; page-locked where ``pinned``.

    Implements ``HostMemory``.  Knows offsets, not extents: who owns which bytes is the arena's knowledge.  Offsets and
    sizes are bytes.  The object owns the memory; drop it to free it.
    """

    def __init__(self, capacity_bytes: int, *, pinned: bool = False) -> None:
        import torch

        if capacity_bytes < 1:
            raise BadArgument(f"{capacity_bytes} bytes of host memory", "a size below 1", "give 1 or more")
        self.buffer = torch.zeros(capacity_bytes, dtype=torch.uint8, pin_memory=pinned)

    @property
    def capacity_bytes(self) -> int:
        """Bytes that there are."""
        return len(self.buffer)

    def fill(self, offset: int, size: int, value: int) -> None:
        """Set every byte of ``[offset, offset + size)`` to ``value``, 0 to 255 (poison)."""
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
        for device, host in self._pairs(layout, offset, planes, runs):
            host.copy_(device, non_blocking=True)

    def unpack(
        self, layout: PackedLayout, offset: int, planes: Sequence[Tensor], runs: Sequence[CopyRun]
    ) -> None:
        """Copy ``runs`` from the extent at ``offset`` to the device, whole pages; as :meth:`pack`, the other way."""
        for device, host in self._pairs(layout, offset, planes, runs):
            device.copy_(host, non_blocking=True)

    def _pairs(
        self, layout: PackedLayout, offset: int, planes: Sequence[Tensor], runs: Sequence[CopyRun]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the bytes on the device and on the host of each run in each section; everything is checked first."""
        extent = self._range(offset, layout.size_bytes)
        if len(planes) != len(layout.sections):
            raise BadArgument(
                f"a copy of {len(planes)} planes",
                f"{layout.profile.name} over {layout.geometry.layers} layers has {len(layout.sections)}",
                "give every plane of the pool that the layout is for",
            )
        raw = [
            plane_bytes(plane, section, layout.order)
            for plane, section in zip(planes, layout.sections, strict=True)
        ]
        for run in runs:
            _check_run(run, layout.pages, min(len(rows[0]) for rows in raw))
        for rows, section in zip(raw, layout.sections, strict=True):
            stop = section.offset_bytes + section.size_bytes
            host = extent[section.offset_bytes : stop].view(section.outer, section.slots, section.page_bytes)
            for run in runs:
                yield (
                    rows[:, run.device_page : run.device_page + run.pages],
                    host[:, run.slot : run.slot + run.pages],
                )

    def _range(self, offset: int, size: int) -> Tensor:
        if offset < 0 or size < 0 or offset + size > len(self.buffer):
            raise BadArgument(
                f"bytes [{offset}, {offset + size}) of host memory",
                f"{self.capacity_bytes} bytes",
                "stay within an extent of the arena",
            )
        return self.buffer[offset : offset + size]


def plane_bytes(plane: Tensor, section: Section, order: PlaneOrder) -> Tensor:
    """Return a plane's own memory as uint8 ``[outer, pages, page_bytes]``; raises ``BadArgument`` for another shape."""
    import torch

    memory = plane.transpose(0, 1) if order is PlaneOrder.HEAD_MAJOR else plane
    found = memory.numel() * memory.element_size() if memory.dim() == 4 and memory.is_contiguous() else -1
    pages = plane.shape[0]
    if found != section.outer * pages * section.page_bytes:
        raise BadArgument(
            f"plane {section.plane.name} of layer {section.layer}, {tuple(plane.shape)}, as {order.value}",
            f"{section.page_bytes} bytes a page in {section.outer} rows, without gaps, are expected",
            "give the pool's own planes and its own order",
        )
    return memory.view(torch.uint8).view(section.outer, pages, section.page_bytes)


def _check_run(run: CopyRun, slots: int, device_pages: int) -> None:
    inside = 0 <= run.device_page <= device_pages - run.pages and 0 <= run.slot <= slots - run.pages
    if run.pages < 1 or not inside:
        raise BadArgument(
            f"a run of {run.pages} pages from device page {run.device_page}, slot {run.slot}",
            f"{device_pages} device pages, {slots} slots",
            "stay within both",
        )
