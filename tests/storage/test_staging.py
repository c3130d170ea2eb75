"""One staging buffer for each table upload that is queued, and pinned memory that is refused.

Verifies, over a stand-in for CUDA whose copies run when it gets there: what an upload is to write is what arrives,
however many are queued and whatever happens to the numbers meanwhile; a buffer is nobody else's before the device has
passed its upload; after that it is used again.  Does not verify that torch's page-locked memory is what it says.
"""

from __future__ import annotations

from typing import Any

import pytest
from fake_cuda import DeviceError, FakeCuda
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.engine.storage.staging import Staging
from kvcrucible.engine.streams import CudaDevice

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@given(
    uploads=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=25),
    seed=st.integers(0, 50),
)
def test_what_is_uploaded_arrives_however_late(uploads: list[tuple[int, int]], seed: int) -> None:
    """Each entry: how many numbers, and how far the device comes before the next."""
    cuda = FakeCuda(seed=seed)
    staging, targets = Staging(cuda), []
    for number, (count, steps) in enumerate(uploads):
        numbers = [100 * number + entry for entry in range(count)]
        target = torch.zeros(count, dtype=torch.int32)
        staging.upload(target, numbers)
        targets.append((target, list(numbers)))
        numbers.clear()
        cuda.run(steps)
    cuda.finish()
    assert all(target.tolist() == numbers for target, numbers in targets)


def test_each_queued_upload_has_a_buffer_of_its_own_and_gives_it_back_when_it_has_passed() -> None:
    cuda = FakeCuda(steps_a_call=0)
    staging = Staging(cuda)
    for _ in range(5):
        staging.upload(torch.zeros(3, dtype=torch.int32), [1, 2, 3])
    assert (cuda.calls.count("staging"), staging.queued) == (5, 5)
    cuda.run(1)
    staging.upload(torch.zeros(3, dtype=torch.int32), [1, 2, 3])
    assert (cuda.calls.count("staging"), staging.queued) == (5, 5), "the first one's is used again"
    cuda.finish()
    for _ in range(3):
        staging.upload(torch.zeros(3, dtype=torch.int32), [1, 2, 3])
        cuda.finish()
    assert (cuda.calls.count("staging"), staging.queued) == (5, 1)
    staging.upload(torch.zeros(17, dtype=torch.int32), range(17))
    assert cuda.calls.count("staging") == 6, "none of these is large enough"


def test_a_buffer_whose_upload_failed_as_it_was_queued_is_never_used_again() -> None:
    cuda = FakeCuda(steps_a_call=0)
    staging = Staging(cuda)
    cuda.refuse_launch = DeviceError("invalid argument")
    with pytest.raises(DeviceError):
        staging.upload(torch.zeros(3, dtype=torch.int32), [1, 2, 3])
    cuda.finish()
    for _ in range(2):
        staging.upload(torch.zeros(3, dtype=torch.int32), [4, 5, 6])
        cuda.finish()
    assert cuda.calls.count("staging") == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_table_of_a_storage_is_uploaded_through_staging_in_stream_order(seed: int) -> None:
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    cuda = FakeCuda(seed=seed, steps_a_call=0)
    device = CudaDevice(cuda)
    storage = TorchStorage(PROFILES["FP32"], Geometry(1, 1, 4), 40, 8, 2, 20, staging=Staging(cuda))
    stream = device.stream("compute")
    entries: list[int] = []
    for block in range(20):
        entries.append(block)
        stream.submit(lambda block=block: storage.write_table(1, block, [39 - block]))
    stream.submit(lambda: storage.write_table(1, 3, []))
    assert storage.table_row(1) == [-1] * 20, "the device has not run"
    cuda.run(seed * 4)
    stream.synchronize()
    assert storage.table_row(1) == [39 - block for block in entries]
    assert storage.table_row(0) == [-1] * 20


def test_pinned_memory_that_is_refused_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcrucible.engine.storage.host_memory import TorchHostMemory

    def refused(*_: Any, pin_memory: bool, **__: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory" if pin_memory else "not enough memory")

    monkeypatch.setattr(torch, "zeros", refused)
    with pytest.raises(
        BadArgument, match=r"1024 bytes of pinned.*refused: CUDA error: out of memory.*fewer bytes"
    ):
        TorchHostMemory(1024, pinned=True)
    with pytest.raises(RuntimeError, match="not enough memory"):
        TorchHostMemory(1024)


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_without_cuda_memory_cannot_be_pinned() -> None:
    from kvcrucible.engine.storage.host_memory import TorchHostMemory

    with pytest.raises(BadArgument, match="pinning was refused"):
        TorchHostMemory(64, pinned=True)
