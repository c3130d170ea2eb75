"""The host arena as a history shows it, and transfers under way (DESIGN 4.4; decision 0013)."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcrucible.invariants.history.outcome import Broken

if TYPE_CHECKING:
    from kvcrucible.contract.history_header import Host
    from kvcrucible.contract.snapshot import Tier
    from kvcrucible.invariants.history.records import Page


class Extent:
    """An extent: bytes from ``offset``, with ``live`` slots; it ends with the last of them."""

    __slots__ = ("arena", "live", "offset", "size")

    def __init__(self, arena: Arena, offset: int, size: int, live: int) -> None:
        self.arena, self.offset, self.size, self.live = arena, offset, size, live

    def drop(self) -> None:
        """Let one slot end."""
        self.live -= 1
        assert self.live >= 0, "a slot of the arena ended twice"
        if not self.live:
            self.arena.remove(self)


class Arena:
    """Extents by address; no two overlap, and all lie within the capacity, aligned."""

    def __init__(self, host: Host) -> None:
        self.capacity, self.alignment = host.capacity_bytes, host.alignment_bytes
        self._offsets: list[int] = []
        self._extents: dict[int, Extent] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def rounded(self, size: int) -> int:
        """Return the bytes that an extent of ``size`` takes."""
        return -(-size // self.alignment) * self.alignment

    def take(self, offset: int, size: int, due: int, slots: int) -> Extent:
        """Take an extent for ``slots`` pages, which is to have ``due`` bytes; raises ``Broken``."""
        if size != due:
            raise Broken(
                "host-conservation", f"an extent of {size} bytes for {slots} pages, where {due} are due"
            )
        if offset % self.alignment or offset + size > self.capacity:
            raise Broken(
                "host-conservation",
                f"an extent of {size} bytes at {offset}: the arena has {self.capacity} bytes, aligned to "
                f"{self.alignment}",
            )
        place = bisect_left(self._offsets, offset)
        for neighbour in self._offsets[max(0, place - 1) : place + 1]:
            other = self._extents[neighbour]
            if offset < other.offset + other.size and other.offset < offset + size:
                raise Broken(
                    "host-conservation",
                    f"an extent of {size} bytes at {offset} overlaps the one of {other.size} at {other.offset}",
                )
        extent = Extent(self, offset, size, slots)
        insort(self._offsets, offset)
        self._extents[offset] = extent
        return extent

    def remove(self, extent: Extent) -> None:
        """Give the bytes of an extent back."""
        del self._offsets[bisect_left(self._offsets, extent.offset)]
        del self._extents[extent.offset]

    def holes(self) -> tuple[int, ...]:
        """Return the sizes of the holes, in bytes, by address."""
        found, at = [], 0
        for offset in self._offsets:
            found.append(offset - at)
            at = offset + self._extents[offset].size
        found.append(self.capacity - at)
        return tuple(size for size in found if size)


@dataclass(slots=True)
class Moved:
    """One page of a transfer.  ``device``, ``extent``: the destination that it took; neither: a clean copy."""

    page: Page
    device: int | None = None
    extent: Extent | None = None

    @property
    def fresh(self) -> bool:
        """Whether the destination is the transfer's own."""
        return self.device is not None or self.extent is not None


@dataclass(slots=True)
class Transfer:
    """A transfer under way."""

    id: int
    source: Tier
    keep: bool
    moves: list[Moved] = field(default_factory=list)
    cancelled: bool = False
