"""``kvcrucible faults``: plants known bugs into the engine, one at a time, and shows that each is found."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.console import console, print_json, safe, stderr_console
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.fuzz.faults.catalogue import Fault
    from kvcrucible.fuzz.faults.run import FaultRun


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    group = typer.Typer(
        no_args_is_help=True, help="Plant known bugs, one at a time, and see that each is found."
    )
    app.add_typer(group, name="faults")

    @group.command("list")
    def list_faults(json_output: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
        """List the planted faults."""
        from kvcrucible.fuzz.faults.catalogue import catalogue

        if json_output:
            print_json([_fault_to_plain(fault) for fault in catalogue().values()])
        else:
            _print_list(list(catalogue().values()))

    @group.command()
    def show(fault: str = typer.Argument(help="Id of a fault.")) -> None:
        """Show one fault: what it changes, what has to report it, which public bugs it re-creates."""
        from kvcrucible.fuzz.faults.catalogue import fault as find

        _print_fault(find(fault))

    @group.command()
    def run(
        faults: list[str] = typer.Argument(None, help="Ids of faults."),
        everything: bool = typer.Option(False, "--all", help="Run every fault."),
        examples: int = typer.Option(300, min=1, help="Examples of each campaign."),
        steps: int = typer.Option(60, min=1, max=1000, help="Most rules in one example."),
        seed: int = typer.Option(0, min=0, help="Seed of every campaign."),
        out: Path = typer.Option(Path("results/faults"), help="Folder for the reproductions."),
        json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
    ) -> None:
        """Run a campaign against each fault in a child process; status 1 where one survives."""
        from kvcrucible.fuzz.faults.catalogue import catalogue
        from kvcrucible.fuzz.faults.catalogue import fault as find
        from kvcrucible.fuzz.faults.run import CampaignOptions, totals

        if bool(faults) == everything:
            raise InputError("name faults, or give --all; `kvcrucible faults list` shows their ids")
        chosen = list(catalogue().values()) if everything else [find(name) for name in faults]
        done = _run_with_progress(chosen, CampaignOptions(examples, steps, seed, out))
        if json_output:
            print_json(
                {"format": "kvcrucible.fault-runs/1", **totals(done), "runs": [asdict(one) for one in done]}
            )
        else:
            _print_runs(done, totals(done))
        raise typer.Exit(_status(done))


def _run_with_progress(chosen: list[Fault], options: Any) -> list[FaultRun]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kvcrucible.fuzz.faults.run import run_faults

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
        task = progress.add_task("faults", total=len(chosen))
        return run_faults(chosen, options, lambda _: progress.advance(task))


def _status(done: list[FaultRun]) -> ExitStatus:
    from kvcrucible.fuzz.faults.run import Verdict

    verdicts = {one.verdict for one in done}
    if Verdict.SURVIVED in verdicts:
        return ExitStatus.VIOLATION
    if verdicts & {Verdict.LOST, Verdict.HUNG}:
        return ExitStatus.INTERNAL
    return ExitStatus.NOT_RUN if Verdict.NOT_RUN in verdicts else ExitStatus.HELD


def _fault_to_plain(fault: Fault) -> dict[str, Any]:
    return {**asdict(fault), "depth": fault.depth.value}


def _print_list(faults: list[Fault]) -> None:
    from rich.table import Table

    table = Table(
        "id", "title", "depth", "told by", "re-creates", title=f"{len(faults)} faults", title_justify="left"
    )
    for fault in faults:
        recreates = ", ".join(bug.id for bug in fault.recreates) or "–"
        table.add_row(
            safe(fault.id), safe(fault.title), fault.depth.value, ", ".join(fault.expects), recreates
        )
    console().print(table)


def _print_fault(fault: Fault) -> None:
    screen = console()
    screen.print(f"[bold]{safe(fault.id)}[/bold]: {safe(fault.title)}")
    screen.print(safe(fault.mechanism))
    screen.print(f"seen at depth {fault.depth.value}; told by {', '.join(fault.expects)}")
    for bug in fault.recreates:
        screen.print(f"re-creates {safe(bug.id)} {safe(bug.url)}")
    screen.print(f"in {safe(fault.module)}, replaces")
    screen.print(safe(fault.anchor), end="")
    screen.print("with" if fault.replacement else "with nothing")
    screen.print(safe(fault.replacement), end="")


def _print_runs(done: list[FaultRun], sums: dict[str, Any]) -> None:
    from rich.table import Table

    screen = console()
    table = Table(
        "fault", "verdict", "told by", "examples", "steps", "minimal", title="faults", title_justify="left"
    )
    for one in done:
        numbers = [
            "" if number is None else f"{number:,}" for number in (one.examples, one.steps, one.length)
        ]
        table.add_row(safe(one.fault), one.verdict.value, safe(", ".join(one.invariants[:2])), *numbers)
    screen.print(table)
    for one in done:
        if one.note:
            screen.print(f"{safe(one.fault)}: {safe(one.note)}")
        if one.invariants and not one.expected:
            screen.print(f"{safe(one.fault)}: told by none of the invariants that the catalogue names")
    screen.print(
        f"[bold]killed {sums['killed']} of {sums['faults']}[/bold]; median examples to detection "
        f"{sums['median_examples']}, median minimal length {sums['median_length']}, longest {sums['longest']}"
    )
