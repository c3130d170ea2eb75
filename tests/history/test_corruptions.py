"""Illegal histories are reported at the first line that cannot be legal; legal alterations of histories pass."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from corruptions import CORRUPTIONS, Corruption
from histories import CONFIG, STORY, Plain, judge, read, story

from kvcrucible.contract.semantics import ROWS
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.history import HistoryWriter, ObservedEngine
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.invariants.history.outcome import Judgement
from kvcrucible.invariants.history.rules import RULES
from kvcrucible.invariants.registry import IDS


def test_the_story_is_legal_and_judged_in_full(tmp_path: Path) -> None:
    lines = story(tmp_path)
    verdict = judge(lines, tmp_path)
    assert (verdict.judgement, verdict.reason, verdict.line) == (Judgement.PASS, None, len(lines))
    assert "lease-unique" not in verdict.not_judged


def test_there_are_corruptions_of_many_kinds_under_known_rules() -> None:
    assert len(CORRUPTIONS) >= 40
    assert len({one.kind for one in CORRUPTIONS}) >= 16
    assert {one.rule for one in CORRUPTIONS} <= {*IDS, *RULES, *(row.name for row in ROWS)}


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("counters", [True, False], ids=["counters", "bare"])
def test_a_corruption_is_reported_where_it_shows(
    corruption: Corruption, counters: bool, tmp_path: Path
) -> None:
    """Without counters too, where anything else shows it: what is wrong is seen in what was done."""
    if corruption.by_counters and not counters:
        pytest.skip("nothing but the counters shows it")
    lines = story(tmp_path)
    corruption.change(lines)
    if not counters:
        for line in lines:
            line.pop("counters", None)
    verdict = judge(lines, tmp_path)
    assert verdict.judgement is Judgement.FAIL
    assert (verdict.line, verdict.rule) == (corruption.shows, corruption.rule), verdict.reason
    assert verdict.reason


def test_a_page_that_somebody_holds_is_reported_wherever_it_is_granted(tmp_path: Path) -> None:
    """The engine's own snapshots say which pages are held before each operation; every grant is corrupted in turn."""
    engine, path = Engine(CONFIG), tmp_path / "h.jsonl"
    writer = HistoryWriter(path, CONFIG)
    observed, held_before = ObservedEngine(engine, writer), []
    for operation in STORY:
        held_before.append(sorted(page.device for page in snapshot(engine).pages.values()))
        observed.record(operation, execute(engine, operation), drain(engine)[0])
    writer.close()
    draw, tried = random.Random(7), 0
    for index, held in enumerate(held_before):
        lines = read(path)
        grants = list(_grants(lines[index + 1]))
        if not held or not grants:
            continue
        grant = draw.choice(grants)
        grant[draw.randrange(len(grant))] = draw.choice(held)
        verdict = judge(lines, tmp_path)
        # An aborting or cutting operation frees pages before it grants one, but never one that it did not hold alone.
        assert (verdict.line, verdict.rule) == (index + 2, "lease-unique"), verdict
        tried += 1
    assert tried == 5


def _grants(line: Plain) -> list[list[int]]:
    parts = [line, *line.get("work", []), *line.get("admitted", []), line.get("admission", {})]
    return [
        pages for part in parts if "truncate" not in line["op"] for pages in part.get("pages", []) if pages
    ]


def relabel(value: Any, pages: dict[int, int]) -> Any:
    """Give every physical page another number."""
    if isinstance(value, list):
        return [relabel(one, pages) for one in value]
    if not isinstance(value, dict):
        return value
    made = {name: relabel(one, pages) for name, one in value.items()}
    for name in value:
        if name == "pages" and value.get("op") != "header" and "format" not in value:
            made[name] = [[pages[page] for page in pool] for pool in value[name]]
        if name == "copies":
            made[name] = [[pool, pages[a], pages[b], columns] for pool, a, b, columns in value[name]]
        if name == "generations":
            made[name] = value[name]
    return made


@pytest.mark.parametrize("seed", range(5))
def test_other_page_numbers_are_as_legal(seed: int, tmp_path: Path) -> None:
    numbers = list(range(24))
    random.Random(seed).shuffle(numbers)
    lines = relabel(story(tmp_path), dict(enumerate(numbers)))
    assert lines != story(tmp_path)
    assert judge(lines, tmp_path).judgement is Judgement.PASS


def test_another_order_within_a_grant_is_as_legal(tmp_path: Path) -> None:
    lines = story(tmp_path)
    (work, _) = lines[36]["work"]
    work["pages"][0].reverse()
    work["generations"][0].reverse()
    assert judge(lines, tmp_path).judgement is Judgement.PASS


def test_two_works_may_swap_their_pages(tmp_path: Path) -> None:
    lines = story(tmp_path)
    first, second = lines[36]["work"]
    for field in ("pages", "generations"):
        first[field][0][0], second[field][0][0] = second[field][0][0], first[field][0][0]
    assert judge(lines, tmp_path).judgement is Judgement.PASS


def test_other_rows_and_numbers_with_gaps_are_as_legal(tmp_path: Path) -> None:
    lines = story(tmp_path)
    for line in lines:
        for part in [line, line.get("admission", {}), *line.get("admitted", [])]:
            if "row" in part:
                part["row"] = 2 - part["row"]
        _spread(line)
    assert judge(lines, tmp_path).judgement is Judgement.PASS


def _spread(value: Any) -> None:
    """Multiply every sequence's number by 3 and add 5."""
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            _spread(part)
    if isinstance(value, dict):
        for name in ("sequence", "source", "continuation"):
            if name in value:
                value[name] = 3 * value[name] + 5
        for name in ("evicted", "cancelled"):
            if name in value:
                value[name] = [3 * one + 5 for one in value[name]]
        if "frontiers" in value:
            value["frontiers"] = [[3 * one + 5, at] for one, at in value["frontiers"]]


def test_when_units_are_reported_is_free(tmp_path: Path) -> None:
    lines = story(tmp_path)
    lines.insert(11, {"op": "progress", "units": [0, 1]})
    lines[29]["units"] = [2]
    lines.insert(30, {"op": "progress", "units": [3, 4]})
    lines[-1]["lines"] += 2
    assert judge(lines, tmp_path).judgement is Judgement.PASS


def test_what_is_not_stated_is_not_needed(tmp_path: Path) -> None:
    lines = story(tmp_path)
    for line in lines:
        for name in ("counters", "frontiers", "kept", "checkpoint"):
            line.pop(name, None)
    assert judge(lines, tmp_path).judgement is Judgement.PASS
