"""Append: rows of keys or values into their slots, rounded or encoded on the way.

A *line* is one group of one row: with ``[T, Hkv, D]`` rows seen as ``[T · Hkv · groups, G]``, line l is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcrucible.engine.kernels.triton.formats import (
    bfloat16_patterns,
    nearest_integer,
    not_finite,
    scale_patterns,
    scale_value,
    small_float_patterns,
    widened,
)


@triton.jit
def append_numbers(
    rows,
    slots,
    codes,
    lines,
    heads,
    page_stride,
    head_stride,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ELEMENT: tl.constexpr,
    BLOCK_LINES: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Write ``rows [lines, DIM]``, line = token · heads + head, to a plane of numbers.

    ``codes`` points to float32 or, for ``ELEMENT`` "bfloat16", to int16 patterns; strides are in elements.
    """
    line = tl.program_id(0).to(tl.int64) * BLOCK_LINES + tl.arange(0, BLOCK_LINES)
    there = line < lines
    slot = tl.load(slots + line // heads, mask=there, other=0)
    base = (slot // PAGE) * page_stride + (line % heads) * head_stride + (slot % PAGE) * DIM
    element = tl.arange(0, BLOCK_DIM)
    mask = there[:, None] & (element < DIM)[None, :]
    x = widened(tl.load(rows + line[:, None] * DIM + element[None, :], mask=mask, other=0.0))
    target = codes + base[:, None] + element[None, :]
    if ELEMENT == "bfloat16":
        tl.store(target, bfloat16_patterns(x), mask=mask)
    else:
        tl.store(target, x, mask=mask)


@triton.jit
def append_groups(
    rows,
    slots,
    codes,
    scales,
    lines,
    heads,
    page_stride,
    head_stride,
    scale_page_stride,
    scale_head_stride,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    CODE: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_LINES: tl.constexpr,
):
    """Encode ``rows [lines, GROUP]``, line = (token · heads + head) · GROUPS + group, into codes and scales.

    ``codes``: int8, or uint8 patterns; ``scales``: int16 patterns of float16, or uint8 patterns of E4M3FN.
    """
    line = tl.program_id(0).to(tl.int64) * BLOCK_LINES + tl.arange(0, BLOCK_LINES)
    there = line < lines
    row, group = line // GROUPS, line % GROUPS
    head = row % heads
    slot = tl.load(slots + row // heads, mask=there, other=0)
    page, offset = slot // PAGE, slot % PAGE
    base = (
        page * page_stride
        + head * head_stride
        + offset * (GROUPS * GROUP // 2 if CODE == "e2m1" else GROUPS * GROUP)
    )
    scale_base = page * scale_page_stride + head * scale_head_stride + offset * GROUPS
    if CODE == "e2m1":
        byte = tl.arange(0, GROUP // 2)
        source = rows + line[:, None] * GROUP + 2 * byte[None, :]
        even = widened(tl.load(source, mask=there[:, None], other=0.0))
        odd = widened(tl.load(source + 1, mask=there[:, None], other=0.0))
        void = (tl.max(not_finite(even) | not_finite(odd), axis=1)) > 0
        even = tl.where(void[:, None], 0.0, even)
        odd = tl.where(void[:, None], 0.0, odd)
        largest = tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), axis=1)
        pattern = scale_patterns(largest, 6.0, SCALE)
        divisor = scale_value(pattern, SCALE)[:, None]
        low = small_float_patterns(_clipped(even, divisor, 6.0), 1, 1, 0x8)
        high = small_float_patterns(_clipped(odd, divisor, 6.0), 1, 1, 0x8)
        both = tl.where(void[:, None], 0x77, low | (high << 4))
        target = codes + base[:, None] + (group * (GROUP // 2))[:, None] + byte[None, :]
        tl.store(target, both.to(tl.uint8), mask=there[:, None])
    else:
        element = tl.arange(0, GROUP)
        x = widened(tl.load(rows + line[:, None] * GROUP + element[None, :], mask=there[:, None], other=0.0))
        void = tl.max(not_finite(x), axis=1) > 0
        x = tl.where(void[:, None], 0.0, x)
        largest = tl.max(tl.abs(x), axis=1)
        target = codes + base[:, None] + (group * GROUP)[:, None] + element[None, :]
        if CODE == "int8":
            pattern = scale_patterns(largest, 127.0, SCALE)
            divisor = scale_value(pattern, SCALE)[:, None]
            code = tl.where(void[:, None], 127, nearest_integer(_clipped(x, divisor, 127.0)))
            tl.store(target, code.to(tl.int8), mask=there[:, None])
        else:
            pattern = scale_patterns(largest, 448.0, SCALE)
            divisor = scale_value(pattern, SCALE)[:, None]
            code = small_float_patterns(_clipped(x, divisor, 448.0), 3, 7, 0x80)
            tl.store(target, tl.where(void[:, None], 0x7F, code).to(tl.uint8), mask=there[:, None])
    if SCALE == "float16":
        stored = tl.where(void, 0x7E00, pattern).to(tl.int16)
    else:
        stored = tl.where(void, 0x7F, pattern).to(tl.uint8)
    tl.store(scales + scale_base + group, stored, mask=there)


@triton.jit
def _clipped(x, divisor, TOP: tl.constexpr):
    """Return ``x / divisor``, correctly rounded, within ± ``TOP``."""
    return tl.minimum(tl.maximum(tl.div_rn(x, divisor), -TOP), TOP)
