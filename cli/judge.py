"""``kvcrucible judge``: the judge itself is judged, by a canary, by cheaters and by honest engines."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.console import console, print_json, safe, seed_or_drawn
from kvcrucible.cli.progress import spinner
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcrucible.fuzz.canary.stages import StageResult
    from kvcrucible.fuzz.cheaters.trial import Trial
    from kvcrucible.fuzz.volume import VolumeReport

#: Workloads that each cheater gets at most, and seeds in which each honest engine has to hold.
_CHEATER_SEEDS, _HONEST_SEEDS = 300, 10_000


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Judge the judge: a canary has to fail in every stage, cheaters are rejected, honest engines are not.",
    )
    app.add_typer(group, name="judge")
    group.command("canary")(canary)
    group.command("cheaters")(cheaters)
    group.command("honest")(honest)


def canary(
    stages: list[str] = typer.Argument(
        None, help="Stages: ledger, raw, payload, kernels, history, nth-failure; all without."
    ),
    json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Run an engine that must fail through every stage; where it passes, what the stage reports is void (status 1)."""
    from kvcrucible.cli.tables import Table
    from kvcrucible.fuzz.campaign import keep_out_of_the_working_folder
    from kvcrucible.fuzz.canary.stages import STAGES, run_stage

    unknown = [name for name in stages or () if name not in STAGES]
    if unknown:
        raise InputError(f"unknown stages {safe(', '.join(unknown))}; known: {', '.join(STAGES)}")
    keep_out_of_the_working_folder()
    results = [run_stage(name) for name in stages or STAGES]
    if json_output:
        plain = [asdict(one) | {"void": one.void} for one in results]
        print_json({"format": "kvcrucible.canary/1", "stages": plain})
    else:
        table = Table("stage", "the canary", "found", title="canary")
        for one in results:
            style = "bold red" if one.void else None
            table.add_row(one.stage, one.verdict.value, safe(one.note), style=style)
        console().print(table)
    raise typer.Exit(canary_status(results))


def canary_status(results: list[StageResult]) -> ExitStatus:
    """Return the exit status: 1 where a stage is void, 5 where one could not run."""
    from kvcrucible.fuzz.canary.stages import Verdict

    if any(one.void for one in results):
        return ExitStatus.VIOLATION
    ran = all(one.verdict is not Verdict.NOT_RUN for one in results)
    return ExitStatus.HELD if ran else ExitStatus.NOT_RUN


