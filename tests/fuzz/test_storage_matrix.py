"""The matrix of configurations: what its verdict needs, and (slow) the acceptance campaign itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.cli.console import console
from kvcrucible.cli.fuzz_matrix import _print
from kvcrucible.contract.errors import ExitStatus
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.fuzz.campaign import GOALS_FROM_EXAMPLES, Plan, run
from kvcrucible.fuzz.cores import usable_cores
from kvcrucible.fuzz.coverage import GOALS
from kvcrucible.fuzz.matrix import (
    KEPT,
    LEAST_EXAMPLES,
    MOST_FURTHER,
    Cell,
    Configuration,
    MatrixPlan,
    MatrixReport,
    command,
    judged,
    matrix_to_plain,
    run_matrix,
)
from kvcrucible.fuzz.pairs import ALL_PAIRS, pair_name
from kvcrucible.fuzz.setting import Depth

PLAN = MatrixPlan()
FULL: dict[str, Any] = {
    "examples": LEAST_EXAMPLES,
    "steps": 1,
    "failure": None,
    "pairs": {pair_name(pair): 1 for pair in ALL_PAIRS},
    "goals": dict.fromkeys(GOALS, 1),
}


def matrix(**changes: Any) -> MatrixReport:
    """Return a matrix in which every configuration held, but for changes to the first one's report."""
    cells = [Cell(one, seed, ExitStatus.HELD, 1.0, FULL) for seed, one in enumerate(PLAN.configurations)]
    first = cells[0].configuration
    status = changes.pop("status", ExitStatus.HELD)
    cells[0] = Cell(first, 0, status, 1.0, {**FULL, **changes})
    return MatrixReport(PLAN, tuple(cells))


def test_every_combination_is_there_once() -> None:
    assert len(PLAN.configurations) == 3 * len(PROFILES) * 2 == len(set(PLAN.configurations))
    words = command(PLAN, Configuration("main+mtp", "NVFP4-G16", "on"), 7)
    assert words[words.index("--host") + 1] == "on"
    assert words[words.index("--seed") + 1] == "7"
    assert "payload" in words


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, ExitStatus.HELD),
        ({"status": ExitStatus.VIOLATION}, ExitStatus.VIOLATION),
        ({"status": ExitStatus.INTERNAL}, ExitStatus.INTERNAL),
        ({"status": ExitStatus.NOT_RUN}, ExitStatus.NOT_RUN),
        ({"status": ExitStatus.INCONCLUSIVE}, ExitStatus.INCONCLUSIVE),
        ({"examples": LEAST_EXAMPLES - 1}, ExitStatus.INCONCLUSIVE),
    ],
)
def test_all_has_to_hold(changes: dict[str, Any], due: ExitStatus) -> None:
    assert matrix(**changes).status() is due


def test_a_pair_or_a_goal_that_nobody_reached_is_inconclusive() -> None:
    for part in ("pairs", "goals"):
        name = sorted(FULL[part])[0]
        cells = [
            Cell(one, 0, ExitStatus.HELD, 1.0, {**FULL, part: {**FULL[part], name: 0}})
            for one in PLAN.configurations
        ]
        report = MatrixReport(PLAN, tuple(cells))
        assert report.status() is ExitStatus.INCONCLUSIVE
        plain = matrix_to_plain(report)
        assert plain["pairs_missing" if part == "pairs" else "goals_missed"] == [name]
        assert json.loads(json.dumps(plain))["status"] == ExitStatus.INCONCLUSIVE


@pytest.mark.parametrize(
    ("returncode", "stdout", "due"),
    [
        (0, '{"failure": null}', ExitStatus.HELD),
        (1, '{"failure": {"steps": []}}', ExitStatus.VIOLATION),
        (0, '{"failure": {"steps": []}}', ExitStatus.INTERNAL),
        (1, '{"failure": null}', ExitStatus.INTERNAL),
        (0, "", ExitStatus.INTERNAL),
        (1, "Traceback", ExitStatus.INTERNAL),
        (0, "[]", ExitStatus.INTERNAL),
        (-9, '{"failure": null}', ExitStatus.INTERNAL),
        (5, "", ExitStatus.NOT_RUN),
        (3, '{"failure": null}', ExitStatus.INCONCLUSIVE),
    ],
)
def test_a_child_without_a_report_that_agrees_with_its_status_is_lost(
    returncode: int, stdout: str, due: ExitStatus
) -> None:
    assert judged(PLAN.configurations[0], 0, returncode, stdout, "words", 1.0).status is due


