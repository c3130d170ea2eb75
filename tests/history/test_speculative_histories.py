"""Rounds of speculation in histories: what is written, and what the checker makes of a wrong one (decision 0023)."""

from __future__ import annotations

from pathlib import Path

import pytest
from histories import Plain, judge, record

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    EndUnit,
    Finish,
    Prefill,
    Release,
    Schedule,
    Submit,
)
from kvcrucible.contract.tokens import run
from kvcrucible.invariants.history.outcome import Judgement

CONFIG = EngineConfig((PoolSpec("main", 8, 4), PoolSpec("mtp", 16, 2)), 24, 2)

#: A prompt of 6, a round of 8 with a lead of 3 of which 3 tokens are kept, and a token behind them.
OPERATIONS = [
    Submit(run(0, 0, 6), 12),
    Schedule(),
    BeginUnit((Prefill(0, 6),)),
    EndUnit(0),
    BeginUnit((Append(0, run(1, 0, 8), backend=11),)),
    EndUnit(1, accepted=((0, 3),)),
    BeginUnit((Append(0, run(2, 0, 4)),)),
    EndUnit(2),
    Finish(0),
    Release(0),
]


@pytest.fixture
def lines(tmp_path: Path) -> list[Plain]:
    return record([*OPERATIONS], tmp_path / "round.jsonl", CONFIG, empty=True)


def find(lines: list[Plain], op: str, unit: int) -> Plain:
    return next(line for line in lines if line.get("op") == op and line.get("unit") == unit)


def test_a_round_is_written_and_passes(lines: list[Plain], tmp_path: Path) -> None:
    assert find(lines, "end", 1)["accepted"] == [[0, 3]]
    assert find(lines, "end", 1)["frontiers"] == [[0, 9]]
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.PASS, verdict.reason


@pytest.mark.parametrize(
    ("accepted", "rule"),
    [
        ([[0, 2]], "frontier-visibility"),
        ([[0, 9]], "accepted-out-of-range"),
        ([[0, 0]], "accepted-out-of-range"),
        ([[0, 3], [0, 3]], "accepted-repeated"),
        ([[5, 1]], "accepted-unselected"),
        ([], "frontier-visibility"),
    ],
)
def test_another_count_than_was_kept_fails(
    lines: list[Plain], tmp_path: Path, accepted: list[list[int]], rule: str
) -> None:
    find(lines, "end", 1)["accepted"] = accepted
    verdict = judge(lines, tmp_path)
    assert (verdict.judgement, verdict.rule) == (Judgement.FAIL, rule)


def test_an_abort_accepts_nothing(lines: list[Plain], tmp_path: Path) -> None:
    find(lines, "end", 1)["commit"] = False
    assert judge(lines, tmp_path).rule == "accepted-by-an-abort"


def test_a_lead_beyond_the_limit_fails(lines: list[Plain], tmp_path: Path) -> None:
    find(lines, "begin", 1)["work"][0]["backend"] = 13
    assert judge(lines, tmp_path).rule == "lead-beyond-limit"


def test_a_draft_pool_never_leads(lines: list[Plain], tmp_path: Path) -> None:
    lines[0]["pools"][1]["name"] = "draft"
    assert judge(lines, tmp_path).rule == "backend-ahead"


def test_a_page_that_was_not_given_back_shows_in_the_counters(lines: list[Plain], tmp_path: Path) -> None:
    line = find(lines, "end", 1)
    leased, reserved, free = line["counters"][1]
    line["counters"][1] = [leased + 1, reserved - 1, free]
    assert judge(lines, tmp_path).rule == "pool-conservation"
