"""What the README says of traces and installation is what code and tests do."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_traces_that_tests_ask_for_are_named_with_the_variable_that_leads_to_them(
    repository: Path,
) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert "KVCRUCIBLE_DATA" in readme
    asked = set()
    for path in (repository / "tests" / "replay").glob("*.py"):
        asked |= set(re.findall(r"\w+\.jsonl\.gz", path.read_text(encoding="utf-8")))
    assert len(asked) >= 4
    assert {name for name in asked if f"`{name}`" not in readme} == set()


def test_nothing_tells_to_install_from_an_index(repository: Path) -> None:
    told = [
        path.relative_to(repository).as_posix()
        for folder in (".", "cli", "fuzz", "engine", "perf", "contract", "docs", "docs/decisions")
        for path in (*(repository / folder).glob("*.py"), *(repository / folder).glob("*.md"))
        if re.search(r"pip install '?kvcrucible", path.read_text(encoding="utf-8"))
    ]
    assert told == []
