"""A trace comes from strangers: what is wrong is an input error that names file and line, and costs little."""

from __future__ import annotations

import gzip
import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces import TraceRequest, lines, open_trace, reader
from kvcrucible.perf.traces.fields import Malformed
from kvcrucible.perf.traces.formats import recognise
from kvcrucible.perf.traces.limits import (
    MAX_ARRIVAL_S,
    MAX_BLOCK_ID,
    MAX_BLOCK_IDS,
    MAX_LINE_BYTES,
    MAX_TOKENS,
)

Make = Callable[..., bytes]
Write = Callable[[bytes], Path]

AZURE_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def complaint(path: Path, line: int) -> str:
    """Read to the error and return what it says after file and line, which have to be right."""
    with pytest.raises(InputError) as caught, open_trace(path) as trace:
        list(trace)
    start = f"{path}, line {line}: "
    assert str(caught.value).startswith(start)
    said = str(caught.value).removeprefix(start)
    # What was found, then what to do; never a megabyte of it.
    assert "; " in said
    assert len(said) < 500
    return said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"in": ...}, "no key 'in'"),
        ({"out": ...}, "no key 'out'"),
        ({"t": ...}, "no key 't'"),
        ({"id": ...}, "no key 'id'"),
        ({"parent": ...}, "no key 'parent'"),
        ({"blocks": ...}, "no key 'blocks'"),
        ({"block_size": ...}, "no key 'block_size'"),
        ({"in": True}, "'in' is True"),
        ({"in": 130.0}, "'in' is 130.0"),
        ({"in": "130"}, "'in' is '130'"),
        ({"in": 0}, "'in' is 0"),
        ({"in": -1}, "'in' is -1"),
        ({"in": MAX_TOKENS + 1}, f"'in' is {MAX_TOKENS + 1}"),
        ({"in": None}, "'in' is None"),
        ({"out": -1}, "'out' is -1"),
        ({"out": False}, "'out' is False"),
        ({"out": 10**400}, "'out' is 1000"),
        ({"t": float("nan")}, "the number NaN"),
        ({"t": float("-inf")}, "the number -Infinity"),
        ({"t": -0.5}, "'t' is -0.5"),
        ({"t": True}, "'t' is True"),
        ({"t": "1"}, "'t' is '1'"),
        ({"t": None}, "'t' is None"),
        ({"t": MAX_ARRIVAL_S * 2}, "'t' is"),
        ({"t": 10**400}, "'t' is 1000"),
        ({"id": None}, "'id' is null"),
        ({"id": True}, "'id' is True"),
        ({"id": 1.5}, "'id' is 1.5"),
        ({"id": -1}, "'id' is -1"),
        ({"id": ""}, "'id' is ''"),
        ({"id": "x" * 1_000_000}, "'id' is 'xxx"),
        ({"id": []}, r"'id' is []"),
        ({"parent": {}}, "'parent' is {}"),
        ({"blocks": None}, "only one of"),
        ({"block_size": None}, "only one of"),
        ({"block_size": 0}, "'block_size' is 0"),
        ({"block_size": 64.0}, "'block_size' is 64.0"),
        ({"blocks": [0]}, "1 ids in 'blocks' for a prompt of 130 tokens in blocks of 64"),
        ({"blocks": [0, 1, 2, 3]}, "4 ids"),
        ({"blocks": "abc"}, "'blocks' is 'abc'"),
        ({"blocks": {"0": 1, "1": 2, "2": 3}}, "'blocks' is {"),
        ({"blocks": [0, 1, True]}, "True in 'blocks'"),
        ({"blocks": [0, 1, None]}, "None in 'blocks'"),
        ({"blocks": [0, -1, 2]}, "-1 in 'blocks'"),
        ({"blocks": [0, 1, 2.0]}, "2.0 in 'blocks'"),
        ({"blocks": [0, 1, MAX_BLOCK_ID + 1]}, f"{MAX_BLOCK_ID + 1} in 'blocks'"),
        (
            {"in": MAX_TOKENS, "block_size": 1, "blocks": [1] * (MAX_BLOCK_IDS + 1)},
            f"{MAX_BLOCK_IDS + 1} ids",
        ),
    ],
)
def test_a_wrong_value_is_quoted(
    trace_file: Write, normalised_line: Make, changes: dict[str, object], said: str
) -> None:
    path = trace_file(normalised_line() + normalised_line(**changes) + normalised_line())
    assert complaint(path, 2).startswith(said)


