"""The writer's lines are the format's, long ones are split, and the file appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from histories import CONFIG, judge, read, record, story, write

from kvcrucible.contract import history
from kvcrucible.contract import operations as ops
from kvcrucible.contract.capabilities import ALL_PARTS
from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.history import MAX_LINE_BYTES
from kvcrucible.contract.operations import Outcome, Progressed, TransferEnded, TransferOutcome
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import Geometry, storage_profile
from kvcrucible.contract.snapshot import ExtentState, MoveState, PoolState, Snapshot, Tier, TransferState
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.history import HistoryWriter
from kvcrucible.engine.history_lines import split
from kvcrucible.engine.observe import drain
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement


def test_the_schema_is_made_from_the_types() -> None:
    assert history.schema() == json.loads(json.dumps(history.make_schema()))


def test_every_line_satisfies_the_schema(tmp_path: Path) -> None:
    validator = jsonschema.Draft202012Validator(history.schema())
    header, *lines = story(tmp_path)
    for plain in (header, *lines):
        validator.validate(plain)
    assert {line["op"] for line in lines} <= set(history.LINES)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(lines[0] | {"colour": "red"})


def test_the_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    writer = HistoryWriter(path, CONFIG)
    engine = Engine(CONFIG)
    operation = ops.Submit(run(1, 0, 3), 1)
    writer.record(operation, execute(engine, operation), drain(engine)[0])
    assert not path.exists()
    writer.close()
    writer.close()
    assert [line.get("op") for line in read(path)] == [None, "submit", "close"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_crash_leaves_is_unknown_at_best(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    writer = HistoryWriter(path, CONFIG)
    writer._file.close()
    assert check_file(tmp_path / "h.jsonl.part").judgement is Judgement.UNKNOWN


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        HistoryWriter(tmp_path / "none" / "h.jsonl", CONFIG)


def test_operations_that_take_more_than_a_line_are_split_and_joined_again(tmp_path: Path) -> None:
    """A prompt of thousands of runs, and a unit that grants more pages than fit into a line."""
    config = EngineConfig((PoolSpec("main", 30_000, 1),), 40_000, 4)
    prompt = tuple((source, 0, 3) for source in range(8_000))
    path = tmp_path / "long.jsonl"
    lines = record(
        [
            ops.Submit(prompt, 0),
            ops.Submit(run(8, 0, 1), 3),
            ops.Schedule(),
            ops.BeginUnit((ops.Prefill(0, 23_000), ops.Prefill(1, 1))),
            ops.EndUnit(0),
            ops.BeginUnit((ops.Prefill(0, 10),)),
        ],
        path,
        config,
    )
    assert [line["op"] for line in lines[1:]].count("submit") == 3
    assert [line["op"] for line in lines[1:]].count("begin") > 4
    assert max(map(len, path.read_bytes().splitlines(keepends=True))) <= MAX_LINE_BYTES
    verdict = check_file(path)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)


def test_parts_of_two_operations_are_no_operation(tmp_path: Path) -> None:
    lines = story(tmp_path)
    lines[2]["more"] = True
    with pytest.raises(InputError, match="another operation"):
        judge(lines, tmp_path)
    lines = story(tmp_path)
    lines[1] |= {"more": True}
    lines.insert(2, {"op": "submit", "prompt": [[1, 10, 1]], "max_new": 7})
    with pytest.raises(InputError, match="another 'max_new'"):
        judge(lines, tmp_path)


def test_a_line_without_lists_is_not_split() -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        split(history.Release(continuation=1))


def test_tables_are_written_on_request_and_judged(tmp_path: Path) -> None:
    path, engine = tmp_path / "t.jsonl", Engine(CONFIG)
    writer = HistoryWriter(path, CONFIG, tables=True)
    for operation in (ops.Submit(run(1, 0, 9), 3), ops.Schedule(), ops.BeginUnit((ops.Prefill(0, 9),))):
        writer.record(operation, execute(engine, operation), drain(engine)[0])
    writer.close()
    lines = read(path)
    tables = [index for index, line in enumerate(lines) if line.get("op") == "table"]
    assert len(lines[tables[-1]]["pages"][0]) == 3
    assert check_file(path).judgement is Judgement.PASS
    lines[tables[-1]]["pages"][0].pop()
    verdict = judge(lines, tmp_path)
    assert (verdict.rule, verdict.line) == ("table-mirror", tables[-1] + 1)


def test_transfers_are_written_from_what_a_snapshot_shows(tmp_path: Path) -> None:
    """From hand-made snapshots: fresh places alone are what a transfer takes."""
    planes = PlaneSpec(storage_profile("FP32"), Geometry(1, 1, 4), 4)
    config = EngineConfig((PoolSpec("main", 8, 4, (planes,)),), 32, 2, HostSpec(4096, 256))
    assert "transfers" in ALL_PARTS
    path = tmp_path / "t.jsonl"
    writer = HistoryWriter(path, config)

    def moves(*fresh: bool) -> tuple[MoveState, ...]:
        return tuple(
            MoveState(page, 0, 3 + page, 2 + page, 5, page, 0, 4, one, False)
            for page, one in enumerate(fresh)
        )

    pools = (PoolState("main", 4, 8, 3, 0, 5),)
    extents = {5: ExtentState(5, 256, 512, 0, 2, (0, 2))}
    down = TransferState(0, 7, Tier.DEVICE, True, False, moves(True, False, True))
    up = TransferState(1, 7, Tier.HOST, False, False, moves(False, True, True))
    counters = ((3, 0, 5),)
    writer.record(
        ops.Demote(7, keep=True),
        Outcome(0, counters=counters),
        Snapshot(pools, transfers={0: down}, extents=extents),
    )
    writer.record(ops.Restore(7), Outcome(1, counters=counters), Snapshot(pools, transfers={1: up}))
    over = Progressed((), (TransferEnded(1, TransferOutcome.ABANDONED, True),))
    writer.record(ops.Progress(), Outcome(over, counters=counters), Snapshot(pools))
    writer.close()
    header, demote, restore, progress, _ = read(path)
    assert header["host"] == {"capacity_bytes": 4096, "alignment_bytes": 256}
    assert header["pools"][0]["page_bytes"] == 4 * 2 * 4 * 4
    assert demote["extents"] == [{"pool": 0, "offset": 256, "size": 512}]
    assert (restore["pages"], restore["generations"]) == ([[4, 5]], [[3, 4]])
    assert progress["transfers"] == [{"transfer": 1, "outcome": "abandoned", "failed": True}]


def test_writing_and_reading_lines_is_exact(tmp_path: Path) -> None:
    lines = story(tmp_path)
    path = write(lines, tmp_path / "again.jsonl")
    decode, encode = history.decoder(), history.encoder()
    for text, plain in zip(path.read_bytes().splitlines()[1:], lines[1:], strict=True):
        assert json.loads(encode(decode(text))) == plain
