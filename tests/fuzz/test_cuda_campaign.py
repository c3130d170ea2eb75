"""Campaigns over the CUDA device: with a stand-in for CUDA everywhere, on CUDA itself where there is some.

Verifies: engine and reference agree at payload depth while every effect runs as late and in as strange an order as CUDA
streams allow; a campaign on a machine without a device says so.  Does not verify kernels: on the stand-in they are the
CPU's, launched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fake_cuda import FakeCuda
from typer.testing import CliRunner

from kvcrucible.contract.errors import ExitStatus, InputError, NotRunError
from kvcrucible.contract.operations import (
    BeginUnit,
    Demote,
    EndUnit,
    Finish,
    Prefill,
    Progress,
    Schedule,
    Submit,
)
from kvcrucible.contract.profiles import storage_profile
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run as run_of
from kvcrucible.engine.streams import CudaDevice
from kvcrucible.engine.streams.cuda_runtime import why_no_cuda
from kvcrucible.fuzz.adapters import registry
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.fuzz.adapters.schedules import strategy_of
from kvcrucible.fuzz.campaign import Plan, Report, run
from kvcrucible.fuzz.geometry import payload_geometry
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects
from kvcrucible.invariants.violation import InvariantViolated

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def launched(base: type, names: tuple[str, ...]) -> Any:
    """Return a subclass of ``base`` whose methods ``names`` launch what they did on the stream that is current.

    On the default stream they act at once: the harness reads there, once all effects have taken place.
    """

    def wrapped(name: str) -> Callable[..., None]:
        def method(self: Any, *arguments: Any) -> None:
            act = partial(getattr(base, name), self, *arguments)
            if self.cuda.current() is self.cuda.default:
                act()
            else:
                self.cuda.launch(act)

        return method

    return type(f"Launched{base.__name__}", (base,), {name: wrapped(name) for name in names})


def on_stand_in(setting: Setting) -> EngineAdapter:
    """Build the paged engine over a stand-in for CUDA; effects of settings that do not lag run at once as always."""
    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.staging import Staging
    from kvcrucible.engine.storage.torch_storage import TorchStorage
    from kvcrucible.fuzz.adapters.paged import PagedPayloadAdapter

    if not setting.lagging or setting.depth is Depth.LEDGER:
        return BUILD(setting)
    strategy = strategy_of(setting.schedule, setting.schedule_seed, *QUEUES)
    cuda = FakeCuda(strategy, setting.schedule_seed, setting.schedule_seed % 2)
    config, profile = setting.engine_config(), storage_profile(setting.profile)
    stored = launched(TorchStorage, ("copy_columns", "clear_table", "raw_write", "append"))
    packed = launched(TorchHostMemory, ("pack", "unpack"))

    def storages(kind: Any, pages: int | None, rows: int, **options: Any) -> list[Any]:
        return [
            kind(
                profile, payload_geometry(profile), spec.capacity_pages if pages is None else pages, spec.page_size,
                rows, config.blocks_per_row(pool), pool=pool, order=spec.order, **options,
            )
            for pool, spec in enumerate(config.pools)
        ]  # fmt: skip

    memory = packed(setting.host_bytes) if setting.host_bytes else None
    engine_storages = storages(stored, None, setting.max_concurrency, staging=Staging(cuda))
    for one in (*engine_storages, *([memory] if memory else [])):
        one.cuda = cuda
    scratch = storages(TorchStorage, 1, 1) if memory else []
    return PagedPayloadAdapter(setting, engine_storages, memory, scratch, CudaDevice(cuda, polls=False))


BUILD = registry.ENGINES["paged"]

#: What the stand-in calls the engine's streams: compute, and copies in both directions.
QUEUES = "queue 1", ("queue 2", "queue 3")


def campaign(monkeypatch: pytest.MonkeyPatch, examples: int, seed: int = 1) -> Report:
    monkeypatch.setitem(registry.ENGINES, "paged", on_stand_in)
    return run(Plan(depths=(Depth.PAYLOAD,), examples=examples, steps=40, seed=seed, hosts=(True,)))


def test_engine_and_reference_agree_over_a_stand_in_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    report = campaign(monkeypatch, 8)
    assert report.failure is None
    assert report.tally.operations["RunEffects"] == 0
    assert report.tally.operations["Demote"]
    assert report.tally.premises["replica-valid"]
    assert report.tally.premises["recycle-fenced"]


def written_and_demoted() -> None:
    """Write rows and send them to Host at once, on a compute stream that is slow; then read them there."""
    setting = Setting(
        depth=Depth.PAYLOAD, page_size=4, lagging=True, host_bytes=1 << 13, schedule="compute-starved"
    )
    example = LockStep(setting)
    work = BeginUnit((Prefill(0, 10),))
    for step in (Submit(run_of(0, 0, 10), 0), Schedule(), work, EndUnit(0), Finish(0), Demote(0)):
        example.step(step)
    for step in (RunEffects(100), Progress(), ReadBack()):
        example.step(step)
    assert [page.visible for page in example.snapshot.pages.values()] == [Tier.HOST] * 3
    example.close()


def test_a_cuda_stream_that_waits_for_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcrucible.engine.streams.cuda import CudaDeviceStream

    monkeypatch.setitem(registry.ENGINES, "paged", on_stand_in)
    written_and_demoted()
    monkeypatch.setattr(CudaDeviceStream, "wait", lambda self, event: None)
    with pytest.raises(InvariantViolated, match="no-stale-read"):
        written_and_demoted()


@pytest.mark.skipif(why_no_cuda() is None, reason="there is a CUDA device")
def test_a_campaign_without_a_device_says_that_it_was_not_run() -> None:
    with pytest.raises(NotRunError, match="no CUDA device"):
        run(Plan(depths=(Depth.PAYLOAD,), device="cuda"))
    with pytest.raises(NotRunError, match="no CUDA device"):
        registry.build(Setting(device="cuda"))


def test_only_our_own_engine_is_driven_on_a_device() -> None:
    with pytest.raises(InputError, match="main memory alone"):
        registry.build(Setting("torch-paged-attention", Depth.PAYLOAD, device="cuda"))
    with pytest.raises(InputError, match="unknown device"):
        Setting.from_plain({"device": "tpu"})
    assert Setting.from_plain(Setting(device="cuda").to_plain()).device == "cuda"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "tpu"], "unknown device"),
        (["--device", "cuda", "--depth", "ledger"], "ledger depth has nothing on a device"),
        (["--device", "cuda", "--kernels"], "does not take --device"),
        (["--device", "cuda", "--matrix"], "does not take --device"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str], says: str) -> None:
    from kvcrucible.cli.main import build_app

    result = CliRunner().invoke(build_app(), ["fuzz", *arguments])
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)


@pytest.mark.skipif(why_no_cuda() is None, reason="there is a CUDA device")
def test_the_command_ends_with_status_5_where_there_is_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvcrucible.cli import main

    monkeypatch.setattr("sys.argv", ["kvcrucible", "fuzz", "--device", "cuda"])
    with pytest.raises(SystemExit) as ended:
        main._run()
    assert ended.value.code == ExitStatus.NOT_RUN
    assert "not run: no CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(why_no_cuda() is not None, reason=str(why_no_cuda()))
def test_engine_and_reference_agree_on_cuda() -> None:
    report = run(Plan(depths=(Depth.PAYLOAD,), examples=20, steps=40, seed=1, device="cuda"))
    assert report.failure is None, report.failure
