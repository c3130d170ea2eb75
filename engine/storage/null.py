"""Storage without tensors: the ledger depth of DESIGN 7, where only the bookkeeping is under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.host.packing import CopyRun, PackedLayout
from kvcrucible.engine.storage.interface import HostMemory, Storage, StoredPlanes


class NullStorage:
    """Does nothing but count what it was asked for, so that a test can tell that effects were issued at all.

    Checks no argument: it has no planes or tables to hold them against.
    """

    __slots__ = ("columns_copied", "copies", "table_clears", "table_writes")

    def __init__(self) -> None:
        self.copies = 0
        self.columns_copied = 0
        self.table_writes = 0
        self.table_clears = 0

    def stored(self) -> StoredPlanes | None:
        """None: it has no planes."""
        return None

    def planes(self) -> Sequence[Any]:
        """Return no plane."""
        return ()

    def copy_columns(self, pool: int, source_page: int, destination_page: int, columns: int) -> None:
        """Count one copy of ``columns`` columns."""
        self.copies += 1
        self.columns_copied += columns

    def write_table(self, row: int, first_block: int, page_ids: Sequence[int]) -> None:
        """Count the entries written."""
        self.table_writes += len(page_ids)

    def clear_table(self, row: int, first_block: int, count: int) -> None:
        """Count the entries turned into holes."""
        self.table_clears += count


class NullHostMemory:
    """``capacity_bytes`` that hold nothing; copies do nothing."""

    __slots__ = ("capacity_bytes",)

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes

    def pack(self, layout: PackedLayout, offset: int, planes: Sequence[Any], runs: Sequence[CopyRun]) -> None:
        """Do nothing."""

    def unpack(
        self, layout: PackedLayout, offset: int, planes: Sequence[Any], runs: Sequence[CopyRun]
    ) -> None:
        """Do nothing."""


def per_pool(config: EngineConfig, storage: Storage | Sequence[Storage] | None) -> list[Storage]:
    """Return one storage for each pool: what was given, or storages that store nothing where that is None.

    Raises ``BadArgument`` where the number of storages is not that of the pools, or where a storage's planes are not
    what its pool declares.
    """
    if storage is None:
        return [NullStorage() for _ in config.pools]
    storages = list(storage) if isinstance(storage, Sequence) else [storage]
    if len(storages) != len(config.pools):
        raise BadArgument(
            f"an engine with {len(config.pools)} pools", f"{len(storages)} storages", "give one for each pool"
        )
    for spec, one in zip(config.pools, storages, strict=True):
        _require_agreement(spec, one.stored())
    return storages


def host_memory_of(spec: HostSpec, memory: HostMemory | None, storages: Sequence[Storage]) -> HostMemory:
    """Return the memory behind the arena: what was given, or one that stores nothing where that is None.

    Raises ``BadArgument`` where it has fewer bytes than the arena, or where only one of memory and storages stores
    anything: what is demoted would come back as something else.
    """
    if memory is None:
        memory = NullHostMemory(spec.capacity_bytes)
    if memory.capacity_bytes < spec.capacity_bytes:
        raise BadArgument(
            f"a host arena of {spec.capacity_bytes} bytes",
            f"host memory of {memory.capacity_bytes}",
            "allocate at least as much as the arena gives out",
        )
    stores = not isinstance(memory, NullHostMemory)
    for pool, storage in enumerate(storages):
        if (storage.stored() is not None) is stores:
            continue
        raise BadArgument(
            f"a Host tier for pool {pool}",
            f"its storage holds {'nothing' if stores else 'planes'}, "
            f"the host memory {'real bytes' if stores else 'nothing'}",
            "give every pool a storage with planes, or no host memory"
            if stores
            else "give the engine a host memory with bytes, such as TorchHostMemory",
        )
    return memory


def _require_agreement(spec: PoolSpec, stored: StoredPlanes | None) -> None:
    if stored is None or not spec.planes:
        return
    declared = [StoredPlanes(p.profile, p.geometry, p.page_size, p.order) for p in spec.planes]
    if declared != [stored]:
        raise BadArgument(
            f"pool {spec.name} with planes {', '.join(map(_words, declared))}",
            f"its storage holds {_words(stored)}",
            "declare what the storage holds, or give a storage of the declared planes",
        )


def _words(planes: StoredPlanes) -> str:
    shape = planes.geometry
    return (
        f"{planes.profile.name} {shape.layers} x {shape.kv_heads} x {shape.head_dim} "
        f"in pages of {planes.page_size}, {planes.order.value}"
    )
