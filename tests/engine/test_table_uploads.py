"""How much of a row is uploaded anew when its sequence is cut: what has changed, and nothing else (DESIGN 4.7)."""

from __future__ import annotations

import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import Prefill
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine


@pytest.mark.parametrize(
    ("shared", "position", "uploads", "entries"),
    [
        pytest.param(False, 6, 1, 1, id="the end of a row"),
        pytest.param(False, 8, 1, 1, id="between two pages"),
        pytest.param(False, 9, 0, 0, id="nothing, within the last page"),
        pytest.param(True, 6, 2, 2, id="the end, and the copy of the page that was cut"),
        pytest.param(True, 0, 1, 3, id="all of it"),
    ],
)
def test_a_cut_uploads_what_it_changes(shared: bool, position: int, uploads: int, entries: int) -> None:
    e = Engine(EngineConfig((PoolSpec("main", 12, 4),), max_context=16, max_concurrency=2))
    sequence = e.submit(run(0, 0, 10), 6)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, 10)]))
    if shared:
        e.fork(sequence, 10, 0)
    before = (e.work.table_uploads, e.work.table_entries)
    e.truncate(sequence, position)
    assert (e.work.table_uploads - before[0], e.work.table_entries - before[1]) == (uploads, entries)
