"""A storage that counts what its engine really asks of it, so that no judgement rests on the engine's own counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcrucible.engine.storage.interface import Storage, StoredPlanes


class CountedStorage:
    """``inner``, and how many token columns it has been asked to copy; counted as the effect runs."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.columns_copied = 0

    def stored(self) -> StoredPlanes | None:
        """Return what its planes are."""
        return self._inner.stored()

    def planes(self) -> Sequence[Any]:
        """Return the planes themselves."""
        return self._inner.planes()

    def copy_columns(self, pool: int, source_page: int, destination_page: int, columns: int) -> None:
        """Copy, and count."""
        self.columns_copied += columns
        self._inner.copy_columns(pool, source_page, destination_page, columns)

    def write_table(self, row: int, first_block: int, page_ids: Sequence[int]) -> None:
        """Map blocks."""
        self._inner.write_table(row, first_block, page_ids)

    def clear_table(self, row: int, first_block: int, count: int) -> None:
        """Turn entries into holes."""
        self._inner.clear_table(row, first_block, count)
