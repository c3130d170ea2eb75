"""Tests of the Triton kernels through the interpreter; run by ``test_triton_interpreter.py``, in a process for them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from kvcrucible.contract.profiles import PROFILES
from kvcrucible.engine.kernels.triton import backend, launch

pytestmark = pytest.mark.torch


def helpers(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_are_interpreted() -> None:
    assert backend.target(torch.device("cpu")) == launch.INTERPRETER


#: K8V4 has the codes of both FP8 and NVFP4.
@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(name, marks=[] if name in ("BF16", "INT8-G64", "K8V4") else pytest.mark.slow)
        for name in PROFILES
    ],
)
def test_a_ragged_batch_with_splits_padding_and_a_chunk_that_starts_in_a_page(make_batch, profile) -> None:
    batch = make_batch(
        [1, 0, 130, 67], [1, 1, 1, 6], 16, 2, 3, 256, profile=profile, plane_order="head-major"
    )
    assert batch.misfit(*batch.run(backend="triton")) == []


@pytest.mark.parametrize("page_size", [1, 4, 128])
def test_pages_smaller_and_larger_than_a_tile(make_batch, page_size) -> None:
    batch = make_batch([9, page_size + 1], [1, 2], page_size, 1, 2, 24)
    assert batch.misfit(*batch.run(backend="triton")) == []


def test_a_batch_of_more_partial_results_than_one_launch_may_leave(make_batch, monkeypatch) -> None:
    batch = make_batch([80, 70], [1, 1], 16, 1, 2, 16)
    together = batch.run(backend="triton")
    monkeypatch.setattr(backend, "MOST_PARTIAL_BYTES", 1)
    for one, other in zip(together, batch.run(backend="triton"), strict=True):
        assert torch.equal(one, other)


def test_an_entry_gives_the_same_bits_in_any_batch(make_batch) -> None:
    from kvcrucible.engine.kernels.api import paged_attention

    batch = make_batch([80, 3, 70], [1, 1, 1], 16, 1, 2, 16)
    out, lse = batch.run(backend="triton")
    view = batch.storage.layer_view(0)
    for row, context in enumerate([80, 3, 70]):
        alone = paged_attention(batch.q[row : row + 1], view, [row], [1], [context], backend="triton")
        assert torch.equal(alone[0][0], out[row])
        assert torch.equal(alone[1][0], lse[row])


def test_every_bfloat16_number_is_widened_exactly() -> None:
    assert helpers("test_append").widened_wrongly("triton") == []


def test_a_nan_inside_the_context_reaches_the_result(make_batch) -> None:
    batch = make_batch([1, 40], [1, 1], 16, 1, 1, 16)
    view = batch.storage.layer_view(0)
    for row in range(2):
        view.key.codes[view.block_tables[row, 0], 0, 0, 0] = float("nan")
    out, lse = batch.run(backend="triton")
    assert bool(out.isnan().all())
    assert bool(lse.isnan().all())


@pytest.mark.parametrize("contexts", [(320, 704), pytest.param((4096, 65536), marks=pytest.mark.slow)])
def test_working_memory_is_the_same_for_any_long_context(make_batch, contexts) -> None:
    measure = helpers("test_working_memory").measure
    seen = []
    for context in contexts:
        batch = make_batch([context], [1], 64, 1, 1, 8)
        seen.append(measure(batch, lambda one: one.run(backend="triton")))
    assert seen[0] == seen[1]
