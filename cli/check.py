"""``kvcrucible check``: judges a recorded history of any engine, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kvcrucible.invariants.history.outcome import Verdict


def register(app: typer.Typer) -> None:
    """Add the ``check`` command to ``app``."""
    app.command("check")(check)


def check(
    history: Path = typer.Argument(..., metavar="FILE", help="History, JSON Lines; - reads standard input."),
    max_live: int = typer.Option(
        2_000_000,
        "--max-live",
        min=1,
        help="Pages, runs and checkpoints alive at once beyond which the verdict is unknown (some 250 bytes each).",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the verdict as JSON."),
) -> None:
    """Judge the history of an engine: pass, fail with the first line that is not legal and why, or unknown.

    Status 0 pass, 1 fail, 2 no history, 3 unknown.  docs/histories.md tells what an engine writes.
    """
    from kvcrucible.cli.progress import spinner
    from kvcrucible.invariants.history.check import check_file

    with spinner("check", hidden=as_json) as shown:
        verdict = check_file(history, max_live, lambda lines: shown.say(f"check: {lines:,} lines"))
    if as_json:
        _print_json(verdict)
    else:
        _print(verdict)
    if verdict.status:
        raise typer.Exit(verdict.status)


def _print_json(verdict: Verdict) -> None:
    from kvcrucible.cli.console import print_json

    print_json(
        {
            "verdict": verdict.judgement.value,
            "engine": verdict.engine,
            "line": verdict.line,
            "operations": verdict.operations,
            "rule": verdict.rule,
            "reason": verdict.reason,
            "not_judged": verdict.not_judged,
            "most_entries": verdict.most_entries,
        }
    )


def _print(verdict: Verdict) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.invariants.history.outcome import Judgement

    out = console()
    colour = {Judgement.PASS: "green", Judgement.FAIL: "red", Judgement.UNKNOWN: "yellow"}[verdict.judgement]
    head = f"[bold {colour}]{verdict.judgement.value.upper()}[/bold {colour}]"
    if verdict.judgement is Judgement.PASS:
        out.print(
            f"{head}: {verdict.operations:,} operations of {safe(verdict.engine)} are legal", soft_wrap=True
        )
    else:
        out.print(f"{head} at line {verdict.line:,}", soft_wrap=True)
        if verdict.rule is not None:
            out.print(f"rule: {safe(verdict.rule)}", soft_wrap=True)
        out.print(safe(verdict.reason or ""), soft_wrap=True)
    if verdict.not_judged:
        names = ", ".join(sorted(verdict.not_judged))
        told = f"not judged: {len(verdict.not_judged)} ({names}); --json says why"
        out.print(told, style="dim", soft_wrap=True)
