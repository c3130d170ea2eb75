"""The host arena: variable-size extents in one bounded range of bytes that is allocated once (DESIGN 4.4).

Life cycle of a range of bytes:

1. *hole*: part of no extent.  Two holes never touch: neighbours are joined at once, whatever the policy.
2. ``reserve`` cuts an extent from the front of the hole that the policy picks; the rest stays a hole.
3. ``release`` hands the bytes to ``on_release`` (which may poison them), then makes them a hole again.

At every moment ``used + free == capacity``, and extents and holes tile the arena without a gap.  That enough bytes are
free does not mean that an extent fits: ``fits`` asks for the geometry.  The arena knows places, not bytes: memory
belongs to the storage, and who may still be reading an extent is the business of whoever releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvcrucible.contract.config import DEFAULT_ALIGNMENT_BYTES, HostSpec
from kvcrucible.contract.errors import BadArgument, HostGeometry, StaleHandle
from kvcrucible.engine.host.policies import DEFAULT_POLICY, placement_policy

#: Called with offset and size in bytes of an extent that is about to become a hole.
OnRelease: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Extent:
    """Ownership of ``[offset_bytes, offset_bytes + size_bytes)`` of the arena until it is released.

    ``serial`` counts from 1 and is never given out again.  ``asked_bytes`` of ``size_bytes`` were asked for; the rest
    is rounding.
    """

    serial: int
    offset_bytes: int
    size_bytes: int
    asked_bytes: int

    @property
    def stop_bytes(self) -> int:
        """Offset of the byte after the last."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class ArenaStatistics:
    """One moment of an arena, in bytes and counts.  ``padding_bytes`` of ``used_bytes`` were lost to alignment."""

    capacity_bytes: int
    used_bytes: int
    padding_bytes: int
    largest_hole_bytes: int
    extents: int
    holes: int

    @property
    def free_bytes(self) -> int:
        """Bytes in holes."""
        return self.capacity_bytes - self.used_bytes

    @property
    def external_fragmentation(self) -> float:
        """Share of the free bytes that lie outside the largest hole, 0 to 1; 0 where nothing is free."""
        return 1 - self.largest_hole_bytes / self.free_bytes if self.free_bytes else 0.0


