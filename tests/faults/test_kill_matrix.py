"""The kill matrix adds up, results survive being kept, and campaigns that do not shrink say what fired."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from kvcrucible.cli.faults_tables import print_matrix, print_runs
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.fuzz.faults.catalogue import (
    catalogue,
    every_fault,
    fault,
    kernel_catalogue,
    planner_catalogue,
)
from kvcrucible.fuzz.faults.matrix import fault_rows, invariant_rows, matrix_to_plain
from kvcrucible.fuzz.faults.results import (
    MAX_BYTES,
    read_results,
    results_to_plain,
)
from kvcrucible.fuzz.faults.run import (
    WORST_FIRST,
    CampaignOptions,
    FaultRun,
    Trial,
    Verdict,
    run_trial,
    totals,
    trials_of,
    unchanged_trials,
)
from kvcrucible.fuzz.keeping import write_json
from kvcrucible.fuzz.setting import Depth
from kvcrucible.invariants.registry import IDS

#: Two faults: one told by two invariants, under one seed by another first; one told by a single one, late.
RUNS = [
    FaultRun(
        "a",
        "ledger",
        0,
        Verdict.KILLED,
        "",
        ("lease-unique", "row-unique"),
        ("lease-unique",),
        True,
        3,
        90,
        7,
    ),
    FaultRun("a", "ledger", 1, Verdict.KILLED, "", ("row-unique",), ("row-unique",), True, 5, 110),
    FaultRun("b", "payload", 0, Verdict.SURVIVED),
    FaultRun("b", "payload", 1, Verdict.KILLED, "", ("row-unique",), ("row-unique",), False, 9, 400),
]

SHARE = fault("share-counts-nothing")


def test_a_row_says_who_told_a_fault_first_and_who_alone() -> None:
    first, second = fault_rows(RUNS)
    assert first.first == {"lease-unique": 1, "row-unique": 1}
    assert first.fired == {"row-unique": 2, "lease-unique": 1}
    assert first.alone is None
    assert (first.seeds, first.examples, first.steps, first.length) == (1, 4, 100, 7)
    assert first.verdict is Verdict.KILLED
    assert (second.alone, second.seeds, second.killed, second.runs) == ("row-unique", 2, 1, 2)
    assert second.verdict is Verdict.SURVIVED
    assert not second.expected


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ([Verdict.KILLED, Verdict.KILLED], Verdict.KILLED),
        ([Verdict.KILLED, Verdict.NOT_RUN], Verdict.NOT_RUN),
        ([Verdict.HUNG, Verdict.NOT_RUN, Verdict.KILLED], Verdict.HUNG),
        ([Verdict.HUNG, Verdict.LOST], Verdict.LOST),
        ([Verdict.LOST, Verdict.KILLED, Verdict.SURVIVED], Verdict.SURVIVED),
    ],
)
def test_a_fault_has_the_worst_verdict_of_its_campaigns(verdicts: list[Verdict], worst: Verdict) -> None:
    runs = [replace(RUNS[0], seed=seed, verdict=verdict) for seed, verdict in enumerate(verdicts)]
    (row,) = fault_rows(runs)
    assert row.verdict is worst
    assert matrix_to_plain([row], [])["faults"]["a"]["verdict"] == worst.value
    assert set(WORST_FIRST) == set(Verdict)


def test_kills_by_a_crash_alone_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    crash = ("engine-fault",)
    runs = [
        FaultRun("loud", "ledger", 0, Verdict.KILLED, "", crash, crash, True, 1, 9, 3),
        FaultRun("loud", "ledger", 1, Verdict.KILLED, "", crash, crash, True, 1, 9),
        FaultRun("both", "ledger", 0, Verdict.KILLED, "", crash, crash, True, 1, 9, 3),
        FaultRun("both", "ledger", 1, Verdict.KILLED, "", crash, ("row-unique",), True, 1, 9),
        FaultRun("none", "ledger", 0, Verdict.SURVIVED, "", crash),
    ]
    rows = fault_rows(runs)
    assert [(row.by_crash_alone, row.told_by_crash_alone) for row in rows] == [
        (2, True),
        (1, False),
        (0, False),
    ]
    assert matrix_to_plain(rows, [])["told_by_crash_alone"] == ["loud"]
    assert matrix_to_plain(rows, [])["faults"]["both"]["by_crash_alone"] == 1
    assert totals(runs)["by_crash_alone"] == 3
    print_runs(runs, totals(runs))
    print_matrix(runs)
    shown = capsys.readouterr().out
    assert "killed 4 of 5, 3 of them by a crash alone" in shown
    assert "told by a crash of the engine alone, by no invariant: loud" in shown
    assert "0/1 survived" in shown


def test_kills_that_were_told_otherwise_are_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_runs(RUNS, totals(RUNS))
    shown = " ".join(capsys.readouterr().out.split())
    assert totals(RUNS)["told_otherwise"] == 1
    assert "found by luck: 1 of the kills were told by none of the invariants that the fault names" in shown
    assert "b: told by none of the invariants that the catalogue names" in shown
    survived = [replace(RUNS[2], seen=("row-unique",))]
    assert totals(survived)["told_otherwise"] == 0
    print_runs(RUNS[:2], totals(RUNS[:2]))
    assert "luck" not in capsys.readouterr().out


def test_invariants_are_counted_over_faults_and_those_that_tell_nothing_are_named() -> None:
    rows = fault_rows(RUNS)
    by = {row.invariant: row for row in invariant_rows(rows, every_fault().values())}
    assert list(by)[: len(IDS)] == list(IDS)
    assert (by["row-unique"].told, by["row-unique"].first, by["row-unique"].alone) == (2, 2, 1)
    assert (by["lease-unique"].told, by["lease-unique"].first, by["lease-unique"].alone) == (1, 1, 0)
    assert by["row-unique"].expected_by >= 1
    untold = matrix_to_plain(rows, list(by.values()))["untold"]
    assert "row-unique" not in untold
    assert {"codec-exact", "unit-frozen"} <= set(untold)


def test_results_survive_being_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.json"
    names = {"a": "row-leased-twice", "b": "share-counts-nothing"}
    runs = [replace(run, fault=names[run.fault]) for run in RUNS]
    controls = [FaultRun("none", "ledger", 2, Verdict.SURVIVED)]
    write_json(path, results_to_plain(runs, controls, CampaignOptions(seed=2), 2, "0123abc"))
    again = read_results(path)
    assert list(again.runs) == runs
    assert list(again.controls) == controls
    assert again.commit == "0123abc"
    assert not list(path.parent.glob("*.part"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "kvcrucible.fault-runs/1"}',
        "[" * 100_000,
        json.dumps(results_to_plain(RUNS, [], CampaignOptions(), 2, None)).replace('"killed"', '"found"'),
        json.dumps(results_to_plain(RUNS, [], CampaignOptions(), 2, None)).replace("lease-unique", "[bold]"),
    ],
)
def test_what_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_results(path)


@pytest.mark.parametrize(
    ("runs", "unchanged", "says"),
    [
        (RUNS, [FaultRun("none", "ledger", 2, Verdict.KILLED, "", ("row-unique",))], "as it is was killed"),
        ([FaultRun("a", "ledger", 0, Verdict.KILLED)], [], "no invariant"),
        (RUNS, [FaultRun("a", "ledger", 2, Verdict.SURVIVED)], "stands among the campaigns on the engine as"),
        ([replace(RUNS[0], seen=("made-up-name",))], [], "told by 'made-up-name', which no report can name"),
        ([replace(RUNS[0], invariants=("made-up-name",))], [], "made-up-name"),
        ([replace(RUNS[0], verdict=Verdict.SURVIVED), RUNS[0]], [], "'a' is there twice under seed 0"),
        (
            [replace(RUNS[0], fault=SHARE.id, digest=SHARE.digest, depth="planner")],
            [FaultRun("none", "planner", 0, Verdict.SURVIVED)],
            "at depth ledger, not planner",
        ),
    ],
)
def test_kills_that_prove_nothing_are_refused(
    runs: list[FaultRun], unchanged: list[FaultRun], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs.json"
    write_json(path, results_to_plain(runs, unchanged, CampaignOptions(), 1, None))
    with pytest.raises(InputError, match=says):
        read_results(path)


def test_whether_a_kill_was_expected_is_asked_of_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    told = replace(RUNS[0], fault=SHARE.id, digest=SHARE.digest, expected=False)
    runs = [
        replace(told, seen=SHARE.expects[:1]),
        replace(told, seed=1, seen=("codec-exact",), invariants=("codec-exact",), expected=True),
        replace(told, fault="nobody-has-it", expected=True),
    ]
    write_json(path, results_to_plain(runs, [], CampaignOptions(), 2, None))
    assert "codec-exact" not in SHARE.expects
    assert [run.expected for run in read_results(path).runs] == [True, False, False]


def test_a_file_beyond_the_limit_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for which in (path, tmp_path / "none", tmp_path):
        with pytest.raises(InputError):
            read_results(which)


def test_the_first_seed_alone_shrinks_and_writes(tmp_path: Path) -> None:
    trials = trials_of([fault("share-counts-nothing")], CampaignOptions(out=tmp_path), seeds=3)
    assert [(trial.options.shrink, trial.options.out) for trial in trials] == [
        (True, tmp_path), (False, None), (False, None)
    ]  # fmt: skip


def test_without_shrinking_a_campaign_says_what_it_saw_first() -> None:
    done = run_trial(Trial(fault("share-counts-nothing"), Depth.LEDGER, CampaignOptions(shrink=False)))
    assert done.verdict is Verdict.KILLED, done
    assert done.seen == done.invariants == ("refcount-exact",)
    assert done.length is None
    assert done.steps is not None
    assert done.digest == fault("share-counts-nothing").digest


def test_all_parts_have_ids_of_their_own_and_kernel_faults_run_where_they_show() -> None:
    assert len(every_fault()) == len(catalogue()) + len(kernel_catalogue()) + len(planner_catalogue())
    chosen = [fault("share-counts-nothing"), fault("copy-whole-page"), fault("bfloat16-cut")]
    assert [trial.target for trial in trials_of(chosen, CampaignOptions())] == [None, "torch", "interpreter"]
    controls = unchanged_trials(chosen, CampaignOptions())
    assert [(trial.fault, trial.target) for trial in controls] == [
        (None, None),
        (None, "torch"),
        (None, "interpreter"),
    ]


@pytest.mark.torch
def test_a_kernel_fault_is_found_beside_those_of_the_engine() -> None:
    pytest.importorskip("torch")
    (trial,) = trials_of([fault("copy-whole-page")], CampaignOptions())
    done = run_trial(trial)
    assert done.verdict is Verdict.KILLED, done
    assert (done.depth, done.steps, done.length) == ("kernels", None, None)
    assert done.expected


def test_the_command_keeps_and_shows_the_matrix(tmp_path: Path) -> None:
    def kvcrucible(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvcrucible", "faults", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    two = ("share-counts-nothing", "row-leased-twice")
    done = kvcrucible("run", *two, "--seeds", "2", "--no-shrink", "--no-unchanged", "--out", str(tmp_path))
    assert done.returncode == ExitStatus.HELD, done.stdout
    assert "killed 4 of 4" in done.stdout
    kept = tmp_path / "runs.json"
    plain = json.loads(kept.read_text())
    jsonschema.validate(plain["runs"], {"type": "array", "minItems": 4, "maxItems": 4})
    first = plain["matrix"]["faults"]["row-leased-twice"]["first"]
    assert sum(first.values()) == 2
    assert set(first) <= set(fault("row-leased-twice").expects)
    shown = kvcrucible("matrix", str(kept))
    assert "no fault was told by" in shown.stdout
    assert json.loads(kvcrucible("matrix", str(kept), "--json").stdout) == plain["matrix"]
