"""JSON files: written whole or not at all; each way in which one cannot be used, and what is said of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import MAX_DEPTH, check_form, parse_json, read_json, write_json

LIMIT = 1_000
REMEDY = "name another"


def test_a_file_is_written_with_its_folders_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    for plain in ({"b": [1, "ä"], "a": None}, {"a": 2.5}):
        write_json(path, plain, REMEDY)
        assert read_json(path, LIMIT, REMEDY) == plain
    assert [file.name for file in path.parent.iterdir()] == ["file.json"]


def test_what_cannot_be_written_leaves_nothing_and_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"a": 1}, REMEDY)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")}, REMEDY)
    below, folder = path / "below.json", tmp_path / "folder"
    folder.mkdir()
    for at in (below, folder):
        with pytest.raises(InputError, match=rf"^{re.escape(str(at))}: cannot be written \(.*\); {REMEDY}$"):
            write_json(at, {"a": 2}, REMEDY)
    assert read_json(path, LIMIT, REMEDY) == {"a": 1}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file.json", "folder"]


def test_a_file_says_what_stands_in_it(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    lists = MAX_DEPTH - 2
    path.write_text(f'{{"ä": [1, -2.5e3, null, true], "deep": {"[" * lists}7{"]" * lists}}}', "utf-8")
    assert read_json(path, path.stat().st_size, REMEDY)["ä"] == [1, -2500.0, None, True]
    with pytest.raises(InputError, match="more than"):
        read_json(path, path.stat().st_size - 1, REMEDY)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "not JSON: Expecting value"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "key 'b' stands twice in one object"),
        (b"[NaN]", "NaN is no JSON number"),
        (b"[-Infinity]", "-Infinity is no JSON number"),
        (b"[1e999]", "a number is not finite"),
        (b"9" * 5_000, "Exceeds the limit"),
        (b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH, f"nested deeper than {MAX_DEPTH}"),
        (b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH, f"nested deeper than {MAX_DEPTH}"),
        (b"[" * 100_000, f"nested deeper than {MAX_DEPTH}"),
    ],
    ids=lambda value: value[:20].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_what_cannot_be_used_is_refused_with_what_was_found_and_what_to_do(
    tmp_path: Path, text: bytes, found: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(text)
    with pytest.raises(InputError) as refused:
        read_json(path, 1 << 20, REMEDY)
    said = str(refused.value)
    assert re.fullmatch(f"{re.escape(f'{path}: {found}')}.*; {REMEDY}", said), said


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: None, "No such file or directory"),
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (
            lambda path: path.write_bytes(b" " * (LIMIT + 1)),
            "more than 1,000 bytes, which is all that is read",
        ),
    ],
    ids=["absent", "folder", "pipe", "device", "loop", "large"],
)
def test_only_a_regular_file_within_the_limit_is_read(
    tmp_path: Path, make: Callable[[Path], object], found: str
) -> None:
    """A pipe that nobody writes to is not waited for, and a device that never ends is not read."""
    path = tmp_path / "file.json"
    make(path)
    with pytest.raises(InputError, match=re.escape(f"{path}: {found}; {REMEDY}")):
        read_json(path, LIMIT, REMEDY)


def test_the_words_of_a_hostile_text_are_cut_short() -> None:
    long = "k" * 100_000
    with pytest.raises(InputError, match="stands twice") as refused:
        parse_json(f'{{"{long}": 1, "{long}": 2}}', "name", REMEDY)
    assert len(str(refused.value)) < 1_000


def test_a_key_that_stands_twice_is_found_in_one_pass() -> None:
    """A search anew for each key would take hours here."""
    keys = ", ".join(f'"{number}": 0' for number in range(200_000))
    with pytest.raises(InputError, match="key 'last' stands twice"):
        parse_json(f'{{{keys}, "last": 1, "last": 2}}', "name", REMEDY)


def test_a_form_is_judged_by_the_schema_of_a_package() -> None:
    package, schema = "kvcrucible.fuzz.faults", "fault_runs.schema.json"
    with pytest.raises(InputError, match=f"^name: at top: .*'format' is a required property.*; {REMEDY}$"):
        check_form({}, package, schema, "name", REMEDY)
    hostile = {"format": "x" * 100_000}
    with pytest.raises(InputError) as refused:
        check_form(hostile, package, schema, "name", REMEDY)
    assert len(str(refused.value)) < 1_000