class HostArena:
    """``capacity_bytes`` bytes, of which extents take whole multiples of ``alignment_bytes``.

    Every method either takes full effect or raises and changes nothing.  Raises ``BadArgument`` for an alignment that
    is no power of two or a capacity that is not a multiple of it, ``InputError`` for an unknown policy.  Constant work
    for each call, beside the policy's search.
    """

    def __init__(
        self,
        capacity_bytes: int,
        alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
        policy: str = DEFAULT_POLICY,
        on_release: OnRelease | None = None,
    ) -> None:
        self._spec = HostSpec(capacity_bytes, alignment_bytes)
        self.capacity_bytes, self.alignment_bytes = capacity_bytes, alignment_bytes
        self.policy_name = policy
        self.on_release = on_release
        self._policy = placement_policy(policy)
        self._live: dict[int, Extent] = {}
        #: Size of each hole by its start, and its start by the byte after it: how neighbours are found.
        self._holes: dict[int, int] = {}
        self._hole_before: dict[int, int] = {}
        self._used_bytes = 0
        self._padding_bytes = 0
        self._next_serial = 1
        self._add_hole(0, capacity_bytes)

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes in extents."""
        return self._used_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes in holes."""
        return self.capacity_bytes - self._used_bytes

    def extents(self) -> tuple[Extent, ...]:
        """Return the live extents by address."""
        return tuple(sorted(self._live.values(), key=lambda extent: extent.offset_bytes))

    def holes(self) -> tuple[tuple[int, int], ...]:
        """Return (offset, size) of every hole, by address."""
        return tuple(sorted(self._holes.items()))

    def statistics(self) -> ArenaStatistics:
        """Return the figures of this moment; linear in the holes."""
        return ArenaStatistics(
            self.capacity_bytes,
            self._used_bytes,
            self._padding_bytes,
            max(self._holes.values(), default=0),
            len(self._live),
            len(self._holes),
        )

    def rounded(self, size_bytes: int) -> int:
        """Return the bytes that an extent of ``size_bytes`` takes; raises ``BadArgument`` below 1."""
        if size_bytes < 1:
            raise BadArgument(f"an extent of {size_bytes} bytes", "a size below 1", "give 1 or more")
        return self._spec.rounded(size_bytes)

    def fits(self, sizes_bytes: Sequence[int]) -> bool:
        """Tell whether :meth:`reserve_all` would now succeed with these sizes.  Changes nothing."""
        placed = self._place(self._largest_first(sizes_bytes))
        fit = placed is not None
        if placed is not None:
            self._take_back(placed)
        return fit

    def fits_without(self, sizes_bytes: Sequence[int], ended: Collection[int]) -> bool:
        """Tell whether at most two sizes would fit if the extents with the serials ``ended`` were released.

        Linear in the extents.  The largest goes first; of two, any hole will do for it if there is a way at all.
        """
        assert len(sizes_bytes) <= 2
        holes, at = [], 0
        for extent in self.extents():
            if extent.serial not in ended:
                holes.append(extent.offset_bytes - at)
                at = extent.offset_bytes + extent.size_bytes
        holes.append(self.capacity_bytes - at)
        for _, size in self._largest_first(sizes_bytes):
            largest = max(range(len(holes)), key=holes.__getitem__)
            if holes[largest] < size:
                return False
            holes[largest] -= size
        return True

    def is_live(self, extent: Extent) -> bool:
        """Tell whether the handle still owns its bytes."""
        return self._live.get(extent.serial) == extent

    # -- what changes it -----------------------------------------------------------------------------------------------

    def reserve(self, size_bytes: int) -> Extent:
        """Return a new extent of at least ``size_bytes``, the caller's until released; raises ``HostGeometry``."""
        return self.reserve_all([size_bytes])[0]

    def reserve_all(self, sizes_bytes: Sequence[int]) -> list[Extent]:
        """Return one extent for each size, in order, or none at all.

        The largest is placed first.  Raises ``HostGeometry`` where one finds no hole: for a single size exactly where
        no hole is large enough, for several where this order of placing does not work out.
        """
        order = self._largest_first(sizes_bytes)
        placed = self._place(order)
        if placed is None:
            raise self._refusal(sizes_bytes)
        offsets = {index: offset for (index, _), (offset, _) in zip(order, placed.ranges, strict=True)}
        return [self._own(offsets[index], size) for index, size in enumerate(sizes_bytes)]

    def release(self, extent: Extent) -> None:
        """End the extent; its bytes go to ``on_release`` and are a hole again.

        Raises ``StaleHandle`` for one that has ended, and whatever ``on_release`` raises; then it is still live.
        """
        if not self.is_live(extent):
            raise StaleHandle(
                f"release extent {extent.serial} at byte {extent.offset_bytes}",
                "it has ended, or was never given out",
                "drop the handle: its bytes belong to somebody else or to nobody",
            )
        if self.on_release is not None:
            self.on_release(extent.offset_bytes, extent.size_bytes)
        del self._live[extent.serial]
        self._padding_bytes -= extent.size_bytes - extent.asked_bytes
        self._fill_hole(extent.offset_bytes, extent.size_bytes)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _largest_first(self, sizes_bytes: Sequence[int]) -> list[tuple[int, int]]:
        """Return (index, rounded size), largest first, equal ones in the order given."""
        rounded = [(index, self.rounded(size)) for index, size in enumerate(sizes_bytes)]
        return sorted(rounded, key=lambda item: -item[1])

    def _place(self, order: Sequence[tuple[int, int]]) -> _Placed | None:
        """Cut a range for each size out of the holes; where one finds none, undo all and return None."""
        placed = _Placed(self._policy.cursor, [])
        for _, size in order:
            start = self._policy.choose(size)
            if start is None:
                self._take_back(placed)
                return None
            hole = self._holes[start]
            assert hole >= size, f"the policy chose a hole of {hole} for {size}"
            self._drop_hole(start, hole)
            if hole > size:
                self._add_hole(start + size, hole - size)
            self._used_bytes += size
            self._policy.placed(start + size)
            placed.ranges.append((start, size))
        return placed

    def _take_back(self, placed: _Placed) -> None:
        for start, size in reversed(placed.ranges):
            self._fill_hole(start, size)
        self._policy.cursor = placed.cursor_before

    def _own(self, offset_bytes: int, asked_bytes: int) -> Extent:
        extent = Extent(self._next_serial, offset_bytes, self.rounded(asked_bytes), asked_bytes)
        self._next_serial += 1
        self._live[extent.serial] = extent
        self._padding_bytes += extent.size_bytes - asked_bytes
        return extent

    def _fill_hole(self, start: int, size: int) -> None:
        """Make ``[start, start + size)`` a hole, one with the holes that touch it."""
        self._used_bytes -= size
        assert self._used_bytes >= 0
        after = self._holes.get(start + size)
        if after is not None:
            self._drop_hole(start + size, after)
            size += after
        before = self._hole_before.get(start)
        if before is not None:
            length = self._holes[before]
            self._drop_hole(before, length)
            start, size = before, size + length
        self._add_hole(start, size)

    def _add_hole(self, start: int, size: int) -> None:
        self._holes[start] = size
        self._hole_before[start + size] = start
        self._policy.add(start, size)

    def _drop_hole(self, start: int, size: int) -> None:
        del self._holes[start], self._hole_before[start + size]
        self._policy.remove(start, size)

    def _refusal(self, sizes_bytes: Sequence[int]) -> HostGeometry:
        now = self.statistics()
        total = sum(self.rounded(size) for size in sizes_bytes)
        asked = (
            f"an extent of {total} bytes"
            if len(sizes_bytes) == 1
            else f"{len(sizes_bytes)} extents of {total} bytes in all, the largest {max(sizes_bytes)}"
        )
        enough = total <= now.free_bytes
        return HostGeometry(
            asked,
            f"{now.free_bytes} of {self.capacity_bytes} bytes free in {now.holes} holes, "
            f"the largest {now.largest_hole_bytes}",
            "release extents beside a hole, or move fewer pages at once"
            if enough
            else "release extents, move fewer pages at once, or give the arena more bytes",
        )


@dataclass(slots=True)
class _Placed:
    """Ranges (start, size) cut in order, and the policy's cursor before the first: enough to undo them exactly."""

    cursor_before: int
    ranges: list[tuple[int, int]]
