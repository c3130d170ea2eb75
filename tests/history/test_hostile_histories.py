"""Hostile files end in a clear error or in *unknown*: no traceback, no memory without bounds."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from histories import Plain, judge, story, write

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.history import MAX_LINE_BYTES, MAX_PARTS
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement

HEADER: Plain = {
    "format": "kvcrucible.history/1",
    "engine": "hostile",
    "pools": [{"name": "main", "capacity_pages": 2**31 - 1, "page_size": 64}],
    "max_context": 2**40,
    "max_concurrency": 2**40,
    "shows": ["pages", "tokens", "hits", "refusals", "fifo", "lru"],
}


def raw(tmp_path: Path, *lines: bytes, header: Plain = HEADER, end: bytes = b"\n") -> Path:
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(b"\n".join([json.dumps(header).encode(), *lines]) + end)
    return path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[" * 60_000, "line 2"),
        (b'{"op":' * 9_000, "line 2"),
        (b'{"op":"submit","prompt":' + b"[" * 60_000, "line 2"),
        (b'{"op":"release","continuation":' + b"9" * 5_000 + b"}", "line 2"),
        (b'{"op":"release","continuation":9223372036854775808}', "9223372036854775807"),
        (b'{"op":"release","continuation":-9223372036854775809}', "line 2"),
        (b'{"op":"release","continuation":1.0}', "float"),
        (b'{"op":"release","continuation":NaN}', "line 2"),
        (b'{"op":"release","continuation":Infinity}', "line 2"),
        (b'{"op":"release","continuation":1e400}', "line 2"),
        (b'{"op":"release","continuation":true}', "bool"),
        (b'{"op":"release","continuation":1,"continuation":2}', "'continuation' twice"),
        (b'{"op":"release","continuation" :1, "continuation" :2}', "'continuation' twice"),
        (b'{"op":"release","op":"release","continuation":1}', "line 2"),
        (b'{"op":"begin","work":[{"sequence":0,"prefill":1,"prefill":2}]}', "'prefill' twice"),
        (b'{"op":"release","continuation":1,"colour":"red"}', "colour"),
        (b'{"op":"explode"}', "explode"),
        (b'{"continuation":1}', "op"),
        (b"null", "line 2"),
        (b"", "line 2"),
        (b"\xff\xfe\x00binary\x00garbage", "line 2"),
        (b'{"op":"submit","prompt":[[0,0,0]],"max_new":1}', ">= 1"),
        (b'{"op":"submit","prompt":[[0,0]],"max_new":1}', "length"),
        (b'{"op":"submit","prompt":[],"max_new":1,"session":"' + b"s" * 300 + b'"}', "256"),
        (b'{"op":"submit","prompt":[],"max_new":1,"session":"' + b"s" * MAX_LINE_BYTES + b'"}', str(MAX_LINE_BYTES)),
        (b'{"op":"submit","prompt":[],"max_new":1,"refused":"nonsense"}', "nonsense"),
        (b'{"op":"progress","more":true}\n{"op":"table","sequence":0,"pages":[]}', "line 3"),
        (b'{"op":"close","lines":0}\n{"op":"progress"}', "after the close line"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else "",
)  # fmt: skip
def test_what_is_no_line_is_an_error_that_names_the_line(line: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line [23]") as error:
        check_file(raw(tmp_path, line))
    assert said in str(error.value)
    assert len(str(error.value)) < 800


def test_a_part_without_end_is_an_error(tmp_path: Path) -> None:
    part = b'{"op":"progress","more":true}'
    with pytest.raises(InputError, match=f"more than {MAX_PARTS} lines"):
        check_file(raw(tmp_path, *[part] * (MAX_PARTS + 10)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "kvcrucible.history/2"}, "this version reads"),
        ({"shows": ["everything"]}, "everything"),
        ({"pools": []}, "no header"),
        ({"pools": [{"name": "main", "capacity_pages": 2**31, "page_size": 4}]}, "no header"),
        ({"pools": [{"name": "main", "capacity_pages": 4, "page_size": 3}]}, "power of two"),
        ({"pools": [{"name": "mtp", "capacity_pages": 4, "page_size": 4}]}, "main first"),
        ({"host": {"capacity_bytes": 64, "alignment_bytes": 64}}, "page_bytes"),
        ({"max_context": 0}, "no header"),
    ],
)
def test_a_header_that_makes_no_sense_is_an_error(change: Plain, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        check_file(raw(tmp_path, header=HEADER | change))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no header"),
        (b"\x00" * 100, "no header"),
        (gzip.compress(b"x" * 10_000_000), "gzip"),
        (b"PK\x03\x04rest", "zip"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (os.urandom(7) + b"\n", "no header"),
        (b"{" * 70_000, "more than"),
    ],
    ids=["empty", "zeros", "gzip", "zip", "bom", "noise", "long"],
)
def test_a_file_that_is_no_history_is_an_error(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        check_file(path)


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match="cannot be"):
            check_file(path)


@pytest.mark.parametrize("cut", [3, 40, 700, 1500])
def test_a_history_that_is_cut_short_is_unknown(cut: int, tmp_path: Path) -> None:
    path = write(story(tmp_path), tmp_path / "whole.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    verdict = check_file(path)
    assert verdict.judgement is Judgement.UNKNOWN
    assert "ends" in str(verdict.reason)


def test_a_history_without_its_close_line_is_unknown(tmp_path: Path) -> None:
    verdict = judge(story(tmp_path)[:-1], tmp_path)
    assert (verdict.judgement, verdict.line) == (Judgement.UNKNOWN, 43)


@pytest.mark.parametrize("miscount", [-2, -1, 1, 2**62])
def test_a_history_that_miscounts_itself_is_damaged_input(miscount: int, tmp_path: Path) -> None:
    lines = story(tmp_path)
    counted = lines[-1]["lines"]
    lines[-1]["lines"] += miscount
    with pytest.raises(InputError, match=f"line 44: .* counts {counted + miscount} .* there are {counted};"):
        judge(lines, tmp_path)


def test_a_missing_line_is_damage_even_where_it_is_the_end_of_what_was_alive(tmp_path: Path) -> None:
    lines = story(tmp_path)
    del lines[40]
    with pytest.raises(InputError, match="line 43: the close line counts 42 lines"):
        judge(lines, tmp_path)


def growing(pages: int) -> Iterator[bytes]:
    """Yield a history that takes pages and never gives one back."""
    yield json.dumps(HEADER).encode()
    yield b'{"op":"submit","prompt":[[0,0,1]],"max_new":%d,"sequence":0}' % (2**36)
    yield b'{"op":"admit","admission":{"sequence":0,"mode":"cold"}}'
    yield b'{"op":"begin","work":[{"sequence":0,"prefill":1,"pages":[[0]]}],"unit":0}'
    yield b'{"op":"end","unit":0}'
    for unit in range(1, pages // 1000 + 1):
        listed = ",".join(str(page) for page in range(unit * 1000, unit * 1000 + 1000))
        # The first page holds one token; the others are filled to the last column.
        size = 64_063 if unit == 1 else 64_000
        work = b'{"sequence":0,"append":[[%d,0,%d]],"pages":[[%s]]}' % (unit, size, listed.encode())
        yield b'{"op":"begin","work":[%s],"unit":%d}' % (work, unit)
        yield b'{"op":"end","unit":%d}' % unit
        yield b'{"op":"progress","units":[%s]}' % (b"0,1" if unit == 1 else b"%d" % unit)


def test_pages_that_are_never_freed_end_in_unknown_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "growing.jsonl"
    path.write_bytes(b"\n".join(growing(400_000)) + b"\n")
    tracemalloc.start()
    try:
        verdict = check_file(path, max_entries=60_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verdict.judgement is Judgement.UNKNOWN
    assert "alive at once" in str(verdict.reason)
    assert most < 250 * 60_000


def test_counts_without_pages_do_not_allocate_what_they_claim(tmp_path: Path) -> None:
    """One short line may ask for a billion pages where pages are only counted."""
    header = HEADER | {"shows": []}
    header["pools"] = [{"name": "main", "capacity_pages": 2**31 - 1, "page_size": 1}]
    path = raw(
        tmp_path,
        b'{"op":"submit","prompt":[[0,0,2000000000]],"max_new":0,"sequence":0}',
        b'{"op":"admit","admission":{"sequence":0,"mode":"cold"}}',
        b'{"op":"begin","work":[{"sequence":0,"prefill":2000000000}],"unit":0}',
        header=header,
    )
    tracemalloc.start()
    try:
        verdict = check_file(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (verdict.judgement, verdict.line) == (Judgement.UNKNOWN, 4)
    assert most < 4 << 20


def test_forks_of_forks_end_in_unknown(tmp_path: Path) -> None:
    """Every line is short and adds as much as is alive of the longest sequence."""
    lines = [line for line in growing(20_000) if b'"progress"' not in line]
    lines += [
        b'{"op":"fork","source":0,"position":1280000,"max_new":0,"sequence":%d}' % child
        for child in range(1, 400)
    ]
    path = tmp_path / "forks.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    verdict = check_file(path, max_entries=500_000)
    assert verdict.judgement is Judgement.UNKNOWN


def test_memory_stays_flat_over_a_long_history(tmp_path: Path) -> None:
    """In a process of its own, ten times the lines take no more memory."""
    lines = story(tmp_path)
    first = write(_repeated(lines, 20), tmp_path / "short.jsonl")
    second = write(_repeated(lines, 1000), tmp_path / "long.jsonl")
    program = (
        "import resource, sys; from pathlib import Path; from kvcrucible.invariants.history.check import check_file;"
        "verdict = check_file(Path(sys.argv[1]));"
        "print(verdict.judgement.value, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    found = []
    for path in (first, second):
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert [verdict for verdict, _ in found] == ["pass", "pass"]
    assert int(found[1][1]) < int(found[0][1]) + 2_000


def _repeated(lines: list[Plain], times: int) -> list[Plain]:
    """Return the story told over and over, with new numbers."""
    body = lines[1:-1]
    made = [lines[0]]
    for turn in range(times):
        text = json.dumps(body)
        made += [_renumbered(line, turn) for line in json.loads(text)]
    return [*made, {"op": "close", "lines": len(made) - 1, "empty": True}]


def _renumbered(line: Plain, turn: int) -> Plain:
    """Give sequences, units and checkpoints of one turn numbers of their own; generations are left out."""

    def change(value: object) -> object:
        if isinstance(value, list):
            return [change(one) for one in value]
        if not isinstance(value, dict):
            return value
        made = {}
        for name, one in value.items():
            if name in ("sequence", "source", "continuation", "unit", "checkpoint"):
                made[name] = one + 10 * turn
            elif name in ("evicted", "cancelled", "units"):
                made[name] = [each + 10 * turn for each in one]
            elif name == "frontiers":
                made[name] = [[owner + 10 * turn, at] for owner, at in one]
            elif name == "generations":
                made[name] = [[each + 4 * turn for each in pool] for pool in one]
            else:
                made[name] = change(one)
        return made

    found = change(line)
    assert isinstance(found, dict)
    return found