@pytest.mark.torch
def test_one_configuration_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plan = MatrixPlan(2, 5, 3, tmp_path, (Configuration("main+draft", "K8V4", "on"),))
    done: list[Cell] = []
    report = run_matrix(plan, 2, done.append)
    assert list(report.cells) == done
    assert report.cells[0].held, report.cells[0].note
    assert report.cells[0].report is not None
    assert report.cells[0].report["examples"] >= 2
    assert report.status() is ExitStatus.INCONCLUSIVE, "two examples prove nothing"
    kept = json.loads((tmp_path / KEPT).read_text("utf-8"))
    assert kept == json.loads(json.dumps(matrix_to_plain(report)))


def test_what_was_through_before_an_interruption_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PLAN.configurations[0]

    def held(plan: MatrixPlan, configuration: Configuration, seed: int, children: object) -> Cell:
        if configuration != first:
            begun.wait(60)
        return Cell(configuration, seed, ExitStatus.HELD, 1.0, FULL)

    begun = threading.Event()

    def stop(cell: Cell) -> None:
        begun.set()
        raise KeyboardInterrupt

    monkeypatch.setattr("kvcrucible.fuzz.matrix.run_cell", held)
    report = run_matrix(MatrixPlan(out=tmp_path), 1, stop)
    # What was running beside it has its end told as well.
    assert 1 <= [cell.held for cell in report.cells].count(True) <= 2
    assert {cell.note for cell in report.cells if not cell.held} == {"interrupted"}
    assert report.status() is ExitStatus.INTERRUPTED
    plain = json.loads((tmp_path / KEPT).read_text("utf-8"))
    assert plain["status"] == ExitStatus.INTERRUPTED
    kept = plain["configurations"]
    assert [one["status"] for one in kept] == [cell.status.value for cell in report.cells]


def test_a_part_of_a_campaign_is_not_held_to_its_goals() -> None:
    plan = Plan(examples=GOALS_FROM_EXAMPLES, steps=1, depths=(Depth.LEDGER,), held_to_goals=False)
    report = run(plan)
    assert report.missed(), "one rule an example reaches little"
    assert report.cut_short is None
    assert report.tally.examples < 2 * GOALS_FROM_EXAMPLES


