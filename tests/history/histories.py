"""Legal histories for tests: one of our engine that does a bit of everything, and lines as plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvcrucible.contract import operations as ops
from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import Operation
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.history import HistoryWriter, ObservedEngine
from kvcrucible.engine.observe import drain
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Verdict

#: A line, or a header, as plain data.
Plain = dict[str, Any]

CONFIG = EngineConfig((PoolSpec("main", 24, 4),), max_context=40, max_concurrency=3)


def write(lines: list[Plain], path: Path) -> Path:
    """Write plain lines, compact."""
    path.write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def read(path: Path) -> list[Plain]:
    """Return a history's lines as plain data."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judge(lines: list[Plain], tmp_path: Path, **options: Any) -> Verdict:
    """Check plain lines."""
    return check_file(write(lines, tmp_path / "judged.jsonl"), **options)


def record(
    operations: list[Operation], path: Path, config: EngineConfig = CONFIG, empty: bool = False
) -> list[Plain]:
    """Run operations on a new engine, write its history, and return the lines."""
    engine = Engine(config)
    writer = HistoryWriter(path, config)
    observed = ObservedEngine(engine, writer)
    for operation in operations:
        outcome = execute(engine, operation)
        observed.record(operation, outcome, drain(engine)[0])
    writer.close(empty)
    return read(path)


#: Line numbers (from 1, the header's) of what the operations below do are their index plus 2.
STORY: list[Operation] = [
    ops.Submit(run(1, 0, 10), 6, session="a"),  # 2: sequence 0, 4 pages
    ops.Schedule(),  # 3: cold
    ops.BeginUnit((ops.Prefill(0, 10),)),  # 4: 3 pages
    ops.EndUnit(0),  # 5
    ops.Checkpoint(0),  # 6: checkpoint 0 at 10
    ops.BeginUnit((ops.Append(0, run(5, 0, 3)),)),  # 7: 1 page
    ops.EndUnit(1),  # 8: frontier 13
    ops.Fork(0, 6, 6),  # 9: sequence 1 shares 1 page, copies 2 columns
    ops.BeginUnit((ops.Append(1, run(6, 0, 4)),)),  # 10
    ops.EndUnit(2),  # 11: frontier 10
    ops.Truncate(1, 9),  # 12: private, back to its reservation nothing (3 pages for 9)
    ops.Truncate(1, 3),  # 13: inside the shared page: a copy, and regrowth
    ops.Submit(run(1, 0, 10) + run(7, 0, 2), 2),  # 14: sequence 2
    ops.Finish(0),  # 15: continuation 0
    ops.Pin(0),  # 16
    ops.TryAdmit(2),  # 17: fork of 0 at 10
    ops.BeginUnit((ops.Prefill(2, 2), ops.Append(1, run(6, 50, 2)))),  # 18
    ops.Cancel(2),  # 19: recorded
    ops.EndUnit(3),  # 20: 2 cancelled, 1 commits
    ops.BeginUnit((ops.Append(1, run(6, 90, 1)),)),  # 21
    ops.EndUnit(4, commit=False),  # 22: aborted
    ops.Release(0),  # 23: refused, pinned
    ops.Pin(0, pinned=False),  # 24
    ops.Lookup(run(1, 0, 12)),  # 25: 10 of continuation 0
    ops.Submit(run(9, 0, 30), 10),  # 26: sequence 3, 10 pages
    ops.Submit(run(9, 100, 34), 6),  # 27: sequence 4, 10 pages
    ops.Schedule(),  # 28: 3 cold; 4 only after 0 is released
    ops.Progress(),  # 29
    ops.Submit(run(9, 200, 30), 10),  # 30: sequence 5
    ops.Schedule(),  # 31: waits, no row
    ops.Truncate(1, 9),  # 32: refused, above the frontier
    ops.Finish(1, retain=False),  # 33
    ops.Schedule(),  # 34: waits, device capacity
    ops.Cancel(3),  # 35
    ops.TryAdmit(5),  # 36: cold
    ops.BeginUnit((ops.Prefill(5, 30), ops.Prefill(4, 34))),  # 37
    ops.EndUnit(5),  # 38
    ops.Finish(5),  # 39: continuation 5
    ops.Finish(4),  # 40: continuation 4
    ops.Progress(),  # 41
    ops.Release(4),  # 42
    ops.Release(5),  # 43
]


def story(tmp_path: Path) -> list[Plain]:
    """Return the lines of the story; its last is the close line, and nothing is left."""
    return record(STORY, tmp_path / "story.jsonl", empty=True)
