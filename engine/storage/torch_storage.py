"""Storage in torch tensors: one pool's planes, page-major, and its block-table matrix (DESIGN 4.1, 4.7).

Everything is allocated once, here, and stays at its address until the storage is dropped.  Nothing is checked
against leases or frontiers: that is the control plane's knowledge; the storage refuses only what its shapes
cannot hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import Geometry, Side, StorageProfile, check_page_size
from kvcrucible.engine.kernels import api
from kvcrucible.engine.kernels.batch import check_mapped, slots
from kvcrucible.engine.kernels.view import LayerView
from kvcrucible.engine.storage.interface import HOLE

#: Stored formats that are torch dtypes of their own, by the name that profiles use.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchStorage:
    """The planes and block tables of pool ``pool``; implements ``Storage``.

    Planes are ``[capacity_pages, kv_heads, page_size, head_dim]``, one a layer and side, in the profile's
    dtype, zeroed at the start.  ``block_tables`` is ``[max_rows, max_blocks_per_row]``, int32, all holes at
    the start.  The object owns both; drop it to free them.  Raises ``BadArgument`` for counts below 1, a page
    size that is no power of two, or a profile whose planes are not plain numbers.
    """

    def __init__(
        self,
        profile: StorageProfile,
        geometry: Geometry,
        capacity_pages: int,
        page_size: int,
        max_rows: int,
        max_blocks_per_row: int,
        device: str | torch.device = "cpu",
        *,
        pool: int = 0,
    ) -> None:
        check_page_size(page_size)
        _check_at_least("capacity_pages", capacity_pages, 1)
        _check_at_least("max_rows", max_rows, 1)
        _check_at_least("max_blocks_per_row", max_blocks_per_row, 1)
        self.profile, self.geometry, self.pool = profile, geometry, pool
        self.capacity_pages, self.page_size = capacity_pages, page_size
        self.max_rows, self.max_blocks_per_row = max_rows, max_blocks_per_row
        dtype = {plane.side: _dtype(profile, plane.element) for plane in profile.planes}
        shape = (capacity_pages, geometry.kv_heads, page_size, geometry.head_dim)
        self.block_tables = torch.full((max_rows, max_blocks_per_row), HOLE, dtype=torch.int32, device=device)
        self._layers = [
            LayerView(
                torch.zeros(shape, dtype=dtype[Side.KEY], device=device),
                torch.zeros(shape, dtype=dtype[Side.VALUE], device=device),
                self.block_tables,
            )
            for _ in range(geometry.layers)
        ]

    @property
    def plane_bytes(self) -> int:
        """Bytes of all planes: ``capacity_pages`` page groups of the profile."""
        return self.capacity_pages * self.profile.bytes_per_page_group(self.geometry, self.page_size)

    def planes(self) -> list[Tensor]:
        """Return every plane itself, not a copy: layer by layer, keys before values."""
        return [plane for layer in self._layers for plane in (layer.key, layer.value)]

    def layer_view(self, layer: int) -> LayerView:
        """Return the planes of ``layer`` and the block tables for kernels: not copied, still owned here."""
        if not 0 <= layer < self.geometry.layers:
            raise BadArgument(f"layer {layer}", f"layers 0 to {self.geometry.layers - 1}", "use one of these")
        return self._layers[layer]

    # Effects: the ``Storage`` interface.

    def copy_columns(self, pool: int, source_page: int, destination_page: int, columns: int) -> None:
        """Copy the first ``columns`` token columns of a page group to another; no other byte changes.

        Raises ``BadArgument`` for another pool, a page that is not held, the same page twice, or more than a
        page.
        """
        if pool != self.pool:
            raise BadArgument(
                f"a copy in pool {pool}", f"the storage of pool {self.pool}", "use that pool's storage"
            )
        self._check_page(source_page)
        self._check_page(destination_page)
        self._check_columns(0, columns)
        if source_page == destination_page:
            raise BadArgument(f"a copy of page {source_page} to itself", "one page", "name two pages")
        for plane in self.planes():
            plane[destination_page, :, :columns].copy_(plane[source_page, :, :columns])

    def write_table(self, row: int, first_block: int, page_ids: Sequence[int]) -> None:
        """Map blocks from ``first_block`` on to ``page_ids``; ``BadArgument`` outside matrix or planes."""
        self._check_blocks(row, first_block, len(page_ids))
        for page in page_ids:
            self._check_page(page)
        entries = torch.tensor(page_ids, dtype=torch.int32, device=self.block_tables.device)
        self.block_tables[row, first_block : first_block + len(page_ids)] = entries

    def clear_table(self, row: int, first_block: int, count: int) -> None:
        """Turn ``count`` blocks from ``first_block`` on into holes; ``BadArgument`` outside the matrix."""
        self._check_blocks(row, first_block, count)
        self.block_tables[row, first_block : first_block + count] = HOLE

    # Payload, written and read through the tables.

    def append(
        self,
        layer: int,
        rows: Sequence[int],
        start_positions: Sequence[int],
        lengths: Sequence[int],
        k: Tensor,
        v: Tensor,
    ) -> None:
        """Write ``k``, ``v`` ``[T, Hkv, D]`` through the block table; see ``kernels.api.append``."""
        api.append(self.layer_view(layer), rows, start_positions, lengths, k, v)

    def read_row(self, layer: int, row: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return copies of K and V ``[stop − start, Hkv, D]`` at positions ``[start, stop)`` of a row.

        They keep the planes' dtype.  For tests and the harness; raises ``BadArgument`` where a position is
        not mapped.
        """
        if not 0 <= start <= stop:
            raise BadArgument(f"positions [{start}, {stop})", "not a range", "give 0 <= start <= stop")
        view = self.layer_view(layer)
        check_mapped(view, row, start, stop)
        return _gather(view, slots(view, [row], [start], [stop - start]))

    def read_pages(self, layer: int, page_ids: Sequence[int], start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return copies of K and V at positions ``[start, stop)`` of listed pages, as :meth:`read_row` does.

        ``page_ids`` are a sequence's logical blocks in order, so that one without a row can be read.  Raises
        ``BadArgument`` for positions beyond them or pages that are not held.
        """
        view = self.layer_view(layer)
        if not 0 <= start <= stop <= len(page_ids) * self.page_size:
            found = f"{len(page_ids)} pages of {self.page_size}"
            raise BadArgument(f"positions [{start}, {stop})", found, "stay within the pages")
        for page in page_ids:
            self._check_page(page)
        positions = torch.arange(start, stop, device=view.key.device)
        pages = torch.tensor(page_ids, dtype=torch.int64, device=view.key.device)
        targets = pages[positions // self.page_size] * self.page_size + positions % self.page_size
        return _gather(view, targets)

    def read_page(self, layer: int, page: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return copies of K and V ``[columns, Hkv, D]``: the first ``columns`` tokens of a page."""
        return self.read_pages(layer, [page], 0, columns)

    def raw_write(self, page: int, first_column: int, stop_column: int, value: float) -> None:
        """Fill columns ``[first_column, stop_column)`` of a page with ``value`` in every plane (poison).

        For the harness; never called by the engine (DESIGN 4.14.14).  Enqueue it on the stream like any
        other effect.
        """
        self._check_page(page)
        self._check_columns(first_column, stop_column)
        for plane in self.planes():
            plane[page, :, first_column:stop_column] = value

    def table_row(self, row: int) -> list[int]:
        """Return a host copy of one row of the block tables, holes as −1."""
        self._check_blocks(row, 0, 0)
        entries: list[int] = self.block_tables[row].tolist()
        return entries

    # Shape checks.

    def _check_page(self, page: int) -> None:
        if not 0 <= page < self.capacity_pages:
            raise BadArgument(
                f"page {page}", f"pages 0 to {self.capacity_pages - 1}", "use a page of this pool"
            )

    def _check_columns(self, first: int, stop: int) -> None:
        if not 0 <= first <= stop <= self.page_size:
            raise BadArgument(
                f"columns [{first}, {stop})", f"pages of {self.page_size}", "stay within the page"
            )

    def _check_blocks(self, row: int, first: int, count: int) -> None:
        if not 0 <= row < self.max_rows:
            raise BadArgument(f"row {row}", f"rows 0 to {self.max_rows - 1}", "use a leased row")
        if first < 0 or count < 0 or first + count > self.max_blocks_per_row:
            asked = f"blocks [{first}, {first + count}) of row {row}"
            raise BadArgument(
                asked, f"{self.max_blocks_per_row} blocks a row", "stay within the context length"
            )


def _gather(view: LayerView, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return copies of K and V ``[T, Hkv, D]`` at slots ``targets`` (page · P + offset)."""
    page, offset = targets // view.page_size, targets % view.page_size
    return view.key[page, :, offset], view.value[page, :, offset]


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise BadArgument(f"{name} = {value}", f"below {least}", f"give {least} or more")


def _dtype(profile: StorageProfile, element: str) -> torch.dtype:
    if element not in DTYPES or len(profile.planes) != len(Side):
        raise BadArgument(
            f"profile {profile.name} in torch planes",
            f"plain {', '.join(DTYPES)} are stored",
            "use FP32 or BF16",
        )
    return DTYPES[element]
