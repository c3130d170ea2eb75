"""Storage without tensors: the ledger depth of DESIGN 7, where only the bookkeeping is under test."""

from __future__ import annotations

from collections.abc import Sequence

from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.storage.interface import Storage


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


def per_pool(config: EngineConfig, storage: Storage | Sequence[Storage] | None) -> list[Storage]:
    """Return one storage for each pool: what was given, or storages that store nothing where that is None.

    Raises ``BadArgument`` where the number of storages is not that of the pools.
    """
    if storage is None:
        return [NullStorage() for _ in config.pools]
    storages = list(storage) if isinstance(storage, Sequence) else [storage]
    if len(storages) != len(config.pools):
        raise BadArgument(
            f"an engine with {len(config.pools)} pools", f"{len(storages)} storages", "give one for each pool"
        )
    return storages
