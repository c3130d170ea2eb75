"""Every fault still matches and changes the engine; the overlay changes nothing else; campaigns find the faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvcrucible.contract.errors import CrucibleError, ExitStatus, InputError
from kvcrucible.fuzz.faults.catalogue import Fault, catalogue, fault, source_of
from kvcrucible.fuzz.faults.overlay import plant
from kvcrucible.fuzz.faults.run import CampaignOptions, Verdict, run_fault, run_faults, run_unchanged, totals
from kvcrucible.fuzz.judge import ENGINE_FAULT, PREDICTED_OUTCOME
from kvcrucible.fuzz.setting import Depth
from kvcrucible.invariants.registry import IDS

CHILD = [sys.executable, "-m", "kvcrucible.fuzz.faults.child"]
ALL = list(catalogue().values())

#: The three that people are told to try by hand first.
BY_HAND = ("fork-shares-tail", "truncate-frees-pages", "truncate-keeps-identity")

#: The longest minimal sequence that a plain fault may leave.
MAX_STEPS = 8


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHILD, *arguments], capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.id)
def test_a_fault_matches_once_and_still_compiles(planted: Fault) -> None:
    source = source_of(planted.module)
    changed = planted.apply_to(source)
    assert changed != source
    compile(changed, planted.module, "exec")


def test_there_are_at_least_ten_and_every_one_is_told_by_an_invariant() -> None:
    assert len(ALL) >= 10
    known = {*IDS, ENGINE_FAULT, PREDICTED_OUTCOME}
    assert {planted.id: set(planted.expects) - known for planted in ALL if set(planted.expects) - known} == {}
    assert set(Depth) == {planted.depth for planted in ALL}
    assert all(bug.url.startswith("https://") for planted in ALL for bug in planted.recreates)


def test_a_lost_anchor_is_an_error_that_names_the_fault() -> None:
    with pytest.raises(InputError, match="fork-shares-tail no longer matches: its anchor occurs 0 times"):
        fault("fork-shares-tail").apply_to("def unrelated(): ...")
    twice = fault("fork-shares-tail").anchor * 2
    with pytest.raises(InputError, match="2 times"):
        fault("fork-shares-tail").apply_to(twice)


def test_an_unknown_fault_names_those_that_exist() -> None:
    with pytest.raises(InputError, match="fork-shares-tail"):
        fault("nonsense")


def test_nothing_is_planted_into_a_process_that_has_the_engine() -> None:
    import kvcrucible.engine.space  # noqa: F401

    before = list(sys.meta_path)
    with pytest.raises(CrucibleError, match="imported before"):
        plant(fault("fork-shares-tail"))
    assert sys.meta_path == before


def test_the_engine_as_it_is_survives_the_same_path() -> None:
    done = run_unchanged(Depth.LEDGER, CampaignOptions(examples=40))
    assert done.verdict is Verdict.SURVIVED, done


@pytest.mark.parametrize("name", BY_HAND)
def test_found_with_a_short_file_that_fails_broken_and_passes_mended(name: str, tmp_path: Path) -> None:
    done = run_fault(fault(name), CampaignOptions(out=tmp_path))
    assert done.verdict is Verdict.KILLED, done
    assert done.expected, done.invariants
    assert done.length is not None
    assert done.length <= MAX_STEPS
    (path,) = tmp_path.glob("test_*.py")
    assert done.reproduction == str(path)
    assert child(name, "--reproduction", str(path)).returncode == ExitStatus.VIOLATION
    mended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert mended.returncode == 0, mended.stdout


@pytest.mark.slow
def test_every_fault_is_found() -> None:
    pytest.importorskip("torch")
    done = run_faults(ALL, CampaignOptions(examples=1000))
    assert {one.fault: (one.verdict, one.note) for one in done if one.verdict is not Verdict.KILLED} == {}
    assert {one.fault: one.invariants for one in done if not one.expected} == {}
    assert totals(done)["median_length"] <= MAX_STEPS


def test_a_child_that_falls_over_is_not_a_kill() -> None:
    broken = Fault(
        "made-up", "x", "kvcrucible.engine.space", "x", "y", Depth.LEDGER, ("single-writer",), (), "unlisted"
    )  # fmt: skip
    done = run_fault(broken, CampaignOptions(examples=1))
    assert done.verdict is Verdict.LOST
    assert "unknown fault" in done.note


def test_a_child_that_hangs_is_not_a_kill() -> None:
    done = run_fault(fault("fork-shares-tail"), CampaignOptions(seconds=0.01))
    assert done.verdict is Verdict.HUNG


def test_payload_faults_say_that_they_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcrucible.fuzz.faults.run.find_spec", lambda name: None)
    done = run_fault(fault("fork-copies-nothing"), CampaignOptions())
    assert done.verdict is Verdict.NOT_RUN
    assert "torch" in done.note


def test_the_command_lists_shows_and_runs(tmp_path: Path) -> None:
    def kvcrucible(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvcrucible", "faults", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    listed = json.loads(kvcrucible("list", "--json").stdout)
    assert [entry["id"] for entry in listed] == list(catalogue())
    assert "re-creates KVB-043" in kvcrucible("show", "fork-shares-tail").stdout
    assert kvcrucible("run").returncode == ExitStatus.USAGE
    assert kvcrucible("run", "nonsense").returncode == ExitStatus.USAGE
    killed = kvcrucible("run", "reservation-leaks", "--json", "--out", str(tmp_path))
    assert killed.returncode == ExitStatus.HELD, killed.stderr
    assert json.loads(killed.stdout)["killed"] == 1
    survived = kvcrucible("run", "pressure-releases-pinned", "--examples", "1", "--out", str(tmp_path))
    assert survived.returncode == ExitStatus.VIOLATION
    assert "killed 0 of 1" in survived.stdout