@pytest.mark.parametrize(("reached_after", "campaigns"), [(36, 36), (39, 39), (99, 36 + MOST_FURTHER)])
def test_a_pair_that_is_missing_is_looked_for_again(
    reached_after: int,
    campaigns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = sorted(FULL["pairs"])[0]
    seeds: list[int] = []

    def held(plan: MatrixPlan, configuration: Configuration, seed: int, children: object) -> Cell:
        seeds.append(seed)
        pairs = {**FULL["pairs"], name: int(len(seeds) >= reached_after)}
        return Cell(configuration, seed, ExitStatus.HELD, 1.0, {**FULL, "pairs": pairs})

    monkeypatch.setattr("kvcrucible.fuzz.matrix.run_cell", held)
    report = run_matrix(PLAN, 1)
    assert len(report.cells) == campaigns == len(set(seeds))
    assert all(cell.configuration.host == "on" for cell in report.cells[36:])
    assert report.status() is (ExitStatus.HELD if reached_after < 99 else ExitStatus.INCONCLUSIVE)
    assert report.held(further=False) == (36, 36)
    assert report.held(further=True) == (campaigns - 36, campaigns - 36)
    plain = matrix_to_plain(report)
    assert (plain["configurations_held"], plain["further_campaigns"]) == (36, campaigns - 36)
    assert [one["further"] for one in plain["configurations"]] == [False] * 36 + [True] * (campaigns - 36)
    _print(console(), report)
    shown = capsys.readouterr().out
    assert "36 of 36 configurations held" in shown
    assert shown.count("(further)") == campaigns - 36
    due = f"{campaigns - 36} of {campaigns - 36} further campaigns held"
    assert (due in shown) is (campaigns > 36)


def test_what_is_too_short_to_hold_looks_for_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(plan: MatrixPlan, configuration: Configuration, seed: int, children: object) -> Cell:
        report = {**FULL, "examples": plan.examples, "pairs": {}, "goals": {}}
        return Cell(configuration, seed, ExitStatus.HELD, 1.0, report)

    monkeypatch.setattr("kvcrucible.fuzz.matrix.run_cell", held)
    report = run_matrix(MatrixPlan(LEAST_EXAMPLES - 1), 1)
    assert report.held(further=True) == (0, 0)
    assert report.status() is ExitStatus.INCONCLUSIVE


#: Stands for a campaign: reports what it is given, or says that it has begun and runs until it is interrupted.
CHILD = """
import pathlib, os, sys, time
report, begun = map(pathlib.Path, sys.argv[1:])
if not report.name:
    try:
        begun.write_text(str(os.getpid()))
        time.sleep(20)
        begun.write_text("went on to its end")
    except KeyboardInterrupt:
        sys.exit(130)
print(report.read_text())
"""


def test_an_interruption_ends_a_further_campaign_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this process hears of it, as where somebody's ``kill -INT`` names it alone."""
    report, begun = tmp_path / "report.json", tmp_path / "begun"
    report.write_text(json.dumps({**FULL, "pairs": {}}))
    child: list[int] = []

    def words(plan: MatrixPlan, configuration: Configuration, seed: int) -> list[str]:
        return [sys.executable, "-c", CHILD, "" if seed else str(report), str(begun)]

    def interrupt() -> None:
        while not (begun.exists() and begun.read_text()):
            time.sleep(0.02)
        child.append(int(begun.read_text()))
        # To the main thread itself: another one would not wake it.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr("kvcrucible.fuzz.matrix.command", words)
    watch = threading.Thread(target=interrupt, daemon=True)
    watch.start()
    found = run_matrix(MatrixPlan(out=tmp_path, configurations=(Configuration("main+mtp", "FP32", "on"),)), 1)
    watch.join()
    assert begun.read_text() == str(child[0])
    with pytest.raises(ProcessLookupError):
        os.kill(child[0], 0)
    assert [(cell.held, cell.further) for cell in found.cells] == [(True, False), (False, True)]
    assert found.status() is ExitStatus.INTERRUPTED
    assert json.loads((tmp_path / KEPT).read_text("utf-8"))["status"] == ExitStatus.INTERRUPTED


@pytest.mark.torch
def test_an_interruption_of_the_command_alone_ends_its_children(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = [sys.executable, "-m", "kvcrucible", "fuzz", "--matrix", "--out", str(tmp_path)]
    with subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True) as running:
        children: list[str] = []
        while not children:
            assert running.poll() is None
            time.sleep(0.05)
            # Each thread has children of its own.
            lists = Path(f"/proc/{running.pid}/task").glob("*/children")
            every = [child for one in lists for child in one.read_text().split()]
            children = [child for child in every if "--depth" in words_of(child)]
        os.kill(running.pid, signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == ExitStatus.INTERRUPTED
    assert not any("--depth" in words_of(child) for child in children)


def words_of(process: str) -> str:
    """Return a process's command line, nothing for one that is no more."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def test_the_command_line_takes_no_choice_beside_the_matrix() -> None:
    words = [sys.executable, "-m", "kvcrucible", "fuzz", "--matrix", "--profile", "FP32"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == ExitStatus.USAGE
    assert "--matrix does not take --profile" in " ".join(done.stderr.split())


@pytest.mark.slow
@pytest.mark.torch
def test_every_configuration_holds_and_every_pair_of_operations_is_reached(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = run_matrix(MatrixPlan(out=tmp_path), usable_cores())
    assert {cell.configuration.name: cell.note for cell in report.cells if not cell.held} == {}
    assert report.missing_pairs() == []
    assert report.missed_goals() == []
    assert report.status() is ExitStatus.HELD
