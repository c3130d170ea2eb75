"""The semantics table, cell by cell: each row refuses what it should, and the model asks it in every situation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcrucible.contract import semantics
from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import BeginUnit, Operation, Outcome, Waiting, WaitingKind
from kvcrucible.contract.semantics import ROWS, Row
from kvcrucible.fuzz.scenarios import CELLS, ON_DEMAND_CELLS, SCENARIOS, UNREACHABLE, Scenario
from kvcrucible.reference.accounting import AccountingModel

ROW_BY_NAME = {row.name: row for row in ROWS}
ALL_CELLS = [(cell, scenario, True) for cell, scenario in CELLS.items()]
ALL_CELLS += [(cell, scenario, False) for cell, scenario in ON_DEMAND_CELLS.items()]
by_cell = pytest.mark.parametrize(
    ("cell", "scenario", "reserves"), ALL_CELLS, ids=["-".join(cell) for cell, *_ in ALL_CELLS]
)


def prepared(scenario: Scenario, reserves: bool) -> tuple[AccountingModel, Operation]:
    """Return a model to which everything but the last operation has happened, and that operation."""
    model = AccountingModel(scenario.config, Capabilities("test", reserves=reserves))
    *before, last = scenario.operations
    for operation in before:
        outcome = model.predict(operation)
        assert outcome.refusal is None, (operation, outcome)
        waiting = getattr(outcome.value, "waiting", None)
        assert waiting is None, (operation, outcome)
    return model, last


def subjects(operation: Operation) -> set[str]:
    """Names under which the table judges an operation: its own, or those of its works."""
    if isinstance(operation, BeginUnit) and operation.work:
        return {type(work).__name__ for work in operation.work}
    return {type(operation).__name__}


def waits(row: Row, operation: Operation) -> bool:
    return type(operation).__name__ == "TryAdmit" and row.kind.value in list(WaitingKind)


def test_every_cell_has_a_scenario() -> None:
    cells = {(row.name, kind.__name__) for row in ROWS for kind in row.operations}
    assert CELLS.keys() | ON_DEMAND_CELLS.keys() | UNREACHABLE.keys() == cells
    assert len(cells) == len(CELLS) + len(ON_DEMAND_CELLS) + len(UNREACHABLE)


def test_every_row_has_a_scenario() -> None:
    assert SCENARIOS.keys() == ROW_BY_NAME.keys()


@by_cell
def test_row_is_the_first_that_refuses(
    cell: tuple[str, str], scenario: Scenario, reserves: bool, describe: Callable[[AccountingModel], str]
) -> None:
    row = ROW_BY_NAME[cell[0]]
    model, last = prepared(scenario, reserves)
    assert subjects(last) == {cell[1]}
    assert model.refusing_row(last) is row

    before = describe(model)
    outcome = model.predict(last)

    if waits(row, last):
        assert outcome.refusal is None
        assert outcome.value == Waiting(last.sequence, WaitingKind(row.kind.value))  # type: ignore[union-attr]
    else:
        assert outcome == Outcome(refusal=row.kind, counters=outcome.counters)
    assert describe(model) == before


@by_cell
def test_without_its_row_a_cell_comes_out_otherwise(
    cell: tuple[str, str], scenario: Scenario, reserves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other row of the same kind covers a cell's scenario, so each row is shown to be needed."""
    model, last = prepared(scenario, reserves)
    monkeypatch.setattr(semantics, "ROWS", tuple(row for row in ROWS if row.name != cell[0]))
    # What the whole table says of an operation is remembered.
    monkeypatch.setattr(semantics, "_rows_of", semantics._rows_of.__wrapped__)
    try:
        row = model.refusing_row(last)
    except (KeyError, IndexError, AssertionError):
        return
    assert row is None or row.kind is not ROW_BY_NAME[cell[0]].kind
