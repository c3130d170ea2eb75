"""``kvcrucible fuzz --matrix``: the acceptance campaign over all configurations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcrucible.cli.console import console, print_json, safe
from kvcrucible.cli.former import set_aside
from kvcrucible.contract.errors import ExitStatus

if TYPE_CHECKING:
    from rich.console import Console

    from kvcrucible.fuzz.matrix import Cell, MatrixPlan, MatrixReport


def run_and_print(
    examples: int | None, steps: int, seed: int, jobs: int, out: Path, *, json_output: bool
) -> ExitStatus:
    """Run every configuration, print what became of each, and return the exit status."""
    from kvcrucible.fuzz.matrix import KEPT, LEAST_EXAMPLES, MatrixPlan, matrix_to_plain

    plan = MatrixPlan(LEAST_EXAMPLES if examples is None else examples, steps, seed, out)
    set_aside(out / KEPT)
    report = _run_with_progress(plan, jobs)
    if json_output:
        print_json(matrix_to_plain(report))
    else:
        _print(console(), report)
    return report.status()


def _run_with_progress(plan: MatrixPlan, jobs: int) -> MatrixReport:
    from kvcrucible.cli.progress import progress_bar
    from kvcrucible.fuzz.matrix import run_matrix

    with progress_bar() as progress:
        task = progress.add_task("configurations", total=len(plan.configurations))

        def through(cell: Cell) -> None:
            tried = (cell.report or {}).get("examples", 0)
            which = f"{cell.configuration.name}, seed {cell.seed}{' (further)' if cell.further else ''}"
            progress.console.print(
                f"{which}: {cell.status.name.lower()}, {tried} examples, {cell.seconds:.0f} s"
            )
            if not cell.further:
                progress.advance(task)

        return run_matrix(plan, jobs, through)


def _print(screen: Console, report: MatrixReport) -> None:
    from kvcrucible.cli.fuzz_tables import print_pairs
    from kvcrucible.cli.tables import Table
    from kvcrucible.fuzz.matrix import LEAST_EXAMPLES

    table = Table("pools", "profile", "host", "seed", "examples", "steps", "seconds", "verdict")
    for cell in report.cells:
        asked, found = cell.configuration, cell.report or {}
        counts = [f"{found.get(name, 0):,}" for name in ("examples", "steps")]
        table.add_row(
            asked.pools, asked.profile, asked.host, f"{cell.seed}{' (further)' if cell.further else ''}", *counts,
            f"{cell.seconds:.0f}", cell.status.name.lower(),
        )  # fmt: skip
    screen.print(table)
    for cell in report.cells:
        failure = (cell.report or {}).get("failure")
        if failure is not None:
            first = failure["violations"][0]
            screen.print(f"{cell.configuration.name}: {safe(first['invariant'])}: {safe(first['message'])}")
            screen.print(f"  reproduction: {safe(str(failure['reproduction']))}")
        elif not cell.held:
            screen.print(f"{cell.configuration.name}: {cell.status.name.lower()}: {safe(cell.note)}")
    print_pairs(screen, sum(1 for times in report.pairs.values() if times), report.missing_pairs())
    missed = report.missed_goals()
    if missed:
        screen.print(f"coverage goals that no configuration reached: {', '.join(missed)}")
    held, configurations = report.held(further=False)
    screen.print(f"[bold]{held} of {configurations} configurations held[/bold]")
    held, further = report.held(further=True)
    if further:
        screen.print(
            f"  {held} of {further} further campaigns held, for pairs and goals that all of them had missed"
        )
    if report.short:
        screen.print(
            f"  a configuration with fewer than {LEAST_EXAMPLES} examples shows nothing by its silence"
        )
