"""Replay with safe backfill: requests pass a head that waits, and the history says so (decision 0021)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli import replay as replay_command
from kvcrucible.contract.config import MAX_LOOKAHEAD
from kvcrucible.contract.errors import ExitStatus
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement
from kvcrucible.perf.replay import Replay
from kvcrucible.perf.replay_settings import ReplaySettings
from kvcrucible.perf.traces import TraceRequest, write_trace


def mixed(count: int) -> list[TraceRequest]:
    """Return requests of which every fourth takes most of the small pool, so that short ones find room beside it."""
    return [
        TraceRequest(
            id=number,
            arrival_s=float(number),
            prompt_tokens=640 if number % 4 == 1 else 48,
            output_tokens=64 if number % 4 == 0 else 16,
            block_ids=None,
            block_size=None,
            parent=None,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("host_pages", [0, 100])
def test_short_requests_pass_a_long_one_that_waits(
    host_pages: int, small_settings: ReplaySettings, tmp_path: Path
) -> None:
    settings, path = replace(small_settings, host_pages=host_pages), tmp_path / "passing.jsonl"
    in_order = Replay(mixed(60), settings).run()
    passing = Replay(mixed(60), replace(settings, lookahead=3), history=path).run()
    assert in_order.held
    assert passing.held
    assert in_order.backfilled == 0
    assert passing.backfilled > 3
    assert passing.finished == in_order.finished == 60
    verdict = check_file(path)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)
    # Judged by what the header says: without it nobody may pass.
    header, *lines = path.read_text("utf-8").splitlines(keepends=True)
    plain = json.loads(header)
    assert plain.pop("lookahead") == 3
    path.write_text(json.dumps(plain) + "\n" + "".join(lines), "utf-8")
    assert check_file(path).rule == "admission-order"


def test_the_command_takes_it_within_bounds(tmp_path: Path) -> None:
    path, app = tmp_path / "mixed.jsonl", typer.Typer()
    write_trace(path, mixed(40))
    replay_command.register(app)

    def invoke(*more: object) -> tuple[int, str]:
        options = ["--capacity-pages", "60", "--page-size", "16", "--concurrency", "4"]
        options += ["--decode-run", "16", "--prefill-chunk", "64"]
        found = CliRunner().invoke(app, [str(path), *options, *map(str, more)])
        return found.exit_code, found.stdout

    status, out = invoke("--lookahead", 3, "--json")
    assert status == ExitStatus.HELD
    assert json.loads(out)["lookahead"] == 3
    assert json.loads(out)["backfilled"] > 0
    assert "past a head that waited" in invoke("--lookahead", 3)[1]
    assert "past a head that waited" not in invoke()[1]
    for wrong in (-1, MAX_LOOKAHEAD + 1, "many"):
        assert invoke("--lookahead", wrong)[0] == ExitStatus.USAGE
