"""The Triton back-end: what it runs on, and how the work of a call becomes launches.

On CUDA it is compiled.  In main memory it runs only where ``TRITON_INTERPRET=1`` was set before Triton was imported:
slow, for tests.  Kernels are imported at their first use, so that this module needs no Triton.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kvcrucible.engine.host.packing import CopyRun
from kvcrucible.engine.kernels.batch import offsets, pages_needed
from kvcrucible.engine.kernels.blocks import PageCopy, PlaneSection
from kvcrucible.engine.kernels.triton import launch
from kvcrucible.engine.kernels.view import LayerView, SideView

#: Fields of a block's record (``attention.attend``).
BLOCK_FIELDS = 8

#: Bytes of partial results that one launch may leave for its reduction: a larger batch takes several launches.
MOST_PARTIAL_BYTES = 64 << 20

#: Elements that one append program handles.
APPEND_ELEMENTS = 2048

#: Words of a block of a copy, and programs that share one run of pages.
COPY_BLOCK, COPY_PARTS = 1024, 16

#: Numbers of a plane's and of a transfer row's record (``copies``).
PLANE_FIELDS, ROW_FIELDS = 4, 3

#: Words that copies may consist of, in bytes, the widest first.
_UNITS = (8, 4, 2, 1)

_ELEMENTS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

_LOG2_E = math.log2(math.e)


def why_not(planes: Sequence[Tensor], block_tables: Tensor | None) -> str | None:
    """Return why these kernels cannot run on the tensors given, None where they can."""
    if find_spec("triton") is None:
        return "Triton is not installed (the extra 'triton' brings it)"
    for plane in planes:
        if plane.device.type not in ("cuda", "cpu"):
            return f"the planes are on {plane.device}"
        if plane.device.type == "cpu" and not _interpreted():
            return "in main memory Triton only interprets: set TRITON_INTERPRET=1 before the start"
        if plane.stride(3) != 1 or plane.stride(2) != plane.shape[3]:
            return "the rows of a page do not follow one another"
    if block_tables is not None and (block_tables.dtype != torch.int32 or block_tables.stride(1) != 1):
        return "the block tables are not rows of int32"
    return None


def append(view: LayerView, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write ``k``, ``v`` ``[T, Hkv, D]`` to ``slots``; see ``api.append``."""
    from kvcrucible.engine.kernels.triton import append as kernels

    if not len(slots):
        return
    slots = slots.contiguous()
    for side, rows in ((view.key, k.contiguous()), (view.value, v.contiguous())):
        constants = append_constants(side, view.page_size)
        codes, lines = patterns(side.codes), len(slots) * view.kv_heads
        if side.scales is None:
            kernel, planes, strides = kernels.append_numbers, [codes], codes.stride()[:2]
        else:
            scales, lines = patterns(side.scales), lines * constants["GROUPS"]
            kernel, planes = kernels.append_groups, [codes, scales]
            strides = (*codes.stride()[:2], *scales.stride()[:2])
        grid = (pages_needed(lines, constants["BLOCK_LINES"]), 1, 1)
        _run(kernel, grid, *(rows, slots, *planes, lines, view.kv_heads, *strides), **constants)


