"""What effects on the CUDA device refer to lives until the host knows that they are over, and no longer.

Over a stand-in for CUDA.  Does not verify what torch's allocator does with memory that is given up.
"""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import ClassVar

from fake_cuda import FakeCuda, die, fake_device, fake_of, launching

from kvcrucible.engine.streams import CudaDevice


class Rows:
    """Stands for tensors that an effect refers to."""


def test_what_an_effect_refers_to_lives_until_the_host_knows_that_it_is_over() -> None:
    device = fake_device(steps_a_call=0)
    stream = device.stream("compute")

    def submit() -> weakref.ref[Rows]:
        rows = Rows()
        stream.submit(launching(device, partial(id, rows)))
        # The kernel in the stand-in's queue would keep them too; the device's own reference is what is asked about.
        stream.submit(partial(id, rows))
        return weakref.ref(rows)

    rows = submit()
    event = stream.record()
    behind = submit()
    fake_of(device).finish()
    gc.collect()
    assert rows() is not None, "nobody has looked"
    assert stream.look() is None
    gc.collect()
    assert event.done
    assert rows() is None
    assert behind() is not None, "no event stands behind it"
    stream.record()
    device.synchronize()
    gc.collect()
    assert behind() is None


def test_events_that_nobody_keeps_are_given_up_once_they_have_passed() -> None:
    device = fake_device()
    stream = device.stream("compute")
    for _ in range(50):
        stream.submit(launching(device, lambda: None))
        stream.record()
        fake_of(device).finish()
        stream.look()
        assert device.pending == 0


class Memory:
    """Ends when its last holder gives it up, as the memory of a tensor does; the collector does not track it."""

    __slots__ = ()
    happened: ClassVar[list[str]] = []

    def __del__(self) -> None:
        self.happened.append("freed")


def test_a_device_that_is_dropped_waits_for_what_it_was_given() -> None:
    """Torch would hand on the memory of what the effects refer to, while kernels on its streams still use it."""
    cuda = FakeCuda(steps_a_call=0)
    Memory.happened.clear()

    def drop() -> None:
        device = CudaDevice(cuda)
        for name in ("compute", "to-host"):
            device.stream(name).submit(partial(cuda.launch, partial(Memory.happened.append, name)))
        device.stream("compute").submit(partial(id, Memory()))

    drop()
    gc.collect()
    assert sorted(Memory.happened[:2]) == ["compute", "to-host"]
    assert Memory.happened[2:] == ["freed"]


def test_a_stream_that_cannot_be_waited_for_keeps_no_other_from_it() -> None:
    cuda = FakeCuda(steps_a_call=0)
    ran: list[str] = []

    def drop() -> None:
        device = CudaDevice(cuda)
        first, second = device.stream("compute"), device.stream("to-host")
        second.submit(partial(cuda.launch, partial(ran.append, "second")))
        first._queue.synchronize = partial(int, "no number")  # type: ignore[method-assign]

    drop()
    gc.collect()
    assert ran == ["second"]


def test_a_device_that_is_dropped_as_it_fails_says_nothing() -> None:
    device = fake_device(steps_a_call=0)
    device.stream("compute").submit(launching(device, die))
    del device
    gc.collect()
