"""Paged attention: a block of queries against the pages of its row, with an online softmax, split over the context.

A *line* is one query of one query head: the query heads that share a KV head are packed, line = query · group + head,
so that a page is read once for all of them.  A *block* is up to ``LINES`` lines of one entry of the batch.  A *tile* is
columns of one page: its page id is looked up once, and none lies in two pages.

Stored numbers stay as narrow as they are for the products: bfloat16, and codes of INT8 and E4M3FN, which bfloat16 holds
exactly, with their scales applied to scores and weights afterwards; E2M1 times its E4M3 scale fits bfloat16 as a whole.
What is wider, a float32 query and the weights, enters as three bfloat16 parts that add up to it, so that products and
sums keep float32 (``reference/attention.py`` bounds the error).

A side's elements come in *chunks*, each of one scale: numbers are one chunk, groups one each, and of pairs of E2M1 the
even elements are one and the odd ones the other, so that nibbles are never sorted into place.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcrucible.engine.kernels.triton.formats import (
    INTERPRETED,
    bfloat16_patterns,
    e2m1_value,
    e4m3fn_value,
    scale_value,
    upper_half,
    widened,
)

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def attend(
    q,
    k_codes,
    k_scales,
    v_codes,
    v_scales,
    tables,
    blocks,
    out,
    lse,
    partial_sums,
    partial_stats,
    k_page,
    k_head,
    ks_page,
    ks_head,
    v_page,
    v_head,
    vs_page,
    vs_head,
    table_stride,
    scale_log2,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    LINES: tl.constexpr,
    K_CODE: tl.constexpr,
    K_SCALE: tl.constexpr,
    K_GROUP: tl.constexpr,
    V_CODE: tl.constexpr,
    V_SCALE: tl.constexpr,
    V_GROUP: tl.constexpr,
    Q_ELEMENT: tl.constexpr,
    CAUSAL: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """Attend one split of one block; grid (blocks, KV heads, splits).

    ``q``, ``out``: ``[T, KV_HEADS · GROUP, DIM]``; ``lse``: ``[T, KV_HEADS · GROUP]`` float32.
    ``blocks``: int32 ``[blocks, FIELDS]``: row, first query, queries, context, number among the entry's blocks, splits,
    tiles of a split, first partial.  A block of one split writes its result, others ``partial_sums`` ``[partials,
    KV_HEADS, LINES, DIM]`` and ``partial_stats`` ``[partials, KV_HEADS, LINES, 2]`` (maximum, in base 2, and sum of
    weights), which :func:`reduce` joins.  Strides are in elements of their plane; within a page, rows
    follow one another.
    """
    block, head, split = blocks + tl.program_id(0) * FIELDS, tl.program_id(1), tl.program_id(2)
    splits = tl.load(block + 5)
    if split >= splits:
        return
    row, first_query, queries = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    context, number = tl.load(block + 3), tl.load(block + 4)
    tiles_a_split, first_partial = tl.load(block + 6), tl.load(block + 7)

    line = number * LINES + tl.arange(0, LINES)
    there = line < queries * GROUP
    query = line // GROUP
    # Where each line lies in the packed axes, in 64 bits: a batch may have more than 2³¹ elements.
    place = (first_query + query).to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + line % GROUP
    if CAUSAL:
        limit = tl.where(there, context - queries + query + 1, 0)
    else:
        limit = tl.where(there, context, 0)

    k_chunks: tl.constexpr = _chunks(DIM, K_CODE, K_GROUP)
    v_chunks: tl.constexpr = _chunks(DIM, V_CODE, V_GROUP)
    parts: tl.constexpr = 3 if Q_ELEMENT == "float32" and K_CODE != "float32" else 1
    k_width: tl.constexpr = _width(DIM, K_CODE, K_GROUP)
    v_width: tl.constexpr = _width(DIM, V_CODE, V_GROUP)
    columns: tl.constexpr = max(TILE, 16)
    query_parts = _query_parts(q, place, there, DIM, K_CODE, k_chunks, k_width, parts)

    highest = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    sums = ()
    for _ in tl.static_range(v_chunks):
        sums = sums + (tl.zeros([LINES, v_width], tl.float32),)

    table = tables + row.to(tl.int64) * table_stride
    head64 = head.to(tl.int64)
    tile_column = tl.arange(0, columns)
    first_tile = split * tiles_a_split
    # No line of the block sees more than the last one does.
    stop_tile = tl.minimum(first_tile + tiles_a_split, tl.cdiv(tl.max(limit, axis=0), TILE))
    for tile in range(first_tile, stop_tile):
        position = tile * TILE
        page = tl.load(table + position // PAGE).to(tl.int64)
        offset = position % PAGE + tile_column
        # Columns at and beyond the context are not read at all: a weight of 0 would not silence a NaN.
        column_there = (tile_column < TILE) & (position + tile_column < context)
        keys = _tile(
            k_codes + page * k_page + head64 * k_head,
            k_scales + page * ks_page + head64 * ks_head,
            offset,
            column_there,
            DIM,
            K_CODE,
            K_SCALE,
            K_GROUP,
            k_chunks,
            k_width,
        )
        score = tl.zeros([LINES, columns], tl.float32)
        for chunk in tl.static_range(k_chunks):
            key = tl.trans(keys[chunk])
            product = _dot(query_parts[chunk * parts + parts - 1], key)
            for part in tl.static_range(1, parts):
                product = product + _dot(query_parts[chunk * parts + parts - 1 - part], key)
            if K_CODE == "int8" or K_CODE == "e4m3fn":
                product = product * keys[k_chunks + chunk][None, :]
            score = score + product
        seen = (position + tile_column)[None, :] < limit[:, None]
        seen = seen & (tile_column < TILE)[None, :]
        score = tl.where(seen, score * scale_log2, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=1))
        # A line that has seen nothing yet: −∞ − −∞ must not arise.
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        shrink = tl.exp2(highest - base)
        weight = tl.exp2(score - base[:, None])
        total = total * shrink + tl.sum(weight, axis=1)
        highest = new_highest
        values = _tile(
            v_codes + page * v_page + head64 * v_head,
            v_scales + page * vs_page + head64 * vs_head,
            offset,
            column_there,
            DIM,
            V_CODE,
            V_SCALE,
            V_GROUP,
            v_chunks,
            v_width,
        )
        new_sums = ()
        for chunk in tl.static_range(v_chunks):
            scaled = weight
            if V_CODE == "int8" or V_CODE == "e4m3fn":
                scaled = weight * values[v_chunks + chunk][None, :]
            new_sums = new_sums + (sums[chunk] * shrink[:, None] + _weighted(scaled, values[chunk], V_CODE),)
        sums = new_sums

    if splits == 1:
        _store_result(out, lse, place, there, highest, total, sums, DIM, V_CODE, v_chunks, v_width)
    else:
        partial = (
            (first_partial + split).to(tl.int64) * (KV_HEADS * LINES) + head * LINES + tl.arange(0, LINES)
        )
        tl.store(partial_stats + partial * 2, highest)
        tl.store(partial_stats + partial * 2 + 1, total)
        for chunk in tl.static_range(v_chunks):
            element, inside = _elements(chunk, DIM, V_CODE, v_chunks, v_width)
            target = partial_sums + partial[:, None] * DIM + element[None, :]
            tl.store(target, sums[chunk], mask=inside[None, :])


@triton.jit
def reduce(
    blocks,
    out,
    lse,
    partial_sums,
    partial_stats,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    LINES: tl.constexpr,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """Join the splits of one block, in their order; grid (blocks, KV heads).  ``WIDTH``: DIM or the next power of 2."""
    block, head = blocks + tl.program_id(0) * FIELDS, tl.program_id(1)
    splits = tl.load(block + 5)
    if splits == 1:
        return
    first_query, queries, number = tl.load(block + 1), tl.load(block + 2), tl.load(block + 4)
    line = number * LINES + tl.arange(0, LINES)
    there = line < queries * GROUP
    place = (first_query + line // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + line % GROUP
    first = tl.load(block + 7).to(tl.int64) * (KV_HEADS * LINES) + head * LINES + tl.arange(0, LINES)
    highest = tl.full([LINES], float("-inf"), tl.float32)
    for split in range(0, splits):
        highest = tl.maximum(highest, tl.load(partial_stats + (first + split * (KV_HEADS * LINES)) * 2))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.zeros([LINES], tl.float32)
    joined = tl.zeros([LINES, WIDTH], tl.float32)
    element = tl.arange(0, WIDTH)
    for split in range(0, splits):
        partial = first + split * (KV_HEADS * LINES)
        shrink = tl.exp2(tl.load(partial_stats + partial * 2) - base)
        total += tl.load(partial_stats + partial * 2 + 1) * shrink
        source = partial_sums + partial[:, None] * DIM + element[None, :]
        joined += tl.load(source, mask=(element < DIM)[None, :], other=0.0) * shrink[:, None]
    _store_result(out, lse, place, there, highest, total, (joined,), DIM, "float32", 1, WIDTH)


@triton.constexpr_function
def _chunks(dim, code, group):
    """Return how many chunks a row of ``dim`` elements consists of."""
    return {"float32": 1, "bfloat16": 1, "e2m1": 2}.get(code) or dim // group


@triton.constexpr_function
def _width(dim, code, group):
    """Return the elements of a chunk, padded to a power of two of at least 16, which products need."""
    real = {"float32": dim, "bfloat16": dim, "e2m1": dim // 2}.get(code) or group
    return max(16, triton.next_power_of_2(real))


@triton.jit
def _elements(chunk, DIM: tl.constexpr, CODE: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr):
    """Return which elements of a row a chunk's lanes are, and which lanes are there at all."""
    lane = tl.arange(0, WIDTH)
    if CODE == "e2m1":
        return 2 * lane + chunk, lane < DIM // 2
    else:
        return chunk * (DIM // CHUNKS) + lane, lane < DIM // CHUNKS


@triton.jit
def _query_parts(
    q,
    place,
    there,
    DIM: tl.constexpr,
    CODE: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Return the queries' chunks, each in ``PARTS`` parts that add up to it, the largest first."""
    found = ()
    for chunk in tl.static_range(CHUNKS):
        element, inside = _elements(chunk, DIM, CODE, CHUNKS, WIDTH)
        source = q + place[:, None] * DIM + element[None, :]
        x = tl.load(source, mask=there[:, None] & inside[None, :], other=0.0)
        if CODE == "float32":
            found = found + (widened(x),)
        elif PARTS == 1:
            found = found + (x,)
        else:
            first = upper_half(x)
            second = upper_half(x - first)
            third = x - first - second
            found = found + (first.to(tl.bfloat16), second.to(tl.bfloat16), third.to(tl.bfloat16))
    return found


@triton.jit
def _tile(
    codes,
    scales,
    offset,
    there,
    DIM: tl.constexpr,
    CODE: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return the chunks ``[columns, WIDTH]`` of one tile, then for INT8 and E4M3FN their scales ``[columns]``.

    They are in the dtype of the products.  Columns that are not ``there`` are not read and come as zeros.
    """
    lane = tl.arange(0, WIDTH)
    # The rows of a page follow one another without gaps, so their strides are known when this is compiled.
    start = codes + (offset * (DIM // 2 if CODE == "e2m1" else DIM))[:, None]
    scale_start = scales + offset * (DIM // GROUP)
    if CODE == "e2m1":
        byte = tl.load(start + lane[None, :], mask=there[:, None] & (lane < DIM // 2)[None, :], other=0)
        count: tl.constexpr = max(1, WIDTH // (GROUP // 2))
        group = tl.arange(0, count)
        mask = there[:, None] & (group < DIM // GROUP)[None, :]
        pattern = tl.load(scale_start[:, None] + group[None, :], mask=mask, other=0)
        scale = tl.expand_dims(scale_value(pattern, SCALE), 2)
        scale = tl.reshape(
            tl.broadcast_to(scale, (scale.shape[0], count, WIDTH // count)), (scale.shape[0], WIDTH)
        )
        low = e2m1_value(byte & 0xF) * scale
        high = e2m1_value((byte >> 4) & 0xF) * scale
        return (low.to(tl.bfloat16), high.to(tl.bfloat16))
    elif CODE == "float32" or CODE == "bfloat16":
        return (tl.load(start + lane[None, :], mask=there[:, None] & (lane < DIM)[None, :], other=0.0),)
    else:
        found = ()
        for chunk in tl.static_range(CHUNKS):
            source = start + (chunk * GROUP + lane)[None, :]
            pattern = tl.load(source, mask=there[:, None] & (lane < GROUP)[None, :], other=0)
            if CODE == "int8":
                # By way of float32: the interpreter's own cast from int8 to bfloat16 is wrong.
                found = found + (pattern.to(tl.float32).to(tl.bfloat16),)
            else:
                found = found + (e4m3fn_value(pattern).to(tl.bfloat16),)
        for chunk in tl.static_range(CHUNKS):
            found = found + (scale_value(tl.load(scale_start + chunk, mask=there, other=0), SCALE),)
        return found


@triton.jit
def _weighted(weight, values, CODE: tl.constexpr):
    """Return ``weight @ values`` with the weights' full precision."""
    if CODE == "float32":
        return _dot(weight, values)
    else:
        first = upper_half(weight)
        second = upper_half(weight - first)
        third = weight - first - second
        small = _dot(second.to(tl.bfloat16), values) + _dot(third.to(tl.bfloat16), values)
        return _dot(first.to(tl.bfloat16), values) + small


@triton.jit
def _dot(left, right):
    """Return the product in float32; the interpreter would multiply bfloat16 as the integers that hold them."""
    if INTERPRETED:
        return tl.dot(widened(left), widened(right), input_precision="ieee")
    else:
        return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _store_result(
    out,
    lse,
    place,
    there,
    highest,
    total,
    sums,
    DIM: tl.constexpr,
    CODE: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Divide and write: output 0 and −∞ for a line that has seen nothing.  ``out`` is float32, or int16 patterns of
    bfloat16.
    """
    # By the sum of weights and not by the maximum: a NaN score leaves no maximum and has to come through.
    empty = total == 0.0
    tl.store(lse + place, tl.where(empty, float("-inf"), (highest + tl.log2(total)) * _LN2), mask=there)
    divisor = tl.where(empty, 1.0, total)[:, None]
    for chunk in tl.static_range(CHUNKS):
        element, inside = _elements(chunk, DIM, CODE, CHUNKS, WIDTH)
        result = tl.div_rn(sums[chunk], tl.broadcast_to(divisor, sums[chunk].shape))
        target = out + place[:, None] * DIM + element[None, :]
        mask = there[:, None] & inside[None, :]
        if out.dtype.element_ty == tl.int16:
            tl.store(target, bfloat16_patterns(result), mask=mask)
        else:
            tl.store(target, result, mask=mask)