@pytest.mark.parametrize("blank", [b"\n", b"  \r\n", b"\t\n\n\n"])
def test_a_blank_line_before_others_is_refused_with_its_number(
    trace_file: Write, normalised_line: Make, blank: bytes
) -> None:
    path = trace_file(normalised_line() + normalised_line() + blank + normalised_line())
    assert complaint(path, 3) == "blank, and others follow; remove it, or put back what is missing"
    with pytest.raises(InputError, match="line 1: blank"):
        open_trace(trace_file(blank + normalised_line()))


@pytest.mark.parametrize("ids", [2, 3])
def test_a_partial_last_block_may_have_an_id_or_not(
    trace_file: Write, normalised_line: Make, ids: int
) -> None:
    (request,) = open_trace(trace_file(normalised_line(blocks=list(range(ids)))))
    assert request.block_ids == tuple(range(ids))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "no JSON"),
        (b'{"t": 1.5, "in": 13', "no JSON"),
        (b"nonsense", "no JSON"),
        (b"{} {}", "no JSON"),
        (b"[]", "a JSON list"),
        (b"3", "a JSON int"),
        (b"null", "a JSON NoneType"),
        (b'{"in": 1, "in": 2}', "key 'in' twice"),
        (b'{"t": 1, "x": {"a": 1, "a": 1}}', "key 'a' twice"),
        (b'{"in": ' + b"9" * 5_000 + b"}", "a number of thousands of digits; write numbers of at most 20"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "JSON nested too deeply"),
        (b'{"t": 1e999, "in": 1}', "no key 'blocks'"),
        (b'{"id": "\xff"}', "byte 9 is no UTF-8"),
        (b"\x00", "no JSON"),
    ],
)
def test_a_line_that_is_no_object_is_refused(
    trace_file: Write, normalised_line: Make, line: bytes, said: str
) -> None:
    assert complaint(trace_file(normalised_line() + line + b"\n"), 2).startswith(said)


def test_infinity_by_overflow_is_refused(trace_file: Write, normalised_line: Make) -> None:
    line = normalised_line().replace(b"1.5", b"1e999")
    assert complaint(trace_file(line), 1).startswith("'t' is inf")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"2023-11-16 18:15:46,374", "2 fields"),
        (b"2023-11-16 18:15:46,374,44,1", "4 fields"),
        (b"2023-11-16 18:15:46,,44", "ContextTokens ''"),
        (b"2023-11-16 18:15:46,0,44", "'ContextTokens' is 0"),
        (b"2023-11-16 18:15:46,374,-1", "GeneratedTokens '-1'"),
        (b"2023-11-16 18:15:46,374,4.0", "GeneratedTokens '4.0'"),
        (b"2023-11-16 18:15:46,374,1_0", "GeneratedTokens '1_0'"),
        (b"2023-11-16 18:15:46,374,nan", "GeneratedTokens 'nan'"),
        ("2023-11-16 18:15:46,374,٣".encode(), "GeneratedTokens '٣'"),
        (b"2023-11-16 18:15:46,374," + b"9" * 100_000, "GeneratedTokens '999"),
        (b"2023-11-16 18:15:46,374,99999999", "'GeneratedTokens' is 99999999"),
        (b"2023-11-16 18:15:44,374,44", "TIMESTAMP '2023-11-16 18:15:44', earlier than the first row"),
        (b"9999-11-16 18:15:44,374,44", "TIMESTAMP '9999-11-16 18:15:44', millennia"),
        (b"yesterday,374,44", "TIMESTAMP 'yesterday'"),
        (b'"2023-11-16 18:15:46,374,44', "no CSV row"),
        (b'"' + b"x" * 200_000 + b'",374,44', "no CSV row"),
    ],
)
def test_a_wrong_row_is_quoted(trace_file: Write, row: bytes, said: str) -> None:
    good = b"2023-11-16 18:15:45,374,44\n"
    assert complaint(trace_file(AZURE_HEADER + good + row + b"\n" + good), 3).startswith(said)


def test_mooncake_blocks_are_of_512(trace_file: Write) -> None:
    line = b'{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1, 2]}\n'
    assert "in blocks of 512; give 1 ids" in complaint(trace_file(line), 1)


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_mooncake_line_without_a_key_is_refused(trace_file: Write, key: str) -> None:
    line = b'{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]}\n'
    assert complaint(trace_file(line + line.replace(key.encode(), b"x")), 2).startswith(f"no key '{key}'")


