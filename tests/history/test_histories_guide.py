"""The guide's examples are what it says they are, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcrucible.contract.history import LINES
from kvcrucible.contract.history_header import Shown
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.rules import RULES

_EXAMPLE = re.compile(r"<!-- example: (.*?) -->\n```json\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def guide(repository: Path) -> str:
    return (repository / "docs" / "histories.md").read_text(encoding="utf-8")


def test_the_examples_get_the_verdicts_that_the_guide_states(guide: str, tmp_path: Path) -> None:
    found = _EXAMPLE.findall(guide)
    assert [said.split()[0] for said, _ in found] == ["pass", "fail"]
    for said, text in found:
        path = tmp_path / "example.jsonl"
        path.write_text(text, encoding="utf-8")
        verdict = check_file(path)
        stated = said.split()
        assert verdict.judgement.value == stated[0], verdict.reason
        if stated[1:]:
            assert [str(verdict.line), verdict.rule] == stated[1:]
            assert f"rule: {verdict.rule}\n{verdict.reason}\n" in guide


def test_the_tables_name_every_part_line_and_rule(guide: str) -> None:
    named = set(re.findall(r"`([a-z-]+)`", guide))
    assert {part.value for part in Shown} <= named
    assert set(LINES) - {"cancel-transfer"} <= named
    assert set(RULES) == set(
        re.findall(r"^\| `([a-z-]+)` \| [a-z]", guide.split("| rule | says |")[1], re.MULTILINE)
    )
