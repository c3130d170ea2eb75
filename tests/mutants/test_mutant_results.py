"""Results add up, are kept from one run to the next, and are not mixed with those of another engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcrucible.cli.mutants import status_of
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.fuzz.mutants.equivalent import Equivalent
from kvcrucible.fuzz.mutants.judge import Budget
from kvcrucible.fuzz.mutants.mutant import Mutant
from kvcrucible.fuzz.mutants.results import ResultsFile, to_do, totals
from kvcrucible.fuzz.mutants.run import MutantRun
from kvcrucible.fuzz.mutants.subjects import ENGINE
from kvcrucible.fuzz.mutants.verdicts import MutantVerdict as V
from kvcrucible.fuzz.source import source_commit

MUTANTS = [Mutant(f"{ENGINE}.pool", "f", "number", n, f"x = {n}", "x = 9", 0, 0, 0, "") for n in range(4)]


def run_of(mutant: Mutant, verdict: V, *invariants: str, seeds: int | None = 3) -> MutantRun:
    return MutantRun(mutant.id, verdict, invariants, seeds, 100, "a note")


def entry(told_by: str | None) -> Equivalent:
    return Equivalent(f"{ENGINE}.pool", "f", "number", "x = 0", "x = 9", 0, "a reason", told_by)


def test_a_file_is_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mutants.json"
    file = ResultsFile(path, Budget())
    file.add(MUTANTS[0], run_of(MUTANTS[0], V.KILLED, "no-leak-at-quiescence"))
    file.add(MUTANTS[1], run_of(MUTANTS[1], V.SURVIVED))
    again = ResultsFile(path, Budget())
    assert again.runs == file.runs
    assert to_do(MUTANTS, again.runs, frozenset()) == MUTANTS[2:]
    assert to_do(MUTANTS, again.runs, frozenset({V.SURVIVED})) == MUTANTS[1:]
    again.add(MUTANTS[1], run_of(MUTANTS[1], V.KILLED, "single-writer"))
    plain = json.loads(path.read_text("utf-8"))
    assert plain["commit"] == source_commit()
    assert [(one["mutant"], one["verdict"]) for one in plain["results"]] == [
        (MUTANTS[0].id, "killed"), (MUTANTS[1].id, "killed"),
    ]  # fmt: skip
    assert plain["results"][0]["before"] == "x = 0"
    assert [file.name for file in path.parent.iterdir()] == ["mutants.json"]


@pytest.mark.parametrize("key", ["format", "engine", "budget"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "mutants.json"
    ResultsFile(path, Budget()).add(MUTANTS[0], run_of(MUTANTS[0], V.KILLED, "single-writer"))
    plain = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**plain, key: "another"}), "utf-8")
    with pytest.raises(InputError, match=f"another {key}"):
        ResultsFile(path, Budget())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "kvcrucible.mutants/1"}', "7", pytest.param("[" * 100_000, id="deep")],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mutants.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError):
        ResultsFile(path, Budget())


def test_a_folder_and_what_never_ends_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="directory"):
        ResultsFile(tmp_path, Budget())
    with pytest.raises(InputError, match="more than"):
        ResultsFile(Path("/dev/zero"), Budget())


def test_only_kills_count_as_noticed() -> None:
    runs = [
        run_of(MUTANTS[0], V.KILLED, "single-writer", seeds=2),
        run_of(MUTANTS[1], V.KILLED, "engine-fault", seeds=40),
        run_of(MUTANTS[2], V.SURVIVED),
        run_of(MUTANTS[3], V.SURVIVED),
        MutantRun("hangs", V.HUNG),
        MutantRun("falls", V.LOST),
        MutantRun("unborn", V.STILLBORN),
    ]
    sums = totals(runs, {MUTANTS[2].id: entry(None)})
    assert (sums["mutants"], sums["counted"], sums["killed"], sums["rate"]) == (7, 5, 2, 0.4)
    assert (sums["hung"], sums["lost"], sums["stillborn"], sums["equivalent"]) == (1, 1, 1, 1)
    assert sums["unlisted_survivors"] == [MUTANTS[3].id]
    assert sums["by_fault_alone"] == 1
    assert (sums["median_seeds"], sums["p95_seeds"], sums["most_seeds"]) == (21, 40, 40)
    assert totals([], {})["rate"] is None
    tested = totals(runs, {MUTANTS[2].id: entry("tests/a.py::test_b")})
    assert (tested["counted"], tested["equivalent"], tested["told_by_tests"]) == (6, 0, 1)
    assert tested["unlisted_survivors"] == [MUTANTS[3].id]
    wrong = totals(runs[:1], {MUTANTS[0].id: entry(None)})
    assert (wrong["counted"], wrong["wrongly_listed"]) == (1, [MUTANTS[0].id])


@pytest.mark.parametrize(
    ("verdicts", "listed", "held", "due"),
    [
        ([V.KILLED], [], V.SURVIVED, ExitStatus.HELD),
        ([V.KILLED], [], None, ExitStatus.HELD),
        ([V.KILLED, V.SURVIVED], [], V.SURVIVED, ExitStatus.VIOLATION),
        ([V.KILLED, V.SURVIVED], [1], V.SURVIVED, ExitStatus.HELD),
        ([V.KILLED], [0], V.SURVIVED, ExitStatus.VIOLATION),
        ([V.KILLED], [], V.KILLED, ExitStatus.VIOLATION),
        ([V.KILLED], [], V.LOST, ExitStatus.INTERNAL),
        ([V.KILLED, V.LOST], [], V.SURVIVED, ExitStatus.INTERNAL),
        ([V.KILLED, V.HUNG], [], V.SURVIVED, ExitStatus.INCONCLUSIVE),
        ([V.KILLED, V.STILLBORN], [], None, ExitStatus.HELD),
        ([V.STILLBORN, V.STILLBORN], [], None, ExitStatus.INCONCLUSIVE),
    ],
)
def test_the_status_says_what_was_shown_of_mutants(
    verdicts: list[V], listed: list[int], held: V | None, due: ExitStatus
) -> None:
    runs = [run_of(mutant, verdict, "x") for mutant, verdict in zip(MUTANTS, verdicts, strict=False)]
    sums = totals(runs, {MUTANTS[at].id: entry(None) for at in listed})
    assert status_of(sums, None if held is None else MutantRun(None, held)) is due