def test_a_truncated_gzip_names_the_line_that_is_lost(trace_file: Write, normalised_line: Make) -> None:
    content = b"".join(normalised_line(id=i, t=i * 1.37) for i in range(3_000))
    path = trace_file(gzip.compress(content)[:-2_000])
    read: list[TraceRequest] = []
    with pytest.raises(InputError, match="gzip data end early; the file was cut short") as caught:
        read.extend(open_trace(path))
    assert len(read) > 100
    assert f"line {len(read) + 1}:" in str(caught.value)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_gzip_cut_anywhere_at_its_start_is_an_input_error(trace_file: Write, cut: int) -> None:
    with pytest.raises(InputError):
        list(open_trace(trace_file(gzip.compress(AZURE_HEADER)[:cut])))


def test_a_gzip_whose_checksum_is_wrong_is_refused(trace_file: Write, normalised_line: Make) -> None:
    packed = bytearray(gzip.compress(normalised_line()))
    packed[-8] ^= 1
    assert "damaged gzip" in complaint(trace_file(bytes(packed)), 2)


def test_rubbish_after_a_gzip_is_refused(trace_file: Write, normalised_line: Make) -> None:
    assert "damaged gzip" in complaint(trace_file(gzip.compress(normalised_line()) + b"rubbish"), 2)


def test_a_gzip_bomb_costs_neither_time_nor_memory(trace_file: Write, normalised_line: Make) -> None:
    bomb = trace_file(gzip.compress(normalised_line() + (b" " * 1023 + b"\n") * (1 << 16)))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="no trace compresses 200 times") as caught:
            list(open_trace(bomb))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = re.search(r"line (\d+): (\d+) bytes out of (\d+)", str(caught.value))
    assert found is not None
    line, unpacked_bytes, packed_bytes = map(int, found.groups())
    # Noticed at the first line that passes the ratio, which is long before the end.
    assert (line - 1) * 1024 <= unpacked_bytes < 201 * packed_bytes
    assert unpacked_bytes < 16 << 20
    assert peak_bytes < 4 << 20


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_without_end_is_refused_before_it_is_whole(
    trace_file: Write, normalised_line: Make, pack: Callable[[bytes], bytes]
) -> None:
    # Random, so that it passes as no bomb.
    path = trace_file(pack(normalised_line() + random.Random(0).randbytes(8 << 20).replace(b"\n", b"")))
    tracemalloc.start()
    try:
        said = complaint(path, 2)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said.startswith(f"more than {MAX_LINE_BYTES} bytes in one line")
    assert peak_bytes < 2.5 * MAX_LINE_BYTES


def test_totals_are_limited(
    trace_file: Write, normalised_line: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace_file(normalised_line() * 5)
    monkeypatch.setattr(reader, "MAX_REQUESTS", 3)
    assert complaint(path, 4).startswith("more than 3 requests")
    monkeypatch.setattr(lines, "MAX_TOTAL_BYTES", 2 * len(normalised_line()))
    assert complaint(path, 3).startswith("more than")


def test_memory_does_not_grow_with_the_trace(trace_file: Write, normalised_line: Make) -> None:
    peaks = []
    for count in (2_000, 20_000):
        path = trace_file(normalised_line() * count)
        tracemalloc.start()
        try:
            assert sum(1 for _ in open_trace(path)) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


@given(first=st.text(max_size=60), line=st.text(max_size=60) | st.binary(max_size=60).map(bytes.hex))
def test_any_text_is_a_request_or_malformed(first: str, line: str) -> None:
    for header in (first, AZURE_HEADER.decode(), '{"t": 0, "in": 1}', '{"hash_ids": 0}'):
        try:
            _, parse = recognise(header)
            request = parse(line, 0)
        except Malformed:
            continue
        assert isinstance(request, TraceRequest)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    changes=st.dictionaries(st.sampled_from(["t", "in", "out", "blocks", "block_size", "parent", "id"]), JSON)
)
def test_any_values_are_a_sound_request_or_malformed(
    normalised_line: Make, changes: dict[str, object]
) -> None:
    line = normalised_line(**changes).decode()
    try:
        _, parse = recognise(line)
        request = parse(line, 0)
    except Malformed:
        return
    assert 0 <= request.arrival_s <= MAX_ARRIVAL_S
    assert 1 <= request.prompt_tokens <= MAX_TOKENS
    assert 0 <= request.output_tokens <= MAX_TOKENS
    assert (request.block_ids is None) == (request.block_size is None)
    assert not isinstance(request.id, bool)
