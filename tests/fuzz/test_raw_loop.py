"""The raw loop: seeds that replay exactly, differ from one another, find faults, and report what they did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from kvcrucible.contract.errors import ExitStatus, NotRunError
from kvcrucible.contract.operations import OPERATIONS, Outcome
from kvcrucible.contract.snapshot import KEYED_PARTS, Snapshot, Touched
from kvcrucible.fuzz import volume
from kvcrucible.fuzz.adapters import paged
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.raw import RULES, Conditions, draw_seed, run_seed
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.steps import Step
from kvcrucible.fuzz.swarm import OMITTABLE, Corner
from kvcrucible.fuzz.volume import VolumePlan, conditions_of, run_volume, volume_to_plain
from kvcrucible.invariants.judgements import NOT_REPRODUCED, UNREPORTED_CHANGE

#: Seeds whose report the tests below look at.
SEEDS = 60

#: Prints the digest of a few seeds.
DIGEST = """
from kvcrucible.fuzz.volume import VolumePlan, run_volume
print(run_volume(VolumePlan(first_seed=40, seeds=4, digest=True)).digest)
"""


@pytest.fixture(scope="module")
def report() -> volume.VolumeReport:
    return run_volume(VolumePlan(seeds=SEEDS))


@pytest.fixture(scope="module")
def conditions() -> Conditions:
    return conditions_of(VolumePlan())


# -- what a run reports ------------------------------------------------------------------------------------------------


def test_seeds_hold_and_take_every_operation(report: volume.VolumeReport) -> None:
    assert report.failure is None, report.failure
    assert report.total.seeds == SEEDS
    assert report.never_taken() == []
    assert report.operations > 40 * SEEDS
    assert report.bound == pytest.approx(3 / SEEDS)
    assert len(report.total.tally.refusals) >= 7
    assert sum(1 for times in report.goals().values() if times) > 40


def test_the_report_says_what_its_figures_rest_on(report: volume.VolumeReport) -> None:
    plain = json.loads(json.dumps(volume_to_plain(report, None)))
    assert plain["operations"] == sum(plain["operations_by_kind"].values())
    assert plain["goals"]["asked_of_seeds"] == len([s for s in range(SEEDS) if s % 8 == 0])
    assert plain["novelty"]["by_seed"]["units"] == SEEDS
    assert plain["novelty"]["by_pair_of_seeds"]["units"] == SEEDS // 2
    assert plain["novelty"]["by_pair_of_seeds"]["seen"] == plain["novelty"]["by_seed"]["seen"] > 300
    assert len(plain["novelty"]["state"]) == 8
    assert plain["invariants"]["pool-conservation"]["judged"] > plain["operations"] // 4
    assert plain["failing_share_below"] == report.bound


def test_a_run_that_time_ends_is_not_called_held(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcrucible.cli.fuzz_raw import status_of

    monkeypatch.setattr(volume, "BLOCK_SEEDS", 2)
    short = run_volume(VolumePlan(seeds=1000, seconds=0))
    assert short.cut_short == "time limit of 0 s"
    assert short.total.seeds == 2
    assert status_of(short) is ExitStatus.INCONCLUSIVE
    # Where time is all that was asked for, it is over when it is.
    assert status_of(run_volume(VolumePlan(seeds=None, seconds=0))) is ExitStatus.HELD


def test_processes_change_nothing_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume, "BLOCK_SEEDS", 4)
    monkeypatch.setattr(volume, "usable_cores", lambda: 2)
    alone, two = (
        volume_to_plain(run_volume(VolumePlan(seeds=10, digest=True), jobs), None) for jobs in (1, 2)
    )
    for timed in ("seconds", "cpu_seconds", "operations_per_cpu_second"):
        del alone[timed], two[timed]
    assert alone == two
    assert alone["seeds"] == 10


def test_an_engine_of_payload_depth_alone_is_not_run() -> None:
    with pytest.raises(NotRunError, match="ledger depth"):
        run_volume(VolumePlan("torch-paged-attention", seeds=1))


# -- seeds replay exactly ----------------------------------------------------------------------------------------------


def test_a_seed_is_the_same_in_every_process() -> None:
    digests = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        digests.append(done.stdout.strip())
    assert len(digests[0]) == 32
    assert digests[0] == digests[1]
    other = run_volume(VolumePlan(first_seed=41, seeds=4, digest=True)).digest
    assert other != digests[0]


def test_seeds_that_are_run_twice_are_alike() -> None:
    plan = VolumePlan(first_seed=7, seeds=4, replay_twice=True)
    report = run_volume(plan)
    assert report.failure is None
    assert report.digest == run_volume(VolumePlan(first_seed=7, seeds=4, digest=True)).digest


def test_an_engine_that_is_not_deterministic_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    use_every_page_once, runs = paged.use_every_page_once, []

    def another_order(engine: paged.Engine, random: Random) -> None:
        runs.append(random)
        use_every_page_once(engine, Random(len(runs)))

    monkeypatch.setattr(paged, "use_every_page_once", another_order)
    report = run_volume(VolumePlan(seeds=4, replay_twice=True))
    assert report.failure is not None
    (found,) = report.failure.violations
    assert found.invariant == NOT_REPRODUCED
    assert "run twice" in found.message
    # Page ids differ, and no other check minds that.
    assert violations_of(report.failure.setting, report.failure.steps) == ()


# -- swarm -------------------------------------------------------------------------------------------------------------


def test_seeds_differ_in_all_that_a_swarm_draws(conditions: Conditions) -> None:
    swarms = [draw_seed(seed, conditions)[0] for seed in range(200)]
    assert len({swarm.weights for swarm in swarms}) == 200
    assert {swarm.corner for swarm in swarms} == set(Corner)
    assert {name for swarm in swarms for name in swarm.without} == set(OMITTABLE)
    assert any(not swarm.without for swarm in swarms)
    assert {swarm.setting.page_size for swarm in swarms} == {4, 16, 64}
    assert {swarm.setting.backend for swarm in swarms} == {None, "mtp", "draft"}
    assert {swarm.setting.host_bytes is None for swarm in swarms} == {True, False}
    assert len({swarm.setting.page_order_seed for swarm in swarms}) > 50
    assert {swarm.setting.capacity_pages for swarm in swarms} >= set(range(1, 13)) - {2}
    never = Counter(name for swarm in swarms for name, weight in swarm.weights if not weight)
    assert never.keys() == {one.name for one in RULES}
    assert draw_seed(3, conditions)[0] == draw_seed(3, conditions)[0]
    json.dumps(swarms[0].to_plain())


def test_what_a_seed_goes_without_it_never_takes(conditions: Conditions) -> None:
    checked = 0
    for seed in range(24):
        swarm, _ = draw_seed(seed, conditions)
        if not swarm.without:
            continue
        taken: set[str] = set()

        def note(lock: LockStep, step: Step, outcome: Outcome | None, taken: set[str] = taken) -> None:
            taken.add(type(step).__name__)

        assert run_seed(seed, conditions, Tally(), note) is None
        assert taken.isdisjoint(swarm.without)
        checked += len(taken & {kind.__name__ for kind in OPERATIONS}) > 3
    assert checked > 8


def test_pages_that_were_used_before_come_in_another_order() -> None:
    from kvcrucible.contract.operations import BeginUnit, Prefill, Schedule, Submit
    from kvcrucible.contract.tokens import run
    from kvcrucible.fuzz.setting import Setting

    def devices(order: int) -> list[int]:
        lock = LockStep(Setting(page_size=4, page_order_seed=order))
        for step in (Submit(run(0, 0, 32), 0), Schedule(), BeginUnit((Prefill(0, 32),))):
            lock.step(step)
        found = [page.device for page in lock.snapshot.pages.values()]
        lock.close()
        return found

    assert devices(0) == list(range(8))
    assert sorted(devices(1)) == list(range(8))
    assert devices(1) != devices(0)
    assert devices(1) != devices(2)


# -- looking in full now and then --------------------------------------------------------------------------------------


def test_between_full_looks_the_state_is_what_the_engine_shows(conditions: Conditions) -> None:
    seldom = Conditions(conditions.settings, conditions.capabilities, full_every=1_000_000)
    compared = 0

    def compare(lock: LockStep, step: Step, outcome: Outcome | None) -> None:
        nonlocal compared
        full = lock.adapter.snapshot()
        for part in (*KEYED_PARTS, "pools", "queue", "host"):
            assert getattr(lock.snapshot, part) == getattr(full, part), part
        compared += lock.snapshot.free_pages is None

    for seed in range(100, 115):
        assert run_seed(seed, seldom, Tally(), compare) is None
    assert compared > 500


def test_a_change_that_is_not_reported_is_found_at_the_next_full_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drain = paged.PagedAdapter.drain

    def forgetful(self: paged.PagedAdapter) -> tuple[Snapshot, Touched]:
        partial, touched = drain(self)
        touched.rows.clear()
        return partial, touched

    monkeypatch.setattr(paged.PagedAdapter, "drain", forgetful)
    report = run_volume(VolumePlan(seeds=3))
    assert report.failure is not None
    assert {UNREPORTED_CHANGE, "row-unique"} & {found.invariant for found in report.failure.violations}
    assert len(report.failure.steps) <= 2


def test_a_favoured_journey_can_be_taken_and_often_is(conditions: Conditions) -> None:
    (journey,) = [one for one in RULES if one.name == "journey"]
    assert journey.needs >= {"Demote", "Restore", "Fork"}
    favouring = [swarm for seed in range(80) if (swarm := draw_seed(seed, conditions)[0]).favoured]
    assert len(favouring) > 10
    for swarm in favouring:
        assert swarm.setting.host_bytes is not None
        assert journey.needs.isdisjoint(swarm.without)
        weights = dict(swarm.weights)
        assert 7 * weights["journey"] >= sum(weights.values())


def test_looking_in_full_every_time_takes_the_same_steps(conditions: Conditions) -> None:
    often = Conditions(conditions.settings, conditions.capabilities, full_every=1, goals_every=1)
    tallies = []
    for kind in (conditions, often):
        tallies.append(Tally())
        for seed in range(20, 26):
            assert run_seed(seed, kind, tallies[-1]) is None
    assert tallies[0].operations == tallies[1].operations
    assert tallies[0].refusals == tallies[1].refusals
    assert tallies[1].invariants["lease-unique"] > tallies[0].invariants["lease-unique"] > 0


# -- faults ------------------------------------------------------------------------------------------------------------


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvcrucible.fuzz.faults.child", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_planted_fault_is_found_and_comes_out_minimal(tmp_path: Path) -> None:
    done = child("fork-shares-tail", "--raw", "30", "--seed", "600", "--out", str(tmp_path))
    assert done.returncode == ExitStatus.VIOLATION, done.stderr
    plain = json.loads(done.stdout)
    failure = plain["failure"]
    # A request, its admission, one unit and the fork: nothing shorter has a tail to share.  Or it is shared with what a
    # second request hits inside a page, which takes a checkpoint and that request's admission instead of the fork.
    assert [name for name, _ in failure["steps"]] in (
        ["Submit", "Schedule", "BeginUnit", "EndUnit", "Fork"],
        ["Submit", "Schedule", "BeginUnit", "EndUnit", "Checkpoint", "Submit", "Schedule"],
    )
    assert failure["setting"]["host_bytes"] is None
    assert failure["setting"]["backend"] is None
    assert failure["violations"][0]["invariant"] == "pool-conservation"
    assert plain["failing_seed"] == 600 + plain["seeds"] < 630
    assert plain["failing_share_below"] is None
    assert (
        child("fork-shares-tail", "--reproduction", failure["reproduction"]).returncode
        == ExitStatus.VIOLATION
    )
    assert child("none", "--reproduction", failure["reproduction"]).returncode == ExitStatus.HELD


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "most"),
    [
        ("abort-keeps-pages", 5),
        ("reservation-leaks", 6),
        ("trim-forgets-the-backend", 6),
        ("cancel-forgotten", 8),
    ],
)
def test_other_faults_come_out_short(fault: str, most: int) -> None:
    done = child(fault, "--raw", "500")
    assert done.returncode == ExitStatus.VIOLATION, done.stderr
    assert len(json.loads(done.stdout)["failure"]["steps"]) <= most
