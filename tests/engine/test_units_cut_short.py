"""An error in the middle of a unit's begin or end ends the engine: rows and pages are half done (decision 0030)."""

from __future__ import annotations

import pytest
from half_done import cut_short, unwell

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.tokens import run
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.space import AddressSpace
from kvcrucible.engine.tables import ExecutionTables


def in_flight() -> tuple[Engine, int, int]:
    """Return an engine, a sequence with one unit behind it, and the number of a unit that gives it a second page."""
    e = Engine(EngineConfig((PoolSpec("main", 8, 4),), max_context=16, max_concurrency=2))
    sequence = e.submit(run(0, 0, 4), 4)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, 4)]))
    return e, sequence, e.begin_unit([Append(sequence, run(1, 0, 2))])


@pytest.mark.parametrize(
    ("commit", "at"), [(True, "commit"), (False, "retract")], ids=["as-it-commits", "as-it-aborts"]
)
def test_an_error_at_the_end_of_a_unit_ends_the_engine(
    commit: bool, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    e, sequence, unit = in_flight()
    monkeypatch.setattr(AddressSpace, at, unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.end_unit(unit, commit)
    # The unit is in flight, and its row is not.
    assert unit in e.units
    assert e.sequences[sequence].unit is None
    cut_short(e, "end_unit")


def test_an_error_as_a_recorded_cancel_is_carried_out_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e, sequence, unit = in_flight()
    assert not e.cancel(sequence)
    monkeypatch.setattr(ContextCache, "unmark", unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.end_unit(unit)
    # Nobody has the sequence's pages any more, and they are not free.
    assert sequence not in e.sequences
    assert e.pools[0].leased == 1
    cut_short(e, "end_unit")


def test_an_error_once_a_unit_has_mapped_its_pages_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    e, sequence, unit = in_flight()
    e.end_unit(unit)
    monkeypatch.setattr(ExecutionTables, "freeze", unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.begin_unit([Append(sequence, run(1, 2, 1))])
    cut_short(e, "begin_unit")
