"""The operators, with their validation and dispatch: every check is made here, once, before a back-end runs.

A refused call (``BadArgument``) has read and written no payload.  Back-ends trust their arguments, do not
import one another, and agree within the error budget of ``reference/attention.py``; appends and copies agree to the
bit (in planes of numbers a NaN stays a NaN, whatever its payload).

``backend`` names one for the call (``backends.BACKENDS``); None is the view's own, or the best that works here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.host.packing import CopyRun, PackedLayout
from kvcrucible.engine.kernels.backends import Backend, choose
from kvcrucible.engine.kernels.batch import check_mapped, check_same_count, check_tensor, slots
from kvcrucible.engine.kernels.blocks import PageCopy, check_copies, plane_sections
from kvcrucible.engine.kernels.view import LayerView


@torch.no_grad()
def append(
    view: LayerView,
    rows: Sequence[int],
    start_positions: Sequence[int],
    lengths: Sequence[int],
    k: Tensor,
    v: Tensor,
    *,
    backend: str | None = None,
) -> None:
    """Write new keys and values into the pages that the block table names (DESIGN 4.11); mutates the planes.

    ``rows``, ``start_positions``, ``lengths``: one entry a row; row ``rows[i]`` gets ``lengths[i]`` tokens at
    positions ``start_positions[i], …``.  ``k``, ``v``: ``[T, Hkv, D]``, float32 or bfloat16, ``T =
    sum(lengths)``, packed in row order; they are rounded to the planes' dtype, to nearest even, or encoded to the
    same bits as ``reference/codecs.py``.

    Raises ``BadArgument``, with nothing written, where shapes differ, a position is not mapped, or two tokens
    of the batch would land in one slot.
    """
    chosen = _for_view(backend, view)
    check_same_count(rows=rows, start_positions=start_positions, lengths=lengths)
    shape = (sum(lengths), view.kv_heads, view.head_dim)
    check_tensor("k", k, shape, view)
    check_tensor("v", v, shape, view)
    for row, start, length in zip(rows, start_positions, lengths, strict=True):
        check_mapped(view, row, start, start + length)
    targets = slots(view, rows, start_positions, lengths)
    _check_distinct(targets)
    chosen.append(view, targets, k, v)


@torch.no_grad()
def paged_attention(
    q: Tensor,
    view: LayerView,
    rows: Sequence[int],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    *,
    scale: float | None = None,
    causal: bool = True,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of a ragged batch over paged keys and values (DESIGN 4.11); mutates nothing.

    ``q``: ``[T, Hq, D]``, float32 or bfloat16, ``T = sum(query_lengths)``, packed in row order; ``Hq`` is a
    multiple of ``Hkv``, and query head ``h`` reads KV head ``h // (Hq // Hkv)``.
    ``rows``, ``query_lengths``, ``context_lengths``: one entry a row.  The queries of row ``i`` stand at the
    *last* ``query_lengths[i]`` of its ``context_lengths[i]`` positions, whose keys and values have been
    appended already.  With ``causal`` each query sees the positions up to its own; without it (cached-only
    attention: the queries' own keys are held elsewhere) each sees the whole context, and the log-sum-exp lets
    the caller merge the other part in.
    ``scale`` multiplies the scores; 1/√D unless given.  Products and sums are kept in float32 (on CUDA this
    needs torch's default float32 matmul precision, "highest").

    Returns ``out [T, Hq, D]`` in ``q``'s dtype and ``lse [T, Hq]``, float32, natural logarithm of the sum of
    the exponentials of the scaled scores.  A row of context 0 (padding) reads nothing, not even its table:
    output 0, LSE −∞.  Columns at or beyond the context never reach the result, whatever their bytes.  Numbers
    inside the context are taken to be finite: a NaN among them reaches every query of its row.

    Worked example, P = 4, Hq = 4, Hkv = 2::

        block_tables[0] = [7, 2, −1]   block_tables[1] = [5, −1, −1]   block_tables[2] = [0, 3, 9]
        rows            = [0, 1, 2, 2]
        query_lengths   = [1, 3, 0, 1]      → q is [5, 4, D]: lines 0 | 1 2 3 | – | 4
        context_lengths = [6, 3, 0, 0]

    Line 0 (decode) is position 5 of row 0: pages 7 and 2, columns 0–3 and 0–1.  Lines 1–3 (prefill) are
    positions 0–2 of row 1 and see 1, 2 and 3 columns of page 5.  The third entry has no queries.  Line 4 is
    padding: 0 and −∞.

    Raises ``BadArgument`` where shapes differ, a context position is not mapped, or with ``causal`` a context
    is shorter than its queries but not 0.
    """
    chosen = _for_view(backend, view)
    check_same_count(rows=rows, query_lengths=query_lengths, context_lengths=context_lengths)
    check_tensor("q", q, (sum(query_lengths), None, view.head_dim), view)
    if q.shape[1] == 0 or q.shape[1] % view.kv_heads:
        raise BadArgument(
            f"{q.shape[1]} query heads",
            f"{view.kv_heads} KV heads",
            "use a positive multiple of the KV heads",
        )
    if scale is not None and not math.isfinite(scale):
        raise BadArgument(f"scale {scale}", "not a finite number", "leave it out for 1/sqrt(D)")
    for row, queries, context in zip(rows, query_lengths, context_lengths, strict=True):
        if causal and 0 < context < queries:
            raise BadArgument(
                f"{queries} causal queries of row {row} over a context of {context}",
                "the context includes the queries' own positions",
                "append first and pass the length after it",
            )
        check_mapped(view, row, 0, context)
    used_scale = 1.0 / math.sqrt(view.head_dim) if scale is None else scale
    return chosen.paged_attention(q, view, rows, query_lengths, context_lengths, used_scale, causal)


