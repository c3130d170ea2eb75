"""Copies of whole bytes: columns of pages, and pages to and from the Host layout; what they are, and their checks.

Everything is checked before anything is touched; what is refused is a ``BadArgument``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PlaneOrder
from kvcrucible.engine.host.packing import CopyRun, PackedLayout, Section


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Columns ``[0, columns)`` of page ``source`` to page ``destination``."""

    source: int
    destination: int
    columns: int


@dataclass(frozen=True, slots=True, eq=False)
class PlaneSection:
    """One plane beside its section of an extent, both as the bytes that they are; neither is owned.

    ``device``: uint8 ``[outer, pages, page_bytes]``, ``host``: uint8 ``[outer, slots, page_bytes]``; ``outer`` is the
    number of KV heads where the plane is head-major, else 1.
    """

    device: Tensor
    host: Tensor


def check_copies(planes: Sequence[Tensor], copies: Sequence[PageCopy]) -> None:
    """Refuse copies outside the pages, and those whose result would depend on their order."""
    pages, page_size = planes[0].shape[0], planes[0].shape[2]
    if any(plane.shape[:3] != planes[0].shape[:3] for plane in planes):
        found = f"{sorted({tuple(plane.shape[:3]) for plane in planes})} pages, heads and offsets"
        raise BadArgument(f"a copy in {len(planes)} planes", found, "give the planes of one pool")
    for copy in copies:
        for page in (copy.source, copy.destination):
            if not 0 <= page < pages:
                raise BadArgument(f"page {page}", f"pages 0 to {pages - 1}", "use a page of this pool")
        if not 0 <= copy.columns <= page_size:
            raise BadArgument(f"columns [0, {copy.columns})", f"pages of {page_size}", "stay within the page")
    written = [copy.destination for copy in copies]
    twice = set(written) & {copy.source for copy in copies} or len(set(written)) < len(written)
    if twice:
        raise BadArgument(
            f"{len(copies)} copies at once", "a page that is written twice, or read and written", "part them"
        )


def plane_sections(
    extent: Tensor, layout: PackedLayout, planes: Sequence[Tensor], runs: Sequence[CopyRun]
) -> list[PlaneSection]:
    """Return every section of ``extent`` with its plane, after checking that ``runs`` lie inside both."""
    if extent.dtype != torch.uint8 or extent.dim() != 1 or len(extent) != layout.size_bytes:
        found = f"{layout.size_bytes} bytes expected for {layout.pages} pages"
        raise BadArgument(f"an extent {tuple(extent.shape)} of {extent.dtype}", found, "give exactly those")
    if len(planes) != len(layout.sections):
        raise BadArgument(
            f"a copy of {len(planes)} planes",
            f"{layout.profile.name} over {layout.geometry.layers} layers has {len(layout.sections)}",
            "give every plane of the pool that the layout is for",
        )
    sections = []
    for plane, section in zip(planes, layout.sections, strict=True):
        stop = section.offset_bytes + section.size_bytes
        host = extent[section.offset_bytes : stop].view(section.outer, section.slots, section.page_bytes)
        sections.append(PlaneSection(plane_bytes(plane, section, layout.order), host))
    _check_runs(runs, layout.pages, min(section.device.shape[1] for section in sections))
    return sections


def plane_bytes(plane: Tensor, section: Section, order: PlaneOrder) -> Tensor:
    """Return a plane's own memory as uint8 ``[outer, pages, page_bytes]``; ``BadArgument`` for another shape."""
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


def _check_runs(runs: Sequence[CopyRun], slots: int, device_pages: int) -> None:
    for run in runs:
        inside = 0 <= run.device_page <= device_pages - run.pages and 0 <= run.slot <= slots - run.pages
        if run.pages < 1 or not inside:
            raise BadArgument(
                f"a run of {run.pages} pages from device page {run.device_page}, slot {run.slot}",
                f"{device_pages} device pages, {slots} slots",
                "stay within both",
            )
    for name, starts in (
        ("device page", ((run.device_page, run.pages) for run in runs)),
        ("slot", ((run.slot, run.pages) for run in runs)),
    ):
        if _overlap(starts):
            raise BadArgument(f"{len(runs)} runs", f"a {name} in two of them", "name each page once")


def _overlap(ranges: Iterable[tuple[int, int]]) -> bool:
    """Tell whether two of ``ranges``, each a start and a length, share a number."""
    reached = 0
    for start, length in sorted(ranges):
        if start < reached:
            return True
        reached = start + length
    return False
