"""Failing examples become files that fail on the broken engine and pass on the mended one."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.operations import BeginUnit, EndUnit, Fork, Operation, Prefill, Schedule, Submit
from kvcrucible.contract.tokens import run
from kvcrucible.engine.pages import PageLedger
from kvcrucible.fuzz.minimise import minimise
from kvcrucible.fuzz.reproduction import render, run_case, violations_of, write
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import step_to_plain
from kvcrucible.invariants.judgements import NOT_REPRODUCED
from kvcrucible.invariants.violation import InvariantViolated, Violation

SETTING = Setting(capacity_pages=6)
FORK: tuple[Operation, ...] = (
    Submit(run(0, 0, 32), 16),
    Schedule(),
    BeginUnit((Prefill(0, 32),)),
    EndUnit(0),
    Fork(0, 32, 16),
)
NOISE: tuple[Operation, ...] = (Schedule(), Submit((), 1), Schedule())


@pytest.fixture
def sharing_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the engine: a page that a fork shares does not gain a reference."""
    monkeypatch.setattr(PageLedger, "share", lambda self, pages: None)


def test_an_example_that_holds_runs_to_the_end() -> None:
    assert violations_of(SETTING, FORK) == ()


@pytest.mark.usefixtures("sharing_counts_nothing")
def test_a_broken_engine_fails_the_example() -> None:
    assert {found.invariant for found in violations_of(SETTING, FORK)} >= {"refcount-exact"}


@pytest.mark.usefixtures("sharing_counts_nothing")
def test_steps_that_the_failure_does_not_need_are_taken_out() -> None:
    steps = (*NOISE, *FORK[:4], *NOISE, *FORK[4:], *NOISE)
    found = violations_of(SETTING, steps)
    shorter, again = minimise(SETTING, steps, found)
    assert len(shorter) == len(FORK)
    assert again[0].invariant == found[0].invariant


def test_minimising_what_holds_changes_nothing_and_says_so() -> None:
    found = (Violation("single-writer", "made up"),)
    steps, violations = minimise(SETTING, FORK, found)
    assert (steps, violations[:1]) == (FORK, found)
    assert [one.invariant for one in violations[1:]] == [NOT_REPRODUCED]


def test_the_file_passes_on_the_mended_engine_without_a_database(tmp_path: Path) -> None:
    path = write(tmp_path, SETTING, FORK, [Violation("refcount-exact", "references: found 1, expected 2")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert sorted(child.name for child in tmp_path.iterdir() if child.name != "__pycache__") == [path.name]


@pytest.mark.usefixtures("sharing_counts_nothing")
def test_the_file_fails_on_the_broken_engine(tmp_path: Path) -> None:
    path = write(tmp_path, SETTING, FORK, violations_of(SETTING, FORK))
    (test,) = (value for name, value in runpy.run_path(str(path)).items() if name.startswith("test_"))
    with pytest.raises(InvariantViolated, match="refcount-exact"):
        test()


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    found = [Violation("single-writer", "x")]
    first = write(tmp_path, SETTING, FORK, found)
    first.write_text("kept")
    second = write(tmp_path, SETTING, FORK, found)
    assert first.read_text() == "kept"
    assert second != first
    assert second.name.endswith("_2.py")


@pytest.mark.parametrize("name", ["../../evil", 'x"""', "a\nb", "", "Ω", "'); import os; ('"])
def test_a_hostile_name_or_message_stays_inside_its_comment(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, SETTING, FORK, [Violation(name, f"{name}\n\nassert False  # \x1b[2J\u2028")])
    assert path.parent == tmp_path
    text = path.read_text()
    assert text.isascii()
    names = [line for line in text.splitlines() if line.startswith("def ")]
    assert len(names) == 1
    compile(text, str(path), "exec")
    assert "assert False" not in [line.strip() for line in text.splitlines()]


def test_arguments_are_plain_values(tmp_path: Path) -> None:
    _, text = render(SETTING, FORK, [])
    code = compile(text, "x", "exec")
    assert "Submit(" not in text
    assert "run_case" in code.co_names


def test_data_that_is_no_example_is_refused() -> None:
    plain = [step_to_plain(step) for step in FORK]
    with pytest.raises(InputError):
        run_case({"engine": "paged", "colour": "red"}, plain)
    with pytest.raises(InputError):
        run_case(SETTING.to_plain(), [*plain, ["Explode", {}]])
