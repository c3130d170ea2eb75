"""Replay with a Host tier: what sinks comes back, the figures add up, and its history holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli import replay as replay_command
from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.engine import relief
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement
from kvcrucible.perf.replay import Replay
from kvcrucible.perf.replay_figures import Figures
from kvcrucible.perf.replay_settings import ReplaySettings
from kvcrucible.perf.traces import TraceRequest, write_trace

Trace = list[TraceRequest]


def add_up(figures: Figures) -> None:
    gap = figures.gap
    assert min(gap.values()) >= 0
    assert figures.hit_tokens + sum(gap.values()) == figures.prompt_tokens
    hits = sum(times for mode, times in figures.admitted.items() if mode != "cold")
    assert figures.device_hits + figures.host_hits == hits


@pytest.mark.parametrize("policy", ["lru", "cost-aware"])
def test_a_host_tier_keeps_what_would_be_lost(
    small_trace: Trace, small_settings: ReplaySettings, policy: str, tmp_path: Path
) -> None:
    settings = replace(small_settings, policy=policy)
    without = Replay(small_trace, settings).run()
    history = tmp_path / "host.jsonl"
    with_host = Replay(small_trace, replace(settings, host_pages=400), history=history).run()
    assert without.held
    assert with_host.held
    add_up(without)
    add_up(with_host)
    assert without.prompt_tokens == with_host.prompt_tokens
    assert (without.host_hits, without.sunk, without.bytes_restored) == (0, 0, 0)
    assert with_host.host_hits > 5
    assert with_host.sunk > 20
    assert with_host.pages_restored > 0
    assert with_host.bytes_restored % (16 * 131_072) == 0
    assert without.gap["lost"] > 2 * with_host.gap["lost"]
    assert with_host.peak_continuations > without.peak_continuations
    assert with_host.judged["one-visible-replica"] > 0
    verdict = check_file(history)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)


def test_a_small_host_tier_makes_room_for_itself(
    small_trace: Trace, small_settings: ReplaySettings, tmp_path: Path
) -> None:
    history = tmp_path / "tight.jsonl"
    figures = Replay(small_trace, replace(small_settings, host_pages=40), history=history).run()
    assert figures.held
    assert figures.sunk > 5
    assert figures.evictions > 5
    lines = history.read_text("utf-8")
    assert '"evicted":[' in lines
    assert check_file(history).judgement is Judgement.PASS


def test_waiting_for_ever_is_a_violation(
    small_trace: Trace, small_settings: ReplaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relief, "sinking", lambda engine, request: True)
    figures = Replay(small_trace, replace(small_settings, host_pages=40)).run()
    assert figures.failure is not None
    assert "completion-guarantee" in {one.invariant for one in figures.failure.violations}


@pytest.fixture
def invoke(tmp_path: Path, small_trace: Trace) -> Callable[..., object]:
    path = tmp_path / "small.jsonl"
    write_trace(path, small_trace)
    app = typer.Typer()
    replay_command.register(app)
    options = ["--capacity-pages", "60", "--page-size", "16", "--concurrency", "4"]
    return lambda *more: CliRunner().invoke(app, [str(path), *options, *map(str, more)])


def test_the_command_tells_what_sank_and_came_back(invoke: Callable[..., object]) -> None:
    plain = invoke("--host-pages", 400, "--policy", "cost-aware", "--json")
    assert plain.exit_code == ExitStatus.HELD  # type: ignore[attr-defined]
    told = json.loads(plain.stdout)  # type: ignore[attr-defined]
    assert (told["host_pages"], told["policy"]) == (400, "cost-aware")
    assert told["host_hits"] > 0
    shown = invoke("--host-pages", 400)
    assert "hits on Host" in shown.output  # type: ignore[attr-defined]
    assert "no hit, not findable yet" in shown.output  # type: ignore[attr-defined]
    assert "hits on Host" not in invoke().output  # type: ignore[attr-defined]


def test_an_unknown_policy_is_refused(invoke: Callable[..., object]) -> None:
    found = invoke("--policy", "fifo").exception  # type: ignore[attr-defined]
    assert isinstance(found, InputError)
    assert "lru or cost-aware" in str(found)
