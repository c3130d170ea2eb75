"""``doctor`` tells what is there and what is not, and nothing that a library does makes it fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.cli import doctor_findings, doctor_machine
from kvcrucible.cli.doctor import examine, show
from kvcrucible.cli.doctor_findings import (
    LIBRARIES,
    Finding,
    Outcome,
    State,
    abilities,
    accelerator_finding,
    kernels_finding,
    library_finding,
    nvml_finding,
)
from kvcrucible.cli.doctor_probes import PROBES
from kvcrucible.fuzz.cores import usable_cores

APPLICATION = """
import typer
from kvcrucible.cli.doctor import register

app = typer.Typer()
app.callback()(lambda: None)
register(app)
app(["doctor", *__import__("sys").argv[1:]])
"""

BY_PROBE = {library.probe: library for library in LIBRARIES}


def run_doctor(
    *arguments: str, path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a child; ``path`` comes first on its import path, and on that of what it starts."""
    variables = os.environ | environment | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [sys.executable, "-c", APPLICATION, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_the_report_names_everything_and_exits_0() -> None:
    done = run_doctor("--json")
    found = report(done)
    libraries = {
        "numpy",
        "torch",
        "accelerator",
        "compiled kernels",
        "triton",
        "gguf",
        "tokenizers",
        "nvml",
        "model file",
    }
    machine = {"kvcrucible", "python", "platform", "cpu", "memory", "compiler", "core libraries"}
    assert found.keys() == libraries | machine
    assert found["cpu"]["facts"]["usable"] == usable_cores()
    assert found["core libraries"]["state"] == "present"
    for finding in found.values():
        assert finding["detail"]
        assert finding["remedy"] or finding["state"] == "present" or finding["name"] == "memory"


def test_the_table_is_readable_and_exits_0() -> None:
    done = run_doctor(COLUMNS="150")
    assert done.returncode == 0, done.stderr
    assert "What this machine has" in done.stdout
    assert "ledger-depth fuzzing, replay, capacity: can run here" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "raise OSError('libtorch_cpu.so: [bold]cannot open[/bold]\\nsecond line')",
            "OSError: libtorch_cpu.so",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended the process (SIGSEGV)"),
        ("import os; os._exit(9)", "ended the process with status 9"),
        ("raise SystemExit(3)", "ended the process with status 3"),
        ("print('noise')", "AttributeError"),
    ],
)
def test_a_broken_torch_is_reported_and_not_raised(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "torch.py").write_text(text + "\n", encoding="utf-8")
    done = run_doctor("--json", path=tmp_path)
    found = report(done)
    assert found["torch"]["state"] in {
        "broken",
        "absent",
    }  # absent where no torch is installed beneath the planted one
    assert reason in found["torch"]["detail"]
    assert "second line" not in found["torch"]["detail"]
    assert found["accelerator"]["detail"] == "torch does not work here"
    lacking = json.loads(done.stdout)["lacking"]
    assert "torch" in lacking["payload-depth fuzzing, paged attention"]
    assert lacking["ledger-depth fuzzing, replay, capacity"] == []


def test_markup_from_a_library_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('[bold red]x[/] \\x1b[31m')\n", encoding="utf-8")
    done = run_doctor(path=tmp_path, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "[bold red]x[/] \\x1b[31m" in done.stdout


def test_a_file_of_the_current_folder_is_not_taken_for_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizers.py").write_text("raise OSError('planted')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "planted" not in doctor_findings.run_probe("tokenizers").detail


def test_a_library_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_findings, "PROBE_TIMEOUT_SECONDS", 0)
    outcome = doctor_findings.run_probe("core")
    assert not outcome.found
    assert "no answer" in outcome.detail


def test_absent_and_broken_are_told_apart() -> None:
    missing = Outcome(False, "ModuleNotFoundError: No module named 'triton'")
    absent = library_finding(BY_PROBE["triton"], None, missing)
    assert (absent.state, absent.detail) == (State.ABSENT, "not installed")
    assert ".[triton]" in absent.remedy
    broken = library_finding(BY_PROBE["triton"], "3.9.0", Outcome(False, "ImportError: libz.so"))
    assert broken.state is State.BROKEN
    assert "3.9.0 is installed but does not work: ImportError: libz.so" in broken.detail


def test_a_library_without_metadata_is_present_with_the_version_that_it_states() -> None:
    finding = library_finding(BY_PROBE["numpy"], None, Outcome(True, "", {"version": "2.1"}))
    assert (finding.state, finding.detail) == (State.PRESENT, "2.1")


def test_nvml_needs_binding_and_driver() -> None:
    nvml = BY_PROBE["nvml"]
    no_driver = nvml_finding(nvml, "13.6", Outcome(False, "NVMLError_LibraryNotFound: not found"))
    assert no_driver.state is State.ABSENT
    assert "driver" in no_driver.remedy
    no_binding = nvml_finding(nvml, None, Outcome(True, "the driver's library is here", {"binding": False}))
    assert no_binding.state is State.ABSENT
    assert ".[perf]" in no_binding.remedy
    both = nvml_finding(
        nvml, "13.6", Outcome(True, "driver 580; H200", {"driver": "580", "devices": ["H200"]})
    )
    assert both.state is State.PRESENT