@torch.no_grad()
def copy_columns(planes: Sequence[Tensor], copies: Sequence[PageCopy], *, backend: str | None = None) -> None:
    """Copy the first columns of pages to other pages, in every plane of a pool (DESIGN 4.5); mutates ``planes``.

    ``planes``: ``[page, head, offset, stored]`` each, as ``TorchStorage.planes`` returns them.  Columns at and beyond
    ``copies[i].columns`` of a destination keep their bytes.  Raises ``BadArgument``, with nothing written, for a page
    or a column that is not there, or a page that is written twice, or read and written.
    """
    if not planes or not copies:
        return
    chosen = choose(backend, planes)
    check_copies(planes, copies)
    chosen.copy_columns(planes, copies)


@torch.no_grad()
def pack(
    extent: Tensor,
    layout: PackedLayout,
    planes: Sequence[Tensor],
    runs: Sequence[CopyRun],
    *,
    backend: str | None = None,
) -> None:
    """Copy pages into the Host layout (DESIGN 4.4), one copy for each run and row of a section; mutates ``extent``.

    ``extent``: uint8 ``[layout.size_bytes]`` in main memory; no other byte of it changes.  ``planes``: every plane of
    the pool in the order of the layout's sections, ``[page, head, offset, stored]`` each, strided where head-major.
    ``runs``: pages that follow one another on both sides (``packing.coalesce``).  Between a device and pinned memory
    the copies may still run when the call returns; they are in the order of the device's current stream.

    Raises ``BadArgument``, with nothing written, where planes or extent do not match the layout, or a run lies outside
    either side or overlaps another.
    """
    chosen = choose(backend, planes)
    chosen.pack(plane_sections(extent, layout, planes, runs), runs)


@torch.no_grad()
def unpack(
    extent: Tensor,
    layout: PackedLayout,
    planes: Sequence[Tensor],
    runs: Sequence[CopyRun],
    *,
    backend: str | None = None,
) -> None:
    """Copy pages back from the Host layout, whole pages; :func:`pack` the other way; mutates ``planes``."""
    chosen = choose(backend, planes)
    chosen.unpack(plane_sections(extent, layout, planes, runs), runs)


def _for_view(backend: str | None, view: LayerView) -> Backend:
    return choose(backend or view.backend, (*view.key.tensors(), *view.value.tensors()), view.block_tables)


def _check_distinct(targets: Tensor) -> None:
    """Refuse a batch in which two tokens share a slot: which of them stayed would be left to chance."""
    ordered = torch.sort(targets).values
    if bool((ordered[1:] == ordered[:-1]).any()):
        found = "rows that repeat or share a page"
        raise BadArgument("an append of two tokens to one slot", found, "copy the shared page first")
