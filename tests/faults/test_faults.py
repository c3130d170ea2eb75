"""Every fault still matches and changes the engine; the overlay changes nothing else; campaigns find the faults."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from kvcrucible.cli.faults import status_of
from kvcrucible.contract.errors import CrucibleError, ExitStatus, InputError
from kvcrucible.fuzz.faults.catalogue import (
    MUTABLE,
    Fault,
    catalogue,
    catalogue_files,
    every_fault,
    fault,
    source_of,
)
from kvcrucible.fuzz.faults.overlay import plant
from kvcrucible.fuzz.faults.run import (
    HYPOTHESIS,
    RAW,
    CampaignOptions,
    FaultRun,
    Trial,
    Verdict,
    run_trial,
    run_trials,
    totals,
    trials_of,
    unchanged_trials,
)
from kvcrucible.fuzz.setting import Depth
from kvcrucible.invariants.judgements import JUDGEMENTS
from kvcrucible.invariants.registry import IDS

CHILD = [sys.executable, "-m", "kvcrucible.fuzz.faults.child"]
ALL = list(catalogue().values())

#: The three that people are told to try by hand first.
BY_HAND = ("fork-shares-tail", "truncate-frees-pages", "truncate-keeps-identity")

#: The longest minimal sequence that a plain fault may leave: a request and its unit, twice where the second takes over
#: what the first left (five steps each, one more where it takes a copy), and the step that shows it.
MAX_STEPS = 12


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHILD, *arguments], capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.id)
def test_a_fault_matches_once_and_still_compiles(planted: Fault) -> None:
    source = source_of(planted.module)
    changed = planted.apply_to(source)
    assert changed != source
    compile(changed, planted.module, "exec")


def test_the_catalogue_keeps_its_schema() -> None:
    folder = resources.files("kvcrucible.fuzz.faults")
    schema = json.loads(folder.joinpath("catalogue.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    files = [file for folder in MUTABLE for file in catalogue_files(folder)]
    assert len(files) >= 3
    for file in files:
        plain = yaml.safe_load(file.read_text("utf-8"))
        validator.validate(plain)
    misspelt = {**plain, "faults": [{**plain["faults"][0], "expect": []}]}
    assert not validator.is_valid(misspelt)


def test_there_are_at_least_ten_and_every_one_is_told_by_an_invariant() -> None:
    assert len(ALL) >= 10
    known = {*IDS, *JUDGEMENTS}
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
    with pytest.raises(InputError, match=r"did you mean .*fork-shares-tail.*faults list"):
        fault("fork-share-tail")
    with pytest.raises(InputError, match="unknown fault 'x'; `kvcrucible faults list`"):
        fault("x")


def test_nothing_is_planted_into_a_process_that_has_the_engine() -> None:
    import kvcrucible.engine.space  # noqa: F401

    before = list(sys.meta_path)
    with pytest.raises(CrucibleError, match="imported before"):
        plant(fault("fork-shares-tail"))
    assert sys.meta_path == before


@pytest.mark.parametrize("raw_seeds", [0, 40], ids=[HYPOTHESIS, RAW])
def test_the_engine_as_it_is_survives_the_same_path(raw_seeds: int) -> None:
    (trial,) = unchanged_trials(
        [fault("fork-shares-tail")], CampaignOptions(examples=40, raw_seeds=raw_seeds)
    )
    done = run_trial(trial)
    assert done.verdict is Verdict.SURVIVED, done
    assert done.driver == (RAW if raw_seeds else HYPOTHESIS)


@pytest.mark.parametrize("raw_seeds", [0, 200], ids=[HYPOTHESIS, RAW])
@pytest.mark.parametrize("name", BY_HAND)
def test_found_with_a_short_file_that_fails_broken_and_passes_mended(
    name: str, raw_seeds: int, tmp_path: Path
) -> None:
    # A seed whose failing rule is a plain one: of one that takes many steps, steps that later ones number by stay.
    options = CampaignOptions(out=tmp_path, seed=1 if raw_seeds else 0, raw_seeds=raw_seeds)
    done = run_trial(Trial(fault(name), Depth.LEDGER, options))
    assert done.verdict is Verdict.KILLED, done
    assert done.expected, done.invariants
    assert done.seen, "what the first failing example violates is kept too"
    assert done.length is not None
    assert done.length <= MAX_STEPS
    (path,) = tmp_path.glob("test_*.py")
    assert done.reproduction == str(path)
    broken = child(name, "--reproduction", str(path))
    assert broken.returncode == ExitStatus.VIOLATION, broken.stderr
    assert done.invariants[0] in broken.stdout
    mended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert mended.returncode == 0, mended.stdout


@pytest.mark.slow
def test_every_fault_is_found() -> None:
    pytest.importorskip("torch")
    done = run_trials(trials_of(ALL, CampaignOptions()))
    assert {one.fault: (one.verdict, one.note) for one in done if one.verdict is not Verdict.KILLED} == {}
    assert {one.fault: one.invariants for one in done if not one.expected} == {}
    assert all(
        figures["median_length"] <= MAX_STEPS
        for figures in totals(done)["by_driver"].values()
        if figures["killed"]
    )


PAYLOAD_ONLY = [planted for planted in ALL if planted.depth is Depth.PAYLOAD]


def test_what_only_bytes_show_survives_without_bytes() -> None:
    planted = fault("storage-copies-short")
    done = run_trial(Trial(planted, Depth.LEDGER, CampaignOptions(raw_seeds=40)))
    assert done.verdict is Verdict.SURVIVED, done


@pytest.mark.slow
def test_every_payload_fault_needs_payload_depth() -> None:
    done = run_trials([Trial(planted, Depth.LEDGER, CampaignOptions()) for planted in PAYLOAD_ONLY])
    assert len(done) >= 3
    assert {one.fault: one.invariants for one in done if one.verdict is not Verdict.SURVIVED} == {}


def test_trials_take_each_seed_in_turn_and_controls_each_depth_once() -> None:
    trials = trials_of(ALL[:2], CampaignOptions(seed=5), seeds=3)
    assert [(trial.fault, trial.options.seed) for trial in trials] == [
        (planted, seed) for planted in ALL[:2] for seed in (5, 6, 7)
    ]
    controls = unchanged_trials(ALL, CampaignOptions())
    assert [(trial.fault, trial.depth) for trial in controls] == [(None, Depth.LEDGER), (None, Depth.PAYLOAD)]


@pytest.mark.parametrize(
    ("faults", "unchanged", "due"),
    [
        (["killed"], ["survived"], ExitStatus.HELD),
        (["killed", "survived"], ["survived"], ExitStatus.VIOLATION),
        (["survived", "lost"], [], ExitStatus.VIOLATION),
        (["killed"], ["killed"], ExitStatus.VIOLATION),
        (["killed", "lost"], ["survived"], ExitStatus.INTERNAL),
        (["killed", "hung"], ["survived"], ExitStatus.INTERNAL),
        (["killed"], ["lost"], ExitStatus.INTERNAL),
        (["killed", "not run"], [], ExitStatus.NOT_RUN),
        (["killed", "killed by luck"], ["survived"], ExitStatus.INCONCLUSIVE),
        (["killed by luck", "survived"], ["survived"], ExitStatus.VIOLATION),
        (["killed by luck", "not run"], ["survived"], ExitStatus.NOT_RUN),
    ],
)
def test_the_status_says_what_was_shown(faults: list[str], unchanged: list[str], due: ExitStatus) -> None:
    def runs(verdicts: list[str]) -> list[FaultRun]:
        told = [verdict.removesuffix(" by luck") for verdict in verdicts]
        return [
            FaultRun("x", "ledger", 0, Verdict(verdict), expected=verdict == said)
            for verdict, said in zip(told, verdicts, strict=True)
        ]

    assert status_of(runs(faults), runs(unchanged)) is due


def test_a_reproduction_that_cannot_run_is_not_a_violation(tmp_path: Path) -> None:
    path = tmp_path / "test_broken.py"
    path.write_text("raise RuntimeError\n")
    assert child("fork-shares-tail", "--reproduction", str(path)).returncode == ExitStatus.INTERNAL


def test_a_child_that_falls_over_is_not_a_kill() -> None:
    broken = Fault(
        "made-up", "x", "kvcrucible.engine.space", "x", "y", Depth.LEDGER, ("single-writer",), (), "unlisted"
    )  # fmt: skip
    done = run_trial(Trial(broken, broken.depth, CampaignOptions(examples=1)))
    assert done.verdict is Verdict.LOST
    assert "unknown fault" in done.note


@pytest.mark.parametrize(
    ("raised", "due"),
    [
        ("Schedule() raised NameError: name 'into' is not defined (engine/pages.py:168)", Verdict.LOST),
        ("Schedule() raised AttributeError: 'Engine' object has no attribute 'copies'", Verdict.LOST),
        (
            "Schedule() raised AttributeError: module 'kvcrucible.engine.room' has no attribute 'x'",
            Verdict.LOST,
        ),
        ("Schedule() raised AttributeError: type object 'Tier' has no attribute 'x'", Verdict.LOST),
        ("Schedule() raised AttributeError: 'NoneType' object has no attribute 'row'", Verdict.KILLED),
        ("Schedule() raised AttributeError: 'int' object has no attribute 'fence'", Verdict.KILLED),
        ("Schedule() raised AssertionError: page 0 dropped once too often", Verdict.KILLED),
    ],
)
def test_a_fault_that_falls_over_by_itself_is_not_a_kill(
    raised: str, due: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = {
        "violations": [{"invariant": "engine-fault", "message": raised}],
        "first_seen": {"invariants": ["engine-fault"], "examples": 1, "steps": 2},
        "steps": [],
        "reproduction": None,
    }
    ended = subprocess.CompletedProcess([], ExitStatus.VIOLATION, json.dumps({"failure": failure}), "")
    monkeypatch.setattr("kvcrucible.fuzz.faults.run._start", lambda *_: ended)
    done = run_trial(Trial(fault("fork-shares-tail"), Depth.LEDGER, CampaignOptions()))
    assert done.verdict is due
    assert (raised in done.note) is (due is Verdict.LOST)


def test_no_fault_uses_a_name_that_is_not_there(tmp_path: Path) -> None:
    for planted in every_fault().values():
        changed = planted.apply_to(source_of(planted.module))
        (tmp_path / f"{planted.id.replace('-', '_')}.py").write_text(changed, "utf-8")
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F822,F823", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_child_that_hangs_is_not_a_kill() -> None:
    done = run_trial(Trial(fault("fork-shares-tail"), Depth.LEDGER, CampaignOptions(seconds=0.01)))
    assert done.verdict is Verdict.HUNG


def test_a_child_ends_by_its_processor_time() -> None:
    done = child("none", "--depth", "ledger", "--examples", "1000000", "--processor-seconds", "1")
    assert done.returncode == -signal.SIGXCPU


def test_payload_faults_say_that_they_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcrucible.fuzz.faults.run.find_spec", lambda name: None)
    done = run_trial(Trial(fault("fork-copies-nothing"), Depth.PAYLOAD, CampaignOptions()))
    assert done.verdict is Verdict.NOT_RUN
    assert "torch" in done.note


def test_the_command_lists_shows_and_runs(tmp_path: Path) -> None:
    def kvcrucible(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvcrucible", "faults", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    listed = json.loads(kvcrucible("list", "--json").stdout)
    assert [entry["id"] for entry in listed] == list(every_fault())
    assert "re-creates KVB-043" in kvcrucible("show", "fork-shares-tail").stdout
    assert kvcrucible("run").returncode == ExitStatus.USAGE
    assert kvcrucible("run", "nonsense").returncode == ExitStatus.USAGE
    killed = kvcrucible("run", "reservation-leaks", "--raw-seeds", "40", "--json", "--out", str(tmp_path))
    assert killed.returncode == ExitStatus.HELD, killed.stderr
    report = json.loads(killed.stdout)
    assert report["killed"] == 1
    assert [one["verdict"] for one in report["unchanged"]] == ["survived"]
    survived = kvcrucible("run", "pressure-releases-pinned", "--raw-seeds", "1", "--out", str(tmp_path))
    assert survived.returncode == ExitStatus.VIOLATION
    assert "killed 0 of 1" in survived.stdout
