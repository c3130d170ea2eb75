"""The real command on real revisions with a planted change: more work, and more time that no counter sees."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="needs the perf extra")

from kvcrucible.perf.compare.smoke import CASES

ROOT = Path(__file__).resolve().parents[2]

#: Where the plants go: the first line of the method's body.
ANCHOR = 'assert 0 <= pages <= reservation.remaining, f"materialise {pages} of {reservation.remaining}"\n'

#: Every tenth call is done, undone and done again: 10 % more calls, the same result.
MORE_WORK = """        self.calls = getattr(self, "calls", 0) + 1
        if self.calls % 10 == 0:
            self.dematerialise(reservation, self.materialise(reservation, pages))
"""


def git(repository: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    done = subprocess.run(
        ["git", "-C", str(repository), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository of its own with this checkout's files in one commit."""
    try:
        git(ROOT, "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout: no revisions to compare")
    from kvcrucible.perf.compare.revisions import check_out

    found = check_out(ROOT, ".", tmp_path / "repository").root
    git(found, "init", "-q")
    git(found, "add", "-A")
    git(found, "commit", "-qm", "base")
    return found


def plant(repository: Path, lines: str) -> None:
    file = repository / "engine" / "pool.py"
    text = file.read_text(encoding="utf-8")
    assert text.count(ANCHOR) == 1
    file.write_text(text.replace(ANCHOR, ANCHOR + lines), encoding="utf-8")


def compare(repository: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvcrucible", "perf", "compare", "--base", "HEAD", "--head", "."),
            *("--repository", str(repository), "--json", *words),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed(plain: dict[str, Any]) -> set[str]:
    return {one["metric"] for one in plain["metrics"] if one["verdict"] == "FAIL"}


@pytest.mark.slow
def test_unchanged_code_has_the_same_counts(repository: Path) -> None:
    status, plain = compare(repository, "--counts-only")
    assert (status, plain["verdict"], plain["left_out"]) == (0, "PASS", {})
    assert plain["bytecodes"] == []


@pytest.mark.slow
def test_ten_percent_more_work_in_materialise_fails_and_is_named(repository: Path) -> None:
    plant(repository, MORE_WORK)
    status, plain = compare(repository, "--counts-only")
    assert status == 1
    assert "bytecodes/materialise" in failed(plain)
    assert any(
        one["case"] == "materialise" and one["function"] == "pool:PagePool.materialise"
        for one in plain["bytecodes"]
    )


@pytest.mark.slow
def test_thirty_percent_more_time_fails_by_time(repository: Path) -> None:
    CASES["materialise"].run()
    started = time.process_time()
    CASES["materialise"].run()
    whole = time.process_time() - started
    calls = 80 * 65
    started = time.process_time()
    for _ in range(calls):
        sum(range(100))
    of_a_hundred = time.process_time() - started
    # One call of a C function more in each call: no step of the engine's own that is worth a word, but time.
    plant(repository, f"        sum(range({round(100 * 0.30 * whole / of_a_hundred)}))\n")
    status, plain = compare(repository)
    assert status == 1
    assert "cpu-time/materialise" in failed(plain)
