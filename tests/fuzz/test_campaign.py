"""Campaigns hold on the real engine, fail on a broken one with a minimal example, and say what they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.operations import OPERATIONS, BeginUnit, Prefill, Schedule, Submit
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.pages import LogicalPage, PageLedger
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.records import Unit
from kvcrucible.engine.space import AddressSpace
from kvcrucible.engine.storage.null import NullStorage
from kvcrucible.engine.streams import UnitFences
from kvcrucible.fuzz.campaign import Plan, Report, run
from kvcrucible.fuzz.coverage import GOALS
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step
from kvcrucible.invariants.judgements import ENGINE_FAULT, NOT_REPRODUCED
from kvcrucible.invariants.violation import InvariantViolated


def campaign(depth: Depth = Depth.LEDGER, examples: int = 60, seed: int = 11) -> Report:
    return run(Plan(depths=(depth,), examples=examples, seed=seed, steps=40))


@pytest.mark.parametrize("depth", [Depth.LEDGER, pytest.param(Depth.PAYLOAD, marks=pytest.mark.torch)])
def test_a_campaign_holds(depth: Depth) -> None:
    if depth is Depth.PAYLOAD:
        pytest.importorskip("torch")
    report = campaign(depth)
    assert report.failure is None, report.failure
    assert report.cut_short is None
    assert report.tally.examples >= 60
    assert set(report.tally.operations) == {kind.__name__ for kind in OPERATIONS}
    assert sum(report.tally.operations.values()) <= report.tally.steps + 20 * report.tally.examples
    assert set(report.tally.modes) >= {"cold", "fork"}
    judged = {"pool-conservation", "table-mirror", "exact-prefix-identity", "refusal-atomic"}
    assert judged <= {name for name, times in report.tally.premises.items() if times}


def test_the_same_seed_does_the_same() -> None:
    first, second = campaign(examples=10), campaign(examples=10)
    assert (first.tally, first.failure) == (second.tally, second.failure)


def test_another_seed_does_something_else() -> None:
    assert campaign(examples=10).tally.operations != campaign(examples=10, seed=12).tally.operations


def test_a_time_limit_cuts_a_campaign_short() -> None:
    report = run(Plan(examples=10_000, steps=5, seconds=0.0))
    assert report.cut_short is not None
    assert report.tally.examples < 10_000


def test_an_interruption_is_reported_with_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def progress(report: Report) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    report = run(Plan(examples=50, steps=5), progress)
    assert report.cut_short == "interrupted"
    assert report.failure is None
    assert report.tally.examples == 3


def _tail_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork shares a partial tail instead of copying it."""

    def fork(
        self: AddressSpace, ledger: object, reservation: object, position: int, copy: object
    ) -> AddressSpace:
        pages = self.pages[: -(-position // self.page_size)]
        ledger.share(pages)  # type: ignore[attr-defined]
        return AddressSpace(self.pool, self.page_size, pages, position)

    monkeypatch.setattr(AddressSpace, "fork", fork)


def _stale_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut keeps the checkpoints beyond it findable."""
    real = ContextCache.unmark_beyond

    def unmark(self: ContextCache, marks: list[object], position: int) -> list[object]:
        kept = [mark for mark in marks if mark.frontier > position]  # type: ignore[attr-defined]
        remaining = [mark for mark in marks if mark not in kept]
        gone = real(self, remaining, position)  # type: ignore[arg-type]
        for mark in kept:
            self.owners.pop(mark.checkpoint)  # type: ignore[attr-defined]
        return gone  # type: ignore[return-value]

    monkeypatch.setattr(ContextCache, "unmark_beyond", unmark)


def _commit_of_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted unit commits."""
    from kvcrucible.engine import units

    real = units.end

    def end(engine: Engine, unit: Unit, commit: bool, accepted: Mapping[int, int]) -> list[int]:
        return real(engine, unit, True, accepted)

    monkeypatch.setattr(units, "end", end)


def _copy_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail's columns are not copied; the books are right."""
    monkeypatch.setattr(Engine, "copy_columns", lambda self, pool, source, destination, columns: None)


BREAKS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Depth]] = {
    "tail shared": (_tail_shared, Depth.LEDGER),
    "stale identity": (_stale_identity, Depth.LEDGER),
    "abort commits": (_commit_of_aborted, Depth.LEDGER),
    "copy forgotten": (_copy_forgotten, Depth.PAYLOAD),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_engine_is_found_with_a_short_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, depth = BREAKS[name]
    if depth is Depth.PAYLOAD:
        pytest.importorskip("torch")
    with monkeypatch.context() as broken:
        plant(broken)
        report = campaign(depth, examples=150)
        assert report.failure is not None
        # A prompt and its unit, a round and its end, and two or three steps more with what shows it.
        assert len(report.failure.steps) <= 10
        assert violations_of(report.failure.setting, report.failure.steps)
    assert violations_of(report.failure.setting, report.failure.steps) == ()


def test_an_engine_that_raises_is_a_violation_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: Engine, sequence: int) -> int:
        raise ZeroDivisionError("of its own")

    monkeypatch.setattr(Engine, "checkpoint", explode)
    report = campaign()
    assert report.failure is not None
    assert report.failure.violations[0].invariant == "engine-fault"
    assert "ZeroDivisionError" in report.failure.violations[0].message


