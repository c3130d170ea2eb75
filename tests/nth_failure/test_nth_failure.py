"""The n-th failure: cells of small workloads by hand, of drawn ones by seed, and engines that take nothing back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli import nth_failure as command
from kvcrucible.contract.errors import DeviceCapacity, EngineLost, ExitStatus, InputError
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Operation,
    Outcome,
    Prefill,
    Progress,
    Restore,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.tokens import run as tokens
from kvcrucible.engine import giving_up, space
from kvcrucible.engine.bundle import reserve_bundle
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.streams import AnsweredStream
from kvcrucible.fuzz.canary.stages import LeakySubject
from kvcrucible.fuzz.nth_failure import campaign
from kvcrucible.fuzz.nth_failure.cells import Cell, Ending, Tried, cells_of, try_cell
from kvcrucible.fuzz.nth_failure.failing import UnforeseenError
from kvcrucible.fuzz.nth_failure.reproduction import write
from kvcrucible.fuzz.nth_failure.sites import IN_THE_CALL, LOSING, OF_A_TRANSFER, UNFORESEEN, Failure, Site
from kvcrucible.fuzz.nth_failure.subject import Subject, not_initial
from kvcrucible.fuzz.nth_failure.workloads import Workload, workloads
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step, step_to_plain

#: Two pools and a Host tier, pages of 16; a pool has 8 pages.
SETTING = Setting(backend="mtp", host_bytes=1 << 16)

#: Main alone, with a Host tier that holds half as many pages as it has.
SMALL_HOST = Setting(host_bytes=4 * Setting(host_bytes=1 << 16).engine_config().pools[0].page_bytes)

#: The same without a Host tier: what yields is gone.
BARE = Setting(backend="mtp")


def written(length: int = 20, grow: int = 20, source: int = 0) -> tuple[Step, ...]:
    """A sequence of ``length`` tokens that is active; the first one is sequence 0, its unit 0."""
    return (
        Submit(tokens(source, 0, length), grow),
        Schedule(),
        BeginUnit((Prefill(0, length),)),
        EndUnit(0),
    )


KEPT = (*written(), Finish(0))
GONE = (*KEPT, Demote(0), Progress())
#: All pages are kept by a continuation, so that whoever comes next has to make room.
FULL = (*written(112, 0), Finish(0))

BY_HAND: dict[str, tuple[Setting, tuple[Step, ...]]] = {
    "cold admission": (SETTING, (Submit(tokens(0, 0, 20), 8), Schedule())),
    "one that is tried": (SETTING, (Submit(tokens(0, 0, 20), 8), TryAdmit(0))),
    "admission that makes room": (BARE, (*FULL, Submit(tokens(1, 0, 40), 8), Schedule())),
    "admission that sinks": (SETTING, (*FULL, Submit(tokens(1, 0, 40), 8), Schedule())),
    "admission that sinks into room made on Host": (
        SMALL_HOST,
        (
            *written(56, 0),
            Finish(0),
            Demote(0, keep=True),
            Progress(),
            Submit(tokens(1, 0, 56), 0),
            Schedule(),
            BeginUnit((Prefill(1, 56),)),
            EndUnit(1),
            Finish(1),
            Submit(tokens(2, 0, 112), 0),
            Schedule(),
        ),
    ),
    "admission by fork": (SETTING, (*KEPT, Submit(tokens(0, 0, 30), 8), Schedule())),
    "admission by move": (
        SETTING,
        (*KEPT, Submit(tokens(0, 0, 30), 8, consume=True), Schedule()),
    ),
    "admission by move that copies a shared page": (
        SETTING,
        (
            *written(48, 0),
            Fork(0, 32, 0),
            Finish(0),
            Submit((*tokens(0, 0, 20), *tokens(1, 20, 72)), 20),
            Schedule(),
        ),
    ),
    "unit over two pools": (SETTING, written()[:3]),
    "growth": (SETTING, (*written(), BeginUnit((Append(0, tokens(0, 20, 18)),)))),
    "fork": (SETTING, (*written(), Fork(0, 10, 20))),
    "fork that makes room": (
        SETTING,
        (
            Submit(tokens(1, 0, 20), 0),
            Schedule(),
            BeginUnit((Prefill(0, 20),)),
            EndUnit(0),
            Submit(tokens(0, 0, 40), 0),
            Schedule(),
            BeginUnit((Prefill(1, 40),)),
            EndUnit(1),
            Finish(1),
            Fork(0, 18, 78),
        ),
    ),
    "cut of a shared page": (SETTING, (*written(), Fork(0, 18, 4), Truncate(0, 10))),
    "cut of private pages": (SETTING, (*written(40), Truncate(0, 3))),
    "demotion": (SETTING, (*KEPT, Demote(0))),
    "publication": (SETTING, (*KEPT, Demote(0), Progress())),
    "restore": (SETTING, (*GONE, Restore(0))),
    "restore on demand": (SETTING, (*GONE, Submit(tokens(0, 0, 30), 8), Schedule())),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_every_cell_of_a_small_workload_is_exact(name: str) -> None:
    """The last operation of each: all of its sites, every passage, once and persistently."""
    setting, steps = BY_HAND[name]
    cells = [cell for cell in cells_of(Workload(setting, steps)) if cell.at == len(steps) - 1]
    assert cells
    for cell in cells:
        tried = try_cell(cell)
        assert tried.violations == ()
        if cell.failure.site in UNFORESEEN:
            assert tried.ending in (Ending.LOST, Ending.ROLLED_BACK)
        else:
            assert tried.ending is (Ending.LOST if cell.failure.site in LOSING else Ending.ROLLED_BACK)
        assert tried.emptied is (None if tried.ending is Ending.LOST else True)


def test_between_them_the_small_workloads_pass_every_site() -> None:
    passed = {
        cell.failure.site
        for setting, steps in BY_HAND.values()
        for cell in cells_of(Workload(setting, steps))
    }
    assert passed == set(Site)


def test_drawn_workloads_are_exact_in_every_cell() -> None:
    report = campaign.run(3, 250)
    assert report.failure is None
    assert report.total.exact == report.due_rollbacks
    assert report.total.emptied_exactly == report.total.emptied
    assert report.due_rollbacks >= 250


def test_workloads_are_those_of_their_seed() -> None:
    first, again = (list(islice(workloads(5), 3)) for _ in range(2))
    assert first == again
    assert first != list(islice(workloads(6), 3))


# -- what is not taken back is found -----------------------------------------------------------------------------------


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("name", "site", "k", "what", "attribute", "broken"),
    [
        ("unit over two pools", Site.GRANT, 2, space.AddressSpace, "give_back", nothing),
        ("cut of a shared page", Site.GRANT, 1, giving_up.GivenUp, "take_back", nothing),
        ("cut of a shared page", Site.GRANT, 2, space.AddressSpace, "undo_cut", nothing),
        ("fork that makes room", Site.GRANT, 1, giving_up.GivenUp, "take_back", nothing),
        ("admission that makes room", Site.PROMISE, 1, giving_up.GivenUp, "take_back", nothing),
        ("restore", Site.PROMISE, 2, PagePool, "release", nothing),
    ],
)
def test_an_engine_that_does_not_take_it_back_is_found(
    name: str, site: Site, k: int, what: Any, attribute: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, steps = BY_HAND[name]
    cell = Cell(Workload(setting, steps), len(steps) - 1, Failure(site, k, False))
    assert not try_cell(cell).violations
    monkeypatch.setattr(what, attribute, broken)
    assert try_cell(cell).violations


@pytest.mark.parametrize("site", sorted(LOSING))
def test_an_engine_that_does_not_say_that_it_is_lost_is_found(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, steps = BY_HAND["fork"]
    cell = Cell(Workload(setting, steps), len(steps) - 1, Failure(site, 1, False))
    assert not try_cell(cell).violations
    monkeypatch.setattr(AnsweredStream, "require_sound", nothing)
    assert try_cell(cell).violations


class GivesUp(Subject):
    """Our engine, which is lost at every error that nobody has foreseen."""

    def operate(self, operation: Operation) -> Outcome:
        try:
            return super().operate(operation)
        except UnforeseenError:
            self.engine.stream.lose("given up")
            raise


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("demotion", Site.COPY_ERROR),
        ("restore", Site.COPY_ERROR),
        ("fork that makes room", Site.POLICY_ERROR),
        ("admission that makes room", Site.POLICY_ERROR),
    ],
)
def test_an_engine_that_gives_up_what_it_could_take_back_is_found(name: str, site: Site) -> None:
    setting, steps = BY_HAND[name]
    workload = Workload(replace(setting, policy="cost-aware"), steps)
    # What a policy is asked first is an order.
    cell = Cell(workload, len(steps) - 1, Failure(site, 1, False))
    assert try_cell(cell).violations == ()
    assert try_cell(cell).ending is Ending.ROLLED_BACK
    found = try_cell(replace(cell, build=GivesUp))
    assert [one.message for one in found.violations] == [
        f"{cell}, the engine: found lost, expected as it was"
    ]


def test_an_engine_is_lost_where_another_request_has_been_admitted_before() -> None:
    """The second request has to make room, for which an order is asked once the first one is in."""
    waiting = (Submit(tokens(1, 0, 16), 0), Submit(tokens(2, 0, 64), 0), Schedule())
    workload = Workload(replace(BARE, policy="cost-aware"), (*written(80, 0), Finish(0), *waiting))
    tried = try_cell(Cell(workload, len(workload.steps) - 1, Failure(Site.POLICY_ERROR, 1, False)))
    assert (tried.ending, tried.violations) == (Ending.LOST, ())


def test_a_failure_that_never_happens_proves_nothing() -> None:
    setting, steps = BY_HAND["fork"]
    cell = Cell(Workload(setting, steps), len(steps) - 1, Failure(Site.GRANT, 99, False))
    assert any("failures that happened" in found.message for found in try_cell(cell).violations)


def test_emptying_that_leaves_something_is_told() -> None:
    subject = Subject(SETTING, written())
    assert subject.empty() == []
    subject.engine.pools[0].reserve(1)
    assert [found.invariant for found in not_initial(subject.snapshot())] == ["no-leak-at-quiescence"]


# -- reproductions and the command -------------------------------------------------------------------------------------


def test_a_violation_comes_out_smaller_and_as_a_test(tmp_path: Path) -> None:
    source = [Workload(SETTING, (Progress(), Progress(), *written()))]
    report = campaign.run(0, 1000, source=source, build=LeakySubject)
    assert report.failure is not None
    assert len(report.failure.cell.workload.steps) <= 2
    path = write(tmp_path, report.failure)
    assert write(tmp_path, report.failure) != path
    tests = [value for name, value in run_path(str(path)).items() if name.startswith("test_")]
    # The engine itself is sound: the test passes, as it does once an engine is mended.
    for test in tests:
        test()
    assert len(tests) == 1


@pytest.mark.parametrize(
    "failure", [[], ["no-such", 1, False], ["page grant", 0, False], [["page grant"], 1, True]]
)
def test_data_that_is_no_cell_is_refused(failure: list[Any]) -> None:
    steps = [step_to_plain(step) for step in written()[:2]]
    with pytest.raises(InputError, match="no failure"):
        campaign.run_cell(SETTING.to_plain(), steps, failure)
    with pytest.raises(InputError, match="last step"):
        campaign.run_cell(SETTING.to_plain(), [], ["page grant", 1, False])


def invoke(*options: str) -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)
    return CliRunner().invoke(app, ["nth-failure", *options])


def test_the_command_reports_and_ends_with_its_status(tmp_path: Path) -> None:
    options = ["--cells", "20", "--seed", "2", "--out", str(tmp_path)]
    shown = invoke(*options)
    assert shown.exit_code == ExitStatus.HELD
    assert "exact" in shown.output
    plain = json.loads(invoke(*options, "--json").output)
    assert plain["format"] == campaign.FORMAT
    assert plain["total"]["cells"] == sum(line["cells"] for line in plain["cells"]) >= 20
    assert plain["total"]["exact"] == plain["due_rollbacks"]
    assert plain["failure"] is None


def leak() -> Tried:
    """Return a cell that is violated: the pools of its engine leak."""
    return try_cell(Cell(Workload(SETTING, written()[:2]), 1, Failure(Site.PROMISE, 1, False), LeakySubject))


def test_the_status_of_a_violation_and_of_a_run_that_was_cut_short() -> None:
    report = campaign.run(0, 10_000_000, seconds=0.0)
    assert command.status_of(report) is ExitStatus.INCONCLUSIVE
    report.failure = leak()
    assert command.status_of(report) is ExitStatus.VIOLATION


def test_a_violation_is_shown_even_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = campaign.run(0, 10_000_000, seconds=0.0)
    report.failure = leak()
    monkeypatch.setattr(command, "_run", lambda *_: report)
    (tmp_path / "file").touch()
    done = invoke("--seed", "0", "--out", str(tmp_path / "file" / "below"))
    assert done.exit_code == ExitStatus.VIOLATION
    assert "no reproduction was written to" in done.stderr
    assert "name another folder with --out" in done.stderr
    assert "\n  1. Submit(" in done.stdout
    assert "\n  2. " in done.stdout
    assert report.failure.violations[0].invariant in done.stdout
    assert "reproduction:" not in done.stdout
    assert "\nreproduction: " in invoke("--seed", "0", "--out", str(tmp_path)).stdout


# -- what was found and mended -----------------------------------------------------------------------------------------


def failed(steps: tuple[Step, ...], failure: Failure) -> Subject:
    """Return an engine of which the last step has failed; a refusal is an outcome."""
    subject = Subject(SETTING, steps[:-1])
    subject.gate.arm(failure)
    subject.take(steps[-1])
    subject.gate.disarm()
    return subject


def test_a_request_whose_promise_fails_stays_in_the_queue() -> None:
    """It was taken out before its pages were promised, and lost."""
    subject = failed(BY_HAND["cold admission"][1], Failure(Site.PROMISE, 1, False))
    assert subject.snapshot().queue == (0,)


def test_a_unit_that_lacks_a_grant_uses_up_no_number() -> None:
    subject = failed(BY_HAND["unit over two pools"][1], Failure(Site.GRANT, 2, False))
    assert subject.operate(BeginUnit((Prefill(0, 20),))).value == 0


def test_a_fork_that_lacks_a_grant_uses_up_no_number() -> None:
    subject = failed(BY_HAND["fork"][1], Failure(Site.GRANT, 2, False))
    assert subject.operate(Fork(0, 10, 20)).value == 1


def test_an_effect_that_cannot_be_queued_loses_the_engine() -> None:
    subject = Subject(SETTING, written())
    subject.gate.arm(Failure(Site.COMPUTE_QUEUE, 1, False))
    with pytest.raises(EngineLost, match="could not be queued"):
        subject.operate(Fork(0, 10, 20))
    subject.gate.disarm()
    with pytest.raises(EngineLost):
        subject.operate(Schedule())


def test_a_promise_that_fails_in_the_second_pool_leaves_none_in_the_first() -> None:
    subject = Subject(SETTING)
    subject.gate.arm(Failure(Site.PROMISE, 2, False))
    with pytest.raises(DeviceCapacity):
        reserve_bundle(subject.engine.pools, (1, 1))
    assert [pool.reserved for pool in subject.engine.pools] == [0, 0]


def test_every_site_is_of_one_kind() -> None:
    for site in Site:
        assert sum(site in kind for kind in (IN_THE_CALL, OF_A_TRANSFER, LOSING, UNFORESEEN)) == 1


def test_an_engine_that_is_wrong_anyway_is_a_violation_and_no_mishap(tmp_path: Path) -> None:
    code = (
        "import sys; from kvcrucible.engine.pages import PageLedger; from kvcrucible.cli.main import main;"
        "PageLedger.share = lambda self, pages: None;"
        "sys.argv = ['kvcrucible', 'nth-failure', '--seed', '0', '--cells', '2000']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == ExitStatus.VIOLATION, done.stderr
    assert "violated: " in done.stderr
    assert "Traceback" not in done.stderr
