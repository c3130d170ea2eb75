"""Every path on which CUDA reports an error to the device: whom it fails, who hears of it, and what goes on.

Over a stand-in for CUDA.  What an engine makes of it is in ``test_cuda_engine``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from fake_cuda import DeviceError, die, fake_device, fake_of, launching

from kvcrucible.engine.streams import EffectFailed


def test_a_launch_that_fails_is_a_failure_of_its_batch_and_the_stream_goes_on() -> None:
    device, ran = fake_device(), []
    stream = device.stream("to-host")
    fake_of(device).refuse_launch = DeviceError("out of memory")
    stream.submit(launching(device, lambda: ran.append("first")), "transfer 3")
    failed = stream.record()
    stream.submit(launching(device, lambda: ran.append("second")))
    sound = stream.record()
    device.synchronize()
    assert "transfer 3 on stream to-host" in str(failed.failure)
    assert "out of memory" in str(failed.failure)
    assert sound.failure is None
    assert (ran, device.gone) == (["second"], None)


def test_an_unforeseen_error_reaches_the_caller_and_the_event_answers_for_it() -> None:
    device = fake_device()
    stream = device.stream("compute")
    fake_of(device).refuse_launch = TypeError("no such argument")
    with pytest.raises(TypeError, match="no such argument"):
        stream.submit(launching(device, lambda: None), "upload")
    event = stream.record()
    device.synchronize()
    assert "upload on stream compute" in str(event.failure)
    assert device.gone is None


@pytest.mark.parametrize("error", [TypeError("no such argument"), KeyboardInterrupt()], ids=repr)
def test_an_effect_that_is_not_launched_does_not_count_as_done(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails before it runs, as its stream is to wait for the caller's; or an interrupt strikes as it runs."""
    device, ran = fake_device(), []
    stream = device.stream("to-host")

    def strikes(*_: Any) -> None:
        raise error

    if isinstance(error, Exception):
        monkeypatch.setattr(device.runtime, "wait", strikes)
    with pytest.raises(type(error)):
        stream.submit(strikes if not isinstance(error, Exception) else partial(ran.append, 1), "transfer 3")
    event = stream.record()
    device.synchronize()
    assert "transfer 3 on stream to-host" in str(event.failure)
    assert not ran


@pytest.mark.parametrize("finds_out", ["look", "wait", "record", "submit", "run", "synchronize-all"])
def test_a_device_that_dies_fails_everything_that_is_open_on_every_stream(finds_out: str) -> None:
    device, ran = fake_device(steps_a_call=0), []
    compute, copies = device.stream("compute"), device.stream("to-host")
    before = compute.record()
    device.synchronize()
    copies.submit(launching(device, die), "transfer 0")
    copying = copies.record()
    compute.submit(launching(device, lambda: ran.append("after")))
    computing = compute.record()
    cuda = fake_of(device)
    while cuda.gone is None:
        cuda.run(1)
    assert not copying.done
    match finds_out:
        case "look":
            assert isinstance(compute.look(), EffectFailed)
        case "wait":
            compute.wait(copying)
        case "record":
            assert "illegal memory access" in str(compute.record().failure)
        case "submit":
            compute.submit(launching(device, lambda: ran.append("more")))
        case "run":
            device.run(1)
        case "synchronize-all":
            device.synchronize()
    assert before.done
    assert before.failure is None
    for event in (copying, computing):
        assert event.done
        assert "illegal memory access" in str(event.failure)
    launched = cuda.calls.count("launch")
    compute.submit(launching(device, lambda: ran.append("never")))
    later = compute.record()
    compute.wait(later)
    device.synchronize()
    assert later.done
    assert later.failure is not None
    assert cuda.calls.count("launch") == launched, "launched on a device that is gone"
