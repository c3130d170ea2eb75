"""The CUDA device over a stand-in: who waits for whom, and what the host knows of it.

Verifies the order of launches, events and waits, and when the host learns that something is over.  What effects refer
to is in ``test_cuda_kept_alive``, what goes wrong in ``test_cuda_failures``.  Does not verify that CUDA itself keeps
its promises, nor a kernel; what both do together runs where there is a GPU (marker ``gpu``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from fake_cuda import FakeCuda, fake_device, fake_of, launching

from kvcrucible.engine.host.tier import COPY_STREAMS
from kvcrucible.engine.streams import CudaDevice
from kvcrucible.engine.streams.strategies import Starving
from kvcrucible.engine.streams.strategy import StepKind

# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_an_effect_follows_what_the_caller_launched_before_it_and_nothing_later(seed: int) -> None:
    """Keys and values come from the caller's stream; the effect that writes them must not overtake it."""
    starved = Starving({("default", StepKind.RUN)})
    device, order = CudaDevice(FakeCuda(starved, seed)), []
    cuda, compute = fake_of(device), device.stream("compute")
    cuda.launch(lambda: order.append("rows"))
    compute.submit(launching(device, lambda: order.append("write")))
    cuda.launch(lambda: order.append("later"))
    cuda.finish()
    assert order == ["rows", "write", "later"]


def test_a_stream_follows_what_was_launched_before_its_first_use() -> None:
    cuda = FakeCuda(Starving({("default", StepKind.RUN)}), steps_a_call=0)
    order: list[str] = []
    cuda.launch(lambda: order.append("zeroed"))
    stream = CudaDevice(cuda).stream("compute")
    cuda.launch(lambda: order.append("unrelated"))
    with cuda.using(stream._queue):  # type: ignore[arg-type]
        cuda.launch(lambda: order.append("written"))
    cuda.finish()
    assert order[:2] == ["zeroed", "written"]


@pytest.mark.parametrize("slow", COPY_STREAMS.values())
def test_copies_of_both_directions_overtake_one_another_and_wait_for_the_compute_stream(slow: str) -> None:
    cuda = FakeCuda(steps_a_call=0)
    device, order = CudaDevice(cuda), []
    streams = {name: device.stream(name) for name in ("compute", *COPY_STREAMS.values())}
    queue: Any = streams[slow]._queue
    cuda.gpu.strategy = Starving({(queue.inner.name, StepKind.RUN)})
    streams["compute"].submit(launching(device, lambda: order.append("compute")))
    behind = streams["compute"].record()
    for name in (slow, *COPY_STREAMS.values()):
        streams[name].wait(behind)
        streams[name].submit(launching(device, partial(order.append, name)))
    cuda.finish()
    other = next(name for name in COPY_STREAMS.values() if name != slow)
    assert order == ["compute", other, slow, slow]


# -- what the host knows -----------------------------------------------------------------------------------------------


def test_the_host_learns_by_looking_and_never_between_two_looks() -> None:
    device = fake_device(steps_a_call=0)
    stream = device.stream("compute")
    stream.submit(launching(device, lambda: None))
    event = stream.record()
    assert stream.look() is None
    assert not event.done, "the device has not run"
    fake_of(device).finish()
    assert not event.done, "nobody has looked"
    stream.look()
    assert event.done


def test_a_device_that_is_not_polled_tells_what_was_waited_for_in_the_order_of_recording() -> None:
    device = fake_device(polls=False)
    events = []
    for number in range(6):
        stream = device.stream("compute" if number % 2 else "to-host")
        stream.submit(launching(device, lambda: None))
        events.append(stream.record())
    fake_of(device).finish()
    device.look()
    assert device.pending == 6
    for told in range(1, 4):
        assert device.run(1) == 1
        assert [event.done for event in events] == [True] * told + [False] * (6 - told)
    device.stream("compute").synchronize()
    assert [event.done for event in events] == [True, True, True, True, False, True]
    assert device.run(9) == 1
    assert device.run(9) == 0
