"""Compiled kernels for main memory: pages are read and written where they lie (``csrc``; see ``attention.c`` first).

All memory that a call needs is allocated here, by torch, and described by :func:`working_memory`; the C code allocates
nothing but its threads' stacks.  Threads: as many as torch would use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvcrucible.engine.host.packing import CopyRun
from kvcrucible.engine.kernels import cpu_library as c
from kvcrucible.engine.kernels.batch import offsets, pages_needed
from kvcrucible.engine.kernels.blocks import PageCopy, PlaneSection
from kvcrucible.engine.kernels.view import LayerView, SideView

#: An entry's context is cut into at most this many splits, of at least so many tokens: a bound, so that what a call
#: needs does not grow with the context, and enough for the cores of one machine together with KV heads and rows.
MOST_SPLITS, LEAST_SPLIT_TOKENS = 16, 256
#: Entries with more queries are not split: they have blocks enough.
MOST_SPLIT_QUERIES = 8
#: Bytes for which another thread is worth its start, some 20 µs.
BYTES_A_THREAD = 1 << 18

#: Bytes of a float32 and of an int32, which is all that working memory consists of.
_WORD_BYTES = 4

_ELEMENTS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def why_not(planes: Sequence[Tensor], block_tables: Tensor | None) -> str | None:
    """Return why these kernels cannot run on the tensors given, None where they can; compiles at first use."""
    for plane in planes:
        if plane.device.type != "cpu":
            return f"the planes are on {plane.device}"
        if plane.stride(3) != 1 or plane.stride(2) != plane.shape[3]:
            return "the rows of a page do not follow one another"
    if block_tables is not None and (block_tables.dtype != torch.int32 or block_tables.stride(1) != 1):
        return "the block tables are not rows of int32"
    return c.why_not()


def append(view: LayerView, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write ``k``, ``v`` ``[T, Hkv, D]`` to ``slots``; see ``api.append``."""
    # Rows of two dtypes are brought to the wider one, which holds both.
    dtype = k.dtype if k.dtype == v.dtype else torch.float32
    k, v, slots = k.to(dtype).contiguous(), v.to(dtype).contiguous(), slots.contiguous()
    job = c.AppendJob(
        sides=(_side(view.key), _side(view.value)),
        rows=(k.data_ptr(), v.data_ptr()),
        slots=slots.data_ptr(),
        tokens=len(slots),
        heads=view.kv_heads,
        page_size=view.page_size,
        rows_are_bf16=dtype == torch.bfloat16,
    )
    _call("kv_append", job, k.numel() * k.element_size())


