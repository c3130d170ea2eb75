"""``kvcrucible faults``: plants known bugs into the engine, one at a time, and shows that each is found."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.console import console, print_json, safe, stderr_console
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.fuzz.faults.catalogue import Fault
    from kvcrucible.fuzz.faults.run import FaultRun, Trial


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
    def show(
        fault: str = typer.Argument(help="Id of a fault."),
        json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
    ) -> None:
        """Show one fault: what it changes, what has to report it, which public bugs it re-creates."""
        from kvcrucible.fuzz.faults.catalogue import fault as find

        found = find(fault)
        if json_output:
            print_json(_fault_to_plain(found))
        else:
            _print_fault(found)

    @group.command()
    def run(
        faults: list[str] = typer.Argument(None, help="Ids of faults."),
        everything: bool = typer.Option(False, "--all", help="Run every fault."),
        examples: int = typer.Option(300, min=1, help="Examples of each campaign, at least."),
        steps: int = typer.Option(60, min=1, max=1000, help="Most rules in one example."),
        seed: int = typer.Option(0, min=0, help="First seed of the campaigns."),
        seeds: int = typer.Option(
            1, min=1, max=100, help="Campaigns of each fault, each with the next seed."
        ),
        jobs: int = typer.Option(2, min=1, help="Campaigns at a time; never more than there are cores."),
        unchanged: bool = typer.Option(True, help="Run the engine as it is too: it has to survive."),
        out: Path = typer.Option(Path("results/faults"), help="Folder for the reproductions."),
        json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
    ) -> None:
        """Run a campaign against each fault in a child process; status 1 where one survives.

        The same campaigns run on the engine as it is, where they must find nothing: a judge that condemns everybody
        would find every fault.
        """
        from kvcrucible.fuzz.faults.catalogue import catalogue
        from kvcrucible.fuzz.faults.catalogue import fault as find
        from kvcrucible.fuzz.faults.run import CampaignOptions, totals, trials_of, unchanged_trials

        if bool(faults) == everything:
            raise InputError("name faults, or give --all; `kvcrucible faults list` shows their ids")
        chosen = list(catalogue().values()) if everything else [find(name) for name in faults]
        require_writable(out)
        options = CampaignOptions(examples, steps, seed, out)
        trials = trials_of(chosen, options, seeds)
        controls = unchanged_trials(chosen, options) if unchanged else []
        runs = _run_with_progress([*trials, *controls], jobs)
        done, held = runs[: len(trials)], runs[len(trials) :]
        if json_output:
            plain = {
                "format": "kvcrucible.fault-runs/1",
                **totals(done),
                "runs": [asdict(one) for one in done],
                "unchanged": [asdict(one) for one in held],
            }
            print_json(plain)
        else:
            _print_runs(done, totals(done))
            _print_unchanged(held)
        raise typer.Exit(status_of(done, held))


def require_writable(out: Path) -> None:
    """Refuse a folder that cannot be written before campaigns run whose reproductions would be lost; makes nothing."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {out}: {there} is no folder; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: {there} cannot be written; name another folder")


def _run_with_progress(trials: list[Trial], jobs: int) -> list[FaultRun]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kvcrucible.fuzz.faults.run import run_trials

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
        task = progress.add_task("campaigns", total=len(trials))
        return run_trials(trials, jobs, lambda _: progress.advance(task))


def status_of(done: list[FaultRun], unchanged: list[FaultRun]) -> ExitStatus:
    """Return the exit status: 0 where every fault was killed and the engine as it is was not."""
    from kvcrucible.fuzz.faults.run import Verdict

    verdicts = {one.verdict for one in done}
    controls = {one.verdict for one in unchanged}
    if Verdict.SURVIVED in verdicts or Verdict.KILLED in controls:
        return ExitStatus.VIOLATION
    if (verdicts | controls) & {Verdict.LOST, Verdict.HUNG}:
        return ExitStatus.INTERNAL
    return ExitStatus.NOT_RUN if Verdict.NOT_RUN in verdicts | controls else ExitStatus.HELD


def _fault_to_plain(fault: Fault) -> dict[str, Any]:
    return {**asdict(fault), "depth": fault.depth.value}


def _print_list(faults: list[Fault]) -> None:
    from kvcrucible.cli.tables import Table

    table = Table("fault", "depth", "told by", "re-creates", title=f"{len(faults)} faults", show_lines=True)
    for fault in faults:
        # One id a line: they are there to be copied.
        recreates = "\n".join(bug.id for bug in fault.recreates) or "–"
        named = f"[bold]{safe(fault.id)}[/bold]\n{safe(fault.title)}"
        table.add_row(named, fault.depth.value, "\n".join(fault.expects), recreates)
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
    from kvcrucible.cli.tables import Table

    screen = console()
    table = Table("fault", "verdict", title="faults")
    for heading in ("tries", "steps", "minimal"):
        table.add_column(heading, justify="right")
    for one in done:
        numbers = [
            "" if number is None else f"{number:,}" for number in (one.examples, one.steps, one.length)
        ]
        told = (
            f"{one.verdict.value} by {', '.join(one.invariants[:2])}" if one.invariants else one.verdict.value
        )
        table.add_row(safe(one.fault), safe(told), *numbers)
    screen.print(table)
    for one in done:
        if one.note:
            screen.print(f"{safe(one.fault)}: {safe(one.note)}")
        if one.invariants and not one.expected:
            screen.print(f"{safe(one.fault)}: told by none of the invariants that the catalogue names")
    figures = ""
    if sums["killed"]:
        figures = (
            f"; median examples to detection {sums['median_examples']:g}, "
            f"median minimal length {sums['median_length']:g}, longest {sums['longest']}"
        )
    screen.print(f"[bold]killed {sums['killed']} of {sums['faults']}[/bold]{figures}")


def _print_unchanged(held: list[FaultRun]) -> None:
    screen = console()
    for one in held:
        screen.print(f"the engine as it is, {one.depth} depth: {one.verdict.value} {safe(one.note)}".rstrip())
        if one.invariants:
            told = safe(", ".join(one.invariants))
            screen.print(
                f"[bold]the kills above prove nothing[/bold]: nothing was planted, yet it is told by {told}"
            )
