"""Each format comes down to the same requests, whatever the file is called and however it is packed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces import TraceFormat, TraceRequest, open_trace

NORMALISED = (
    b'{"t":0.0,"in":130,"out":7,"blocks":[0,1,2],"block_size":64,"parent":null,"id":0}\n'
    b'{"t":2,"in":64,"out":0,"blocks":[5],"block_size":64,"parent":0,"id":"b"}\n'
    b'{"t":3.25,"in":9,"out":1,"blocks":null,"block_size":null,"parent":"b","id":2,"session":1}\n'
)
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]}\n'
    b'{"timestamp": 3052, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n'
)
AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2023-11-16 18:15:46.6805900,374,44\n"
    b"2023-11-16 18:15:50.9951690,396,109\n"
)

EXPECTED: dict[bytes, tuple[TraceFormat, list[TraceRequest]]] = {
    NORMALISED: (
        TraceFormat.NORMALISED,
        [
            TraceRequest(0, 0.0, 130, 7, (0, 1, 2), 64, None),
            TraceRequest("b", 2.0, 64, 0, (5,), 64, 0),
            TraceRequest(2, 3.25, 9, 1, None, None, "b"),
        ],
    ),
    MOONCAKE: (
        TraceFormat.MOONCAKE,
        [
            TraceRequest(0, 0.0, 600, 50, (0, 1), 512, None),
            TraceRequest(1, 3.052, 512, 1, (0,), 512, None),
        ],
    ),
    AZURE: (
        TraceFormat.AZURE,
        [
            TraceRequest(0, 0.0, 374, 44, None, None, None),
            TraceRequest(1, 4.314579, 396, 109, None, None, None),
        ],
    ),
}


def _no_final_newline(content: bytes) -> bytes:
    return content.rstrip(b"\n")


def _windows(content: bytes) -> bytes:
    return b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")


def _blank_end(content: bytes) -> bytes:
    return content + b"\t\n\r\n\n"


def _two_members(content: bytes) -> bytes:
    half = len(content) // 2
    return gzip.compress(content[:half]) + gzip.compress(content[half:])


PACKINGS: tuple[Callable[[bytes], bytes], ...] = (
    bytes,
    gzip.compress,
    _no_final_newline,
    _windows,
    lambda content: gzip.compress(_windows(content)),
    _blank_end,
    _two_members,
)


@pytest.mark.parametrize("content", EXPECTED, ids=["normalised", "mooncake", "azure"])
@pytest.mark.parametrize("pack", PACKINGS)
def test_a_format_is_known_by_its_content(
    trace_file: Callable[[bytes], Path], content: bytes, pack: Callable[[bytes], bytes]
) -> None:
    trace_format, requests = EXPECTED[content]
    packed = pack(content)
    with open_trace(trace_file(packed)) as trace:
        assert trace.info.format is trace_format
        assert trace.info.is_gzip == packed.startswith(b"\x1f\x8b")
        assert list(trace) == requests
        assert trace.bytes_read == trace.total_bytes == len(packed)


def test_azure_columns_are_found_by_name_in_any_order(trace_file: Callable[[bytes], Path]) -> None:
    content = (
        b'Model,GeneratedTokens,"ContextTokens",TIMESTAMP\n'
        b'"a,b",1,2,2024-05-10 00:00:00+00:00\n'
        b"c,3,4,2024-05-10 01:00:01+01:00\n"
    )
    requests = list(open_trace(trace_file(content)))
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in requests] == [(0, 2, 1), (1, 4, 3)]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (99, 3), (None, 3)])
def test_the_limit_ends_the_pass(trace_file: Callable[[bytes], Path], limit: int | None, count: int) -> None:
    trace = open_trace(trace_file(NORMALISED), limit)
    assert len(list(trace)) == count
    assert list(trace) == []


def test_what_lies_beyond_the_limit_is_not_judged(trace_file: Callable[[bytes], Path]) -> None:
    assert len(list(open_trace(trace_file(NORMALISED + b"rubbish\n"), limit=3))) == 3


def test_a_closed_trace_gives_nothing_more(trace_file: Callable[[bytes], Path]) -> None:
    with open_trace(trace_file(NORMALISED)) as trace:
        next(trace)
    assert list(trace) == []
    trace.close()


def test_the_pass_is_told_as_it_goes(trace_file: Callable[[bytes], Path]) -> None:
    line = b'{"t":0,"in":1,"out":1,"blocks":null,"block_size":null,"parent":null,"id":0}\n'
    trace = open_trace(trace_file(line * 10_000))
    seen = [trace.bytes_read for _ in trace]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[5_000] < seen[-1] == trace.total_bytes


def test_a_pipe_is_read_without_a_total(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(AZURE),))
    writer.start()
    trace = open_trace(pipe)
    assert trace.total_bytes is None
    assert list(trace) == EXPECTED[AZURE][1]
    writer.join()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "a header and no request"),
        (b"TIMESTAMP,ContextTokens\n", "line 1: 0 columns GeneratedTokens"),
        (b"TIMESTAMP,TIMESTAMP,ContextTokens,GeneratedTokens\n", "line 1: 2 columns TIMESTAMP"),
        (b"TIMESTAMP;ContextTokens;GeneratedTokens\n", "line 1: no trace format"),
        (b"# a text\n", "line 1: no trace format"),
        (b'{"id": "81.0", "accept": [2, 4]}\n', "line 1: no trace format.*'accept'"),
        (b"[1, 2]\n", "line 1: a JSON list"),
        (b"\x00\x01\x02\x03\n", "line 1: no trace format"),
        (b"PK\x03\x04....", "zip archive"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (lzma.compress(NORMALISED), "xz"),
        (bz2.compress(NORMALISED), "bzip2"),
        (NORMALISED.decode().encode("utf-16"), "UTF-16"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_when_it_is_opened_or_first_read(
    trace_file: Callable[[bytes], Path], content: bytes, said: str
) -> None:
    path = trace_file(content)
    with pytest.raises(InputError, match=said) as caught:
        next(open_trace(path))
    assert str(caught.value).startswith(str(path))


def test_what_cannot_be_opened_is_an_input_error(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "absent", "cannot be opened"),
        (tmp_path, "a folder; name one trace in it"),
    ):
        with pytest.raises(InputError, match=said):
            open_trace(path)
    with pytest.raises(InputError, match="limit of 0"):
        open_trace(tmp_path / "absent", limit=0)


@pytest.mark.data
def test_recorded_traces_read_whole(recorded: Callable[[str], Path]) -> None:
    counts = {
        "mooncake_conversation": (12_031, 512, 144_793_823),
        "azure2023_conv": (19_366, None, 22_361_870),
        "claudecode_subagents": (626, 64, None),
        "sharegpt_blk16": (300, 16, None),
    }
    for name, (count, block_size, prompt_tokens) in counts.items():
        requests = list(open_trace(recorded(name)))
        assert len(requests) == count
        assert {request.block_size for request in requests} == {block_size}
        if prompt_tokens is not None:
            assert sum(request.prompt_tokens for request in requests) == prompt_tokens


@pytest.mark.data
def test_recorded_traces_read_the_same_in_their_public_formats(
    recorded: Callable[[str], Path], trace_file: Callable[[bytes], Path]
) -> None:
    requests = list(open_trace(recorded("mooncake_conversation"), limit=300))
    public = "".join(
        json.dumps(
            {
                "timestamp": round(r.arrival_s * 1000),
                "input_length": r.prompt_tokens,
                "output_length": r.output_tokens,
                "hash_ids": r.block_ids,
            }
        )
        + "\n"
        for r in requests
    )
    assert list(open_trace(trace_file(public.encode()))) == requests


@pytest.mark.data
def test_a_recording_that_is_no_request_trace_is_told_apart(recorded: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match="line 1: no trace format"):
        open_trace(recorded("spec_rest_mtbench"))
