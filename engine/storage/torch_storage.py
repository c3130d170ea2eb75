"""Storage in torch tensors: one pool's planes, in either order, and its block-table matrix (DESIGN 4.1, 4.7).

Everything is allocated once, here, and stays at its address until the storage is dropped.  Nothing is checked
against leases or frontiers: that is the control plane's knowledge; the storage refuses only what its shapes
cannot hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import Geometry, PlaneOrder, Side, StorageProfile, check_page_size
from kvcrucible.engine.kernels import api
from kvcrucible.engine.kernels.backends import check_name
from kvcrucible.engine.kernels.batch import check_mapped, slots
from kvcrucible.engine.kernels.blocks import PageCopy
from kvcrucible.engine.kernels.view import LayerView
from kvcrucible.engine.storage.interface import HOLE, StoredPlanes
from kvcrucible.engine.storage.planes import allocate_side
from kvcrucible.engine.storage.staging import Staging
from kvcrucible.engine.streams.cuda_runtime import TorchCuda


class TorchStorage:
    """The planes and block tables of pool ``pool``; implements ``Storage``.

    Planes are zeroed at the start, one for each layer and plane of the profile, and seen as ``[capacity_pages,
    kv_heads, page_size, stored]`` whatever their ``order`` in memory; ``stored`` is D numbers or codes, D / 2
    bytes of packed codes, or D / group scales (``kernels.view.SideView``).  ``block_tables`` is ``[max_rows,
    max_blocks_per_row]``, int32, all holes at the start.  The object owns both; drop it to free them.  ``backend``
    names the kernels that work on it (``kernels.backends``), here and through its views; None is the best that works.
    ``device`` is torch's name of where all of it lies.  Through ``staging`` table uploads go that are queued; None is
    one of the storage's own on CUDA, and none in main memory, where an upload is over when it returns.
    Raises ``BadArgument`` for counts below 1, a page size that is no power of two, a profile that torch planes cannot
    hold, one whose groups do not divide D, or an unknown back-end.
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
        order: PlaneOrder = PlaneOrder.PAGE_MAJOR,
        backend: str | None = None,
        staging: Staging | None = None,
    ) -> None:
        check_page_size(page_size)
        _check_at_least("capacity_pages", capacity_pages, 1)
        _check_at_least("max_rows", max_rows, 1)
        _check_at_least("max_blocks_per_row", max_blocks_per_row, 1)
        self.profile, self.geometry, self.pool = profile, geometry, pool
        self.capacity_pages, self.page_size = capacity_pages, page_size
        self.max_rows, self.max_blocks_per_row = max_rows, max_blocks_per_row
        self.order, self.backend = order, backend
        if backend is not None:
            check_name(backend)
        self.block_tables = torch.full((max_rows, max_blocks_per_row), HOLE, dtype=torch.int32, device=device)
        if staging is None and self.block_tables.is_cuda:
            staging = Staging(TorchCuda(str(self.block_tables.device)))
        self._staging = staging
        shape = (geometry, capacity_pages, page_size, order, device)
        self._layers = [
            LayerView(
                allocate_side(profile, Side.KEY, *shape),
                allocate_side(profile, Side.VALUE, *shape),
                self.block_tables,
                backend,
            )
            for _ in range(geometry.layers)
        ]

    @property
    def plane_bytes(self) -> int:
        """Bytes of all planes: ``capacity_pages`` page groups of the profile."""
        return self.capacity_pages * self.profile.bytes_per_page_group(self.geometry, self.page_size)

    def stored(self) -> StoredPlanes:
        """Return what the planes are, for comparison with what a pool declares."""
        return StoredPlanes(self.profile, self.geometry, self.page_size, self.order)

    def planes(self) -> list[Tensor]:
        """Return every plane itself, not a copy: layer by layer, keys before values, codes before scales.

        Each is ``[page, head, offset, stored]``, strided where the order is head-major.
        """
        return [
            plane for layer in self._layers for side in (layer.key, layer.value) for plane in side.tensors()
        ]

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
        copy = PageCopy(source_page, destination_page, columns)
        api.copy_columns(self.planes(), [copy], backend=self.backend)

    def write_table(self, row: int, first_block: int, page_ids: Sequence[int]) -> None:
        """Map blocks from ``first_block`` on to ``page_ids``; ``BadArgument`` outside matrix or planes."""
        self._check_blocks(row, first_block, len(page_ids))
        for page in page_ids:
            self._check_page(page)
        mapped = self.block_tables[row, first_block : first_block + len(page_ids)]
        if self._staging is None:
            mapped.copy_(torch.tensor(page_ids, dtype=torch.int32))
        elif page_ids:
            self._staging.upload(mapped, page_ids)

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

        They keep the planes' dtype; codes are decoded, to float32.  For tests and the harness; raises
        ``BadArgument`` where a position is not mapped.
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
        positions = torch.arange(start, stop, device=view.device)
        pages = torch.tensor(page_ids, dtype=torch.int64, device=view.device)
        targets = pages[positions // self.page_size] * self.page_size + positions % self.page_size
        return _gather(view, targets)

    def read_page(self, layer: int, page: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return copies of K and V ``[columns, Hkv, D]``: the first ``columns`` tokens of a page."""
        return self.read_pages(layer, [page], 0, columns)

    def raw_write(self, page: int, first_column: int, stop_column: int, value: float) -> None:
        """Fill columns ``[first_column, stop_column)`` of a page with ``value`` in every plane (poison).

        Where codes are stored, with what encoding ``value`` writes: for NaN the scale is NaN and every code is
        0x7F (two E2M1: 0x77), so that each plane alone is wrong loudly; for a number out of range the largest
        scale and code, which read as ±8.3·10⁶ (INT8), ±2.9·10⁷ (E4M3FN) or ±2688 (E2M1).

        For the harness; never called by the engine (DESIGN 4.14.14).  Enqueue it on the stream like any
        other effect.
        """
        self._check_page(page)
        self._check_columns(first_column, stop_column)
        row = torch.full((self.geometry.head_dim,), value, device=self.block_tables.device)
        for layer in self._layers:
            for side in (layer.key, layer.value):
                for plane, stored in zip(side.tensors(), side.encode(row), strict=True):
                    plane[page, :, first_column:stop_column] = stored

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
    key, value = (
        side.decode(*(plane[page, :, offset] for plane in side.tensors())) for side in (view.key, view.value)
    )
    return key, value


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise BadArgument(f"{name} = {value}", f"below {least}", f"give {least} or more")