def cheaters(
    seeds: int = typer.Option(_CHEATER_SEEDS, min=1, help="Workloads that each cheater gets at most."),
    seed: int | None = typer.Option(
        None, min=0, help="Seed of the workloads; drawn and printed when not given."
    ),
    json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Put cheating engines before the judge; status 1 where one gets through, or is told by nothing that fits."""
    from kvcrucible.fuzz.cheaters.cheats import CHEATS
    from kvcrucible.fuzz.cheaters.trial import trial
    from kvcrucible.fuzz.setting import Depth

    seed = seed_or_drawn(seed)
    cases = Cases(seed, seeds)
    trials: list[tuple[Trial, tuple[str, ...]]] = []
    with spinner("putting cheaters before the judge"):
        for cheat in CHEATS.values():
            if cheat.depth is Depth.PAYLOAD and not _has_torch():
                continue
            done = trial(cheat.name, cases, cheat.depth)
            trials.append((done, done.told_by(cheat.tells)))
    caught = [bool(told) for _, told in trials]
    skipped = len(CHEATS) - len(trials)
    if json_output:
        plain = [_trial_to_plain(done) | {"told_by": list(told)} for done, told in trials]
        print_json({"format": "kvcrucible.cheaters/1", "seed": seed, "not_run": skipped, "cheaters": plain})
    else:
        _print_trials("cheaters", [(done, ", ".join(told)) for done, told in trials])
        not_run = f", {skipped} not run: payload depth needs torch" if skipped else ""
        console().print(
            f"[bold]{sum(caught)} of {len(trials)} cheaters rejected[/bold]{not_run}; seed {seed}"
        )
    raise typer.Exit(
        ExitStatus.VIOLATION if not all(caught) else ExitStatus.NOT_RUN if skipped else ExitStatus.HELD
    )


def honest(
    seeds: int = typer.Option(_HONEST_SEEDS, min=1, help="Seeds in which every honest engine has to hold."),
    seed: int | None = typer.Option(None, min=0, help="First seed; drawn and printed when not given."),
    jobs: int = typer.Option(1, "--jobs", "-j", min=1, help="Processes; never more than there are cores."),
    json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Put engines before the judge that only grant free pages in another order; status 1 for a false alarm."""
    from kvcrucible.cli.fuzz_raw import run_with_progress
    from kvcrucible.fuzz.cheaters.orders import ORDERS
    from kvcrucible.fuzz.volume import VolumePlan, volume_to_plain

    seed = seed_or_drawn(seed)
    reports: list[VolumeReport] = []
    for name in ORDERS:
        reports.append(run_with_progress(VolumePlan(name, seed, seeds), jobs))
        if reports[-1].cut_short is not None:
            break
    alarms = sum(report.failure is not None for report in reports)
    if json_output:
        plain = [volume_to_plain(report, None) for report in reports]
        print_json({"format": "kvcrucible.honest/1", "seed": seed, "seeds": seeds, "engines": plain})
    else:
        _print_honest(reports, alarms, seed)
    if alarms:
        raise typer.Exit(ExitStatus.VIOLATION)
    interrupted = any(report.cut_short for report in reports)
    raise typer.Exit(ExitStatus.INTERRUPTED if interrupted else ExitStatus.HELD)


def _print_honest(reports: list[VolumeReport], alarms: int, seed: int) -> None:
    from kvcrucible.cli.tables import Table

    table = Table("engine", "verdict", "found", title="honest engines")
    for heading in ("seeds", "operations", "bound (95 %)"):
        table.add_column(heading, justify="right")
    for report in reports:
        failure = report.failure
        found = "" if failure is None else safe(str(failure.violations[0]))
        verdict = "FALSE ALARM" if failure is not None else report.cut_short or "held"
        bound = "" if report.bound is None else f"< {report.bound:.1e}"
        table.add_row(
            report.plan.engine, verdict, found, f"{report.total.seeds:,}", f"{report.operations:,}", bound
        )
    console().print(table)
    console().print(f"[bold]{alarms} false alarms[/bold] of {len(reports)} honest engines; first seed {seed}")


class Cases:
    """The workloads of a seed, drawn when they are first asked for and kept for the engines that follow."""

    def __init__(self, seed: int, most: int) -> None:
        from kvcrucible.fuzz.nth_failure.workloads import workloads

        self._drawn: list[Any] = []
        self._source = islice(workloads(seed, failing_copies=True), most)

    def __iter__(self) -> Any:
        """Yield (setting, steps) of every workload."""
        at = 0
        while True:
            if at == len(self._drawn):
                one = next(self._source, None)
                if one is None:
                    return
                self._drawn.append((one.setting, one.steps))
            yield self._drawn[at]
            at += 1


def _has_torch() -> bool:
    from kvcrucible.fuzz.campaign import default_depths
    from kvcrucible.fuzz.setting import Depth

    return Depth.PAYLOAD in default_depths()


def _trial_to_plain(done: Trial) -> dict[str, Any]:
    violations = [{"invariant": found.invariant, "message": found.message} for found in done.violations]
    return {
        "engine": done.engine,
        "workloads": done.workloads,
        "steps": done.steps,
        "rejected": done.rejected,
        "violations": violations,
    }


def _print_trials(title: str, trials: Iterable[tuple[Trial, str]]) -> None:
    from kvcrucible.cli.tables import Table

    table = Table("engine", "verdict", "told by", title=title)
    for heading in ("workloads", "steps"):
        table.add_column(heading, justify="right")
    for done, told in trials:
        verdict = "rejected" if done.rejected else "held"
        named = told or ", ".join(dict.fromkeys(found.invariant for found in done.violations[:2]))
        table.add_row(safe(done.engine), verdict, safe(named), f"{done.workloads:,}", f"{done.steps:,}")
    console().print(table)
