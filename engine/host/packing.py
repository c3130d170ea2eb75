"""How a sequence's pages lie in one host extent, and in how few copies they get there (DESIGN 4.1, 4.2, 4.4).

An extent holds ``pages`` *slots* of one pool in logical order.  It consists of *sections*, one for each layer and
plane in the order of the profile, without a byte between them::

    layer 0: k_code, k_scale, v_code, v_scale │ layer 1: k_code, …
    section:  [outer, slot, page bytes]        outer = 1 (page-major) or the KV head (head-major)

Within a section the slots follow one another, so that pages whose device ids follow one another too move in a single
copy.  That is also why a section repeats the plane order of its pool: what is one run of bytes on the device is one run
on the host.  All bytes of a slot are there whatever its coverage: a partial tail occupies a whole page.

Sizes and offsets are bytes and follow from the plane list alone.  The control plane reads this module; it knows no
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import Geometry, Plane, PlaneOrder, StorageProfile, check_page_size


@dataclass(frozen=True, slots=True)
class Section:
    """All slots of one plane of one layer: ``[outer, slots, page_bytes]`` from ``offset_bytes`` of the extent on.

    ``outer`` is the number of KV heads where the plane is head-major, else 1; ``page_bytes`` is what one slot takes in
    each.
    """

    layer: int
    plane: Plane
    offset_bytes: int
    outer: int
    slots: int
    page_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the section."""
        return self.outer * self.slots * self.page_bytes

    def offset_of(self, slot: int, outer: int = 0) -> int:
        """Return where slot ``slot`` begins within the extent, in row ``outer`` of the section."""
        assert 0 <= slot < self.slots
        assert 0 <= outer < self.outer
        return self.offset_bytes + (outer * self.slots + slot) * self.page_bytes


@dataclass(frozen=True)
class PackedLayout:
    """The layout table of an extent of ``pages`` slots; pure.

    Raises ``BadArgument`` for fewer than one page, a page size that is no power of two, or a profile whose groups do
    not divide the head dimension.
    """

    profile: StorageProfile
    geometry: Geometry
    page_size: int
    order: PlaneOrder
    pages: int

    def __post_init__(self) -> None:
        check_page_size(self.page_size)
        self.profile.check_head_dim(self.geometry.head_dim)
        if self.pages < 1:
            raise BadArgument(f"an extent of {self.pages} pages", "nothing to hold", "pack at least one page")

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Every section, ascending and without gaps."""
        heads = self.geometry.kv_heads
        outer, inner = (heads, 1) if self.order is PlaneOrder.HEAD_MAJOR else (1, heads)
        sections: list[Section] = []
        offset = 0
        for layer in range(self.geometry.layers):
            for plane in self.profile.planes:
                page_bytes = inner * self.page_size * plane.bytes_per_row(self.geometry.head_dim)
                section = Section(layer, plane, offset, outer, self.pages, page_bytes)
                sections.append(section)
                offset += section.size_bytes
        return tuple(sections)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole extent: exactly ``pages`` page groups."""
        return self.pages * self.profile.bytes_per_page_group(self.geometry, self.page_size)


@dataclass(frozen=True, slots=True)
class CopyRun:
    """``pages`` pages that follow one another on both sides: device ids from ``device_page``, slots from ``slot``."""

    device_page: int
    slot: int
    pages: int


def coalesce(placed: Iterable[tuple[int, int]]) -> list[CopyRun]:
    """Return the fewest runs that copy every (device page, slot) of ``placed``, by slot.

    ``placed`` may come in any order.  Raises ``BadArgument`` where a device page or a slot is named twice or is
    negative.
    """
    pairs = sorted(placed, key=lambda pair: pair[1])
    for name, ids in (("device page", [d for d, _ in pairs]), ("slot", [s for _, s in pairs])):
        if len(set(ids)) < len(ids) or min(ids, default=0) < 0:
            raise BadArgument(
                f"a copy of {len(pairs)} pages", f"a {name} that is negative or named twice", "name each once"
            )
    runs: list[CopyRun] = []
    for device, slot in pairs:
        last = runs[-1] if runs else None
        if last is not None and (device, slot) == (last.device_page + last.pages, last.slot + last.pages):
            runs[-1] = CopyRun(last.device_page, last.slot, last.pages + 1)
        else:
            runs.append(CopyRun(device, slot, 1))
    return runs
