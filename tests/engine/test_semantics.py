"""Every cell of the semantics table, run against the engine: the refusal that is due, and nothing changed by it."""

from __future__ import annotations

import pytest

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import OPERATIONS, Waiting
from kvcrucible.contract.semantics import ROWS
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.observe import snapshot
from kvcrucible.fuzz.scenarios import CELLS, Scenario

KINDS = {row.name: row.kind for row in ROWS}


@pytest.mark.parametrize(("cell", "scenario"), CELLS.items(), ids=["-".join(cell) for cell in CELLS])
def test_the_engine_answers_as_the_row_says(cell: tuple[str, str], scenario: Scenario) -> None:
    engine = Engine(scenario.config)
    *prelude, last = scenario.operations
    for operation in prelude:
        assert execute(engine, operation).refusal is None, operation
    before = snapshot(engine)
    outcome = execute(engine, last)
    due = KINDS[cell[0]]
    if isinstance(outcome.value, Waiting):
        assert outcome.value.kind.value == due.value
    else:
        assert outcome.refusal is due
    assert snapshot(engine) == before


def test_every_refusal_kind_is_reached() -> None:
    assert {KINDS[row] for row, _ in CELLS} == set(RefusalKind)


def test_every_operation_takes_part() -> None:
    reached = {type(operation) for scenario in CELLS.values() for operation in scenario.operations}
    assert reached == set(OPERATIONS)
