"""Who passes the head of the queue is judged from the history alone (decision 0021)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from histories import Plain, judge, record

from kvcrucible.contract import operations as ops
from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.tokens import run
from kvcrucible.invariants.history import passing
from kvcrucible.invariants.history.outcome import Judgement

CONFIG = EngineConfig((PoolSpec("main", 10, 4),), max_context=40, max_concurrency=4, lookahead=2)

#: Sequence 0 holds 6 of 10 pages; 1 waits for 6; 2 passes it with 2, and 3 with the other 2; 4 may not.
STORY: list[ops.Operation] = [
    ops.Submit(run(0, 0, 1), 23),  # 2
    ops.Schedule(),  # 3
    ops.Submit(run(1, 0, 1), 23),  # 4
    ops.Submit(run(2, 0, 1), 7),  # 5
    ops.Submit(run(3, 0, 1), 7),  # 6
    ops.Submit(run(4, 0, 1), 3, session="a"),  # 7
    ops.Schedule(),  # 8: 2 and 3 pass
    ops.Finish(3, retain=False),  # 9
    ops.Schedule(),  # 10: 4 passes in its place
    ops.Finish(0, retain=False),  # 11
    ops.Schedule(),  # 12: 1
    ops.Cancel(1),  # 13
    ops.Cancel(2),  # 14
    ops.Cancel(4),  # 15
]


def story(tmp_path: Path) -> list[Plain]:
    return record(STORY, tmp_path / "passing.jsonl", CONFIG, empty=True)


def test_those_who_leave_the_head_enough_pass(tmp_path: Path) -> None:
    lines = story(tmp_path)
    assert lines[0]["lookahead"] == 2
    assert [one["sequence"] for one in lines[7]["admitted"]] == [2, 3]
    assert [one["sequence"] for one in lines[9]["admitted"]] == [4]
    verdict = judge(lines, tmp_path)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)


def _without_counters(lines: list[Plain]) -> list[Plain]:
    return [{key: value for key, value in line.items() if key != "counters"} for line in lines]


def _strict(lines: list[Plain]) -> None:
    del lines[0]["lookahead"]


def _short(lines: list[Plain]) -> None:
    lines[0]["lookahead"] = 1


def _too_large(lines: list[Plain]) -> None:
    lines[5]["max_new"] = 8


def _too_large_alone(lines: list[Plain]) -> None:
    lines[4]["max_new"] = 16


def _session(lines: list[Plain]) -> None:
    lines[3]["session"] = lines[5]["session"] = "b"


def _backwards(lines: list[Plain]) -> None:
    lines[7]["admitted"].reverse()


def _head_fits(lines: list[Plain]) -> None:
    lines[3]["max_new"] = 15


def _no_word_of_the_head(lines: list[Plain]) -> None:
    del lines[7]["wait"]


def _wrong_reason(lines: list[Plain]) -> None:
    lines[7]["wait"]["why"] = "no-row"


@pytest.mark.parametrize(
    ("change", "line", "rule"),
    [
        (_strict, 8, "admission-order"),
        (_short, 8, "admission-order"),
        (_too_large, 8, "completion-guarantee"),
        (_too_large_alone, 8, "completion-guarantee"),
        (_session, 8, "admission-order"),
        (_backwards, 8, "admission-order"),
        (_head_fits, 8, "admission-by-count"),
        (_no_word_of_the_head, 8, "admission-order"),
        (_wrong_reason, 8, "outcome"),
    ],
)
def test_who_may_not_pass_is_told(tmp_path: Path, change, line: int, rule: str) -> None:  # type: ignore[no-untyped-def]
    lines = _without_counters(copy.deepcopy(story(tmp_path)))
    change(lines)
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.FAIL
    assert (verdict.line, verdict.rule) == (line, rule), verdict.reason


def test_pinned_pages_are_not_the_heads(tmp_path: Path) -> None:
    kept: list[ops.Operation] = [
        ops.Submit(run(7, 0, 4), 0),
        ops.Schedule(),
        ops.BeginUnit((ops.Prefill(0, 4),)),
        ops.EndUnit(0),
        ops.Finish(0),
        ops.Pin(0),
        ops.Submit(run(0, 0, 1), 19),
        ops.Schedule(),
        ops.Submit(run(1, 0, 1), 23),
        ops.Submit(run(2, 0, 1), 11),
        ops.Schedule(),
    ]
    lines = record(kept, tmp_path / "pinned.jsonl", CONFIG)
    assert judge(lines, tmp_path).judgement is Judgement.PASS
    wrong = _without_counters(copy.deepcopy(lines))
    wrong[10]["max_new"] = 15
    assert judge(wrong, tmp_path).rule == "completion-guarantee"


def test_a_history_made_to_be_slow_ends_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "MAX_LOOKED_AT", -1)
    verdict = judge(story(tmp_path), tmp_path)
    assert verdict.judgement is Judgement.UNKNOWN
    assert "looked at" in (verdict.reason or "")
