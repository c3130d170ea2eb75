"""``kvcrucible faults``: plants known bugs into engine and kernels, one at a time, and shows that each is found."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.console import console, print_json, safe
from kvcrucible.cli.former import set_aside
from kvcrucible.cli.progress import progress_bar
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.fuzz.faults.catalogue import Fault
    from kvcrucible.fuzz.faults.coverage import Covered
    from kvcrucible.fuzz.faults.run import FaultRun, Trial


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    group = typer.Typer(
        no_args_is_help=True, help="Plant known bugs, one at a time, and see that each is found."
    )
    app.add_typer(group, name="faults")
    _register_readers(group)

    @group.command()
    def run(
        faults: list[str] = typer.Argument(None, help="Ids of faults."),
        everything: bool = typer.Option(False, "--all", help="Run every fault, those of kernels too."),
        raw_seeds: int = typer.Option(
            1_500,
            "--raw-seeds",
            min=0,
            help="Seeds of the raw loop in each campaign at ledger depth; 0 for campaigns of Hypothesis there too.",
        ),
        examples: int = typer.Option(300, min=1, help="Examples of each campaign of Hypothesis, at least."),
        steps: int = typer.Option(60, min=1, max=1000, help="Most rules in one example."),
        seed: int = typer.Option(0, min=0, help="First seed of the campaigns."),
        seeds: int = typer.Option(
            1,
            min=1,
            max=100,
            help="Campaigns of each fault, each with the next seed; the first alone shrinks.",
        ),
        shrink: bool = typer.Option(True, help="Make the first failing example of each fault minimal."),
        jobs: int = typer.Option(2, min=1, help="Campaigns at a time; never more than there are cores."),
        unchanged: bool = typer.Option(
            True, help="Run the engine as it is too: it has to survive, or `coverage` counts no kill."
        ),
        out: Path = typer.Option(
            Path("results/faults"), help="Folder for the results (runs.json) and the reproductions."
        ),
        json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
    ) -> None:
        """Run a campaign against each fault in a child process; status 1 where one survives, 3 where all are killed and
        one is told by none of the invariants that it names.

        The same campaigns run on the engine as it is, where they must find nothing: a judge that condemns everybody
        would find every fault. OUT/runs.json keeps all of it for `coverage` and `matrix`, and what was through by then
        where it is interrupted; a former one is kept beside it, under a name with its time.
        """
        from kvcrucible.cli.faults_tables import print_matrix, print_runs, print_unchanged
        from kvcrucible.fuzz.faults.catalogue import every_fault
        from kvcrucible.fuzz.faults.catalogue import fault as find
        from kvcrucible.fuzz.faults.results import results_to_plain
        from kvcrucible.fuzz.faults.run import CampaignOptions, totals, trials_of, unchanged_trials
        from kvcrucible.fuzz.keeping import write_json
        from kvcrucible.fuzz.source import source_commit

        if bool(faults) == everything:
            raise InputError("name faults, or give --all; `kvcrucible faults list` shows their ids")
        # Named twice, a fault would count twice in all that is added up.
        chosen = (
            list(every_fault().values()) if everything else [find(name) for name in dict.fromkeys(faults)]
        )
        require_writable(out)
        options = CampaignOptions(examples, steps, seed, out, shrink=shrink, raw_seeds=raw_seeds)
        trials = trials_of(chosen, options, seeds)
        controls = unchanged_trials(chosen, options) if unchanged else []
        # What is committed while campaigns run is not what they ran.
        commit = source_commit()
        runs = _run_with_progress([*trials, *controls], jobs)
        done, held = runs[: len(trials)], runs[len(trials) :]
        plain = results_to_plain(done, held, options, seeds, commit)
        set_aside(out / "runs.json")
        write_json(out / "runs.json", plain)
        if json_output:
            print_json(plain)
        else:
            print_runs(done, totals(done))
            if len(chosen) > 1:
                print_matrix(done)
            print_unchanged(held)
        raise typer.Exit(status_of(done, held))


def _register_readers(group: typer.Typer) -> None:
    """Add the commands that run nothing."""

    @group.command("list")
    def list_faults(json_output: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
        """List the planted faults."""
        from kvcrucible.cli.faults_tables import print_list
        from kvcrucible.fuzz.faults.catalogue import every_fault

        if json_output:
            print_json([_fault_to_plain(fault) for fault in every_fault().values()])
        else:
            print_list(list(every_fault().values()))

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
    def coverage(
        results: list[Path] = typer.Option([], help="Kept results, a runs.json of `faults run`; repeatable."),
        json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
    ) -> None:
        """List the public bugs: caught, missed, open, or not expressible; without results nothing is said to be caught.

        Recall is over all that are expressible, open ones included. Status 1 where one was missed, be it that a
        campaign hung or fell over, 3 where one was found, but told by no invariant that its fault names; what was not
        run is not measured, nor a kill in a file in which the engine as it is did not survive the same campaign.
        """
        from kvcrucible.cli.faults_tables import print_coverage
        from kvcrucible.fuzz.faults.coverage import coverage as cover
        from kvcrucible.fuzz.faults.coverage import coverage_to_plain
        from kvcrucible.fuzz.faults.results import read_results

        kept = [read_results(path) for path in results]
        found = cover(kept)
        plain = coverage_to_plain(found, [one.commit for one in kept])
        if json_output:
            print_json(plain)
        else:
            print_coverage(found, plain)
        raise typer.Exit(status_of_coverage(found))

    @group.command()
    def matrix(
        results: Path = typer.Argument(help="Kept results: a runs.json of `faults run`."),
        json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
    ) -> None:
        """Show which invariants told which fault in kept results: first, alone, and how soon."""
        from kvcrucible.cli.faults_tables import print_matrix
        from kvcrucible.fuzz.faults.catalogue import every_fault
        from kvcrucible.fuzz.faults.matrix import fault_rows, invariant_rows, matrix_to_plain
        from kvcrucible.fuzz.faults.results import read_results

        runs = read_results(results).runs
        if json_output:
            rows = fault_rows(runs)
            print_json(matrix_to_plain(rows, invariant_rows(rows, every_fault().values())))
        else:
            print_matrix(list(runs))


def require_writable(out: Path, *, file: bool = False) -> None:
    """Refuse a folder, or with ``file`` the folder of a file, that cannot be written before campaigns run whose results
    would be lost; makes nothing.
    """
    if file and out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file")
    folder = out.parent if file else out
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {out}: {there} is no folder; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: {there} cannot be written; name another folder")


def _run_with_progress(trials: list[Trial], jobs: int) -> list[FaultRun]:
    from kvcrucible.fuzz.faults.run import run_trials

    with progress_bar() as progress:
        task = progress.add_task("campaigns", total=len(trials))
        return run_trials(trials, jobs, lambda _: progress.advance(task))


def status_of(done: list[FaultRun], unchanged: list[FaultRun]) -> ExitStatus:
    """Return the exit status: 0 where every fault was killed by an invariant that it names, and the engine as it is was
    not killed.
    """
    from kvcrucible.fuzz.faults.run import INTERRUPTED, Verdict

    verdicts = {one.verdict for one in done}
    controls = {one.verdict for one in unchanged}
    if Verdict.SURVIVED in verdicts or Verdict.KILLED in controls:
        return ExitStatus.VIOLATION
    if any(one.note == INTERRUPTED for one in (*done, *unchanged)):
        return ExitStatus.INTERRUPTED
    if (verdicts | controls) & {Verdict.LOST, Verdict.HUNG}:
        return ExitStatus.INTERNAL
    if Verdict.NOT_RUN in verdicts | controls:
        return ExitStatus.NOT_RUN
    return ExitStatus.INCONCLUSIVE if any(one.told_otherwise for one in done) else ExitStatus.HELD


def status_of_coverage(found: Iterable[Covered]) -> ExitStatus:
    """Return the exit status: 0 where no bug was missed, 3 where those that were have all been told otherwise."""
    from kvcrucible.fuzz.faults.coverage import ANY_MISSED, Standing

    missed = {one.standing for one in found} & set(ANY_MISSED)
    if missed - {Standing.TOLD_OTHERWISE}:
        return ExitStatus.VIOLATION
    return ExitStatus.INCONCLUSIVE if missed else ExitStatus.HELD


def _fault_to_plain(fault: Fault) -> dict[str, Any]:
    recreates = [{"id": bug.id, "url": bug.url} for bug in fault.recreates]
    return {**asdict(fault), "depth": fault.depth.value, "recreates": recreates, "digest": fault.digest}


def _print_fault(fault: Fault) -> None:
    screen = console()
    screen.print(f"[bold]{safe(fault.id)}[/bold]: {safe(fault.title)}")
    screen.print(safe(fault.mechanism))
    seen = f"seen at depth {fault.depth.value}" if fault.part == "engine" else f"seen by trying {fault.part}"
    screen.print(f"{seen}; told by {', '.join(fault.expects)}")
    for bug in fault.recreates:
        screen.print(f"re-creates {safe(bug.id)} {safe(bug.url)}")
    screen.print(f"in {safe(fault.module)}, replaces")
    screen.print(safe(fault.anchor), end="")
    screen.print("with" if fault.replacement else "with nothing")
    screen.print(safe(fault.replacement), end="")
