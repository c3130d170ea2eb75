"""An example that loses steps goes on under other numbers, and minimising loses first requests by it."""

from __future__ import annotations

import pytest

from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Cancel,
    CancelTransfer,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Lookup,
    Operation,
    Pin,
    Prefill,
    Progress,
    Release,
    Restore,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.tokens import run
from kvcrucible.engine.pages import PageLedger
from kvcrucible.fuzz.minimise import minimise
from kvcrucible.fuzz.renumbering import NOTHING_YET, Renumbering
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step

REQUEST = Submit(run(0, 0, 32), 16)
TAKEN_AND_FORKED: tuple[Operation, ...] = (
    REQUEST,
    Schedule(),
    BeginUnit((Prefill(0, 32),)),
    EndUnit(0),
    Fork(0, 32, 16),
)


@pytest.fixture
def second_of_each() -> Renumbering:
    """The example had two of each; the shorter one has left out the first, and has created what was the second."""
    numbers = Renumbering()
    numbers.left_out((1, 1, 1))
    numbers.created((2, 2, 2), (1, 1, 1))
    return numbers


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (TryAdmit(1), TryAdmit(0)),
        (Truncate(1, 5), Truncate(0, 5)),
        (Finish(1, False), Finish(0, False)),
        (Cancel(1), Cancel(0)),
        (Fork(1, 3, 4), Fork(0, 3, 4)),
        (Release(1), Release(0)),
        (Pin(1, False), Pin(0, False)),
        (Demote(1, True), Demote(0, True)),
        (Restore(1), Restore(0)),
        (EndUnit(1, True, ((1, 2),)), EndUnit(0, True, ((0, 2),))),
        (CancelTransfer(1), CancelTransfer(0)),
        (BeginUnit((Append(1, run(0, 0, 2)),)), BeginUnit((Append(0, run(0, 0, 2)),))),
    ],
)
def test_what_was_second_is_first(second_of_each: Renumbering, step: Step, expected: Step) -> None:
    assert second_of_each.step(step) == expected


@pytest.mark.parametrize(
    "step", [Truncate(0, 5), Fork(0, 3, 4), EndUnit(0), CancelTransfer(0), BeginUnit((Prefill(0, 4),))]
)
def test_what_addresses_what_is_gone_goes_too(second_of_each: Renumbering, step: Step) -> None:
    assert second_of_each.step(step) is None


def test_of_a_unit_and_of_what_it_keeps_the_rest_stays(second_of_each: Renumbering) -> None:
    both = BeginUnit((Prefill(0, 4), Prefill(1, 5)))
    assert second_of_each.step(both) == BeginUnit((Prefill(0, 5),))
    assert second_of_each.step(EndUnit(1, True, ((0, 1), (1, 2)))) == EndUnit(0, True, ((0, 2),))
    assert second_of_each.step(BeginUnit(())) == BeginUnit(())


def test_what_never_was_stays_as_far_ahead(second_of_each: Renumbering) -> None:
    assert second_of_each.step(Cancel(2)) == Cancel(1)
    assert second_of_each.step(CancelTransfer(9)) == CancelTransfer(8)
    assert second_of_each.step(Cancel(-1)) == Cancel(-1)


def test_what_the_shorter_example_did_not_create_is_gone() -> None:
    numbers = Renumbering(now=NOTHING_YET)
    numbers.created((0, 0, 2), (0, 0, 1))
    assert numbers.step(CancelTransfer(0)) == CancelTransfer(0)
    assert numbers.step(CancelTransfer(1)) is None


@pytest.mark.parametrize("step", [Progress(), Schedule(), Lookup(()), REQUEST, RunEffects(3), ReadBack()])
def test_what_addresses_nothing_stays_as_it_is(second_of_each: Renumbering, step: Step) -> None:
    assert second_of_each.step(step) is step


def test_a_first_request_goes_with_all_that_addresses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageLedger, "share", lambda self, pages: None)
    setting = Setting(capacity_pages=16, max_concurrency=4)
    steps: list[Operation] = [
        Submit(run(1, 40, 20), 8), Schedule(), BeginUnit((Prefill(0, 20),)), EndUnit(0), Truncate(0, 9),
        REQUEST, Schedule(), BeginUnit((Append(0, run(2, 0, 1)), Prefill(1, 32))), EndUnit(1), Fork(1, 32, 16),
    ]  # fmt: skip
    found = violations_of(setting, steps)
    shorter, _ = minimise(setting, steps, found)
    assert shorter == TAKEN_AND_FORKED