def test_goals_are_unique_and_stated() -> None:
    assert len(GOALS) >= 40
    assert len({goal.statement for goal in GOALS.values()}) == len(GOALS)
    assert all(goal.after for goal in GOALS.values())
    assert all(name == goal.name for name, goal in GOALS.items())


def test_an_engine_that_is_wrong_before_its_first_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PagePool.__init__

    def init(self: PagePool, spec: PoolSpec, units: UnitFences | None = None) -> None:
        real(self, spec, units)
        self._unleased.put((0,))

    monkeypatch.setattr(PagePool, "__init__", init)
    report = campaign(examples=5)
    assert report.failure is not None
    assert report.failure.steps == ()
    assert report.failure.violations[0].invariant == "lease-unique"


def test_an_engine_that_is_not_deterministic_is_reported_with_what_failed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = 0

    def share(self: PageLedger, pages: list[LogicalPage]) -> None:
        nonlocal shares
        # A fork within its first page shares none.
        shares += bool(pages)
        for page in pages:
            page.references += shares != 3
            self.touched.pages.add(page.page)

    monkeypatch.setattr(PageLedger, "share", share)
    report = campaign(examples=200)
    assert report.failure is not None
    assert report.failure.steps
    assert {found.invariant for found in report.failure.violations} >= {"refcount-exact", NOT_REPRODUCED}


def test_a_campaign_of_the_usual_size_is_inconclusive_without_its_goals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcrucible.fuzz.campaign.GOALS_FROM_EXAMPLES", 5)
    report = run(Plan(examples=5, steps=1, seed=1))
    assert report.failure is None
    assert report.tally.examples > 5
    assert report.cut_short is not None
    assert "goals not reached: " in report.cut_short


@pytest.mark.parametrize("last", [RunEffects(99), ReadBack()])
def test_what_a_late_effect_raises_is_the_engines_fault(monkeypatch: pytest.MonkeyPatch, last: Step) -> None:
    def write_table(self: NullStorage, *_: object) -> None:
        raise ValueError("blocks beyond the row")

    monkeypatch.setattr(NullStorage, "write_table", write_table)
    example = LockStep(Setting(lagging=True))
    for step in (Submit(((0, 0, 4),), 4), Schedule(), BeginUnit((Prefill(0, 4),))):
        example.step(step)
    with pytest.raises(InvariantViolated) as raised:
        example.step(last)
    (found,) = raised.value.violations
    assert found.invariant == ENGINE_FAULT
    assert "blocks beyond the row" in found.message
