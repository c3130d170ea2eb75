"""A toy paged engine in plain numpy, as somebody might have written it who has never heard of KV Crucible.

It has rows, pages and a block table, and no queue, sequence ids, frontiers or limits.
"""

import numpy as np
from numpy.typing import NDArray

#: Rows of K or V: float64 ``[n, Hkv, D]``.
Rows = NDArray[np.float64]


class ToyEngine:
    """``rows`` sequences at a time, over ``pages`` pages of ``page_size`` positions; granted on demand."""

    def __init__(self, pages: int, page_size: int, rows: int, layers: int, heads: int, dim: int) -> None:
        self.pages, self.page_size = pages, page_size
        self.free = list(range(pages))
        self.table: list[list[int]] = [[] for _ in range(rows)]
        #: ``[layer, K or V, page * page_size + offset, head, dim]``
        self.cells = np.zeros((layers, 2, pages * page_size, heads, dim))

    def grow(self, row: int, stop: int) -> None:
        """Map pages for the positions below ``stop``; raises ``MemoryError``, nothing taken, where too few are free."""
        lacking = -(-stop // self.page_size) - len(self.table[row])
        if lacking > len(self.free):
            raise MemoryError(f"{lacking} pages lacking, {len(self.free)} free")
        self.table[row] += [self.free.pop(0) for _ in range(lacking)]

    def erase(self, row: int) -> None:
        """Give all pages of a row back."""
        self.free += self.table[row]
        self.table[row] = []

    def cell(self, row: int, position: int) -> int:
        """Return where a position of a row lies, through the block table."""
        return self.table[row][position // self.page_size] * self.page_size + position % self.page_size

    def write(self, layer: int, row: int, start: int, keys: Rows, values: Rows) -> None:
        """Write positions from ``start`` on."""
        for index, pair in enumerate(zip(keys, values, strict=True)):
            self.cells[layer, :, self.cell(row, start + index)] = pair

    def read(self, layer: int, row: int, stop: int) -> tuple[Rows, Rows]:
        """Return the positions below ``stop``."""
        keys, values = self.cells[layer][:, [self.cell(row, position) for position in range(stop)]]
        return keys, values


class BrokenToyEngine(ToyEngine):
    """Looks the page up once for each write, which is right as long as a row's pages lie one behind the other."""

    def write(self, layer: int, row: int, start: int, keys: Rows, values: Rows) -> None:
        """Write positions from ``start`` on."""
        first = self.cell(row, start)
        for index, pair in enumerate(zip(keys, values, strict=True)):
            self.cells[layer, :, (first + index) % self.cells.shape[2]] = pair
