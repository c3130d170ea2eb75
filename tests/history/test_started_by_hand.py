"""What a history says of transfers started for a request, and of copies given up, corrupted by hand (decision 0020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from histories import Plain, judge, read, record, write

from kvcrucible.contract import history
from kvcrucible.contract import operations as ops
from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.history import MAX_LINE_BYTES
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import Geometry, storage_profile
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.history import HistoryWriter
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement
from kvcrucible.invariants.history.reader import HistoryReader

PLANES = PlaneSpec(storage_profile("FP32"), Geometry(1, 1, 4), 4)
PAGE = 4 * 2 * 4 * 4

#: Eight pages of four tokens; four have room on Host.
CONFIG = EngineConfig((PoolSpec("main", 8, 4, (PLANES,)),), 32, 4, HostSpec(4 * PAGE, PAGE // 2))

Change = Callable[[list[Plain]], object]


def kept(source: int, tokens: int, unit: int, sequence: int) -> list[ops.Operation]:
    """Retain ``tokens`` of a source of their own; five lines."""
    return [
        ops.Submit(run(source, 0, tokens), 0),
        ops.Schedule(),
        ops.BeginUnit((ops.Prefill(sequence, tokens),)),
        ops.EndUnit(unit),
        ops.Finish(sequence),
    ]


#: Two continuations share what sinks and comes back.  Line numbers (from 1, the header's) are as in the comments.
SHARED: list[ops.Operation] = [
    *kept(1, 8, 0, 0),  # 2-6: continuation 0, two pages
    ops.Fork(0, 8, 0),
    ops.Finish(1),  # 8: continuation 1, the same two
    *kept(2, 4, 1, 2),  # 9-13: continuation 2, one page
    ops.Submit(run(99, 0, 28), 0),
    ops.Schedule(),  # 15: transfer 0 sinks 1, beside 0
    ops.Progress(),
    ops.Schedule(),
    ops.Finish(3, retain=False),
    ops.Submit(run(1, 0, 9), 0),
    ops.Schedule(),  # 20: transfer 1 restores 8 positions of 0
    ops.Progress(),
    ops.Schedule(),  # 22: a fork of 0
]

#: Host copies make way for what sinks.
COPIES: list[ops.Operation] = [
    *kept(1, 16, 0, 0),
    ops.Demote(0),
    ops.Progress(),
    ops.Restore(0, keep=True),
    ops.Progress(),  # 10: continuation 0 on Device, its copies fill the arena
    *kept(2, 8, 1, 1),
    ops.Pin(0),
    ops.Submit(run(99, 0, 16), 0),
    ops.Schedule(),  # 18: transfer 2 sinks 1, copies of 0 given up
    ops.Progress(),
    ops.Schedule(),
]

#: Continuations on Host make way for what sinks.
VICTIMS: list[ops.Operation] = [
    *kept(1, 8, 0, 0),
    *kept(2, 8, 1, 1),
    *kept(3, 8, 2, 2),
    ops.Submit(run(99, 0, 32), 0),
    ops.Schedule(),  # 18: transfers 0 and 1 sink 0 and 1, the arena is full
    ops.Progress(),
    ops.Schedule(),  # 20: transfer 2 sinks 2, 0 released on Host
    ops.Progress(),
    ops.Schedule(),
]

#: Device copies of what is visible on Host are given up first.
CLEAN: list[ops.Operation] = [
    *kept(1, 8, 0, 0),
    *kept(2, 8, 1, 1),
    ops.Demote(1, keep=True),
    ops.Progress(),
    ops.Submit(run(99, 0, 24), 0),
    ops.Schedule(),  # 15: cold, copies of 1 given up
]

STORIES = {"shared": SHARED, "copies": COPIES, "victims": VICTIMS, "clean": CLEAN}


def put(line: int, **fields: object) -> Change:
    """Set fields of a line; None takes one out."""

    def change(told: list[Plain]) -> None:
        for name, value in fields.items():
            if value is None:
                told[line - 1].pop(name)
            else:
                told[line - 1][name] = value

    return change


def started(line: int, index: int = 0, **fields: object) -> Change:
    """Set fields of a transfer that a line starts."""
    return lambda told: told[line - 1]["started"][index].update(fields)


WRONG: list[tuple[str, str, Change, int, str]] = [
    ("sinks the source of nobody", "shared", started(15, continuation=9), 15, "making-room"),
    ("sinks with who stays", "shared", started(15, beside=[]), 15, "making-room"),
    ("beside one that is gone", "shared", started(15, beside=[7]), 15, "making-room"),
    ("another number", "shared", started(20, transfer=0), 20, "numbering"),
    ("no extent", "shared", started(15, extents=[]), 15, "host-conservation"),
    (
        "an extent too small",
        "shared",
        started(15, extents=[{"pool": 0, "offset": 0, "size": PAGE}]),
        15,
        "host-conservation",
    ),
    ("pages for what sinks", "shared", started(15, pages=[[4]]), 15, "publish-order"),
    ("positions of what sinks", "shared", started(15, positions=4), 15, "publish-order"),
    ("sinks for nobody who waits", "shared", put(15, wait=None), 15, "outcome"),
    ("starts nothing and waits", "shared", put(15, started=None), 15, "outcome"),
    ("comes back too short", "shared", started(20, positions=4), 20, "exact-prefix-identity"),
    ("comes back too long", "shared", started(20, positions=9), 20, "exact-prefix-identity"),
    ("another one comes back", "shared", started(20, continuation=2), 20, "exact-prefix-identity"),
    ("comes back into a held page", "shared", started(20, pages=[[2, 1]]), 20, "lease-unique"),
    ("comes back into too few", "shared", started(20, pages=[[0]], generations=[[2]]), 20, "publish-order"),
    (
        "comes back with old generations",
        "shared",
        started(20, generations=[[1, 2]]),
        20,
        "stale-handle-refused",
    ),
    (
        "extents for what comes back",
        "shared",
        started(20, extents=[{"pool": 0, "offset": 2 * PAGE, "size": PAGE}]),
        20,
        "publish-order",
    ),
    ("comes from the other tier", "shared", started(20, source="device"), 20, "making-room"),
    ("no copies make way", "copies", started(18, given_up=[]), 18, "host-conservation"),
    ("its own copies make way", "copies", started(18, given_up=[1]), 18, "making-room"),
    ("copies of one who is gone", "copies", started(18, given_up=[5]), 18, "making-room"),
    ("copies twice", "copies", started(18, given_up=[0, 0]), 18, "making-room"),
    ("nobody makes way on Host", "victims", started(20, evicted=[]), 20, "host-conservation"),
    ("more than need make way on Host", "victims", started(20, evicted=[0, 1]), 20, "making-room"),
    ("what sinks makes way for itself", "victims", started(20, evicted=[2]), 20, "making-room"),
    ("who is on Device makes way", "victims", started(18, evicted=[2]), 18, "making-room"),
    ("released on Device for it", "victims", put(20, evicted=[0]), 20, "making-room"),
    (
        "both into one extent",
        "victims",
        started(18, 1, extents=[{"pool": 0, "offset": PAGE, "size": 2 * PAGE}]),
        18,
        "host-conservation",
    ),
    (
        "sinks although enough is on its way",
        "victims",
        lambda told: told[16].update(prompt=[[99, 0, 16]]),
        18,
        "making-room",
    ),
    ("copies kept in silence", "clean", put(15, given_up=None), 15, "making-room"),
    ("copies of one who has none", "clean", put(15, given_up=[0]), 15, "making-room"),
    ("one too many gives up", "clean", put(15, given_up=[1, 0]), 15, "making-room"),
    ("released beside", "clean", put(15, evicted=[0]), 15, "making-room"),
]


@pytest.mark.parametrize("name", STORIES)
def test_the_stories_are_legal(name: str, tmp_path: Path) -> None:
    lines = record(STORIES[name], tmp_path / "story.jsonl", CONFIG)
    verdict = judge(lines, tmp_path)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)


@pytest.mark.parametrize(
    ("story", "change", "shows", "rule"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG]
)
@pytest.mark.parametrize("counters", [True, False], ids=["counters", "bare"])
def test_what_is_wrong_is_reported_where_it_shows(
    story: str, change: Change, shows: int, rule: str, counters: bool, tmp_path: Path
) -> None:
    lines = record(STORIES[story], tmp_path / "story.jsonl", CONFIG)
    change(lines)
    if not counters:
        for line in lines:
            line.pop("counters", None)
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.FAIL
    assert (verdict.line, verdict.rule) == (shows, rule), verdict.reason


# -- long lines --------------------------------------------------------------------------------------------------------


def test_a_restore_that_takes_more_than_a_line_is_split_and_joined_again(tmp_path: Path) -> None:
    pages = 12_000
    planes = replace(PLANES, page_size=1)
    config = EngineConfig(
        (PoolSpec("main", pages + 1, 1, (planes,)),), pages + 1, 2, HostSpec(pages * PAGE // 4, 1)
    )
    operations: list[ops.Operation] = [
        *kept(1, pages, 0, 0),
        ops.Demote(0),
        ops.Progress(),
        ops.Submit(run(1, 0, pages + 1), 0),
        ops.Schedule(),
        ops.Progress(),
        ops.Schedule(),
    ]
    path = tmp_path / "long.jsonl"
    lines = record(operations, path, config)
    assert max(map(len, path.read_bytes().splitlines(keepends=True))) <= MAX_LINE_BYTES
    parts = [index for index, line in enumerate(lines) if line.get("started")]
    assert len(parts) > 1
    assert [bool(lines[index].get("more")) for index in parts] == [True] * (len(parts) - 1) + [False]
    assert check_file(path).judgement is Judgement.PASS
    # Each part counts: a page of the last one that was granted before belongs to somebody else.
    lines[parts[-1]]["started"][0]["pages"][0][-1] = lines[parts[0]]["started"][0]["pages"][0][0]
    verdict = judge(lines, tmp_path)
    assert (verdict.rule, verdict.line) == ("lease-unique", parts[-1] + 1), verdict.reason


LONG = history.Started(
    transfer=3,
    continuation=7,
    source=Tier.DEVICE,
    extents=[history.NewExtent(pool=0, offset=0, size=64)],
    beside=list(range(10_000, 30_000)),
    given_up=list(range(40_000, 55_000)),
    evicted=list(range(60_000, 75_000)),
)


def written(lines: list[history.Line], path: Path) -> list[history.Line]:
    """Write lines as the writer does, and read them back."""
    writer = HistoryWriter(path, CONFIG)
    for line in lines:
        writer._write(line)
    writer.close()
    with HistoryReader(path) as reader:
        return [line for line in reader.lines() if not isinstance(line, history.Close)]


def test_every_list_of_a_transfer_is_split_and_joined_again(tmp_path: Path) -> None:
    wait = history.Wait(sequence=9, why=ops.WaitingKind.SINKING)
    line = history.Schedule(wait=wait, started=[LONG], given_up=[1, 2], counters=[(1, 2, 3)])
    assert written([line], tmp_path / "h.jsonl") == [line]
    assert len(read(tmp_path / "h.jsonl")) > 4


def test_a_list_that_repeats_itself_is_joined_whole(tmp_path: Path) -> None:
    """Both halves of the prompt are the same; the second is no repetition of the first."""
    line = history.Submit(prompt=[(5, 0, 3)] * 16_384, max_new=1, sequence=0)
    assert written([line], tmp_path / "h.jsonl") == [line]


@pytest.mark.parametrize("field", ["continuation", "source", "positions"])
def test_a_transfer_that_goes_on_otherwise_than_it_began_is_refused(field: str, tmp_path: Path) -> None:
    line = history.Schedule(wait=history.Wait(sequence=9, why=ops.WaitingKind.SINKING), started=[LONG])
    assert written([line], tmp_path / "h.jsonl") == [line]
    lines = read(tmp_path / "h.jsonl")
    lines[2]["started"][0][field] = {"continuation": 8, "source": "host", "positions": 5}[field]
    with (
        pytest.raises(InputError, match="goes on otherwise"),
        HistoryReader(write(lines, tmp_path / "again.jsonl")) as reader,
    ):
        list(reader.lines())


@pytest.mark.parametrize(
    ("line", "part", "name"),
    [
        (history.Fork(source=0, position=8, max_new=0, sequence=2), {"source": 1}, "source"),
        (history.Fork(source=0, position=8, max_new=0, sequence=2), {"max_new": 3}, "max_new"),
        (history.End(unit=1, commit=False), {"commit": True}, "commit"),
        (history.End(unit=1), {"done": True}, "done"),
    ],
)
def test_a_part_that_says_something_else_is_refused(
    line: history.Line, part: Plain, name: str, tmp_path: Path
) -> None:
    """Also where the first part says 0 or false."""
    plain = msgspec.to_builtins(line)
    lines = record([], tmp_path / "empty.jsonl", CONFIG)
    lines[1:1] = [plain | {"more": True}, plain | part]
    with (
        pytest.raises(InputError, match=f"another '{name}'"),
        HistoryReader(write(lines, tmp_path / "parts.jsonl")) as reader,
    ):
        list(reader.lines())
