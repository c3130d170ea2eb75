"""The bar and the spinner of commands: what they show, where they show nothing, and that there is one of each."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from kvcrucible.cli import progress, progress_lines


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


def test_bytes_are_shown_as_such_also_where_nobody_knows_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert re.search(
        r"work .* 3/4,000,000 bytes|work .* 0\.0/4\.0 MB", shown(monkeypatch, 4_000_000, in_bytes=True)
    )
    assert "3/? bytes" in shown(monkeypatch, None, in_bytes=True)


@pytest.mark.parametrize(("is_terminal", "hidden"), [(True, True), (False, False), (False, True)])
def test_nothing_is_shown_of_what_is_over_soon_or_of_a_command_that_says_so(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, hidden: bool
) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal)
    monkeypatch.setattr(progress, "stderr_console", lambda: console)
    with progress.progress_bar(hidden=hidden) as bar:
        bar.advance(bar.add_task("work", total=2))
    with progress.spinner("working", hidden=hidden) as line:
        line.say("still working")
        line.keep("found something")
    assert out.getvalue() == ""


@pytest.mark.parametrize("hidden", [False, True])
def test_a_log_is_told_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch, hidden: bool) -> None:
    out = io.StringIO()
    monkeypatch.setattr(progress, "stderr_console", lambda: Console(file=out, width=20))
    now = 100.0
    monkeypatch.setattr(progress_lines, "monotonic", lambda: now)
    with progress.progress_bar(detail=True, hidden=hidden) as bar:
        task = bar.add_task("seeds of \x1b[2Jmine", total=2_000, detail="")
        bar.update(task, completed=1)
        now += progress_lines.SECONDS_BETWEEN_LINES
        bar.update(task, completed=1_000, detail="7 operations")
        bar.update(task, completed=1_001)
        now += progress_lines.SECONDS_BETWEEN_LINES
        bar.advance(task, 5)
    told = ["1,000 of 2,000, 60 s; 7 operations", "1,006 of 2,000, 120 s; 7 operations"]
    assert out.getvalue().splitlines() == [f"seeds of \\x1b[2Jmine: {line}" for line in told if not hidden]


def test_a_spinner_says_what_goes_on_and_keeps_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "stderr_console", lambda: console)
    with progress.spinner("working") as line:
        line.say("still working")
        line.keep("found something")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "found something\n" in text
    assert "still working" in text


@pytest.mark.parametrize(
    "own",
    [r"\w+Column\(", r"\bProgress\(", r"console\w*(\(\))?\.status\(", r"is_terminal"],
    ids=["columns", "bar", "spinner", "rule"],
)
def test_no_command_has_a_bar_or_a_spinner_of_its_own(repository: Path, own: str) -> None:
    files = sorted((repository / "cli").rglob("*.py"))
    assert [path.name for path in files if re.search(own, path.read_text(encoding="utf-8"))] == [
        "progress.py"
    ]
