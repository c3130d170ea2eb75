"""Page slots in host extents: who holds which, and when an extent ends (DESIGN 4.4).

One reservation takes one extent for each pool and gives out its slots, one a page.  Slots end one by one, since pages
of one extent need not end together; the extent goes back to the arena with the last of them.  Until then the bytes of
ended slots are *idle*: used, and of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvcrucible.contract.errors import StaleHandle
from kvcrucible.engine.host.arena import Extent, HostArena


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Room for one page of ``pool``: number ``slot`` of ``extent``, which has ``slots`` of them."""

    extent: Extent
    pool: int
    slot: int
    slots: int


class HostSlots:
    """The slots of an arena; ``page_bytes`` are the bytes of a page group in each pool.

    ``changed`` collects the serials of extents that a call took, gave back or shortened, until whoever watches clears
    it.  Every method either takes full effect or raises and changes nothing.
    """

    def __init__(self, arena: HostArena, page_bytes: Sequence[int]) -> None:
        self.arena = arena
        self.page_bytes = tuple(page_bytes)
        self.changed: set[int] = set()
        #: Live slots of each extent, by its serial.
        self._live: dict[int, set[HostSlot]] = {}

    def reserve(
        self, pages: Sequence[int], make_room: Callable[[], None] | None = None
    ) -> list[list[HostSlot]]:
        """Return slots for ``pages[pool]`` pages of each pool, in logical order; raises ``HostGeometry``.

        They are the caller's until freed.  All pools or none; a pool without pages gets no extent.  ``make_room`` is
        called before the first is taken, and frees what lies in the way: :meth:`fits_without` has said that they fit
        then.
        """
        if make_room is not None:
            make_room()
        extents = iter(self.arena.reserve_all(self._sizes(pages)))
        given: list[list[HostSlot]] = []
        for pool, count in enumerate(pages):
            if not count:
                given.append([])
                continue
            extent = next(extents)
            slots = [HostSlot(extent, pool, slot, count) for slot in range(count)]
            self._live[extent.serial] = set(slots)
            self.changed.add(extent.serial)
            given.append(slots)
        return given

    def free(self, slots: Sequence[HostSlot]) -> None:
        """End ``slots``; extents without any go back to the arena.  Raises ``StaleHandle`` for one that has ended."""
        for slot in slots:
            if slot not in self._live.get(slot.extent.serial, ()):
                raise StaleHandle(
                    f"free slot {slot.slot} of extent {slot.extent.serial}", "it has ended", "drop the handle"
                )
        assert len(set(slots)) == len(slots), "one slot ended twice in one call"
        for slot in slots:
            live = self._live[slot.extent.serial]
            live.remove(slot)
            self.changed.add(slot.extent.serial)
            if not live:
                self.arena.release(slot.extent)
                del self._live[slot.extent.serial]

    def fits_without(self, pages: Sequence[int], ended: Collection[HostSlot]) -> bool:
        """Tell whether slots for ``pages[pool]`` pages of each pool could be had if the slots ``ended`` had ended."""
        left: dict[int, int] = {}
        for slot in ended:
            left[slot.extent.serial] = left.get(slot.extent.serial, 0) + 1
        gone = {serial for serial, slots in left.items() if slots == len(self._live[serial])}
        return self.arena.fits_without(self._sizes(pages), gone)

    def extents(self) -> tuple[int, ...]:
        """Return the serials of the extents that have not ended."""
        return tuple(self._live)

    def of(self, serial: int) -> tuple[HostSlot, ...]:
        """Return the slots of one extent that have not ended, by place; none where the extent has."""
        return tuple(sorted(self._live.get(serial, ()), key=lambda slot: slot.slot))

    def live(self) -> tuple[HostSlot, ...]:
        """Return the slots that have not ended, by place."""
        slots = (slot for live in self._live.values() for slot in live)
        return tuple(sorted(slots, key=lambda slot: (slot.extent.offset_bytes, slot.slot)))

    def _sizes(self, pages: Sequence[int]) -> list[int]:
        return [count * size for count, size in zip(pages, self.page_bytes, strict=True) if count]
