"""``kvcrucible fuzz`` without a further mode: one campaign under Hypothesis, with live progress and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcrucible.cli.console import console, print_json, safe
from kvcrucible.cli.fuzz_tables import print_counts, print_failure, print_pairs
from kvcrucible.cli.progress import progress_bar
from kvcrucible.cli.reproduced import write_reproduction
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from kvcrucible.fuzz.campaign import Plan, Report


def campaign_and_print(plan: Plan, out: Path, *, json_output: bool) -> ExitStatus:
    """Run the plan, print what became of it, and return the exit status.

    Raises ``InputError`` for a database that is no folder, ``NotRunError`` where engine or depth are not to be had.
    """
    from kvcrucible.fuzz.campaign import keep_out_of_the_working_folder

    keep_out_of_the_working_folder()
    if plan.database is not None and plan.database.exists() and not plan.database.is_dir():
        raise InputError(
            f"--database {plan.database} is no folder; name one, it is made where it does not exist"
        )
    report = _run_with_progress(plan)
    path = write_reproduction(report.failure, out)
    if json_output:
        from kvcrucible.fuzz.report import report_to_plain

        print_json(report_to_plain(report, path))
    else:
        _print_report(console(), report, path)
    return _status(report)


def _run_with_progress(plan: Plan) -> Report:
    from kvcrucible.fuzz.campaign import run

    with progress_bar(spinner=True, detail=True) as progress:
        task = progress.add_task(f"fuzzing {safe(plan.engine)}", total=plan.examples, detail="")

        def show(report: Report) -> None:
            tally = report.tally
            rate = tally.steps / report.seconds if report.seconds else 0.0
            goals = report.goals()
            hit = sum(1 for times in goals.values() if times)
            detail = f"{tally.steps} steps, {rate:.0f}/s, goals {hit}/{len(goals)}"
            if report.shrinking:
                # How long that takes nobody knows: the bar only shows that something is going on.
                progress.update(task, description="found one, shrinking", total=None, detail=detail)
            else:
                most = max(plan.examples, tally.examples)
                progress.update(task, completed=tally.examples, total=most, detail=detail)

        return run(plan, show)


def _status(report: Report) -> ExitStatus:
    if report.failure is not None:
        return ExitStatus.VIOLATION
    if report.cut_short == "interrupted":
        return ExitStatus.INTERRUPTED
    return ExitStatus.HELD if report.cut_short is None else ExitStatus.INCONCLUSIVE


def _print_report(screen: Console, report: Report, path: Path | None) -> None:
    tally = report.tally
    print_counts(screen, "operations by kind", tally.operations)
    print_counts(screen, "refusals by kind", tally.refusals)
    print_counts(screen, "reasons to wait", tally.waits)
    print_counts(screen, "admissions by mode", tally.modes)
    if report.plan.capacity_at:
        _print_hits(screen, tally.hits)
    goals = report.goals()
    missed = [name for name, times in goals.items() if not times]
    screen.print(f"[bold]coverage goals[/bold] {len(goals) - len(missed)} of {len(goals)} hit")
    if missed:
        screen.print(f"  not reached: {', '.join(missed)}")
    print_pairs(screen, sum(1 for times in tally.pairs.values() if times), report.missing_pairs())
    judged = {name: times for name, times in tally.invariants.items() if times}
    vacuous = sorted(name for name in judged if not tally.premises[name])
    print_counts(screen, "invariants judged", judged)
    if vacuous:
        screen.print(f"  never had anything to judge: {', '.join(vacuous)}")
    for reason in report.unchecked():
        screen.print(f"  not checked: {safe(reason)}")
    for waiver, times in report.known_differences():
        screen.print(
            f"  known difference, passed over {times:,} times: {safe(waiver.id)}: {safe(waiver.reason)}"
        )
    if report.failure is not None:
        print_failure(screen, report.failure, path)
    rate = tally.steps / report.seconds if report.seconds else 0.0
    depths = "+".join(depth.value for depth in report.plan.depths)
    if report.plan.device != "cpu":
        depths += f" on {report.plan.device}"
    verdict = "VIOLATION" if report.failure else "cut short" if report.cut_short else "held"
    # What shrinking ran on top of the examples is no part of the search.
    examples = tally.examples if report.failure is None else report.failure.examples_before
    screen.print(
        f"[bold]{verdict}[/bold]: {examples} examples, {tally.steps} steps, {report.seconds:.1f} s, "
        f"{rate:.0f} steps/s; engine {safe(report.plan.engine)}, depth {depths}, seed {report.plan.seed}"
    )
    if report.cut_short:
        screen.print(f"  {safe(report.cut_short)}")


def _print_hits(screen: Console, hits: dict[tuple[int, str], int]) -> None:
    """Print what became of requests with a hit, by the size of the pools."""
    from kvcrucible.cli.tables import Table
    from kvcrucible.contract.operations import AdmissionMode

    kinds = [*(mode.value for mode in AdmissionMode), "waits"]
    table = Table(title="requests with a hit, by pages of Main (L: those of one longest sequence)")
    table.add_column("pages")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for beyond in sorted({beyond for beyond, _ in hits}):
        name = f"L{beyond:+d}" if beyond else "L"
        table.add_row(name, *[f"{hits.get((beyond, kind), 0):,}" for kind in kinds])
    screen.print(table)
    screen.print(
        "  each of those that wait: its cold start does not fit either, with all that can be released gone"
    )
