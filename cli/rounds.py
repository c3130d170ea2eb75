"""``kvcrucible rounds``: recorded rounds of speculation drive the engine, every step judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.perf.rounds import RoundsFigures, RoundsSettings

#: Most tokens of a page, and most that one round drafts or leads by.
MAX_PAGE_SIZE, MAX_DRAFTED = 1_024, 4_096

#: Most turns at a time; each has a row.
MAX_CONCURRENCY = 1_024


def register(app: typer.Typer) -> None:
    """Add the ``rounds`` command to ``app``."""
    app.command("rounds")(rounds)


def rounds(
    trace: Path = typer.Argument(
        ..., help='Accepted lengths: JSON Lines of {"id", "parent", "accept": [n, …]}, plain or gzip.'
    ),
    backend: str = typer.Option("mtp", "--backend", help="The pool beside Main: mtp, draft or none."),
    page_size: int = typer.Option(16, "--page-size", min=1, max=MAX_PAGE_SIZE, help="Tokens in a page."),
    drafted: int = typer.Option(10, "--drafted", min=0, max=MAX_DRAFTED, help="Tokens drafted in a round."),
    ahead: int = typer.Option(
        2, "--ahead", min=0, max=MAX_DRAFTED, help="Positions by which MTP runs ahead of Main, at most."
    ),
    concurrency: int = typer.Option(8, "--concurrency", min=1, max=MAX_CONCURRENCY, help="Turns at a time."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="Only the first turns, so many."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Draft, verify and trim as a recorded run did, on the control plane; every step is checked.

    Each round writes a token and the drafted ones, keeps what the record accepted, and gives the rest back in every
    pool.  Status 1 on a broken invariant.
    """
    from kvcrucible.perf.rounds import Rounds, RoundsSettings
    from kvcrucible.perf.traces.accepted import read_accepted

    if backend not in ("mtp", "draft", "none"):
        raise InputError(f"--backend {backend:.40}: use mtp, draft or none")
    settings = RoundsSettings(
        None if backend == "none" else backend, page_size, drafted, ahead, concurrency=concurrency
    )
    figures = Rounds(read_accepted(trace, limit), settings).run()
    if as_json:
        from kvcrucible.cli.console import print_json

        print_json(_plain(figures, settings))
    else:
        _show(figures, trace.name)
    if figures.failure is not None:
        from kvcrucible.cli.console import safe, stderr_console

        stderr_console().print(f"[bold red]VIOLATION[/bold red] {safe(figures.failure)}", soft_wrap=True)
    raise typer.Exit(ExitStatus.HELD if figures.failure is None else ExitStatus.VIOLATION)


def _plain(figures: RoundsFigures, settings: RoundsSettings) -> dict[str, Any]:
    from dataclasses import asdict

    mean = {"accepted_per_round": figures.accepted_per_round}
    return {"settings": asdict(settings), "figures": asdict(figures) | mean}


def _show(figures: RoundsFigures, source: str) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.cli.tables import Table

    table = Table(title=f"{safe(source)}: {figures.turns:,} turns")
    table.add_column("figure")
    table.add_column("value", justify="right")
    rows = [
        ("rounds, in units", f"{figures.rounds:,} in {figures.units:,}"),
        ("tokens written and accepted", f"{figures.written_tokens:,} and {figures.accepted_tokens:,}"),
        ("accepted in a round", f"{figures.accepted_per_round:.3f}"),
        ("rounds that were cut", f"{figures.cut_rounds:,}"),
        ("positions that the backend led", f"{figures.led_positions:,}"),
        ("tokens hit of those findable", f"{figures.hit_tokens:,} of {figures.findable_tokens:,}"),
    ]
    for pool, (granted, trimmed) in enumerate(zip(figures.pages_granted, figures.pages_trimmed, strict=True)):
        name = "backend" if pool else "Main"
        rows.append((f"pages granted and trimmed, {name}", f"{granted:,} and {trimmed:,}"))
    rows.append(("steps checked, whole states", f"{figures.step_checks:,}, {figures.full_checks:,}"))
    for name, value in rows:
        table.add_row(name, value)
    console().print(table)
