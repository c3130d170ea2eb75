"""``kvcrucible check`` and ``kvcrucible replay --history``: statuses, output, standard input."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from histories import story, write

from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement


def kvcrucible(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "kvcrucible", *map(str, arguments)], input=stdin, capture_output=True
    )


def test_statuses_and_words(tmp_path: Path) -> None:
    lines = story(tmp_path)
    right = write(lines, tmp_path / "right.jsonl")
    done = kvcrucible("check", right)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"PASS: 42 operations" in done.stdout
    # One line, whatever is not judged; the reasons are for who asks.
    assert done.stdout.count(b"\n") == 2
    told = json.loads(kvcrucible("check", right, "--json").stdout)["not_judged"]
    assert told["backend-not-ahead"] == "there is no speculative backend"
    names = ", ".join(sorted(told)).encode()
    # Not every reason is that the history does not show it: an engine that lacks a part leaves nothing to show.
    assert b"\nnot judged: %d (%s); --json says why\n" % (len(told), names) in done.stdout

    lines[6]["work"][0]["pages"] = [[2]]
    failed = kvcrucible("check", write(lines, tmp_path / "wrong.jsonl"))
    assert failed.returncode == 1
    assert b"FAIL at line 7\nrule: lease-unique\npage 2 granted to sequence 0" in failed.stdout

    unknown = kvcrucible("check", "-", "--json", stdin=right.read_bytes()[:-80])
    assert unknown.returncode == 3
    assert json.loads(unknown.stdout)["verdict"] == "unknown"
    assert kvcrucible("check", "-", stdin=right.read_bytes()).returncode == 0
    capped = kvcrucible("check", right, "--max-live", 20)
    assert (capped.returncode, b"--max-live" in capped.stdout) == (3, True)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08\x00", b"[" * 100_000, b'{"format":"other"}\n'])
def test_what_is_no_history_is_a_usage_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd\x1b[31m.jsonl"
    path.write_bytes(content)
    done = kvcrucible("check", path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: ")
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stderr


def test_the_checker_needs_neither_torch_nor_the_engine() -> None:
    program = (
        "import sys, kvcrucible.invariants.history;"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy') or m.startswith('kvcrucible.engine')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_history_of_a_replay_passes(tmp_path: Path) -> None:
    """A made-up trace: shared blocks, a pool that is too small for all, chunks and decode runs."""
    trace = tmp_path / "trace.jsonl.gz"
    requests = [
        {
            "t": i,
            "in": 40 + i % 30,
            "out": 5 + i % 11,
            "blocks": _blocks(i),
            "block_size": 16,
            "parent": None,
            "id": i,
        }
        for i in range(60)
    ]
    with gzip.open(trace, "wt") as file:
        file.write("".join(json.dumps(request) + "\n" for request in requests))
    path = tmp_path / "h.jsonl"
    options = [
        "--capacity-pages",
        40,
        "--page-size",
        16,
        "--concurrency",
        4,
        "--prefill-chunk",
        24,
        "--decode-run",
        3,
    ]
    done = kvcrucible("replay", trace, *options, "--history", path, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["evictions"] > 0
    verdict = check_file(path)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)
    assert verdict.operations == figures["operations"]


def _blocks(i: int) -> list[int]:
    tokens = 40 + i % 30
    return [block if block < 1 + i % 3 else 100 * i + block for block in range(-(-tokens // 16))]


@pytest.mark.data
@pytest.mark.parametrize(
    ("trace", "options"),
    [
        ("mooncake_conversation", ["--limit", 150, "--capacity-pages", 4000]),
        ("sharegpt_blk16", ["--page-size", 16, "--capacity-pages", 1200, "--decode-run", 16]),
        ("claudecode_subagents", ["--limit", 60, "--capacity-pages", 9000]),
    ],
)
def test_the_history_of_a_recorded_trace_passes(
    trace: str, options: list[object], tmp_path: Path, from_data: Callable[[str], Path]
) -> None:
    source = from_data(f"traces/{trace}.jsonl.gz")
    path = tmp_path / "h.jsonl"
    assert kvcrucible("replay", source, *options, "--history", path).returncode == 0
    verdict = check_file(path)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)
