"""Ragged batches: packed token axes described by host integers, checked as a whole before anything is
touched.

The checks read the block tables, so on CUDA each of them waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.kernels.view import LayerView

#: Dtypes of queries, keys and values that callers may hand in; anything wider would be rounded twice on its
#: way to BF16.
INPUT_DTYPES = (torch.float32, torch.bfloat16)


def offsets(lengths: Sequence[int]) -> list[int]:
    """Return where each run of ``lengths`` starts on the packed axis, and its end: ``[2, 0, 3] -> [0, 2, 2,
    5]``.
    """
    return [0, *accumulate(lengths)]


def pages_needed(tokens: int, page_size: int) -> int:
    """Return ``ceil(tokens / page_size)``."""
    return -(-tokens // page_size)


def check_tensor(name: str, tensor: Tensor, shape: tuple[int | None, ...], view: LayerView) -> None:
    """Refuse a tensor of another shape (``None`` matches any size), dtype or device than the view can work
    with.
    """
    actual = tuple(tensor.shape)
    if len(actual) != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, actual, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise BadArgument(
            f"{name} of shape {list(actual)}", f"[{wanted}] fits this view and batch", "pack one line a token"
        )
    if tensor.dtype not in INPUT_DTYPES:
        raise BadArgument(f"{name} of {tensor.dtype}", "float32 and bfloat16 are taken", "convert it first")
    if tensor.device != view.device:
        raise BadArgument(
            f"{name} on {tensor.device}", f"planes on {view.device}", "move it to the planes' device"
        )


def check_same_count(**columns: Sequence[int]) -> None:
    """Refuse per-row arguments of different lengths, or with a negative entry where lengths and positions
    stand.
    """
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        raise BadArgument(
            f"a batch of {counts}", "one entry a row is needed in each", "give every row all its numbers"
        )
    for name, values in columns.items():
        if name != "rows" and any(value < 0 for value in values):
            raise BadArgument(
                f"{name} {list(values)}", "a negative entry", "lengths and positions start at 0"
            )


def check_mapped(view: LayerView, row: int, first_token: int, stop_token: int) -> None:
    """Refuse positions ``[first_token, stop_token)`` of ``row`` that are not all mapped to pages of the view.

    An empty range needs no mapping, and its row is not looked at (padded rows, DESIGN 4.14.12).
    """
    if first_token >= stop_token:
        return
    row_count, block_count = view.block_tables.shape
    first_block, stop_block = first_token // view.page_size, pages_needed(stop_token, view.page_size)
    asked = f"positions [{first_token}, {stop_token}) of row {row}"
    if not 0 <= row < row_count:
        raise BadArgument(asked, f"rows 0 to {row_count - 1}", "use a leased row")
    if stop_block > block_count:
        raise BadArgument(
            asked, f"{block_count} blocks of {view.page_size} a row", "stay within the context length"
        )
    lowest, highest = torch.aminmax(view.block_tables[row, first_block:stop_block])
    if int(lowest) < 0:
        raise BadArgument(asked, "a hole in the block table", "materialise and publish the pages first")
    if int(highest) >= view.pages:
        raise BadArgument(
            asked, f"page {int(highest)} mapped, {view.pages} pages held", "write valid page ids"
        )


def slots(view: LayerView, rows: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Return ``[T]`` int64: ``page · P + offset`` of each token of a ragged batch whose positions are all
    mapped.
    """
    device = view.block_tables.device
    counts = torch.tensor(lengths, dtype=torch.int64, device=device)
    total = sum(lengths)

    def per_token(values: Sequence[int]) -> Tensor:
        column = torch.tensor(values, dtype=torch.int64, device=device)
        return torch.repeat_interleave(column, counts, output_size=total)

    positions = torch.arange(total, device=device) - per_token(offsets(lengths)[:-1]) + per_token(starts)
    size = view.page_size
    pages = view.block_tables[per_token(rows), positions // size]
    return pages.to(torch.int64) * size + positions % size
