"""Runs one case on one back-end and judges it.

Verifies: attention within the budget of ``reference/attention.py``, the same bits under identity, offset and permuted
page ids, whatever stale bytes are, and when repeated; appends, copies and packing to the bit, with no other byte of
planes or extent changed.  Does not verify: speed, working memory, refusals (``tests/kernels`` do).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder
from kvcrucible.engine.host.packing import PackedLayout, coalesce
from kvcrucible.engine.kernels import api
from kvcrucible.engine.kernels.blocks import PageCopy
from kvcrucible.fuzz.kernels.backends import smallest_tile
from kvcrucible.fuzz.kernels.cases import Case
from kvcrucible.fuzz.kernels.stage import (
    MAPPINGS,
    OTHER_POISON,
    Stage,
    build,
    is_nan,
    numbers,
    stored,
    upload,
    write_rows,
)
from kvcrucible.invariants.judgements import ENGINE_FAULT
from kvcrucible.invariants.violation import Violation
from kvcrucible.reference.attention import attention, error_budget

#: Layers of stages whose planes are copied as a whole: more than one, so that they can be mistaken for each other.
COPY_LAYERS = 2

#: What an extent's bytes are before anything is packed.
_EXTENT_FILL = 0xA5

_QUERY_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def check(case: Case, backend: str, device: str) -> list[Violation]:
    """Return what is wrong with ``backend`` on this case; an exception of the back-end is a finding, too."""
    runner = _RUNNERS[case.cell.kernel]
    try:
        return runner(case, backend, device)
    except Exception as error:
        return [Violation(ENGINE_FAULT, f"{case.cell.kernel}: {type(error).__name__}: {error}")]


def _append(case: Case, backend: str, device: str) -> list[Violation]:
    for mapping in MAPPINGS:
        stage = build(case, backend, device, mapping, case.poison)
        draw = np.random.default_rng(case.seed)
        parts, written = [], set()
        for row, (length, count) in enumerate(zip(case.lengths, case.queries, strict=True)):
            k, v = (numbers(case, count, draw, special=case.special) for _ in range(2))
            if case.output == "bfloat16":
                k, v = (_as_given(x, case).double().numpy() for x in (k, v))
            parts.append((k, v))
            written |= set(write_rows(stage, case, row, length - count, k, v))
        given = [_as_given(np.concatenate(side), case).to(device) for side in zip(*parts, strict=True)]
        starts = [length - count for length, count in zip(case.lengths, case.queries, strict=True)]
        rows = list(range(len(case.lengths)))
        api.append(stage.storage.layer_view(0), rows, starts, case.queries, *given)
        if found := _compare(stage, written, f"{mapping} page ids"):
            return found
    return []


def _attend(case: Case, backend: str, device: str) -> list[Violation]:
    causal, rows = case.cell.kernel != "cached-only", list(range(len(case.lengths)))
    draw = np.random.default_rng(case.seed)
    sequences = [tuple(numbers(case, n, draw) for _ in range(2)) for n in case.lengths]
    shape = (sum(case.queries), case.kv_heads * case.group, case.head_dim)
    q = torch.from_numpy(draw.standard_normal(shape).astype(np.float32)).to(_QUERY_DTYPES[case.output])
    results: list[tuple[str, str, torch.Tensor, torch.Tensor]] = []
    runs = [(mapping, case.poison) for mapping in MAPPINGS]
    runs += [(MAPPINGS[-1], case.poison), (MAPPINGS[-1], OTHER_POISON[case.poison])]
    for mapping, poison in runs:
        stage = build(case, backend, device, mapping, poison)
        for row, (k, v) in enumerate(sequences):
            write_rows(stage, case, row, 0, k, v)
        upload(stage)
        out, lse = api.paged_attention(
            q.to(device), stage.storage.layer_view(0), rows, case.queries, case.lengths, causal=causal
        )
        results.append((mapping, poison, out.cpu(), lse.cpu()))
        if found := _compare(stage, set(), "a kernel that only reads"):
            return found
    if found := _against_oracle(case, sequences, q, results[0], causal, backend):
        return found
    names = ("", "mapping-invariance", "mapping-invariance", "repeat", "no-stale-read")
    for name, (mapping, poison, out, lse) in zip(names, results, strict=True):
        # The last two are set beside the third, which differs from them in nothing but what their name says.
        base = results[2] if name in ("repeat", "no-stale-read") else results[0]
        if not (_same_bits(out, base[2]) and _same_bits(lse, base[3])):
            what = f"{case.cell.kernel} over {mapping} page ids with {poison} stale bytes"
            invariant = "kernel-oracle" if name == "repeat" else name
            return [Violation(invariant, f"{what}: other bits than over {base[0]} ids with {base[1]} bytes")]
    return []


def _against_oracle(
    case: Case,
    sequences: Sequence[tuple[NDArray[np.float64], ...]],
    q: torch.Tensor,
    result: tuple[str, str, torch.Tensor, torch.Tensor],
    causal: bool,
    backend: str,
) -> list[Violation]:
    line = 0
    for row, (context, queries) in enumerate(zip(case.lengths, case.queries, strict=True)):
        lines = slice(line, line + queries)
        line += queries
        if causal:
            positions = np.arange(context - queries, context) if context else np.full(queries, -1)
        else:
            positions = np.full(queries, context - 1)
        oracle = attention(q[lines].double().numpy(), *stored(case, *sequences[row]), positions)
        budget = error_budget(oracle, smallest_tile(backend, case.page_size), case.output)
        out, lse = (tensor[lines].double().numpy() for tensor in result[2:])
        if not budget.admits(oracle, out, lse):
            with np.errstate(invalid="ignore", divide="ignore"):
                far = np.nanmax(np.abs(out - oracle.out) / budget.out) if out.size else 0.0
            what = f"{case.cell.kernel}, row {row}, context {context}, {queries} queries"
            return [
                Violation(
                    "kernel-oracle", f"{what}: outside the error budget, outputs by a factor of {far:.3g}"
                )
            ]
    return []


def _copy(case: Case, backend: str, device: str) -> list[Violation]:
    for mapping in MAPPINGS:
        stage = _filled(case, backend, device, mapping)
        used = {page for pages in stage.pages for page in pages}
        free = [page for page in range(stage.storage.capacity_pages) if page not in used]
        copies, written = [], set()
        for block, (source, target) in enumerate(zip(stage.pages[0], free, strict=False)):
            columns = min(case.page_size, case.lengths[0] - block * case.page_size)
            copies.append(PageCopy(source, target, columns))
            written |= {(target, offset) for offset in range(columns)}
            for image in stage.images:
                image[target, :, :columns] = image[source, :, :columns]
        api.copy_columns(stage.storage.planes(), copies, backend=backend)
        if found := _compare(stage, written, f"{mapping} page ids"):
            return found
    return []


def _pack(case: Case, backend: str, device: str) -> list[Violation]:
    for mapping in MAPPINGS:
        stage = _filled(case, backend, device, mapping)
        layout = _layout(case, len(stage.pages[0]) + 1)
        extent = torch.full((layout.size_bytes,), _EXTENT_FILL, dtype=torch.uint8)
        expected = extent.numpy().copy()
        for part, page_bytes in _places(stage, layout):
            expected[part] = page_bytes
        runs = coalesce((page, slot) for slot, page in enumerate(stage.pages[0]))
        api.pack(extent, layout, stage.storage.planes(), runs, backend=backend)
        _wait(device)
        if not np.array_equal(extent.numpy(), expected):
            at = int(np.flatnonzero(extent.numpy() != expected)[0])
            return [
                Violation("replica-valid", f"packed, {mapping} page ids: byte {at} of the extent differs")
            ]
        if found := _compare(stage, set(), f"packing, {mapping} page ids"):
            return found
    return []


def _unpack(case: Case, backend: str, device: str) -> list[Violation]:
    for mapping in MAPPINGS:
        stage = _filled(case, backend, device, mapping)
        layout = _layout(case, len(stage.pages[0]) + 1)
        draw = np.random.default_rng(case.seed)
        extent = torch.from_numpy(draw.integers(0, 256, layout.size_bytes, dtype=np.uint8))
        for part, page_bytes in _places(stage, layout):
            page_bytes[...] = extent.numpy()[part]
        written = {(page, offset) for page in stage.pages[0] for offset in range(case.page_size)}
        runs = coalesce((page, slot) for slot, page in enumerate(stage.pages[0]))
        api.unpack(extent, layout, stage.storage.planes(), runs, backend=backend)
        _wait(device)
        if found := _compare(stage, written, f"unpacked, {mapping} page ids", exact=True):
            return found
    return []


def _places(stage: Stage, layout: PackedLayout) -> list[tuple[slice, NDArray[np.uint8]]]:
    """Return where each page of row 0 lies: its bytes in the extent, and a view of its bytes in the image.

    Page by page and row by row, with no thought of runs.
    """
    places = []
    for image, section in zip(stage.images, layout.sections, strict=True):
        for outer in range(section.outer):
            for slot, page in enumerate(stage.pages[0]):
                start = section.offset_of(slot, outer)
                memory = image[page] if section.outer == 1 else image[page, outer]
                places.append((slice(start, start + section.page_bytes), memory.reshape(-1).view(np.uint8)))
    return places


def _filled(case: Case, backend: str, device: str, mapping: str) -> Stage:
    stage = build(case, backend, device, mapping, case.poison, COPY_LAYERS)
    draw = np.random.default_rng(case.seed)
    for page in range(stage.storage.capacity_pages):
        for image in stage.images:
            image[page] = draw.integers(
                0, np.iinfo(image.dtype).max, image[page].shape, image.dtype, endpoint=True
            )
    upload(stage)
    return stage


def _layout(case: Case, slots: int) -> PackedLayout:
    geometry = Geometry(COPY_LAYERS, case.kv_heads, case.head_dim)
    order = PlaneOrder(case.cell.order)
    return PackedLayout(PROFILES[case.cell.profile], geometry, case.page_size, order, slots)


def _as_given(rows: NDArray[np.float64], case: Case) -> torch.Tensor:
    return torch.from_numpy(rows.astype(np.float32)).to(_QUERY_DTYPES[case.output])


def _compare(
    stage: Stage, written: set[tuple[int, int]], what: str, *, exact: bool = False
) -> list[Violation]:
    """Set the planes beside their images; a NaN that was encoded as a number may have another payload."""
    for number, (plane, found, due) in enumerate(
        zip(stage.storage.planes(), stage.found(), stage.images, strict=True)
    ):
        differs = found != due
        if written and not exact:
            differs &= ~(is_nan(found, plane.dtype) & is_nan(due, plane.dtype))
        if not differs.any():
            continue
        page, head, offset, _ = (int(axis) for axis in np.argwhere(differs)[0])
        invariant = "codec-exact" if (page, offset) in written else "single-writer"
        where = f"plane {number}, page {page}, head {head}, column {offset}"
        return [Violation(invariant, f"{what}: {where}: {int(differs.sum())} elements differ")]
    return []


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


_RUNNERS = {
    "append": _append,
    "decode": _attend,
    "prefill": _attend,
    "cached-only": _attend,
    "copy": _copy,
    "pack": _pack,
    "unpack": _unpack,
}
