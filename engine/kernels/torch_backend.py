"""Plain torch: the fallback that runs wherever torch does, and the one that is easiest to read.

Attention goes tile by tile through the block table with an online softmax.  One tile is one page of each row:
at tile ``t`` the active rows' pages are looked up, copied (and decoded) to ``[rows, Hkv, P, D]`` in float32 and
used, so the working memory beyond the outputs is a few such tiles whatever the context.  The copy also makes
every tile's address and strides alike, which is what lets identity, offset and permuted page ids, and both plane
orders, give the same bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kvcrucible.engine.host.packing import CopyRun
from kvcrucible.engine.kernels.batch import offsets, pages_needed
from kvcrucible.engine.kernels.blocks import PageCopy, PlaneSection
from kvcrucible.engine.kernels.view import LayerView, SideView


def why_not(planes: Sequence[Tensor], block_tables: Tensor | None) -> str | None:
    """Return None: it runs on whatever tensors torch runs on."""
    return None


def append(view: LayerView, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write ``k``, ``v`` ``[T, Hkv, D]`` to ``slots``; see ``api.append``."""
    page, offset = slots // view.page_size, slots % view.page_size
    for side, rows in ((view.key, k), (view.value, v)):
        for plane, stored in zip(side.tensors(), side.encode(rows), strict=True):
            plane[page, :, offset] = stored


def paged_attention(
    q: Tensor,
    view: LayerView,
    rows: Sequence[int],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return ``out [T, Hq, D]`` and ``lse [T, Hq]``; see ``api.paged_attention``.

    Rows with equally many queries run together: a decode round is one group, a prefill chunk usually another.
    """
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float32, device=q.device)
    first_lines = offsets(query_lengths)
    groups: dict[int, list[int]] = defaultdict(list)
    for entry, (queries, context) in enumerate(zip(query_lengths, context_lengths, strict=True)):
        if queries and context:
            groups[queries].append(entry)
    for queries, entries in groups.items():
        # Longest first, so that the rows that still have a tile are always a leading slice of every buffer.
        entries.sort(key=lambda entry: -context_lengths[entry])
        lines = torch.tensor([first_lines[entry] for entry in entries], device=q.device)
        lines = lines[:, None] + torch.arange(queries, device=q.device)
        contexts = [context_lengths[entry] for entry in entries]
        out[lines], lse[lines] = _attend(
            q[lines], view, [rows[entry] for entry in entries], contexts, scale, causal
        )
    return out, lse


def copy_columns(planes: Sequence[Tensor], copies: Sequence[PageCopy]) -> None:
    """Copy columns from page to page; see ``api.copy_columns``."""
    for plane in planes:
        for copy in copies:
            plane[copy.destination, :, : copy.columns].copy_(plane[copy.source, :, : copy.columns])


def pack(sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
    """Copy runs of pages to the host; see ``api.pack``."""
    for host, device in _run_bytes(sections, runs):
        host.copy_(device, non_blocking=True)


def unpack(sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
    """Copy runs of pages from the host; see ``api.unpack``."""
    for host, device in _run_bytes(sections, runs):
        device.copy_(host, non_blocking=True)


def _run_bytes(sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the bytes of each run in each section: on the host, on the device."""
    for section in sections:
        for run in runs:
            yield (
                section.host[:, run.slot : run.slot + run.pages],
                section.device[:, run.device_page : run.device_page + run.pages],
            )


def _attend(
    q: Tensor, view: LayerView, rows: list[int], contexts: list[int], scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attend ``q [B, Q, Hq, D]`` of rows with contexts ≥ 1, longest first; return ``[B, Q, Hq, D]`` and ``[B,
    Q, Hq]``.
    """
    batch, queries, query_heads, _ = q.shape
    heads, size = view.kv_heads, view.page_size
    folded = _fold(q.to(torch.float32) * scale, heads)
    row_index = torch.tensor(rows, device=q.device)
    context = torch.tensor(contexts, device=q.device)
    limit = _visible_columns(context, queries, query_heads // heads, causal)
    highest = folded.new_full((*folded.shape[:3], 1), float("-inf"))
    total = torch.zeros_like(highest)
    weighted = torch.zeros_like(folded)
    tiles = [pages_needed(length, size) for length in contexts]
    active = batch
    for tile in range(tiles[0]):
        while tiles[active - 1] <= tile:
            active -= 1
        pages = view.block_tables[row_index[:active], tile]
        column = torch.arange(tile * size, (tile + 1) * size, device=q.device)
        # Stale columns may hold NaN or infinity.  A weight of 0 does not silence those (0 · NaN is NaN), so
        # they are removed from the values too, not only from the scores.
        stale = column >= context[:active, None]
        key = _tile(view.key, pages)
        value = _tile(view.value, pages).masked_fill_(stale[:, None, :, None], 0.0)
        score = torch.matmul(folded[:active], key.transpose(-1, -2))
        score.masked_fill_(column >= limit[:active, :, :, None], float("-inf"))
        # Column 0 is visible to every query, so from the first tile on the maximum is finite and −∞ − −∞
        # cannot arise.
        new_highest = torch.maximum(highest[:active], score.amax(dim=-1, keepdim=True))
        shrink = torch.exp(highest[:active] - new_highest)
        weight = torch.exp(score - new_highest)
        total[:active] = total[:active] * shrink + weight.sum(dim=-1, keepdim=True)
        weighted[:active] = weighted[:active] * shrink + torch.matmul(weight, value)
        highest[:active] = new_highest
    out = _unfold(weighted / total, queries).to(q.dtype)
    return out, _unfold(highest + torch.log(total), queries).squeeze(-1)


def _tile(side: SideView, pages: Tensor) -> Tensor:
    """Return one page of each row as float32 ``[B, Hkv, P, D]``, a new contiguous tensor, decoded where it is codes."""
    return side.decode(*(plane.index_select(0, pages) for plane in side.tensors())).to(torch.float32)


def _fold(q: Tensor, heads: int) -> Tensor:
    """Return ``[B, Q, Hkv·G, D]`` as ``[B, Hkv, G·Q, D]``: the queries that share a KV head become lines of
    one product.
    """
    batch, queries, query_heads, dim = q.shape
    by_head = q.view(batch, queries, heads, query_heads // heads, dim).permute(0, 2, 3, 1, 4)
    return by_head.reshape(batch, heads, -1, dim)


def _unfold(folded: Tensor, queries: int) -> Tensor:
    """Undo :func:`_fold`: ``[B, Hkv, G·Q, D]`` becomes ``[B, Q, Hkv·G, D]``."""
    batch, heads, lines, dim = folded.shape
    by_head = folded.view(batch, heads, lines // queries, queries, dim).permute(0, 3, 1, 2, 4)
    return by_head.reshape(batch, queries, -1, dim)


def _visible_columns(context: Tensor, queries: int, group: int, causal: bool) -> Tensor:
    """Return ``[B, 1, G·Q]``: the first column that each folded query may not see."""
    if not causal:
        return context[:, None, None].expand(-1, 1, group * queries)
    after_own = context[:, None] - queries + 1 + torch.arange(queries, device=context.device)
    return after_own.repeat(1, group)[:, None]
