"""The sampler through the real binding and real ctypes calls, on a stand-in for the driver's library.

Verifies: calls, structures, status codes, what is made of them.  Does not verify: how a GPU behaves.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nvml_stand_in import CASES, command

pytest.importorskip("pynvml", reason="needs the perf extra")
pytest.importorskip("scipy", reason="needs the perf extra")

from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.perf.nvml.binding import NvmlAbsentError
from kvcrucible.perf.nvml.energy import NoEnergy, energy
from kvcrucible.perf.nvml.evidence import evidence, timed
from kvcrucible.perf.nvml.records import Record, read_record
from kvcrucible.perf.nvml.rejection import Reject, reject_sample
from kvcrucible.perf.nvml.sampler import Sampler
from kvcrucible.perf.origin import MixedOriginsError, Origin, common_origin


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.4, **setting: str) -> Any:
    """Return record, evidence and energy of ``seconds`` under the stand-in with ``setting``."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    for name, value in setting.items():
        monkeypatch.setenv(f"STAND_IN_{name}", value)
    with Sampler(interval_ms=40, poll_ms=5) as sampler:
        with timed() as window:
            time.sleep(seconds)
        record = sampler.stop()
    return (
        record,
        evidence(record, window, {os.getpid()}, uses_gpu=False),
        energy(record, window.start_ns, window.stop_ns),
    )


def reasons(found: Any) -> set[Reject]:
    return {one.reason for one in reject_sample(found)}


def test_energy_is_the_counters_delta_over_a_long_window(stand_in: Path) -> None:
    done = command(stand_in, "--seconds", "5.5", "--json")
    plain = json.loads(done.stdout)
    used = plain["energy"]
    assert done.returncode == ExitStatus.HELD, done.stderr
    assert plain["origin"] == used["origin"] == "SIMULATED"
    assert used["reason"] is None
    # 300 W: the counter's steps are 20 ms, and each end is seen up to a poll late.
    assert used["joules"] / used["seconds"] == pytest.approx(300, rel=0.03)
    assert used["updates"] >= 50
    assert plain["evidence"]["sm_mhz"] == 1980
    assert plain["evidence"]["margin_c"] == 32


def test_readings_come_through_the_driver_structures(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, found, used = watched(stand_in, monkeypatch)
    assert record.origin is found.origin is used.origin is Origin.SIMULATED
    assert record.header.facts == {
        "gpu": "stand-in",
        "gpus": "1",
        "driver": "0.0",
        "cuda": "13.0",
        "gpu_memory_gib": "141",
        "power_limit_w": "700",
    }
    assert record.header.refused == {}
    first = record.readings[0]
    assert (
        first.sm_mhz,
        first.memory_mhz,
        first.temperature_c,
        first.memory_temperature_c,
        first.margin_c,
    ) == (
        1980,
        3201,
        55,
        61,
        32,
    )
    assert found.used_bytes == 2 << 30
    assert found.cycles == pytest.approx(1980e6 * found.seconds)
    assert reject_sample(found) == ()
    assert used.reason is NoEnergy.SHORT


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"REASONS": "0x20"}, {Reject.THERMAL}),
        ({"REASONS": "0x48"}, {Reject.THERMAL}),
        ({"REASONS": "0x80"}, {Reject.POWER_BRAKE}),
        ({"REASONS": "0x8"}, {Reject.HARDWARE_SLOWDOWN}),
        ({"REASONS": "0x4"}, set()),
        ({"REASONS": "0x600"}, set()),
        ({"BURST_MS": "150"}, {Reject.THERMAL}),
        ({"PIDS": "1,2"}, {Reject.FOREIGN_PROCESS}),
        ({"PIDS": str(os.getpid())}, set()),
        ({"RESET_MS": "150", "REASONS": "0x4"}, {Reject.COUNTER_RESET}),
        ({"UNCORRECTED": "50"}, {Reject.MEMORY_ERRORS}),
        ({"FAIL": "nvmlDeviceGetClockInfo=15"}, {Reject.DEVICE_LOST}),
    ],
)
def test_a_sample_is_rejected_for_a_stored_reason(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, str], expected: set[Reject]
) -> None:
    _, found, _ = watched(stand_in, monkeypatch, **setting)
    assert reasons(found) == expected


