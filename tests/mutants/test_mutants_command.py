"""The command end to end, on a handful of mutants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="needs the `mutants` extra")

from click.testing import Result
from typer.testing import CliRunner

from kvcrucible.cli.main import build_app
from kvcrucible.contract.errors import ExitStatus, InputError, NotRunError
from kvcrucible.fuzz.mutants.generate import mutants_of

#: One that any judge notices, and one that nobody does in a single seed of a single rule.
DELETED = {
    one.before: one for one in mutants_of("kvcrucible.engine.pool") if one.operator == "statement-deleted"
}
PLAIN = DELETED["self.leased += pages"]
HARD = DELETED["self._carried[page] = fence"]


def kvcrucible(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvcrucible", "mutants", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def answer(*arguments: str) -> Result:
    """Return what the command answers in this process, for what starts no server."""
    return CliRunner().invoke(build_app(), ["mutants", *arguments])


def test_mutants_are_judged_kept_and_not_judged_again(tmp_path: Path) -> None:
    out = str(tmp_path / "mutants.json")
    short = ("--seeds", "5", "--rules", "20", "--jobs", "1", "--out", out, "--json")
    first = kvcrucible("run", PLAIN.id, *short)
    assert first.returncode == ExitStatus.HELD, first.stderr
    report = json.loads(first.stdout)
    assert report["unchanged"]["verdict"] == "survived"
    assert report["totals"]["killed"] == report["totals"]["counted"] == 1
    assert report["results"][0]["before"] == "self.leased += pages"
    stamp = Path(out).stat().st_mtime_ns
    # What is kept is not judged again, and named twice it counts once.
    again = answer("run", PLAIN.id, PLAIN.id, *short, "--no-unchanged")
    assert again.exit_code == ExitStatus.HELD, again.output
    assert json.loads(again.stdout)["results"] == report["results"]
    assert Path(out).stat().st_mtime_ns == stamp
    other = answer("run", PLAIN.id, "--seeds", "6", "--rules", "20", "--out", out)
    assert "another budget" in str(other.exception)


def test_a_survivor_is_a_violation_shown_with_its_lines() -> None:
    done = kvcrucible("run", HARD.id, "--seeds", "1", "--rules", "1", "--jobs", "1", "--no-unchanged")
    assert done.returncode == ExitStatus.VIOLATION, done.stderr
    assert "- self._carried[page] = fence" in done.stdout
    assert "killed 0 of 1" in done.stdout


def test_a_mutant_is_shown_and_what_is_unknown_refused() -> None:
    shown = answer("show", HARD.id).output
    assert "-            self._carried[page] = fence\n+            pass" in shown
    assert "function: PagePool._take_returned" in shown
    for refused in (
        ("show", "pool:f:0000000000"),
        ("show", "no_module:f:0000000000"),
        ("run",),
        ("run", "--sample", "1", "--all"),
        ("run", HARD.id, "--again", "nonsense", "--out", "results.json"),
        ("run", HARD.id, "--again", "survived"),
    ):
        assert isinstance(answer(*refused).exception, InputError), refused


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcrucible.cli.optional.find_spec", lambda name: None)
    refused = answer("show", HARD.id).exception
    assert isinstance(refused, NotRunError)
    assert "mutmut" in str(refused)
    assert "[mutants]" in str(refused)
