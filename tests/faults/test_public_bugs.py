"""Public bugs keep their form, every one has a standing, and only what was measured counts as caught."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from kvcrucible.cli.faults import status_of_coverage
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.fuzz.faults.bugs import PublicBug, public_bug, public_bug_files, public_bugs
from kvcrucible.fuzz.faults.catalogue import NO_FAULT, Fault, every_fault
from kvcrucible.fuzz.faults.coverage import Covered, Standing, coverage, coverage_to_plain
from kvcrucible.fuzz.faults.results import KeptRuns, results_to_plain
from kvcrucible.fuzz.faults.run import CampaignOptions, FaultRun, Verdict
from kvcrucible.fuzz.keeping import write_json
from kvcrucible.fuzz.setting import Depth
from kvcrucible.invariants.registry import IDS

BUG = PublicBug("KVB-900", "https://github.com/x/y/issues/1", "overflow")


def fault(name: str, *bugs: PublicBug) -> Fault:
    return Fault(name, "t", "kvcrucible.engine.m", name, "", Depth.LEDGER, ("lease-unique",), bugs, "m")


def kept(of: Fault, verdict: Verdict = Verdict.KILLED, seed: int = 0) -> FaultRun:
    told = of.expects[:1] if verdict is Verdict.KILLED else ()
    return FaultRun(of.id, "ledger", seed, verdict, of.digest, told, told, bool(told))


def control(verdict: Verdict = Verdict.SURVIVED, depth: str = "ledger") -> FaultRun:
    return FaultRun(NO_FAULT, depth, 0, verdict)


def standing(bug: PublicBug, faults: list[Fault], *runs: FaultRun) -> Standing:
    """Return where a bug stands by one file, or by several where campaigns came twice, with a control in each."""
    (one,) = coverage([KeptRuns(None, (run,), (control(),)) for run in runs], [bug], faults)
    return one.standing


def test_the_files_keep_their_schema() -> None:
    text = resources.files("kvcrucible.fuzz.faults").joinpath("public_bugs.schema.json").read_text("utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    files = public_bug_files()
    assert len(files) == 15
    classes = set()
    for file in files:
        plain = yaml.safe_load(file.read_text("utf-8"))
        validator.validate(plain)
        classes.add(plain["failure_class"])
        assert [entry["id"] for entry in plain["bugs"]] == sorted(entry["id"] for entry in plain["bugs"])
    assert len(classes) == len(files)
    for change in ({"verdict": "caught"}, {"not_expressible": "no"}, {"id": "KVB-1"}):
        assert not validator.is_valid({**plain, "bugs": [{**plain["bugs"][0], **change}]})


def test_they_are_those_of_the_data(from_data: Callable[[str], Path]) -> None:
    path = from_data("public_bugs.yaml")
    due = {
        entry["id"]: (entry["url"], entry["failure_class"])
        for entry in yaml.safe_load(path.read_text("utf-8"))
    }
    assert {bug.id: (bug.url, bug.failure_class) for bug in public_bugs().values()} == due


def test_the_catalogue_is_as_large_as_it_claims() -> None:
    assert len(every_fault()) >= 150
    assert sum(bool(one.faults) for one in coverage()) >= 90


def test_every_invariant_has_a_fault_that_expects_it() -> None:
    expected = {invariant for one in every_fault().values() for invariant in one.expects}
    assert [invariant for invariant in IDS if invariant not in expected] == []


def test_an_unknown_bug_cannot_be_cited() -> None:
    with pytest.raises(InputError, match="KVB-999"):
        public_bug("KVB-999")


def test_only_what_was_measured_is_caught() -> None:
    first = fault("first", BUG)
    assert standing(BUG, []) is Standing.OPEN
    assert standing(BUG, [fault("other")], kept(fault("other"))) is Standing.OPEN
    assert standing(BUG, [first]) is Standing.EXPRESSED
    assert standing(BUG, [first], kept(first)) is Standing.CAUGHT
    assert standing(replace(BUG, not_expressible="because"), []) is Standing.NOT_EXPRESSIBLE


def test_every_fault_that_cites_a_bug_has_to_be_found_under_every_seed() -> None:
    first, second = fault("first", BUG), fault("second", BUG)
    assert standing(BUG, [first, second], kept(first)) is Standing.EXPRESSED
    assert standing(BUG, [first, second], kept(first), kept(second)) is Standing.CAUGHT
    assert standing(BUG, [first], kept(first), kept(first, Verdict.SURVIVED, seed=1)) is Standing.MISSED
    by_luck = replace(kept(first, seed=1), expected=False)
    assert standing(BUG, [first], kept(first), by_luck) is Standing.TOLD_OTHERWISE
    survived = kept(first, Verdict.SURVIVED, seed=2)
    assert standing(BUG, [first], kept(first), by_luck, survived) is Standing.MISSED
    # What was run later counts.
    assert standing(BUG, [first], kept(first, Verdict.SURVIVED), kept(first)) is Standing.CAUGHT


@pytest.mark.parametrize("verdict", [Verdict.HUNG, Verdict.LOST])
def test_what_hung_or_was_lost_is_missed_and_said_apart(verdict: Verdict) -> None:
    first, second = fault("first", BUG), fault("second", BUG)
    fell = kept(first, verdict, seed=1)
    assert standing(BUG, [first], kept(first), fell) is Standing.HUNG_OR_LOST
    assert standing(BUG, [first, second], fell, kept(second, Verdict.SURVIVED)) is Standing.MISSED
    (one,) = coverage([KeptRuns(None, (fell,))], [BUG], [first])
    plain = coverage_to_plain([one])
    assert (plain["recall"], plain["standings"]["missed: hung or lost"]) == (0, 1)


def test_what_was_not_run_is_not_measured() -> None:
    first, second = fault("first", BUG), fault("second", BUG)
    absent = kept(first, Verdict.NOT_RUN)
    assert standing(BUG, [first], absent) is Standing.EXPRESSED
    assert standing(BUG, [first, second], absent, kept(second)) is Standing.EXPRESSED
    # Neither for nor against: what was found before stays found, and what was missed missed.
    assert standing(BUG, [first], kept(first), absent) is Standing.CAUGHT
    assert standing(BUG, [first], kept(first, Verdict.SURVIVED), absent) is Standing.MISSED
    assert coverage_to_plain(coverage([KeptRuns(None, (absent,))], [BUG], [first]))["recall"] is None


def test_a_result_of_another_change_counts_for_nothing() -> None:
    first = fault("first", BUG)
    assert standing(BUG, [replace(first, replacement="else")], kept(first)) is Standing.EXPRESSED
    assert replace(first, title="else").digest == first.digest


@pytest.mark.parametrize(
    "controls",
    [
        (),
        (control(Verdict.HUNG),),
        (control(Verdict.LOST),),
        (control(Verdict.NOT_RUN),),
        (control(depth="payload"),),
        (control(), control(Verdict.HUNG)),
        (replace(control(), driver="raw"),),
    ],
    ids=["none", "hung", "lost", "not run", "of another depth", "one of two hung", "of another driver"],
)
def test_a_kill_beside_which_no_control_survived_is_not_measured(controls: tuple[FaultRun, ...]) -> None:
    first, second = fault("first", BUG), fault("second", BUG)
    bare = KeptRuns(None, (kept(first),), controls)
    whole = KeptRuns(None, (kept(first),), (control(),))
    missed = KeptRuns(None, (kept(first, Verdict.SURVIVED),), (control(),))

    def stands(*files: KeptRuns, faults: tuple[Fault, ...] = (first,)) -> Standing:
        (one,) = coverage(files, [BUG], faults)
        return one.standing

    assert stands(bare) is Standing.WITHOUT_CONTROL
    assert stands(bare, faults=(first, second)) is Standing.WITHOUT_CONTROL
    assert coverage_to_plain(coverage([bare], [BUG], [first]))["recall"] is None
    # A later file brings controls for its own campaigns alone, and a kill without one overrules nothing.
    assert stands(bare, KeptRuns(None, (), (control(),))) is Standing.WITHOUT_CONTROL
    assert stands(bare, whole) is stands(whole, bare) is Standing.CAUGHT
    assert stands(missed, bare) is Standing.MISSED
    assert stands(KeptRuns(None, (kept(first, Verdict.SURVIVED),), controls)) is Standing.MISSED


def test_every_kernel_back_end_needs_a_control_that_survived() -> None:
    names = ("copy-whole-page", "bfloat16-cut")
    kills = tuple(FaultRun(name, "kernels", 0, Verdict.KILLED, seen=("kernel-oracle",)) for name in names)
    one, absent = control(depth="kernels"), control(Verdict.NOT_RUN, "kernels")
    assert KeptRuns(None, kills, (one, one)).controlled() == {("kernels", None)}
    assert KeptRuns(None, kills, (one, absent)).controlled() == frozenset()
    # Where a back-end is absent nothing was killed on it either.
    assert KeptRuns(None, kills[:1], (one, absent)).controlled() == {("kernels", None)}


def test_what_is_not_expressible_cannot_be_re_created() -> None:
    with pytest.raises(InputError, match="KVB-900 is said not to be expressible, and first re-creates it"):
        coverage([], [replace(BUG, not_expressible="because")], [fault("first", BUG)])


def test_recall_is_over_all_that_are_expressible() -> None:
    found = [Covered(BUG, (), one) for one in (Standing.CAUGHT, Standing.OPEN, Standing.NOT_EXPRESSIBLE)]
    plain = coverage_to_plain(found, ["abc", None])
    assert (plain["recall"], plain["expressible"], plain["caught"]) == (0.5, 2, 1)
    assert plain["measured_at"] == ["abc"]
    assert coverage_to_plain(found[1:])["recall"] is None


@pytest.mark.parametrize(
    ("standings", "due"),
    [
        ([Standing.CAUGHT, Standing.OPEN, Standing.WITHOUT_CONTROL, Standing.EXPRESSED], ExitStatus.HELD),
        ([Standing.CAUGHT, Standing.TOLD_OTHERWISE], ExitStatus.INCONCLUSIVE),
        ([Standing.TOLD_OTHERWISE, Standing.HUNG_OR_LOST], ExitStatus.VIOLATION),
        ([Standing.MISSED], ExitStatus.VIOLATION),
    ],
)
def test_the_status_of_coverage_is_that_of_the_worst(standings: list[Standing], due: ExitStatus) -> None:
    found = [Covered(BUG, (), one) for one in standings]
    assert status_of_coverage(found) is due
    assert coverage_to_plain(found)["recall"] == standings.count(Standing.CAUGHT) / len(standings)


def test_the_command_says_caught_only_by_results(tmp_path: Path) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        line = [sys.executable, "-m", "kvcrucible", "faults", "coverage", *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout

    status, text = command()
    assert status == ExitStatus.HELD
    assert "recall: not measured" in text
    planted = every_fault()["share-counts-nothing"]
    path = tmp_path / "runs.json"
    write_json(path, results_to_plain([kept(planted)], [], CampaignOptions(), 1, None))
    status, text = command("--results", str(path))
    assert status == ExitStatus.HELD
    assert "killed without a control, not measured: 1" in text
    assert "recall: not measured" in text
    write_json(path, results_to_plain([kept(planted)], [control()], CampaignOptions(), 1, None))
    status, text = command("--results", str(path), "--json")
    plain = json.loads(text)
    assert status == ExitStatus.HELD
    assert plain["caught"] == 1
    assert {entry["id"]: entry["standing"] for entry in plain["bugs"]}["KVB-027"] == "caught"
    write_json(path, results_to_plain([kept(planted, Verdict.SURVIVED)], [], CampaignOptions(), 1, None))
    assert command("--results", str(path))[0] == ExitStatus.VIOLATION
    path.write_text("[]")
    assert command("--results", str(path))[0] == ExitStatus.USAGE
