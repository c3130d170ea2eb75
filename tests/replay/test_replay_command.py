"""The replay command: exit statuses, JSON and table, input errors, and the recorded traces where they are at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from kvcrucible.cli import replay as replay_command
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.pages import PageLedger
from kvcrucible.perf import replay_input
from kvcrucible.perf.traces import TraceRequest, write_trace

Invoke = Callable[..., Result]


@pytest.fixture
def trace_file(tmp_path: Path, small_trace: list[TraceRequest]) -> Path:
    path = tmp_path / "small[bold].jsonl"
    write_trace(path, small_trace)
    return path


@pytest.fixture
def invoke() -> Invoke:
    app = typer.Typer()
    replay_command.register(app)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


SMALL = ("--capacity-pages", 60, "--page-size", 16, "--concurrency", 4, "--full-every", 100)


def test_json_has_the_figures_and_nothing_else(invoke: Invoke, trace_file: Path) -> None:
    first, again = (invoke(trace_file, *SMALL, "--json") for _ in range(2))
    assert first.exit_code == ExitStatus.HELD
    assert first.stderr == ""
    plain, repeated = json.loads(first.stdout), json.loads(again.stdout)
    assert plain["held"] is True
    assert plain["violations"] == []
    assert plain["trace"] == trace_file.name
    assert plain["trace_requests"] == plain["requests"] == 150
    assert (plain["capacity_pages"], plain["page_size"]) == (60, 16)
    assert plain.pop("timing")["cpu_seconds"] > 0
    assert repeated.pop("timing")
    assert plain == repeated


def test_table_names_what_was_asked_for(invoke: Invoke, trace_file: Path) -> None:
    result = invoke(trace_file, *SMALL)
    assert result.exit_code == ExitStatus.HELD
    assert "small[bold].jsonl" in result.stdout
    for figure in (
        "admitted, cold",
        "admitted, fork",
        "admitted, move",
        "refused, limit-exceeded",
        "prompt tokens",
        "hit ratio",
        "ideal hit ratio, whole blocks",
        "appended tokens",
        "page grants",
        "peak leased pages",
        "evictions",
        "allocator calls",
        "page copies",
        "steps checked",
        "full checks",
        "violations",
        "CPU seconds",
        "operations per second",
    ):
        assert figure in result.stdout
    assert "\x1b" not in result.stdout


def test_limit_takes_the_head_of_the_trace(invoke: Invoke, trace_file: Path) -> None:
    assert json.loads(invoke(trace_file, *SMALL, "--limit", 7, "--json").stdout)["requests"] == 7


def test_a_violation_exits_1_and_names_invariant_operation_and_request(
    invoke: Invoke, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageLedger, "share", lambda self, pages: None)
    result = invoke(trace_file, *SMALL)
    assert result.exit_code == ExitStatus.VIOLATION
    assert "VIOLATION operation " in result.stderr
    assert "request " in result.stderr
    assert "refcount-exact" in result.stderr
    as_json = invoke(trace_file, *SMALL, "--json")
    assert as_json.exit_code == ExitStatus.VIOLATION
    plain = json.loads(as_json.stdout)
    assert plain["held"] is False
    assert plain["violations"][0]["invariant"] == "refcount-exact"
    assert plain["failure"]["requests"]


def lengths(folder: Path, *requests: tuple[int, int], blocks: bool = False) -> Path:
    """Write a trace of (prompt, output) lengths; with ``blocks`` every prompt starts like the others."""
    path = folder / "lengths.jsonl"
    write_trace(
        path,
        [
            TraceRequest(
                ordinal,
                0.0,
                prompt,
                output,
                tuple(range(prompt // 16)) if blocks else None,
                16 if blocks else None,
                None,
            )
            for ordinal, (prompt, output) in enumerate(requests)
        ],
    )
    return path


def test_a_replay_of_nothing_is_inconclusive_and_says_what_would_fit(invoke: Invoke, tmp_path: Path) -> None:
    path = lengths(tmp_path, (100, 30), (1_000, 24))
    options = ("--capacity-pages", 2, "--page-size", 64)
    result = invoke(path, *options)
    assert result.exit_code == ExitStatus.INCONCLUSIVE
    assert "INCONCLUSIVE: nothing was replayed, 2 of 2 requests were refused" in result.stderr
    assert "they need 3 to 16 pages of 64, the pool has 2" in result.stderr
    assert "--capacity-pages 16" in result.stderr
    plain = json.loads(invoke(path, *options, "--json").stdout)
    assert (plain["held"], plain["inconclusive"]) == (False, True)
    # The remedy that it names is one.
    remedied = invoke(path, "--capacity-pages", 16, "--page-size", 64, "--json")
    assert remedied.exit_code == ExitStatus.HELD
    assert json.loads(remedied.stdout)["refused"] == {}


def test_refused_requests_among_others_are_told_with_the_option_that_lets_them_in(
    invoke: Invoke, tmp_path: Path
) -> None:
    result = invoke(lengths(tmp_path, (100, 30), (1_000, 24)), "--max-context", 200)
    assert result.exit_code == ExitStatus.HELD
    assert "1 of 2 requests were refused" in result.stderr
    assert "--max-context 1024" in result.stderr
    assert "--capacity-pages" not in result.stderr


def test_few_hits_are_explained(invoke: Invoke, tmp_path: Path) -> None:
    path = lengths(tmp_path, *[(160, 8)] * 6, blocks=True)
    together = invoke(path, "--page-size", 16)
    assert " ".join(together.stdout.split()).count("all 6 requests run at the same time") == 1
    alone = invoke(path, "--page-size", 16, "--concurrency", 1)
    assert "Few hits" not in alone.stdout


def test_an_interrupt_prints_partial_figures_and_exits_130(
    invoke: Invoke, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(engine: Engine, sequence: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "checkpoint", interrupted)
    result = invoke(trace_file, *SMALL)
    assert result.exit_code == ExitStatus.INTERRUPTED
    assert "CUT SHORT" in result.stdout
    assert "cut short" in result.stderr


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda text: text.replace('"in"', '"inn"', 1), "1"),
        (lambda text: text[: len(text) - 30], "150"),
    ],
)
def test_a_malformed_or_truncated_line_is_an_input_error_that_names_the_line(
    invoke: Invoke, trace_file: Path, spoil: Callable[[str], str], named: str
) -> None:
    trace_file.write_text(spoil(trace_file.read_text("utf-8")), encoding="utf-8")
    error = invoke(trace_file, *SMALL).exception
    assert isinstance(error, InputError)
    assert f"line {named}" in str(error) or f":{named}" in str(error)


def test_other_input_errors(invoke: Invoke, trace_file: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert isinstance(invoke(empty).exception, InputError)
    assert isinstance(invoke(tmp_path / "absent.jsonl").exception, InputError)
    assert isinstance(invoke(trace_file, "--page-size", 48).exception, InputError)
    assert invoke(trace_file, "--capacity-pages", 0).exit_code == ExitStatus.USAGE


def test_blocks_of_two_sizes_are_an_input_error(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    sizes = (None, 16, None, 64)
    write_trace(
        path,
        [
            TraceRequest(f"r{number}", 0.0, 64, 1, (7,) * (64 // size) if size else None, size, None)
            for number, size in enumerate(sizes)
        ],
    )
    error = invoke(path).exception
    assert isinstance(error, InputError)
    assert "r3" in str(error)


@pytest.mark.parametrize(("limit", "most"), [("MAX_REPLAY_REQUESTS", 149), ("MAX_REPLAY_BLOCK_IDS", 100)])
def test_what_cannot_be_held_is_an_input_error_with_the_limit_to_use(
    invoke: Invoke, trace_file: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(replay_input, limit, most)
    error = invoke(trace_file, *SMALL).exception
    assert isinstance(error, InputError)
    advised = int(str(error).rsplit(" ", 1)[1])
    assert invoke(trace_file, *SMALL, "--limit", advised).exit_code == ExitStatus.HELD
    assert isinstance(invoke(trace_file, *SMALL, "--limit", advised + 1).exception, InputError)


def test_requests_come_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "unsorted.jsonl"
    arrivals = (3.0, 1.0, 2.0, 1.0)
    write_trace(
        path, [TraceRequest(n, arrival, 9, 1, None, None, None) for n, arrival in enumerate(arrivals)]
    )
    assert [request.id for request in replay_input.load_requests(path)] == [1, 3, 2, 0]
    assert [request.id for request in replay_input.load_requests(path, 2)] == [1, 0]


def test_torch_and_numpy_are_not_needed(trace_file: Path) -> None:
    code = (
        "import sys, typer\n"
        "from kvcrucible.cli import replay\n"
        "app = typer.Typer()\n"
        "replay.register(app)\n"
        "app(standalone_mode=False)\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()\n"
    )
    command = [sys.executable, "-c", code, str(trace_file), "--limit", "5", "--json"]
    assert json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["held"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "sharegpt_blk16.jsonl.gz",
            ("--capacity-pages", 2000, "--page-size", 16),
            {"requests": 300, "prompt_tokens": 257_239, "appended_tokens": 195_753, "ideal": 7.6},
        ),
        (
            "mooncake_conversation.jsonl.gz",
            ("--capacity-pages", 20_000, "--limit", 300),
            {"requests": 300, "prompt_tokens": 4_269_971, "appended_tokens": 113_079, "ideal": 8.1},
        ),
    ],
)
def test_recorded_traces(
    invoke: Invoke,
    from_data: Callable[[str], Path],
    name: str,
    options: tuple[Any, ...],
    expected: dict[str, Any],
) -> None:
    judge(invoke, from_data(f"traces/{name}"), options, expected)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "mooncake_conversation.jsonl.gz",
            {
                "requests": 12_031,
                "prompt_tokens": 144_793_823,
                "appended_tokens": 4_122_048,
                "ideal": 37.4,
            },
        ),
        (
            "azure2023_conv.jsonl.gz",
            {"requests": 19_366, "prompt_tokens": 22_361_870, "appended_tokens": 4_088_665, "ideal": 0.0},
        ),
        (
            "claudecode_subagents.jsonl.gz",
            {"requests": 626, "prompt_tokens": 51_797_070, "appended_tokens": 302_999, "ideal": 94.2},
        ),
    ],
)
def test_whole_recorded_traces(
    invoke: Invoke, from_data: Callable[[str], Path], name: str, expected: dict[str, Any]
) -> None:
    judge(invoke, from_data(f"traces/{name}"), ("--capacity-pages", 20_000), expected)


def judge(invoke: Invoke, trace: Path, options: tuple[Any, ...], expected: dict[str, Any]) -> None:
    result = invoke(trace, *options, "--json")
    assert result.exit_code == ExitStatus.HELD, result.stderr
    plain = json.loads(result.stdout)
    assert plain["held"] is True
    assert round(100 * plain["ideal_block_hit_ratio"], 1) == expected.pop("ideal")
    assert {name: plain[name] for name in expected} == expected
    assert plain["finished"] == plain["requests"]