def test_the_reason_for_no_accelerator_is_told() -> None:
    device = {"name": "H200", "memory_bytes": 139 * 2**30, "capability": "9.0"}
    present = accelerator_finding(Outcome(True, "", {"build": "CUDA 13.0 build", "devices": [device]}))
    assert present.state is State.PRESENT
    assert present.detail == "H200 (139.0 GiB, capability 9.0)"
    cpu = accelerator_finding(Outcome(True, "", {"build": "CPU build", "devices": []}))
    assert "CPU build" in cpu.detail
    undriven = accelerator_finding(Outcome(True, "", {"build": "CUDA 13.0 build", "devices": []}))
    assert "finds no device" in undriven.detail


def test_which_kernels_are_used_and_why() -> None:
    works, built = Outcome(True, ""), Outcome(True, "gcc 12, from the cache")
    used = kernels_finding(built, works, "")
    assert (used.state, used.detail) == (State.PRESENT, "used on the CPU: gcc 12, from the cache")
    assert "not used: KVCRUCIBLE_KERNELS=torch" in kernels_finding(built, works, "torch").detail
    assert kernels_finding(built, Outcome(False, "OSError"), "").remedy == "see torch"
    without = kernels_finding(Outcome(False, "Unbuildable: no C compiler runs here"), works, "")
    assert without.state is State.ABSENT
    assert without.detail.endswith("slower: no C compiler runs here")
    assert "gcc" in without.remedy


def test_kernels_without_a_compiler_are_reported_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    outcome = doctor_findings.run_probe("kernels")
    assert not outcome.found
    assert "no-such-compiler" in outcome.detail


def test_the_model_file_is_absent_then_of_the_wrong_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    absent = doctor_findings.model_finding()
    assert absent.state is State.ABSENT
    assert absent.remedy == "kvcrucible model fetch"
    path = Path(absent.facts["path"])
    assert path.is_relative_to(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"short")
    assert doctor_findings.model_finding().state is State.BROKEN


def test_abilities_follow_from_the_findings() -> None:
    names = ["core libraries", "numpy", "torch", "gguf", "tokenizers", "model file"]
    everything = [Finding(name, State.PRESENT, "") for name in names]
    assert set(map(tuple, abilities(everything).values())) == {()}
    without = [finding for finding in everything if finding.name != "torch"]
    assert abilities([*without, Finding("torch", State.BROKEN, "")])["text generation"] == ["torch"]


def test_every_probe_has_its_line() -> None:
    asked: list[str] = []

    def probe(name: str) -> Outcome:
        asked.append(name)
        return Outcome(False, f"planted: {name}")

    findings = examine(probe)
    assert sorted(asked) == sorted(PROBES)
    for name in PROBES:
        assert any(f"planted: {name}" in finding.detail for finding in findings)


@pytest.mark.parametrize(
    ("text", "quota"), [("200000 100000\n", 2.0), ("max 100000\n", None), ("", None), ("1 0\n", None)]
)
def test_cpu_quota(tmp_path: Path, text: str, quota: float | None) -> None:
    source = tmp_path / "cpu.max"
    source.write_text(text, encoding="ascii")
    assert doctor_machine.cpu_quota(source) == quota
    assert doctor_machine.cpu_quota(tmp_path / "absent") is None


def test_memory_limit_counts_only_where_it_binds(tmp_path: Path) -> None:
    limit, none = tmp_path / "limit", tmp_path / "none"
    limit.write_text("1048576\n", encoding="ascii")
    none.write_text("max\n", encoding="ascii")
    assert doctor_machine.memory_limit_bytes((none, limit)) == 1_048_576
    assert doctor_machine.memory_limit_bytes((tmp_path / "absent", none)) is None
    limit.write_text(f"{2**62}\n", encoding="ascii")
    assert doctor_machine.memory_limit_bytes((limit,)) is None


def test_paths_are_shown_whole_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    path = "/a/rather/long/folder/" + "with/many/below/it/" * 5 + "model.gguf"
    remedy = f"remove {path} and fetch it again"
    show(
        [
            Finding("model file", State.BROKEN, f"another size ({path})", remedy),
            Finding("cpu", State.PRESENT, "2"),
        ]
    )
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert f"model file: another size ({path})" in lines
    assert f"model file: {remedy}" in lines
    assert shown.count("see below") == 2
    assert all(len(line) <= 60 for line in lines if line.startswith("│"))


def test_compiler_absent_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert doctor_machine.compiler() is None
    assert doctor_findings.compiler_finding().state is State.ABSENT
    broken, works = tmp_path / "c++", tmp_path / "mine"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
    works.write_text("#!/bin/sh\necho mine 1.0\n", encoding="ascii")
    broken.chmod(0o755)
    works.chmod(0o755)
    assert doctor_machine.compiler() is None
    monkeypatch.setenv("CXX", "mine")
    assert doctor_machine.compiler() == ("mine", "mine 1.0")
