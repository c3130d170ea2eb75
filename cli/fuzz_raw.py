"""``kvcrucible fuzz --raw``: many independent seeds, without Hypothesis (decision 0027)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcrucible.cli.console import console, print_json, safe, stderr_line
from kvcrucible.cli.fuzz_tables import print_counts, print_failure
from kvcrucible.cli.progress import progress_bar
from kvcrucible.cli.reproduced import write_reproduction
from kvcrucible.contract.errors import ExitStatus

if TYPE_CHECKING:
    from rich.console import Console

    from kvcrucible.fuzz.rates import FailedMeanwhile, Rates
    from kvcrucible.fuzz.volume import VolumePlan, VolumeReport


def plan_of(
    engine: str,
    first_seed: int,
    seeds: int | None,
    seconds: float | None,
    rules: int,
    backends: tuple[str | None, ...],
    hosts: tuple[bool, ...],
) -> VolumePlan:
    """Return the plan that the options ask for; raises ``InputError`` for an unknown engine."""
    from kvcrucible.fuzz.adapters.registry import builder_of
    from kvcrucible.fuzz.volume import DEFAULT_SEEDS, VolumePlan

    builder_of(engine)
    if seeds is None and seconds is None:
        seeds = DEFAULT_SEEDS
    return VolumePlan(engine, first_seed, seeds, seconds, rules, backends=backends, hosts=hosts)


def volume_and_print(plan: VolumePlan, jobs: int, out: Path, *, json_output: bool) -> ExitStatus:
    """Run the plan, print what became of it, and return the exit status."""
    report = run_with_progress(plan, jobs)
    path = write_reproduction(report.failure, out)
    if json_output:
        from kvcrucible.fuzz.volume import volume_to_plain

        print_json(volume_to_plain(report, None if path is None else str(path)))
    else:
        _print(console(), report, path)
    return status_of(report)


def status_of(report: VolumeReport) -> ExitStatus:
    """Return the exit status: 0 only where all seeds that were asked for held."""
    if report.failure is not None:
        return ExitStatus.VIOLATION
    if report.cut_short == "interrupted":
        return ExitStatus.INTERRUPTED
    return ExitStatus.HELD if report.cut_short is None and report.total.seeds else ExitStatus.INCONCLUSIVE


def bench_and_print(plan: VolumePlan, out: Path, *, json_output: bool) -> ExitStatus:
    """Measure, and print the rates, their ratio and the profile; or what failed meanwhile."""
    from kvcrucible.fuzz.campaign import keep_out_of_the_working_folder
    from kvcrucible.fuzz.rates import DEFAULT_ROUNDS, FailedMeanwhile, measure

    keep_out_of_the_working_folder()
    try:
        rates = measure(plan, on_round=lambda done: stderr_line(f"round {done} of {DEFAULT_ROUNDS}"))
    except FailedMeanwhile as found:
        _print_failed(found, plan, out, json_output=json_output)
        return ExitStatus.VIOLATION
    if json_output:
        print_json(rates.to_plain())
    else:
        _print_rates(console(), rates)
    return ExitStatus.HELD


def _print_failed(found: FailedMeanwhile, plan: VolumePlan, out: Path, *, json_output: bool) -> None:
    from kvcrucible.fuzz.rates import failed_to_plain

    path = write_reproduction(found.failure, out)
    if json_output:
        print_json(failed_to_plain(found, None if path is None else str(path)))
        return
    screen = console()
    print_failure(screen, found.failure, path)
    screen.print(
        f"[bold]VIOLATION[/bold]: {safe(found.where)}; nothing was measured; engine {safe(plan.engine)}, "
        f"seed {plan.first_seed}"
    )


def run_with_progress(plan: VolumePlan, jobs: int) -> VolumeReport:
    """Run a plan in so many processes and show how far it is (``kvcrucible.fuzz.volume.run_volume``)."""
    from kvcrucible.fuzz.volume import run_volume

    with progress_bar(detail=True) as progress:
        task = progress.add_task(f"seeds of {safe(plan.engine)}", total=plan.seeds, detail="")

        def show(report: VolumeReport) -> None:
            detail = f"{report.operations:,} operations, {report.operations_per_cpu_second:,.0f}/s and core"
            progress.update(task, completed=report.total.seeds, detail=detail)

        return run_volume(plan, jobs, show)


def _print(screen: Console, report: VolumeReport, path: Path | None) -> None:
    plan, total = report.plan, report.total
    print_counts(screen, "operations by kind", total.tally.operations)
    print_counts(screen, "refusals by kind", total.tally.refusals)
    if never := report.never_taken():
        screen.print(f"  never taken: {', '.join(never)}")
    goals = report.goals()
    hit = sum(1 for times in goals.values() if times)
    screen.print(
        f"[bold]coverage goals[/bold] {hit} of {len(goals)} hit, asked of {total.goal_seeds:,} of the seeds"
    )
    _print_novelty(screen, report)
    if report.failure is not None:
        print_failure(screen, report.failure, path)
    verdict = "VIOLATION" if report.failure else "cut short" if report.cut_short else "held"
    screen.print(
        f"[bold]{verdict}[/bold]: {total.seeds:,} seeds from {plan.first_seed}, {report.operations:,} checked "
        f"operations, {report.seconds:.1f} s, {report.operations_per_cpu_second:,.0f} operations/s and core; "
        f"engine {safe(plan.engine)}, depth ledger, commit {report.commit or 'unknown'}"
    )
    if report.bound is not None:
        screen.print(
            f"  with 95 % confidence fewer than {report.bound:.2g} of this generator's seeds fail (3/n)"
        )
    if total.failed_seed is not None:
        screen.print(f"  failing seed {total.failed_seed}: {safe(words_for(plan, total.failed_seed))}")
    if report.digest is not None:
        twice = ", every seed twice and alike" if plan.replay_twice and report.failure is None else ""
        screen.print(f"  digest {report.digest}{twice}")
    if report.cut_short:
        screen.print(f"  {safe(report.cut_short)}")


def words_for(plan: VolumePlan, seed: int) -> str:
    """Return the options that run one seed of the plan again: what it draws depends on all that settings may have."""
    from kvcrucible.fuzz.matrix import HOSTS, POOLS
    from kvcrucible.fuzz.volume import VolumePlan

    usual = VolumePlan()
    words = ["--raw", "--seed", str(seed), "--seeds", "1"]
    if plan.engine != usual.engine:
        words += ["--engine", plan.engine]
    if plan.rules != usual.rules:
        words += ["--steps", str(plan.rules)]
    if len(plan.backends) == 1:
        words += ["--pools", *[name for name, backend in POOLS.items() if backend == plan.backends[0]]]
    if len(plan.hosts) == 1:
        words += ["--host", *[name for name, host in HOSTS.items() if host is plan.hosts[0]]]
    return " ".join(words)


def _print_novelty(screen: Console, report: VolumeReport) -> None:
    novelty = report.total.novelty.to_plain()
    for name, key in (("seed", "by_seed"), ("pair of seeds", "by_pair_of_seeds")):
        figures = novelty[key]
        if figures["chao2"] is not None:
            screen.print(
                f"[bold]novelty[/bold] by {name}: {figures['seen']:,} species in {figures['units']:,}, "
                f"{figures['chao2']:,.0f} estimated (Chao2), {figures['new_in_next_unit']:.3g} new in the next one"
            )
    screen.print("  a species: operation, outcome, and eight questions about the state before it")


def _print_rates(screen: Console, rates: Rates) -> None:
    from kvcrucible.cli.tables import Table
    from kvcrucible.fuzz.rates import KINDS

    table = Table("checked operations per second and core", "median", "rounds")
    for kind in KINDS:
        shown = " ".join(f"{rate:,.0f}" for rate in rates.by_round[kind])
        table.add_row(kind, f"{rates.rate(kind):,.0f}", shown)
    screen.print(table)
    ratios = sorted(rates.ratios())
    screen.print(
        f"[bold]raw to hypothesis[/bold] {ratios[len(ratios) // 2]:.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
    profile = Table("where the raw loop's time goes", "share")
    for name, share in rates.shares.items():
        profile.add_row(name, f"{share:.1%}")
    screen.print(profile)
    functions = Table("function", "share", "calls")
    for name, share, calls in rates.functions:
        functions.add_row(safe(name), f"{share:.1%}", f"{calls:,}")
    screen.print(functions)
