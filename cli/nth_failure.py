"""``kvcrucible nth-failure``: fails every grant, copy and publication of an operation, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvcrucible.cli.console import console, print_json, safe, seed_or_drawn
from kvcrucible.cli.progress import progress_bar
from kvcrucible.cli.reproduced import written_or_told
from kvcrucible.contract.errors import ExitStatus

if TYPE_CHECKING:
    from rich.console import Console

    from kvcrucible.fuzz.nth_failure.campaign import NthFailureReport

#: Cells that have to be rolled back unless told otherwise: the figure that is published.
_DEFAULT_CELLS = 20_000


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command("nth-failure")
    def nth_failure(
        cells: int = typer.Option(
            _DEFAULT_CELLS,
            min=1,
            help="Cells that have to be rolled back, at least: site × operation × k × how long.",
        ),
        seed: int | None = typer.Option(
            None, min=0, help="Seed of the workloads; drawn and printed when not given."
        ),
        seconds: float | None = typer.Option(
            None, min=0.0, help="Stop after about this time, cut short (exit 3)."
        ),
        out: Path = typer.Option(
            Path("results/failures"), help="Folder for the reproduction of a violation."
        ),
        json_output: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    ) -> None:
        """Let the k-th page grant, extent grant, copy, publication and copy-on-write of every operation fail, for all
        k, once and persistently: everything has to be as it was before, and ending everything leads to the initial free
        sets. Errors that nobody has foreseen change nothing either, or the engine says that it is lost.
        """
        from kvcrucible.fuzz.campaign import keep_out_of_the_working_folder
        from kvcrucible.fuzz.nth_failure.reproduction import write

        keep_out_of_the_working_folder()
        report = _run(seed_or_drawn(seed), cells, seconds)
        failure, path = report.failure, None
        if failure is not None:
            path = written_or_told("reproduction", out, lambda: write(out, failure))
        if json_output:
            print_json(report.to_plain() | {"reproduction": None if path is None else str(path)})
        else:
            _print(console(), report, path)
        raise typer.Exit(status_of(report))


def status_of(report: NthFailureReport) -> ExitStatus:
    """Return the exit status: 1 for a violation, 3 for a campaign that was cut short."""
    if report.failure is not None:
        return ExitStatus.VIOLATION
    return ExitStatus.HELD if report.cut_short is None else ExitStatus.INCONCLUSIVE


def _run(seed: int, cells: int, seconds: float | None) -> NthFailureReport:
    from kvcrucible.fuzz.nth_failure.campaign import run

    with progress_bar() as progress:
        task = progress.add_task("cells", total=cells)
        return run(seed, cells, seconds, lambda report: progress.update(task, completed=report.due_rollbacks))


def _print(screen: Console, report: NthFailureReport, path: Path | None) -> None:
    from kvcrucible.cli.fuzz_tables import print_example
    from kvcrucible.cli.tables import Table
    from kvcrucible.contract.in_words import in_words

    table = Table("site", "operation", title="cells: site × operation × k × once or persistently")
    for heading in ("tried", "exact rollbacks", "went on", "lost", "emptied exactly", "violated"):
        table.add_column(heading, justify="right")
    total = report.total
    rows = [(site.value, operation, line) for (site, operation), line in sorted(report.lines.items())]
    for site, operation, line in [*rows, ("all", "", total)]:
        numbers = (line.cells, line.exact, line.went_on, line.lost, line.emptied_exactly, line.violated)
        table.add_row(site, operation, *[f"{number:,}" if number else "–" for number in numbers])
    screen.print(table)
    if report.failure is not None:
        cell = report.failure.cell
        screen.print(f"\n[bold]{safe(str(cell))}[/bold] on {safe(in_words(cell.workload.setting))}")
        print_example(screen, cell.workload.steps[: cell.at + 1], report.failure.violations, path)
    verdict = "VIOLATION" if report.failure else "cut short" if report.cut_short else "held"
    screen.print(
        f"[bold]{verdict}[/bold]: {total.cells:,} cells of {report.workloads} workloads, {total.exact:,} of "
        f"{report.due_rollbacks:,} rollbacks exact, {total.emptied_exactly:,} of {total.emptied:,} emptied exactly; "
        f"{report.seconds:.0f} s, seed {report.seed}",
        soft_wrap=True,
    )