def test_a_reset_of_the_energy_counter_leaves_no_energy(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, used = watched(stand_in, monkeypatch, RESET_MS="150")
    assert used.joules is None
    assert used.reason is NoEnergy.COUNTER_RESET


def test_a_split_gpu_has_no_energy_of_its_own(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, _, used = watched(stand_in, monkeypatch, MIG="1")
    assert record.header.facts["mig_profile"] == "split"
    assert used.reason is NoEnergy.NOT_ATTRIBUTABLE


@pytest.mark.parametrize(
    ("function", "lost"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption=3", None),  # the field says the same
        ("nvmlDeviceGetTotalEnergyConsumption=3,field:83=3", "energy"),
        ("nvmlDeviceGetCurrentClocksEventReasons=13", None),  # the old name says the same
        ("nvmlDeviceGetClockInfo=4", "sm_mhz"),
        ("nvmlDeviceGetFieldValues=3", "counters"),
        ("nvmlDeviceGetTemperatureV=13", None),  # the old call says the same
        ("nvmlDeviceGetMemoryInfo=3", "used_bytes"),
    ],
)
def test_a_refused_function_leaves_the_rest(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, function: str, lost: str | None
) -> None:
    record, found, used = watched(stand_in, monkeypatch, FAIL=function)
    assert record.header.refused
    assert reject_sample(found) == ()
    assert (used.reason is NoEnergy.NOT_SUPPORTED) == (lost == "energy")
    assert (found.sm_mhz is None) == (lost == "sm_mhz")
    assert (found.held_ns == {}) == (lost == "counters")
    assert (found.used_bytes is None) == (lost == "used_bytes")
    assert found.reasons == 0
    assert found.start_c == 55


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            {"LD_LIBRARY_PATH": "/nonexistent"},
            "no NVML: the driver's library libnvidia-ml.so.1 was not found",
        ),
        ({"STAND_IN_FAIL": "nvmlInitWithFlags=9"}, "no NVML: Driver Not Loaded"),
    ],
)
def test_no_library_is_said_and_is_no_failure(stand_in: Path, setting: dict[str, str], words: str) -> None:
    for arguments in ((), ("--selfcheck",)):
        done = command(stand_in, *arguments, environment=setting)
        assert done.returncode == ExitStatus.NOT_RUN
        assert words in done.stderr


def test_no_library_is_one_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    with pytest.raises(NvmlAbsentError, match="no NVML: "):
        Sampler().start()


def test_a_device_that_is_not_there_is_named(stand_in: Path) -> None:
    done = command(stand_in, "--device", "1")
    assert done.returncode == ExitStatus.USAGE
    assert "GPU 1" in done.stderr


def test_a_rejected_sample_is_shown_with_its_reason(stand_in: Path) -> None:
    seconds, environment = CASES["throttle rejection"]
    done = command(stand_in, "--seconds", str(seconds / 2), environment=environment)
    assert done.returncode == ExitStatus.INCONCLUSIVE
    assert "SIMULATED" in done.stdout
    assert "sample rejected: thermal slowdown: software thermal slowdown" in done.stdout


def test_what_the_stand_in_says_never_joins_a_measured_series(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found, _ = watched(stand_in, monkeypatch, seconds=0.1)
    with pytest.raises(MixedOriginsError):
        common_origin((found.origin, Origin.MEASURED), "a series")


def test_the_sampler_ends_with_its_parent_and_its_record_is_whole(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in))
    with Sampler(interval_ms=40, poll_ms=5) as sampler:
        process = sampler._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None
    broken = tmp_path / "record.jsonl"
    broken.write_text('{"kind":"edge","at_ns":1,"energy_mj":2}\n')
    with pytest.raises(InputError, match="did not finish"):
        read_record(broken)
    broken.write_text('{"kind":"edge","at_ns":1}\n')
    with pytest.raises(InputError, match="line 1"):
        read_record(broken)


def test_the_selfcheck_compares_with_and_without(stand_in: Path) -> None:
    benchmark = "import json,random; print(json.dumps({'x': [1 + random.random() / 100]}))"
    # A system may have no `python`.
    words = f'{sys.executable} -c "{benchmark}"'
    done = command(stand_in, "--selfcheck", "--pairs", "6", "--json", "--command", words)
    plain = json.loads(done.stdout)
    assert [one["metric"] for one in plain["metrics"]] == ["x"]
    assert plain["metrics"][0]["pairs"] == 6
    assert 0 < plain["cpu_share"] < 1
    assert plain["status"] == done.returncode


def test_records_are_cut_with_one_neighbour_on_each_side(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record: Record
    record, _, _ = watched(stand_in, monkeypatch)
    times = [one.at_ns for one in record.readings]
    cut = record.between(times[3], times[5])
    assert [one.at_ns for one in cut.readings] == times[2:7]
