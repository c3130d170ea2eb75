"""Histories tell which tokens stand for media, and hits are judged by it (decision 0022)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from histories import Plain, judge, record

from kvcrucible.contract import operations as ops
from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.media import MAX_MEDIA, MAX_TOKEN_TYPE, TokenSpan
from kvcrucible.contract.tokens import run
from kvcrucible.invariants.history.outcome import Judgement

#: A sequence of ten tokens, six of them an item, kept; then who asks for the same.
PROMPT = run(1, 0, 10)
IMAGE = TokenSpan(2, 6, "image", "d1")
STORY: list[ops.Operation] = [
    ops.Submit(PROMPT, 0, spans=(IMAGE,)),  # 2
    ops.Schedule(),
    ops.BeginUnit((ops.Prefill(0, 10),)),
    ops.EndUnit(0),
    ops.Finish(0),
    ops.Lookup(PROMPT, spans=(IMAGE,)),  # 7: 9 of continuation 0
    ops.Lookup(PROMPT),  # 8: 2
    ops.Submit(PROMPT, 0, spans=(IMAGE,)),  # 9
    ops.Schedule(),  # 10: from 9
    ops.Submit(PROMPT, 0, spans=(TokenSpan(9, 2, "image"),)),  # 11: refused
]


@pytest.fixture
def lines(tmp_path: Path) -> list[Plain]:
    return record(STORY, tmp_path / "media.jsonl")


def test_the_story_is_legal(lines: list[Plain], tmp_path: Path) -> None:
    assert lines[1]["spans"] == [{"start": 2, "length": 6, "token_type": "image", "media": "d1"}]
    assert "spans" not in lines[7]
    assert lines[10]["refused"] == "bad-argument"
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.PASS, verdict.reason


@pytest.mark.parametrize(
    ("line", "change", "shows", "rule"),
    [
        (7, {"media": "d2"}, 7, "exact-prefix-identity"),
        (7, {"token_type": "audio"}, 7, "exact-prefix-identity"),
        (7, {"start": 3}, 7, "exact-prefix-identity"),
        (7, {"length": 5}, 7, "exact-prefix-identity"),
        (9, {"media": "d2"}, 10, "exact-prefix-identity"),
        (9, {"start": 8}, 9, "span-places"),
        (11, {"start": 8}, 11, "refusal-due"),
    ],
)
def test_another_span_than_was_meant_shows(
    line: int, change: Plain, shows: int, rule: str, lines: list[Plain], tmp_path: Path
) -> None:
    lines[line - 1]["spans"][0] |= change
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.FAIL
    assert (verdict.line, verdict.rule) == (shows, rule), verdict.reason


@pytest.mark.parametrize("more", [1, 5_000_000])
@pytest.mark.parametrize("what", ["token_type", "media"])
def test_what_is_refused_for_its_length_is_no_line_that_nobody_can_read(
    what: str, more: int, tmp_path: Path
) -> None:
    limit = {"token_type": MAX_TOKEN_TYPE, "media": MAX_MEDIA}[what]
    named = replace(IMAGE, **{what: "m" * (limit + more)})
    lines = record(
        [ops.Submit(PROMPT, 0, spans=(named,)), ops.Lookup(PROMPT, spans=(named,))], tmp_path / "h"
    )
    assert [line["refused"] for line in lines[1:3]] == ["bad-argument"] * 2
    assert lines[1]["spans"][0][what] == "m" * (limit + 1)
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.PASS, verdict.reason
    del lines[1]["refused"]
    lines[1]["sequence"] = 0
    assert judge(lines, tmp_path).judgement is Judgement.FAIL


def test_spans_that_take_more_than_a_line_are_split_and_joined_again(tmp_path: Path) -> None:
    config = EngineConfig((PoolSpec("main", 4_000, 1),), 4_000, 1)
    spans = tuple(TokenSpan(at, 1, "image", f"{at:064x}") for at in range(0, 3_000, 2))
    prompt = run(0, 0, 3_000)
    lines = record(
        [ops.Submit(prompt, 0, spans=spans), ops.Lookup(prompt, spans=spans)], tmp_path / "h", config
    )
    assert [line.get("op") for line in lines].count("lookup") > 2
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.PASS, verdict.reason
