"""An engine whose CUDA device refuses a launch or dies: a transfer fails alone, a lost device ends the engine.

Over a stand-in for CUDA.  Does not verify that torch's kernels fail so; see ``test_placement`` for what runs on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fake_cuda import DeviceError, die, fake_device, fake_of, launching
from small_engine import CONFIG

from kvcrucible.contract.errors import EngineLost
from kvcrucible.contract.operations import Prefill
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.host.tier import COPY_STREAMS
from kvcrucible.engine.storage.null import NullStorage
from kvcrucible.engine.streams import CudaDevice


class Launched(NullStorage):
    """Its copies and uploads are launched; ``kernel`` is what they do."""

    def __init__(self, device: CudaDevice, kernel: Callable[[], object]) -> None:
        super().__init__()
        self.device, self.kernel = device, kernel

    def write_table(self, *_: Any) -> None:
        fake_of(self.device).launch(self.kernel)

    copy_columns = write_table


def engine_on(device: CudaDevice, storage: NullStorage | None = None) -> tuple[Engine, int]:
    """Return an engine with one sequence of 10 tokens, whose unit is complete."""
    engine = Engine(CONFIG, storage or NullStorage(), device)
    sequence = engine.submit(run(0, 0, 10), 10)
    engine.schedule()
    engine.end_unit(engine.begin_unit([Prefill(sequence, 10)]))
    device.synchronize()
    return engine, sequence


def test_a_device_that_dies_at_a_table_upload_ends_the_engine() -> None:
    device = fake_device()
    engine, _ = engine_on(device, Launched(device, die))
    with pytest.raises(EngineLost, match=r"the end of unit 0.*illegal memory access"):
        engine.progress()


@pytest.mark.parametrize("source", list(Tier))
def test_a_copy_that_cannot_be_launched_fails_its_transfer_alone(source: Tier) -> None:
    device = fake_device()
    engine, sequence = engine_on(device)
    engine.finish(sequence)
    engine.progress()
    assert engine.host is not None
    memory: Any = engine.host.memory
    pack, unpack = memory.pack, memory.unpack

    class Refusing:
        def pack(self, *arguments: Any) -> None:
            if source is Tier.DEVICE:
                fake_of(device).refuse_launch = DeviceError("invalid configuration argument")
            fake_of(device).launch(partial(pack, *arguments))

        def unpack(self, *arguments: Any) -> None:
            if source is Tier.HOST:
                fake_of(device).refuse_launch = DeviceError("invalid configuration argument")
            fake_of(device).launch(partial(unpack, *arguments))

    engine.host.memory = Refusing()  # type: ignore[assignment]
    engine.demote(sequence)
    device.synchronize()
    [ended] = engine.progress().transfers
    assert ended.failed is (source is Tier.DEVICE)
    if source is Tier.HOST:
        engine.restore(sequence)
        device.synchronize()
        [ended] = engine.progress().transfers
        assert ended.failed
    assert device.gone is None
    engine.lookup(run(0, 0, 10))


def test_a_device_that_dies_at_a_copy_ends_the_engine_and_publishes_nothing() -> None:
    """No effect of the compute stream is open then: the engine has to hear of it all the same."""
    device = fake_device()
    engine, sequence = engine_on(device)
    engine.finish(sequence)
    engine.progress()
    engine.demote(sequence)
    fake_of(device).finish()
    assert device.look() is None
    assert device.pending == 0
    device.stream(COPY_STREAMS[Tier.DEVICE]).submit(launching(device, die))
    device.stream(COPY_STREAMS[Tier.DEVICE]).record()
    while fake_of(device).gone is None:
        fake_of(device).run(1)
    with pytest.raises(EngineLost, match=r"with its device: .*illegal memory access"):
        engine.progress()
    assert engine.host is not None
    assert len(engine.host.under_way) == 1
    with pytest.raises(EngineLost):
        engine.lookup(run(0, 0, 10))