def paged_attention(
    q: Tensor,
    view: LayerView,
    rows: Sequence[int],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    scale: float,
    causal: bool,
    imposed: launch.Config | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``out [T, Hq, D]`` and ``lse [T, Hq]``; see ``api.paged_attention``.

    Entries of one length class run together, cut into launches whose partial results stay within a bound.
    ``imposed`` stands in for the launch table where one is being made.
    """
    q = q.contiguous()
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float32, device=q.device)
    group, first_queries = q.shape[1] // view.kv_heads, offsets(query_lengths)
    classes: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for row, first, queries, context in zip(
        rows, first_queries[:-1], query_lengths, context_lengths, strict=True
    ):
        if queries and context:
            classes[launch.length_class(queries, group, context)].append((row, first, queries, context))
    for length, entries in classes.items():
        key = launch.Key(target(q.device), profile_name(view), view.head_dim, group, length)
        chosen = imposed or launch.config(key)
        for records, partials in _launches(entries, group, view, chosen):
            _attend(q, view, out, lse, records, partials, chosen, scale, causal)
    return out, lse


def copy_columns(planes: Sequence[Tensor], copies: Sequence[PageCopy]) -> None:
    """Copy columns from page to page; see ``api.copy_columns``."""
    from kvcrucible.engine.kernels.triton import copies as kernels

    device, heads = planes[0].device, planes[0].shape[1]
    wanted = [(copy.source, copy.destination, copy.columns) for copy in copies if copy.columns]
    if not wanted:
        return
    table = _upload(wanted, torch.int64, device)
    by_unit: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for plane in planes:
        size = plane.element_size()
        page, head = plane.stride(0) * size, plane.stride(1) * size
        record = (plane.data_ptr(), page, head, plane.shape[3] * size)
        by_unit[_unit(record)].append(record)
    for unit, records in by_unit.items():
        _run(
            kernels.copy_columns,
            (len(wanted) * heads, len(records), 1),
            _upload(records, torch.int64, device),
            table,
            heads,
            UNIT=unit,
            BLOCK=COPY_BLOCK,
            PLANE_FIELDS=PLANE_FIELDS,
        )


def pack(sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
    """Copy runs of pages to the host; see ``api.pack``."""
    _transfer(sections, runs, to_host=True)


def unpack(sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
    """Copy runs of pages from the host; see ``api.unpack``."""
    _transfer(sections, runs, to_host=False)


def profile_name(view: LayerView) -> str:
    """Return how a view's two sides are stored, as launch tables name it: one format, or keys + values."""
    key, value = _format(view.key), _format(view.value)
    return key if key == value else f"{key}+{value}"


@cache
def target(device: torch.device) -> str:
    """Return what kernels for ``device`` are compiled for, as launch tables name it."""
    if _interpreted():
        return launch.INTERPRETER
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def tile_columns(view: LayerView, device: torch.device, group: int, length: str) -> int:
    """Return the columns after which a kernel rescales: what the error budget counts."""
    key = launch.Key(target(device), profile_name(view), view.head_dim, group, length)
    return min(view.page_size, launch.config(key).tile)


def append_constants(side: SideView, page_size: int) -> dict[str, Any]:
    """Return the compile-time arguments of the append kernel for one side."""
    if side.codec is None:
        width = _power(side.head_dim)
        return {
            "DIM": side.head_dim,
            "PAGE": page_size,
            "ELEMENT": _ELEMENTS[side.codes.dtype],
            "BLOCK_LINES": max(1, APPEND_ELEMENTS // width),
            "BLOCK_DIM": width,
        }
    return {
        "GROUPS": side.head_dim // side.codec.group,
        "GROUP": side.codec.group,
        "PAGE": page_size,
        "CODE": side.codec.code,
        "SCALE": side.codec.scale,
        "BLOCK_LINES": max(1, APPEND_ELEMENTS // side.codec.group),
    }


def reduce_constants(view: LayerView, group: int, chosen: launch.Config) -> dict[str, Any]:
    """Return the compile-time arguments of ``attention.reduce``."""
    return {
        "KV_HEADS": view.kv_heads,
        "GROUP": group,
        "DIM": view.head_dim,
        "LINES": chosen.lines,
        "WIDTH": _power(view.head_dim),
        "FIELDS": BLOCK_FIELDS,
    }


def attention_constants(
    view: LayerView, group: int, q_dtype: torch.dtype, chosen: launch.Config, causal: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of ``attention.attend``; the ahead-of-time table uses the same."""
    sides: dict[str, Any] = {}
    for name, side in (("K", view.key), ("V", view.value)):
        codec = side.codec
        sides |= {
            f"{name}_CODE": _ELEMENTS[side.codes.dtype] if codec is None else codec.code,
            f"{name}_SCALE": "" if codec is None else codec.scale,
            f"{name}_GROUP": 1 if codec is None else codec.group,
        }
    return sides | {
        "KV_HEADS": view.kv_heads,
        "GROUP": group,
        "DIM": view.head_dim,
        "PAGE": view.page_size,
        "TILE": min(view.page_size, chosen.tile),
        "LINES": chosen.lines,
        "Q_ELEMENT": _ELEMENTS[q_dtype],
        "CAUSAL": causal,
        "FIELDS": BLOCK_FIELDS,
    }


def _launches(
    entries: Sequence[tuple[int, int, int, int]], group: int, view: LayerView, chosen: launch.Config
) -> list[tuple[list[tuple[int, ...]], int]]:
    """Return block records (``attention.attend``) with the number of their partials, launch by launch.

    Every entry is cut by its own numbers.  Where it is split, its partials count as the most splits, so that what a
    call allocates does not hang on the context.
    """
    tile = min(view.page_size, chosen.tile)
    partial_bytes = 4 * view.kv_heads * chosen.lines * (view.head_dim + 2)
    most_partials = max(chosen.most_splits, MOST_PARTIAL_BYTES // partial_bytes)
    launches: list[tuple[list[tuple[int, ...]], int]] = [([], 0)]
    for row, first, queries, context in entries:
        tiles = pages_needed(context, tile)
        wanted = min(chosen.most_splits, pages_needed(context, chosen.split_tokens), tiles)
        tiles_a_split = pages_needed(tiles, wanted)
        splits = pages_needed(tiles, tiles_a_split)
        for number in range(pages_needed(queries * group, chosen.lines)):
            if chosen.most_splits > 1 and launches[-1][1] + chosen.most_splits > most_partials:
                launches.append(([], 0))
            records, partials = launches[-1]
            records.append((row, first, queries, context, number, splits, tiles_a_split, partials))
            launches[-1] = records, partials + (chosen.most_splits if chosen.most_splits > 1 else 0)
    return launches


def _attend(
    q: Tensor,
    view: LayerView,
    out: Tensor,
    lse: Tensor,
    records: Sequence[tuple[int, ...]],
    partials: int,
    chosen: launch.Config,
    scale: float,
    causal: bool,
) -> None:
    from kvcrucible.engine.kernels.triton import attention as kernels

    group = q.shape[1] // view.kv_heads
    constants = attention_constants(view, group, q.dtype, chosen, causal)
    most_splits = max(record[5] for record in records)
    blocks = _upload(records, torch.int32, q.device)
    partial_lines = max(1, partials * view.kv_heads * chosen.lines)
    sums = torch.empty((partial_lines, view.head_dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((partial_lines, 2), dtype=torch.float32, device=q.device)
    planes: list[Tensor] = []
    strides: list[int] = []
    for side in (view.key, view.value):
        codes = side.codes if side.codec is None else patterns(side.codes)
        # A side without scales passes its codes again: they are not looked at.
        scales = codes if side.scales is None else patterns(side.scales)
        planes += [codes, scales]
        strides += [*codes.stride()[:2], *scales.stride()[:2]]
    _run(
        kernels.attend,
        (len(records), view.kv_heads, most_splits),
        *(q, *planes, view.block_tables, blocks, patterns(out), lse, sums, stats),
        *(*strides, view.block_tables.stride(0), scale * _LOG2_E),
        **constants,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )
    if most_splits > 1:
        _run(
            kernels.reduce,
            (len(records), view.kv_heads, 1),
            *(blocks, patterns(out), lse, sums, stats),
            **reduce_constants(view, group, chosen),
        )


def _transfer(sections: Sequence[PlaneSection], runs: Sequence[CopyRun], *, to_host: bool) -> None:
    from kvcrucible.engine.kernels.triton import copies as kernels

    if not sections or not runs:
        return
    device = sections[0].device.device
    if device.type != "cpu" and not all(section.host.is_pinned() for section in sections):
        _transfer_pageable(sections, runs, to_host=to_host)
        return
    table = _upload([(run.device_page, run.slot, run.pages) for run in runs], torch.int64, device)
    by_unit: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for section in sections:
        for outer in range(section.host.shape[0]):
            addresses = section.device[outer].data_ptr(), section.host[outer].data_ptr()
            record = (*addresses, section.host.shape[2])
            by_unit[_unit(record)].append(record)
    parts = 1 if _interpreted() else COPY_PARTS
    for unit, records in by_unit.items():
        _run(
            kernels.transfer,
            (parts, len(runs), len(records)),
            _upload(records, torch.int64, device),
            table,
            TO_HOST=to_host,
            UNIT=unit,
            BLOCK=COPY_BLOCK,
            PARTS=parts,
            ROW_FIELDS=ROW_FIELDS,
        )


def _transfer_pageable(sections: Sequence[PlaneSection], runs: Sequence[CopyRun], *, to_host: bool) -> None:
    """Copy through the driver, run by run: the device cannot reach memory that is not pinned."""
    for section in sections:
        for run in runs:
            host = section.host[:, run.slot : run.slot + run.pages]
            device = section.device[:, run.device_page : run.device_page + run.pages]
            if to_host:
                host.copy_(device)
            else:
                device.copy_(host)


def _upload(records: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``records`` on the device, in the order of its current stream; the host does not wait.

    Torch gives a page-locked tensor that is dropped to nobody before the copies queued from it are over.
    """
    return torch.tensor(records, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _run(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel on the device of its tensors."""
    device = next(one.device for one in arguments if isinstance(one, Tensor))
    with _floating_point_is_silent() if _interpreted() else torch.cuda.device(device):
        kernel[grid](*arguments, **constants)


def _floating_point_is_silent() -> AbstractContextManager[Any]:
    """Return a context in which numpy, which the interpreter computes with, does as hardware does: no warnings."""
    import numpy as np

    return np.errstate(all="ignore")


def _interpreted() -> bool:
    """Tell whether kernels of this process are interpreted: Triton reads the variable when it is imported."""
    if find_spec("triton") is None:
        return False
    return _interpreted_since_import()


@cache
def _interpreted_since_import() -> bool:
    from kvcrucible.engine.kernels.triton.formats import INTERPRETED

    return bool(INTERPRETED.value)


def patterns(plane: Tensor) -> Tensor:
    """Return a plane, or an output, with what the kernels have no number for seen as integer patterns."""
    return plane.view(torch.int16) if plane.dtype in (torch.bfloat16, torch.float16) else plane


def _format(side: SideView) -> str:
    if side.codec is None:
        return _ELEMENTS[side.codes.dtype]
    return f"{side.codec.code}-g{side.codec.group}"


def _unit(record: Sequence[int]) -> int:
    """Return the widest word that divides addresses, strides and sizes."""
    return next(unit for unit in _UNITS if all(value % unit == 0 for value in record))


def _power(number: int) -> int:
    """Return ``number`` or the next power of two."""
    return 1 << (number - 1).bit_length()