def paged_attention(
    q: Tensor,
    view: LayerView,
    rows: Sequence[int],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return ``out [T, Hq, D]`` and ``lse [T, Hq]``; see ``api.paged_attention``."""
    q = q.contiguous()
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float32)
    plan = _plan(view, q.shape[1], rows, query_lengths, context_lengths)
    if plan.items == 0:
        return out, lse
    scratch_floats = _scratch_floats(view.head_dim)
    scratch = torch.empty(torch.get_num_threads() * scratch_floats)
    partials = torch.empty(plan.partial_floats)
    splits_left = torch.empty(plan.blocks, dtype=torch.int32)
    tables = view.block_tables
    job = c.AttentionJob(
        key=_side(view.key),
        value=_side(view.value),
        q=q.data_ptr(),
        out=out.data_ptr(),
        lse=lse.data_ptr(),
        tables=tables.data_ptr(),
        entries=plan.entries,
        scratch=scratch.data_ptr(),
        partials=partials.data_ptr(),
        splits_left=splits_left.data_ptr(),
        table_stride=tables.stride(0),
        entry_count=len(plan.entries),
        item_count=plan.items,
        page_size=view.page_size,
        kv_heads=view.kv_heads,
        group=q.shape[1] // view.kv_heads,
        dim=view.head_dim,
        padded_dim=_padded(view.head_dim),
        scratch_stride=scratch_floats,
        scale=scale,
        causal=causal,
        q_is_bf16=q.dtype == torch.bfloat16,
    )
    work = sum(queries * context for queries, context in zip(query_lengths, context_lengths, strict=True))
    _call("kv_attention", job, work * view.kv_heads * view.head_dim)
    return out, lse


def working_memory(
    view: LayerView, query_heads: int, query_lengths: Sequence[int], context_lengths: Sequence[int]
) -> int:
    """Return the bytes that one call of attention allocates beyond its results, with as many threads as torch has now.

    Contexts count only in being 0 or not: partial results have room for the most splits whatever the number used.
    """
    plan = _plan(view, query_heads, [0] * len(query_lengths), query_lengths, context_lengths)
    if plan.items == 0:
        return 0
    scratch_floats = torch.get_num_threads() * _scratch_floats(view.head_dim)
    return _WORD_BYTES * (scratch_floats + plan.partial_floats + plan.blocks)


def copy_columns(planes: Sequence[Tensor], copies: Sequence[PageCopy]) -> None:
    """Copy columns from page to page; see ``api.copy_columns``."""
    table = (c.PageCopy * len(copies))(
        *(c.PageCopy(copy.source, copy.destination, copy.columns) for copy in copies)
    )
    job = c.CopyJob(
        planes=(c.Plane * len(planes))(*map(_plane, planes)),
        copies=table,
        plane_count=len(planes),
        copy_count=len(copies),
        heads=planes[0].shape[1],
    )
    columns = sum(copy.columns for copy in copies)
    size = sum(plane.shape[1] * plane.shape[3] * plane.element_size() for plane in planes) * columns
    _call("kv_copy_columns", job, size)


def pack(sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
    """Copy runs of pages to the host; see ``api.pack``."""
    _transfer(sections, runs, to_host=True)


def unpack(sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
    """Copy runs of pages from the host; see ``api.unpack``."""
    _transfer(sections, runs, to_host=False)


def read_through(tensors: Sequence[Tensor]) -> int:
    """Read contiguous tensors once, as fast as these kernels could, and return how many bytes that were.

    For measurements: what is read by the way, with the same threads, is what a kernel's reading is held to.
    """
    seen = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        job = c.ReadJob(tensor.data_ptr(), size // _WORD_BYTES, 0.0)
        _call("kv_read", job, size)
        seen += size // (_WORD_BYTES * c.READ_FLOATS) * _WORD_BYTES * c.READ_FLOATS
    return seen


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a batch is cut: its entries that have something to do, and what they need together."""

    entries: ctypes.Array[c.Entry]
    items: int
    blocks: int
    partial_floats: int


def _plan(
    view: LayerView,
    query_heads: int,
    rows: Sequence[int],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
) -> _Plan:
    """Cut every entry by its own numbers, so that the rest of the batch changes no bit of its result."""
    heads, group, row_floats = (
        view.kv_heads,
        query_heads // view.kv_heads,
        _padded(view.head_dim) + c.MOST_LANES,
    )
    first_queries = offsets(query_lengths)
    entries: list[c.Entry] = []
    items = blocks = partial_floats = 0
    for row, first_query, queries, context in zip(
        rows, first_queries[:-1], query_lengths, context_lengths, strict=True
    ):
        if not queries or not context:
            continue
        lines_a_block = min(queries * group, c.LINES)
        entry_blocks = pages_needed(queries * group, c.LINES)
        heads_a_span = min(heads, c.LINES // lines_a_block)
        spans = pages_needed(heads, heads_a_span)
        most_splits = MOST_SPLITS if queries <= MOST_SPLIT_QUERIES else 1
        splits, pages_a_split = _splits(context, view.page_size, most_splits)
        entries.append(
            c.Entry(
                row=row,
                first_query=first_query,
                queries=queries,
                context=context,
                splits=splits,
                pages_a_split=pages_a_split,
                blocks=entry_blocks,
                lines_a_block=lines_a_block,
                heads_a_span=heads_a_span,
                spans=spans,
                first_item=items,
                first_block=blocks,
                first_partial=partial_floats,
            )
        )
        items += entry_blocks * spans * splits
        blocks += entry_blocks * spans
        if most_splits > 1:
            partial_floats += entry_blocks * heads * most_splits * lines_a_block * row_floats
    return _Plan((c.Entry * len(entries))(*entries), items, blocks, partial_floats)


def _splits(context: int, page_size: int, most: int) -> tuple[int, int]:
    """Return into how many splits of how many whole pages a context is cut."""
    pages = pages_needed(context, page_size)
    wanted = min(most, pages_needed(context, LEAST_SPLIT_TOKENS), pages)
    pages_a_split = pages_needed(pages, wanted)
    return pages_needed(pages, pages_a_split), pages_a_split


def _padded(dim: int) -> int:
    """Return ``dim`` rounded up to whole vectors of the widest kind."""
    return pages_needed(dim, c.MOST_LANES) * c.MOST_LANES


def _scratch_floats(dim: int) -> int:
    """Return a worker's floats (``struct scratch``): queries and sums, a decoded tile, scores, maxima and totals."""
    return (2 * c.LINES + c.TILE) * _padded(dim) + c.LINES * c.TILE + 2 * c.LINES


def _plane(plane: Tensor) -> c.Plane:
    size = plane.element_size()
    page, head, offset, _ = (stride * size for stride in plane.stride())
    return c.Plane(plane.data_ptr(), page, head, offset, plane.shape[3] * size)


def _side(side: SideView) -> c.Side:
    codec = side.codec
    if codec is None:
        code = c.CODES[_ELEMENTS[side.codes.dtype]]
        return c.Side(_plane(side.codes), c.Plane(), side.head_dim, 1, code, c.SCALES[""])
    assert side.scales is not None, "a codec has scales"
    assert codec.group <= c.LARGEST_GROUP, f"groups of {codec.group}"
    assert codec.group % c.MOST_LANES == 0, f"groups of {codec.group}"
    code, scale = c.CODES[codec.code], c.SCALES[codec.scale]
    return c.Side(_plane(side.codes), _plane(side.scales), side.head_dim, codec.group, code, scale)


def _transfer(sections: Sequence[PlaneSection], runs: Sequence[CopyRun], *, to_host: bool) -> None:
    if not sections or not runs:
        return
    table = (c.Section * len(sections))(
        *(
            c.Section(one.host.data_ptr(), one.device.data_ptr(), *one.host.shape[:2], *one.device.shape[1:])
            for one in sections
        )
    )
    job = c.TransferJob(
        sections=table,
        runs=(c.Run * len(runs))(*(c.Run(run.device_page, run.slot, run.pages) for run in runs)),
        section_count=len(sections),
        run_count=len(runs),
        to_host=to_host,
    )
    pages = sum(run.pages for run in runs)
    _call("kv_transfer", job, pages * sum(one.host.shape[0] * one.host.shape[2] for one in sections))


def _call(function: str, job: ctypes.Structure, work_bytes: int) -> None:
    """Run a function of the library on ``job``, on as many threads as ``work_bytes`` are worth."""
    threads = min(torch.get_num_threads(), 1 + work_bytes // BYTES_A_THREAD)
    getattr(c.library().functions, function)(ctypes.byref(job), threads)
