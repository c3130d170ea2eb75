"""Results add up, are kept from one run to the next, and are not mixed with those of another engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.cli.faults import require_writable
from kvcrucible.cli.mutants import status_of
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.fuzz.mutants.equivalent import Equivalent
from kvcrucible.fuzz.mutants.judge import Budget
from kvcrucible.fuzz.mutants.mutant import Mutant
from kvcrucible.fuzz.mutants.provenance import judge_modules
from kvcrucible.fuzz.mutants.results import ResultsFile, to_do, totals
from kvcrucible.fuzz.mutants.run import MutantRun
from kvcrucible.fuzz.mutants.subjects import ENGINE, subjects
from kvcrucible.fuzz.mutants.verdicts import MutantVerdict as V
from kvcrucible.fuzz.source import source_commit

MUTANTS = [Mutant(f"{ENGINE}.pool", "f", "number", n + 1, f"x = {n}", "x = 9", 0, 0, 0, "") for n in range(4)]


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


def kept(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a file with one kill and what it holds."""
    path = tmp_path / "mutants.json"
    ResultsFile(path, Budget()).add(MUTANTS[0], run_of(MUTANTS[0], V.KILLED, "single-writer"))
    return path, json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("key", ["engine", "judge"])
def test_a_file_of_another_engine_or_judge_is_refused_and_both_are_named(tmp_path: Path, key: str) -> None:
    path, plain = kept(tmp_path)
    path.write_text(json.dumps({**plain, key: "5" * 64, "commit": "theirs"}), "utf-8")
    ours = re.escape(f"5{'5' * 11} (theirs) there and {plain[key][:12]} ({plain['commit']}) here")
    with pytest.raises(InputError, match=f"another {key}: .* {ours}; name another file with --out"):
        ResultsFile(path, Budget())


@pytest.mark.parametrize(
    ("budget", "both"),
    [
        (Budget(seeds=5), "seeds 600 there and 5 here;"),
        (Budget(rules=7, seed=3), "rules 120 there and 7 here, seed 0 there and 3 here;"),
        (Budget(seed_seconds=1.5), "seed_seconds 10.0 there and 1.5 here;"),
    ],
)
def test_a_file_of_another_budget_is_refused_and_both_are_named(
    tmp_path: Path, budget: Budget, both: str
) -> None:
    path, _ = kept(tmp_path)
    with pytest.raises(InputError, match=f"another budget: {both}"):
        ResultsFile(path, budget)


@pytest.mark.parametrize(
    "entry",
    [
        {"verdict": "found"},
        {"verdict": "survived"},
        {"invariants": []},
        {"invariants": ["[bold]x[/bold]"]},
        {"invariants": ["a"] * 2},
        {"seeds": -1},
        {"seeds": "3"},
        {"seeds": True},
        {"seeds": None},
        {"steps": 1.5},
        {"note": 7},
        {"note": "x" * 10_001},
        {"module": "os.path"},
        {"mutant": "pool:f:0000000000"},
        {"after": "x = 10"},
        {"line": 0},
        {"further": 1},
    ],
    ids=str,
)
def test_an_entry_that_no_run_wrote_is_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    path, plain = kept(tmp_path)
    plain["results"][0].update(entry)
    path.write_text(json.dumps(plain), "utf-8")
    with pytest.raises(InputError, match="is no file of results") as refused:
        ResultsFile(path, Budget())
    assert len(str(refused.value)) < 800


def test_an_entry_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path, plain = kept(tmp_path)
    path.write_text(json.dumps({**plain, "results": plain["results"] * 2}), "utf-8")
    with pytest.raises(InputError, match="twice"):
        ResultsFile(path, Budget())


def test_a_file_of_an_older_format_is_refused_by_its_name(tmp_path: Path) -> None:
    path, plain = kept(tmp_path)
    path.write_text(json.dumps({**plain, "format": "kvcrucible.mutants/1"}), "utf-8")
    with pytest.raises(InputError) as refused:
        ResultsFile(path, Budget())
    assert "format 'kvcrucible.mutants/1', this version's is 'kvcrucible.mutants/2'" in str(refused.value)


def test_the_judge_is_all_that_a_child_loads_beside_the_engine() -> None:
    """A module that has a say in a verdict and is in no digest would let results of two judges be mixed."""
    program = (
        "import json, sys\n"
        "from kvcrucible.fuzz.mutants.server import preload, _judged\n"
        "from kvcrucible.fuzz.mutants.judge import Budget\n"
        "preload()\n"
        "told = _judged({'module': None, 'source': None}, Budget(2, 30), lambda: None)\n"
        "named = [name for name, one in sys.modules.items() if not hasattr(one, '__path__')]\n"
        "print(json.dumps([told['verdict'], [name for name in named if name.startswith('kvcrucible.')]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    verdict, loaded = json.loads(done.stdout)
    assert verdict == "survived", done.stderr
    known = {*judge_modules(), *subjects()}
    beside = {name for name in loaded if name not in known}
    assert beside <= {"kvcrucible.fuzz.faults.bugs", "kvcrucible.fuzz.mutants.subjects"}
    assert set(subjects()) & set(judge_modules()) == set()


def test_what_cannot_be_written_is_told_by_the_name_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out, said in (
        (tmp_path / "file" / "mutants.json", "file is no folder; name another"),
        (tmp_path, "is a folder; name a file"),
    ):
        with pytest.raises(InputError, match=re.escape(f"--out {out}")) as refused:
            require_writable(out, file=True)
        assert said in str(refused.value)


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
    with pytest.raises(InputError, match="not a regular file"):
        ResultsFile(tmp_path, Budget())
    with pytest.raises(InputError, match="not a regular file"):
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
    assert sums["by_crash_alone"] == 1
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
