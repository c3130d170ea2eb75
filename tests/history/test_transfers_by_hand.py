"""Transfers, retiring pages and extents in histories written by hand, with physical pages (decision 0013)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from histories import Plain, judge

from kvcrucible.invariants.history.outcome import Judgement

HEADER: Plain = {
    "format": "kvcrucible.history/1",
    "engine": "by hand",
    "pools": [{"name": "main", "capacity_pages": 8, "page_size": 4, "page_bytes": 100}],
    "max_context": 32,
    "max_concurrency": 2,
    "host": {"capacity_bytes": 1024, "alignment_bytes": 256},
    "shows": ["pages", "rows", "tokens", "hits", "refusals", "fifo", "lru", "copies", "fences"],
}

#: Three pages written and retained, demoted by copy, restored into other pages, forked and released.
LINES: list[Plain] = [
    HEADER,
    {"op": "submit", "sequence": 0, "prompt": [[1, 0, 10]], "max_new": 2},  # 2
    {"op": "admit", "admission": {"sequence": 0, "mode": "cold", "row": 1}},  # 3
    {"op": "begin", "unit": 0, "work": [{"sequence": 0, "prefill": 10, "pages": [[3, 1, 4]]}]},  # 4
    {"op": "end", "unit": 0, "frontiers": [[0, 10]]},  # 5: its effects are not over
    {"op": "finish", "sequence": 0, "kept": True, "counters": [[3, 0, 5]]},  # 6
    {"op": "demote", "continuation": 0, "transfer": 0, "extents": [{"pool": 0, "offset": 256, "size": 512}]},  # 7
    {"op": "release", "continuation": 9, "refused": "stale-handle"},  # 8
    {"op": "progress", "transfers": [{"transfer": 0, "outcome": "moved"}], "counters": [[3, 0, 5]]},  # 9: retiring
    {"op": "fork", "source": 0, "position": 4, "max_new": 1, "refused": "wrong-state"},  # 10: not resident
    {"op": "lookup", "prompt": [[1, 0, 11]], "hit": {"source": 0, "length": 10}},  # 11
    {"op": "submit", "sequence": 1, "prompt": [[1, 0, 12]], "max_new": 0},  # 12
    {"op": "admit", "admission": {"sequence": 1, "mode": "cold", "row": 0}, "counters": [[3, 3, 2]]},  # 13
    {"op": "progress", "units": [0], "counters": [[0, 3, 5]]},  # 14: at rest
    {"op": "restore", "continuation": 0, "transfer": 1, "keep": True, "pages": [[0, 1, 2]], "counters": [[3, 3, 2]]},
    {"op": "progress", "transfers": [{"transfer": 1, "outcome": "kept"}], "counters": [[3, 3, 2]]},  # 16
    {"op": "cancel", "sequence": 1, "done": True, "counters": [[3, 0, 5]]},  # 17
    {"op": "fork", "source": 0, "position": 9, "max_new": 1, "sequence": 2, "row": 0, "pages": [[7]],
     "copies": [[0, 2, 7, 1]], "counters": [[4, 0, 4]]},  # 18
    {"op": "demote", "continuation": 0, "transfer": 2, "extents": [], "counters": [[4, 0, 4]]},  # 19: the tail alone
    {"op": "progress", "transfers": [{"transfer": 2, "outcome": "moved"}], "counters": [[3, 0, 5]]},  # 20
    {"op": "table", "sequence": 2, "pages": [[0, 1, 7]]},  # 21
    {"op": "finish", "sequence": 2, "retain": False, "kept": False, "counters": [[2, 0, 6]]},  # 22
    {"op": "release", "continuation": 0, "counters": [[0, 0, 8]]},  # 23
    {"op": "close", "lines": 22, "empty": True},  # 24
]  # fmt: skip


def lines() -> list[Plain]:
    return copy.deepcopy(LINES)


def test_the_history_is_legal(tmp_path: Path) -> None:
    verdict = judge(lines(), tmp_path)
    assert (verdict.judgement, verdict.reason) == (Judgement.PASS, None)
    assert "publish-order" not in verdict.not_judged


def grant(told: list[Plain], page: int, at: int = 13) -> None:
    """Let sequence 1 write a page; the unit becomes line ``at`` + 1."""
    told.insert(at, {"op": "begin", "unit": 1, "work": [{"sequence": 1, "prefill": 1, "pages": [[page]]}]})


WRONG: list[tuple[str, Callable[[list[Plain]], object], int, str]] = [
    ("outside", lambda told: told[6]["extents"][0].update(offset=768), 7, "host-conservation"),
    ("unaligned", lambda told: told[6]["extents"][0].update(offset=128), 7, "host-conservation"),
    ("too small", lambda told: told[6]["extents"][0].update(size=256), 7, "host-conservation"),
    ("no extent", lambda told: told[6].update(extents=[]), 7, "host-conservation"),
    (
        "extent for clean copies",
        lambda told: told[18]["extents"].append({"pool": 0, "offset": 0, "size": 256}),
        19,
        "host-conservation",
    ),
    ("kept instead", lambda told: told[8]["transfers"][0].update(outcome="kept"), 9, "publish-order"),
    ("failed and moved", lambda told: told[8]["transfers"][0].update(failed=True), 9, "publish-order"),
    ("never started", lambda told: told[8]["transfers"][0].update(transfer=3), 9, "unknown-transfer"),
    (
        "source freed before its unit",
        lambda told: told[8].update(counters=[[0, 0, 8]]),
        9,
        "pool-conservation",
    ),
    ("retiring page granted", lambda told: grant(told, 4), 14, "recycle-fenced"),
    ("fork of what is on Host", lambda told: told[9].pop("refused"), 10, "fork-of-demoted"),
    (
        "hit of what is on Host",
        lambda told: told[12]["admission"].update(mode="fork", source=0, hit=10),
        13,
        "exact-prefix-identity",
    ),
    ("destination held", lambda told: grant(told, 2, at=14), 16, "lease-unique"),
    ("too few destinations", lambda told: told[14].update(pages=[[0, 1]]), 15, "publish-order"),
    ("copied from the old page", lambda told: told[17].update(copies=[[0, 4, 7, 1]]), 18, "cow-isolation"),
    (
        "nothing copied failed",
        lambda told: told[19]["transfers"][0].update(failed=True, outcome="abandoned"),
        20,
        "publish-order",
    ),
    ("table of the old pages", lambda told: told[20].update(pages=[[3, 1, 7]]), 21, "table-mirror"),
    (
        "cancel of one that is over",
        lambda told: told.insert(20, {"op": "cancel-transfer", "transfer": 2}),
        21,
        "unknown-transfer",
    ),
]


@pytest.mark.parametrize(
    ("change", "shows", "rule"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG]
)
def test_what_is_wrong_is_reported_where_it_shows(
    change: Callable[[list[Plain]], object], shows: int, rule: str, tmp_path: Path
) -> None:
    told = lines()
    change(told)
    verdict = judge(told, tmp_path)
    assert (verdict.line, verdict.rule) == (shows, rule), verdict.reason


def test_two_extents_may_not_overlap(tmp_path: Path) -> None:
    """A second continuation is demoted into bytes of the first one's extent, then beside it."""
    second: list[Plain] = [
        {"op": "submit", "sequence": 1, "prompt": [[2, 0, 4]], "max_new": 0},
        {"op": "admit", "admission": {"sequence": 1, "mode": "cold", "row": 0}},
        {"op": "begin", "unit": 1, "work": [{"sequence": 1, "prefill": 4, "pages": [[5]]}]},
        {"op": "end", "unit": 1},
        {"op": "finish", "sequence": 1},
    ]
    for offset, rule in ((512, "host-conservation"), (0, None), (768, None)):
        demote = {
            "op": "demote",
            "continuation": 1,
            "transfer": 1,
            "extents": [{"pool": 0, "offset": offset, "size": 256}],
        }
        told = [*lines()[:9], *second, demote, {"op": "close", "lines": 14}]
        verdict = judge(told, tmp_path)
        assert verdict.rule == rule, verdict.reason


def test_a_demotion_is_refused_where_no_hole_is_large_enough(tmp_path: Path) -> None:
    refused = {"op": "demote", "continuation": 0, "refused": "host-geometry"}
    small = {"host": {"capacity_bytes": 256, "alignment_bytes": 256}}
    told = [*lines()[:6], refused, {"op": "close", "lines": 6}]
    assert judge(told, tmp_path).rule == "refusal-due"
    told[0] = HEADER | small
    assert judge(told, tmp_path).judgement is Judgement.PASS
