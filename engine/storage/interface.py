"""The small interfaces behind which tensors come in: a pool's planes, and the bytes of the Host tier (DESIGN 2, 4.7).

Every method that writes is one effect.  Whether it runs now, later or not at all is the business of the stream on which
the control plane enqueues it; a storage knows nothing of order, leases or sequences, and frees nothing.  Where planes
are on CUDA a method launches on torch's current stream and need not wait: what it launches reads only what was there
before in that stream's order, and what it reads on the host it keeps until the device has passed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvcrucible.contract.profiles import Geometry, PlaneOrder, StorageProfile
from kvcrucible.engine.host.packing import CopyRun, PackedLayout

#: Entry of the block-table matrix that maps no page.
HOLE = -1


@dataclass(frozen=True, slots=True)
class StoredPlanes:
    """What the planes of a storage are: all that has to agree with what its pool declares."""

    profile: StorageProfile
    geometry: Geometry
    page_size: int
    order: PlaneOrder


class Storage(Protocol):
    """Effects on the planes and block tables of one pool; an engine has one storage for each of its pools.

    An argument that is out of range raises ``BadArgument`` and changes nothing.
    """

    def stored(self) -> StoredPlanes | None:
        """Return what its planes are, None where it stores nothing."""

    def planes(self) -> Sequence[Any]:
        """Return the planes themselves, still owned here, as the host memory of the same kind takes them."""

    def copy_columns(self, pool: int, source_page: int, destination_page: int, columns: int) -> None:
        """Copy exactly the first ``columns`` token columns of a page group, over all planes of ``pool``.

        Columns at and beyond ``columns`` of the destination keep their bytes, whatever they are (DESIGN 4.5).
        """

    def write_table(self, row: int, first_block: int, page_ids: Sequence[int]) -> None:
        """Map logical blocks from ``first_block`` on to ``page_ids``, replacing what was there."""

    def clear_table(self, row: int, first_block: int, count: int) -> None:
        """Turn ``count`` entries of ``row``, from ``first_block`` on, into holes."""


class HostMemory(Protocol):
    """The bytes of the Host tier.  Knows offsets, not extents: who owns which bytes is the arena's knowledge.

    ``planes`` are those of one storage, in the order of the layout's sections.  Whole pages move, whatever their
    coverage (DESIGN 4.14.13).  An argument that is out of range raises ``BadArgument`` and changes nothing; a copy
    that did not take place raises ``EffectFailed``.
    """

    @property
    def capacity_bytes(self) -> int:
        """Bytes that there are."""

    def pack(self, layout: PackedLayout, offset: int, planes: Sequence[Any], runs: Sequence[CopyRun]) -> None:
        """Copy ``runs`` from the device to the extent at byte ``offset``; no other byte of it changes."""

    def unpack(
        self, layout: PackedLayout, offset: int, planes: Sequence[Any], runs: Sequence[CopyRun]
    ) -> None:
        """Copy ``runs`` from the extent at byte ``offset`` to the device; no other page changes."""
