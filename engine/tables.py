"""Execution tables: row leases, each pool's block-table matrix and its frozen rows (DESIGN 4.7, decision 0011).

A row number is leased once and means the same sequence in every pool's matrix.  The host keeps a mirror of
``block_tables[row, logical_block]``; uploads go through the stream to the storage, whose matrix never moves.  A row
owns nothing: it repeats the mapping of the sequence that leases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import NoRow
from kvcrucible.contract.snapshot import Touched
from kvcrucible.engine.storage.interface import Storage
from kvcrucible.engine.streams import DeviceStream
from kvcrucible.engine.work import WorkCounters

#: Label of an upload of table entries, by which it is known on its stream.
UPLOAD_LABEL = "table upload"


class RowLeases:
    """Who has which of ``rows`` row numbers, over all of ``pools`` pools."""

    def __init__(self, rows: int, pools: int, touched: Touched) -> None:
        self.holders: list[int | None] = [None] * rows
        self._free = list(range(rows - 1, -1, -1))
        self._pools, self._touched = range(pools), touched

    @property
    def free_rows(self) -> int:
        """Rows that no sequence leases."""
        return len(self._free)

    def lease(self, sequence: int) -> int:
        """Give a row to ``sequence``; it is returned by :meth:`release`.  Raises ``NoRow`` where none is left."""
        if not self._free:
            raise NoRow(
                f"a row for sequence {sequence}",
                f"all {len(self.holders)} rows are leased",
                "finish or cancel a sequence",
            )
        row = self._free.pop()
        self._set(row, sequence)
        return row

    def release(self, row: int) -> None:
        """Take the row back; the caller has cleared it in every pool."""
        assert self.holders[row] is not None
        self._set(row, None)
        self._free.append(row)

    def _set(self, row: int, holder: int | None) -> None:
        self.holders[row] = holder
        self._touched.rows.update([(pool, row) for pool in self._pools])


class ExecutionTables:
    """One pool's matrix: ``rows`` rows of ``blocks`` entries each."""

    def __init__(
        self,
        pool: int,
        rows: int,
        blocks: int,
        storage: Storage,
        stream: DeviceStream,
        touched: Touched,
        work: WorkCounters,
    ) -> None:
        self.pool, self.blocks = pool, blocks
        self.entries: list[list[int]] = [[] for _ in range(rows)]
        self._frozen: set[int] = set()
        self._storage, self._stream, self._touched, self._work = storage, stream, touched, work

    def publish(self, row: int, first_block: int, devices: Sequence[int]) -> None:
        """Map logical blocks from ``first_block`` on to ``devices``, in one upload; earlier blocks stay."""
        if not devices:
            return
        assert row not in self._frozen, f"row {row} is frozen"
        entries = self.entries[row]
        assert first_block <= len(entries), f"row {row}: hole before block {first_block}"
        assert first_block + len(devices) <= self.blocks
        entries[first_block : first_block + len(devices)] = devices
        self._upload(partial(self._storage.write_table, row, first_block, tuple(devices)), row, len(devices))

    def cut(self, row: int, blocks: int) -> None:
        """Unmap every logical block from ``blocks`` on."""
        assert row not in self._frozen, f"row {row} is frozen"
        entries = self.entries[row]
        holes = len(entries) - blocks
        if holes <= 0:
            return
        del entries[blocks:]
        self._upload(partial(self._storage.clear_table, row, blocks, holes), row, holes)

    def repeat(self, row: int, devices: Sequence[int]) -> None:
        """Let a row say ``devices`` after a cut: all that it said, but for its end and the last page that stays."""
        keep = len(devices)
        self.cut(row, keep)
        if keep and self.entries[row][keep - 1] != devices[-1]:
            self.publish(row, keep - 1, devices[-1:])

    def freeze(self, row: int) -> tuple[int, ...]:
        """Forbid changes of the row until :meth:`thaw`; return its entries."""
        assert row not in self._frozen
        self._frozen.add(row)
        return tuple(self.entries[row])

    def thaw(self, row: int) -> None:
        """Allow changes of the row again."""
        self._frozen.remove(row)

    def _upload(self, effect: partial[None], row: int, entries: int) -> None:
        # Each queued upload has a staging buffer of its own, never one that uploads take turns in (DESIGN 4.7): what
        # the effect holds are immutable numbers, since the mirror may change before a lagging stream runs it.
        self._stream.submit(effect, UPLOAD_LABEL)
        self._touched.rows.add((self.pool, row))
        self._work.table_uploads += 1
        self._work.table_entries += entries


def tables_of(
    config: EngineConfig,
    storages: Sequence[Storage],
    stream: DeviceStream,
    touched: Touched,
    work: WorkCounters,
) -> list[ExecutionTables]:
    """Return the tables of every pool, empty."""
    rows = config.max_concurrency
    return [
        ExecutionTables(pool, rows, config.blocks_per_row(pool), storage, stream, touched, work)
        for pool, storage in enumerate(storages)
    ]
