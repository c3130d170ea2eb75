"""Cheaters are rejected and told by what they do; honest engines that grant pages in another order are not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli import judge as command
from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.engine.free_pages import LastInFirstOut
from kvcrucible.engine.pool import PagePool, page_of
from kvcrucible.fuzz.adapters.registry import ENGINES, build
from kvcrucible.fuzz.cheaters import trial as trials
from kvcrucible.fuzz.cheaters.cheats import CHEATS
from kvcrucible.fuzz.cheaters.orders import ORDERS
from kvcrucible.fuzz.cheaters.trial import trial
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.nth_failure.workloads import workloads
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.fuzz.volume import VolumePlan, run_volume
from kvcrucible.invariants import registry
from kvcrucible.invariants.judgements import PREDICTED_OUTCOME

#: Enough for every cheat to show; the same for all.
MOST = 120


@pytest.fixture(scope="module")
def cases() -> list[tuple[Setting, tuple[Step, ...]]]:
    return [(one.setting, one.steps) for one in islice(workloads(0, failing_copies=True), MOST)]


def test_there_are_twelve_cheaters_at_least_and_three_honest_engines() -> None:
    assert len(CHEATS) >= 12
    assert len(ORDERS) == 3
    assert not set(CHEATS) & (set(ENGINES) | set(ORDERS))
    for cheat in CHEATS.values():
        assert cheat.tells <= {*registry.IDS, PREDICTED_OUTCOME}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheater_is_rejected_for_its_cheat(
    name: str, cases: list[tuple[Setting, tuple[Step, ...]]]
) -> None:
    cheat = CHEATS[name]
    if cheat.depth is Depth.PAYLOAD:
        pytest.importorskip("torch")
    done = trial(name, cases, cheat.depth)
    assert done.rejected
    assert done.told_by(cheat.tells)


def test_a_cheater_rejected_for_another_reason_is_not_told(
    cases: list[tuple[Setting, tuple[Step, ...]]],
) -> None:
    done = trial("cheater-lying-free-count", cases)
    assert done.rejected
    assert not done.told_by({"codec-exact"})


@pytest.mark.parametrize("name", ORDERS)
def test_an_honest_engine_holds_whatever_page_it_grants_next(name: str) -> None:
    report = run_volume(VolumePlan(name, seeds=24, rules=30))
    assert report.failure is None
    assert report.operations > 500


@pytest.mark.parametrize("name", ["paged", *ORDERS])
def test_every_order_grants_each_page_once(name: str) -> None:
    order = LastInFirstOut if name == "paged" else ORDERS[name]
    pool = PagePool(PoolSpec(capacity_pages=7), None, order(7))
    reservation = pool.reserve(7)
    leases = pool.materialise(reservation, 3)
    pool.release(leases[:2])
    pool.take_back(leases[:2], None)
    leases += pool.materialise(reservation, 4)
    assert len(set(leases)) == 7
    assert pool.unleased_pages() == ()
    pool.release(leases)
    assert sorted(pool.unleased_pages()) == list(range(7))


@pytest.mark.parametrize("name", ORDERS)
def test_a_pool_grants_in_the_order_that_it_is_given(name: str) -> None:
    """Else the honest engines would be one engine, and what they say of the judge would be said of one order alone."""
    alone = ORDERS[name](8)
    pool = PagePool(PoolSpec(capacity_pages=8), None, ORDERS[name](8))
    reservation = pool.reserve(8)
    first = pool.materialise(reservation, 4)
    pages = [page_of(lease) for lease in first]
    assert pages == alone.take(4)
    pool.release(first)
    alone.put(pages)
    assert [page_of(lease) for lease in pool.materialise(reservation, 4)] == alone.take(4)


def test_the_orders_are_not_the_same() -> None:
    granted = set()
    for order in (LastInFirstOut, *ORDERS.values()):
        pages = order(8)
        first = pages.take(4)
        pages.put(first)
        granted.add((*first, *pages.take(4)))
    assert len(granted) == 4


def test_honest_engines_exist_at_ledger_depth_alone() -> None:
    with pytest.raises(InputError, match="ledger"):
        build(Setting("honest-fifo", Depth.PAYLOAD))


def test_a_false_alarm_and_a_cheater_that_gets_through_end_with_status_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = typer.Typer()
    command.register(app)
    honest = ["judge", "honest", "--seeds", "4", "--seed", "0"]
    assert CliRunner().invoke(app, honest).exit_code == ExitStatus.HELD
    monkeypatch.setitem(ORDERS, "honest-sorted", Forgets)
    alarm = CliRunner().invoke(app, [*honest, "--json"])
    assert alarm.exit_code == ExitStatus.VIOLATION
    assert json.loads(alarm.output)["engines"][-1]["failure"] is not None

    only = {"cheater-lying-free-count": CHEATS["cheater-lying-free-count"]}
    monkeypatch.setattr("kvcrucible.fuzz.cheaters.cheats.CHEATS", only)
    cheaters = ["judge", "cheaters", "--seeds", "3", "--seed", "0"]
    caught = CliRunner().invoke(app, [*cheaters, "--json"])
    assert caught.exit_code == ExitStatus.HELD
    assert json.loads(caught.output)["cheaters"][0]["told_by"] == ["pool-conservation"]
    monkeypatch.setattr(trials, "LockStep", Blind)
    assert CliRunner().invoke(app, cheaters).exit_code == ExitStatus.VIOLATION


class Forgets(LastInFirstOut):
    """An order that forgets one of the pages that it is given."""

    def put(self, pages: Iterable[int]) -> None:
        super().put(list(pages)[1:])


class Blind(LockStep):
    """A judge that looks at nothing."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(Setting())

    def step(self, step: Step) -> None:
        return None
