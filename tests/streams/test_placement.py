"""Where an engine is placed: in main memory or on CUDA, and what is said where that cannot be.

Verifies too that torch has what the CUDA runtime calls, and how errors of a device are told from mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from small_engine import CONFIG, PLANES

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import BadArgument, NotRunError
from kvcrucible.contract.operations import Prefill
from kvcrucible.contract.tokens import run
from kvcrucible.engine.placement import place
from kvcrucible.engine.streams import CudaDevice
from kvcrucible.engine.streams.cuda_runtime import TorchCuda, why_no_cuda


def test_torch_has_what_the_runtime_calls() -> None:
    """On a build without CUDA the names are there all the same, and only their use is refused."""
    torch = pytest.importorskip("torch")
    for owner, names in (
        (
            torch.cuda,
            (
                "is_available",
                "device_count",
                "current_device",
                "current_stream",
                "device",
                "stream",
                "Stream",
            ),
        ),
        (torch.cuda.Stream, ("record_event", "wait_event", "synchronize")),
        (torch.cuda.Event, ("query", "synchronize")),
    ):
        assert all(callable(getattr(owner, name)) for name in names)


def test_page_locked_memory_is_allocated_with_its_device_current() -> None:
    """Elsewhere it would open a context on whatever device is current."""
    current = ["cuda:0"]

    @contextmanager
    def device(index: str) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    runtime = object.__new__(TorchCuda)
    runtime.device = "cuda:1"  # type: ignore[assignment]
    runtime._torch = SimpleNamespace(
        cuda=SimpleNamespace(device=device),
        int32=None,
        empty=lambda *_, **how: (current[-1], how["pin_memory"]),
    )
    assert runtime.staging(4) == ("cuda:1", True)  # type: ignore[comparison-overlap]
    assert current == ["cuda:0"]


def test_what_a_device_reports_is_told_from_mistakes() -> None:
    torch = pytest.importorskip("torch")
    from kvcrucible.engine.streams.cuda_runtime import reported_by_device

    for reported in (
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("Triton Error [CUDA]: misaligned address"),
    ):
        assert reported_by_device(reported)
    for mistake in (
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        BadArgument("a", "b", "c"),
        ValueError("CUDA error"),
    ):
        assert not reported_by_device(mistake)


@pytest.mark.torch
def test_an_engine_is_placed_in_main_memory() -> None:
    pytest.importorskip("torch")
    placed = place(CONFIG)
    assert placed.host_memory is not None
    assert not placed.host_memory.pinned
    assert placed.storages[0].stored().geometry == PLANES.geometry
    sequence = placed.engine.submit(run(0, 0, 10), 4)
    placed.engine.schedule()
    assert placed.engine.end_unit(placed.engine.begin_unit([Prefill(sequence, 10)])).frontiers == (
        (sequence, 10),
    )
    assert placed.storages[0].table_row(0)[:3] == list(placed.engine.tables[0].entries[0])


@pytest.mark.parametrize("where", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", ""])
def test_an_unknown_device_is_refused(where: str) -> None:
    with pytest.raises(BadArgument, match="cpu, cuda and cuda:N"):
        place(CONFIG, where)


def test_a_pool_that_does_not_say_what_it_stores_cannot_be_placed() -> None:
    with pytest.raises(BadArgument, match="declare the one kind"):
        place(EngineConfig((PoolSpec("main", 8, 16),), 64, 2))


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_without_torch_it_is_said_how_to_get_it(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcrucible.engine.streams.cuda_runtime.find_spec", lambda name: None)
    with pytest.raises(
        NotRunError, match=r"torch is not installed; get it with `pip install '\.\[engine\]'`"
    ):
        place(CONFIG, where)


@pytest.mark.skipif(why_no_cuda() is None, reason="there is a CUDA device")
def test_without_a_device_it_is_said_that_nothing_was_run() -> None:
    for attempt in (TorchCuda, partial(place, CONFIG, "cuda"), partial(place, CONFIG, "cuda:3"), CudaDevice):
        with pytest.raises(NotRunError, match=r"no CUDA device|torch is not installed"):
            attempt()


@pytest.mark.gpu
@pytest.mark.skipif(why_no_cuda() is not None, reason=str(why_no_cuda()))
def test_an_engine_is_placed_on_cuda_with_pinned_host_memory() -> None:
    placed = place(CONFIG, "cuda")
    assert placed.host_memory is not None
    assert placed.host_memory.buffer.is_pinned()
    assert placed.storages[0].block_tables.is_cuda
    sequence = placed.engine.submit(run(0, 0, 10), 4)
    placed.engine.schedule()
    placed.engine.end_unit(placed.engine.begin_unit([Prefill(sequence, 10)]))
    placed.device.synchronize()
    assert placed.engine.progress().units
    assert placed.storages[0].table_row(0)[:3] == list(placed.engine.tables[0].entries[0])
