"""Results are never written over former ones: those are kept beside them, under a name with their time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli import faults as faults_command
from kvcrucible.cli.former import set_aside
from kvcrucible.cli.fuzz_kernels import _keep
from kvcrucible.cli.fuzz_matrix import run_and_print
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.fuzz.faults import run
from kvcrucible.fuzz.faults.run import FaultRun, Verdict
from kvcrucible.fuzz.matrix import KEPT, MatrixPlan, MatrixReport

#: 2026-11-30 08:12:00 UTC, and how a name says it.
WRITTEN, SAID = 1_796_026_320, "20261130-081200"


def former(path: Path, text: str) -> Path:
    path.write_text(text)
    os.utime(path, (WRITTEN, WRITTEN))
    return path


def test_each_former_file_gets_a_name_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.json"
    assert set_aside(path) is None
    assert capsys.readouterr().err == ""
    for text in ("first", "second", "third"):
        set_aside(former(path, text))
    kept = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert kept == {
        f"runs-{SAID}.json": "first",
        f"runs-{SAID}-2.json": "second",
        f"runs-{SAID}-3.json": "third",
    }
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"former results are kept as {tmp_path / f'runs-{SAID}.json'}"
    assert len(said) == 3
    assert set_aside(tmp_path) is None, "a folder is no file of results"


def test_what_cannot_be_renamed_is_an_error_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = former(tmp_path / "runs.json", "first")

    def refused(self: Path, exist_ok: bool = True) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refused)
    with pytest.raises(InputError, match="cannot be set aside: Permission denied"):
        set_aside(path)
    assert path.read_text() == "first"


@pytest.mark.parametrize("note", ["", run.INTERRUPTED])
def test_a_run_of_faults_keeps_that_of_before(
    note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = former(tmp_path / "runs.json", "an hour's work")
    ended = FaultRun("fork-shares-tail", "ledger", 0, Verdict.NOT_RUN, note=note)
    monkeypatch.setattr(run, "run_trials", lambda trials, jobs, on_done: [ended] * len(trials))
    app = typer.Typer()
    faults_command.register(app)
    done = CliRunner().invoke(app, ["faults", "run", "fork-shares-tail", "--json", "--out", str(tmp_path)])
    assert (tmp_path / f"runs-{SAID}.json").read_text() == "an hour's work"
    assert json.loads(there.read_text()) == json.loads(done.stdout)
    assert f"runs-{SAID}.json" in done.stderr


def test_a_matrix_keeps_that_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    former(tmp_path / KEPT, "four hours' work")
    none = MatrixPlan(configurations=())
    monkeypatch.setattr("kvcrucible.fuzz.matrix.run_matrix", lambda *_: MatrixReport(none, ()))
    assert run_and_print(1, 1, 0, 1, tmp_path, json_output=True) is ExitStatus.INCONCLUSIVE
    assert (tmp_path / f"matrix-{SAID}.json").read_text() == "four hours' work"
    assert f"matrix-{SAID}.json" in capsys.readouterr().err


def test_a_failing_case_of_a_kernel_keeps_that_of_before(tmp_path: Path) -> None:
    former(tmp_path / "kernel-cpu.json", "found after hours")
    path = _keep({"target": "cpu", "failure": {"case": "{}"}}, tmp_path)
    assert path is not None
    assert path.read_text() == "{}\n"
    assert (tmp_path / f"kernel-cpu-{SAID}.json").read_text() == "found after hours"
