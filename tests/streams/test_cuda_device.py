"""The CUDA device over a stand-in: who waits for whom, what is kept alive, what the host knows, what goes wrong.

Verifies the order of launches, events and waits, and every path on which CUDA reports an error.  Does not verify that
CUDA itself keeps its promises, nor a kernel; what both do together runs where there is a GPU (marker ``gpu``).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fake_cuda import DeviceError, FakeCuda, fake_device, fake_of

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import BadArgument, EngineLost, NotRunError
from kvcrucible.contract.operations import Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.host.tier import COPY_STREAMS
from kvcrucible.engine.placement import place
from kvcrucible.engine.storage.null import NullStorage
from kvcrucible.engine.streams import CudaDevice, EffectFailed
from kvcrucible.engine.streams.cuda_runtime import TorchCuda, why_no_cuda
from kvcrucible.engine.streams.strategies import Starving
from kvcrucible.engine.streams.strategy import StepKind

PLANES = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)
CONFIG = EngineConfig((PoolSpec("main", 16, 4, (PLANES,)),), 64, 4, HostSpec(1 << 14))


def launching(device: CudaDevice, kernel: Callable[[], object]) -> Callable[[], None]:
    return partial(fake_of(device).launch, kernel)


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


# -- what is kept alive ------------------------------------------------------------------------------------------------


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


# -- what goes wrong ---------------------------------------------------------------------------------------------------


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


def die() -> None:
    raise DeviceError("an illegal memory access was encountered")


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


# -- torch, and the choice of a device ---------------------------------------------------------------------------------


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
