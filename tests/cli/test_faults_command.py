"""``kvcrucible faults`` and ``model`` beside their work: JSON, sums without kills, folders that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kvcrucible.cli import faults as faults_command
from kvcrucible.cli import model as model_command
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.engine.model import fetch
from kvcrucible.fuzz.faults import run
from kvcrucible.fuzz.faults.catalogue import every_fault
from kvcrucible.fuzz.faults.run import FaultRun, Verdict


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    faults_command.register(app)
    model_command.register(app)
    return CliRunner().invoke(app, list(arguments))


def test_one_fault_as_json_is_its_entry_of_the_list() -> None:
    listed = json.loads(invoke("faults", "list", "--json").output)
    assert [entry["id"] for entry in listed] == list(every_fault())
    shown = invoke("faults", "show", listed[0]["id"], "--json")
    assert json.loads(shown.output) == listed[0]


def test_the_path_of_the_model_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "require_model", lambda: Path("/here/model.gguf"))
    assert json.loads(invoke("model", "path", "--json").output) == {"path": "/here/model.gguf"}
    assert invoke("model", "path").output == "/here/model.gguf\n"


def test_without_a_kill_there_are_no_medians(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    survived = FaultRun("fork-shares-tail", "ledger", 0, Verdict.SURVIVED)
    monkeypatch.setattr(run, "run_trials", lambda trials, jobs, on_done: [survived] * len(trials))
    result = invoke("faults", "run", "fork-shares-tail", "--out", str(tmp_path))
    assert result.exit_code == ExitStatus.VIOLATION
    assert "killed 0 of 1" in result.output
    assert "None" not in result.output
    assert "median" not in result.output


def test_a_fault_that_is_named_twice_counts_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def killed(trials: list[run.Trial], jobs: int, on_done: object) -> list[FaultRun]:
        return [
            FaultRun(trial.fault.id, "ledger", 0, Verdict.KILLED, seen=trial.fault.expects, expected=True)
            for trial in trials
            if trial.fault is not None
        ]

    monkeypatch.setattr(run, "run_trials", killed)
    twice = ("fork-shares-tail", "reservation-leaks", "fork-shares-tail")
    result = invoke("faults", "run", *twice, "--no-unchanged", "--json", "--out", str(tmp_path))
    assert result.exit_code == ExitStatus.HELD, result.output
    plain = json.loads(result.stdout)
    assert [entry["fault"] for entry in plain["runs"]] == ["fork-shares-tail", "reservation-leaks"]
    assert plain["killed"] == 2


def test_what_was_through_is_kept_where_the_rest_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed = FaultRun(
        "fork-shares-tail",
        "ledger",
        0,
        Verdict.KILLED,
        seen=("refcount-exact",),
        examples=3,
        steps=40,
        length=5,
    )
    rest = FaultRun("none", "ledger", 0, Verdict.NOT_RUN, note=run.INTERRUPTED)
    monkeypatch.setattr(run, "run_trials", lambda trials, jobs, on_done: [killed, rest])
    result = invoke("faults", "run", "fork-shares-tail", "--out", str(tmp_path))
    assert result.exit_code == ExitStatus.INTERRUPTED
    kept = json.loads((tmp_path / "runs.json").read_text())
    assert [entry["verdict"] for entry in (*kept["runs"], *kept["unchanged"])] == ["killed", "not run"]


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "run_trials", lambda *_: pytest.fail("a campaign ran"))
    (tmp_path / "file").touch()
    error = invoke("faults", "run", "fork-shares-tail", "--out", str(tmp_path / "file" / "below")).exception
    assert isinstance(error, InputError)
    assert "file is no folder; name another" in str(error)
    monkeypatch.setattr(faults_command.os, "access", lambda path, mode: False)
    error = invoke("faults", "run", "fork-shares-tail", "--out", str(tmp_path / "new")).exception
    assert isinstance(error, InputError)
    assert f"{tmp_path} cannot be written" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
