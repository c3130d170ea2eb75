"""The bar of commands: what it shows, and that there is one."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from kvcrucible.cli import progress


def shown(monkeypatch: pytest.MonkeyPatch, total: int | None, **options: bool) -> str:
    """Return the last line that a bar shows after 3 of ``total``, without colours; empty where it shows nothing."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "stderr_console", lambda: console)
    with progress.progress_bar(**options) as bar:
        bar.update(bar.add_task("work", total=total), completed=3)
        bar.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n")
    return ([""] + [line for line in text.splitlines() if line.strip()])[-1]


def test_the_bar_shows_how_many_and_the_time_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    line = shown(monkeypatch, 4)
    assert re.search(r"work .* 3/4 0:00:00", line)
    assert "left" not in line
    assert re.search(r"3/4 0:00:00 left [-:0-9]+", shown(monkeypatch, 4, left=True))
    assert "3/?" in shown(monkeypatch, None, spinner=True)
    assert shown(monkeypatch, 4, hidden=True) == ""


def test_no_command_has_columns_of_its_own(repository: Path) -> None:
    own = [
        path.name
        for path in sorted((repository / "cli").rglob("*.py"))
        if path.name != "progress.py" and re.search(r"\w+Column\(", path.read_text(encoding="utf-8"))
    ]
    assert own == []
