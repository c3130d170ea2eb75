"""``kvcrucible fuzz``: a campaign of random operation sequences against the reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.console import console, print_json, safe, seed_or_drawn, stderr_console, stderr_line
from kvcrucible.cli.reproduced import write_reproduction
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from kvcrucible.fuzz.campaign import Failure, Report
    from kvcrucible.fuzz.pairs import Pair

#: Where failing examples are written unless told otherwise; git ignores it.
DEFAULT_OUT = Path("results/failures")

#: Examples of a campaign unless told otherwise.
_DEFAULT_EXAMPLES = 300

#: How many of the pairs that are missing are named.
_PAIRS_SHOWN = 12

#: Examples of each cell of a kernel campaign unless told otherwise.
_EXAMPLES_A_CELL = 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command()
    def fuzz(
        engine: str = typer.Option(
            "paged",
            help="Engine under test: paged, torch-paged-attention, or your own as package.module:factory.",
        ),
        depth: str = typer.Option("both", help="ledger (no tensors), payload (rows are read back), or both."),
        pools: str = typer.Option(
            "any", help="Pools of the engine: main, main+mtp, main+draft; any draws among them."
        ),
        profile: str = typer.Option("any", help="Storage profile at payload depth; any draws among them."),
        host: str = typer.Option("any", help="Host tier: on, off; any draws among them."),
        device: str = typer.Option(
            "cpu", help="Where the engine's memory and streams are: cpu, cuda (payload depth alone)."
        ),
        capacity_at: str | None = typer.Option(
            None,
            help="Pools of as many pages as one longest sequence takes, L = ceil(S / P), or so many more: L-1,L,L+1.",
        ),
        matrix: bool = typer.Option(
            False, help="Run every combination of pools, profile and host at payload depth, in processes."
        ),
        jobs: int = typer.Option(
            1, "--jobs", "-j", min=1, help="Processes of --matrix or --raw; never more than there are cores."
        ),
        raw: bool = typer.Option(
            False,
            "--raw",
            help="Volume: independent seeds at ledger depth, without Hypothesis (decision 0027).",
        ),
        seeds: int | None = typer.Option(
            None,
            min=1,
            help="With --raw: seeds, from --seed on; 3,000, or with --seconds as many as there is time for.",
        ),
        replay_twice: bool = typer.Option(
            False,
            "--replay-twice",
            help="With --raw: run every seed twice and compare the state after every step.",
        ),
        digest: bool = typer.Option(
            False, "--digest", help="With --raw: print a digest of the state after every step of every seed."
        ),
        bench: bool = typer.Option(
            False,
            "--bench",
            help="With --raw: measure its speed beside Hypothesis's, in turns, and where time goes.",
        ),
        examples: int | None = typer.Option(
            None,
            min=1,
            help="Examples to run, at least: 300, or 200 in each configuration of --matrix, or 3 in each cell of "
            "--kernels. From 300 on up to four times as many where coverage goals are missed.",
        ),
        steps: int = typer.Option(60, min=1, max=1000, help="Most rules in one example."),
        seed: int | None = typer.Option(None, min=0, help="Seed; drawn and printed when not given."),
        seconds: float | None = typer.Option(
            None, min=0.0, help="Stop after about this time, cut short (exit 3)."
        ),
        out: Path = typer.Option(DEFAULT_OUT, help="Folder for reproductions of failures."),
        database: Path | None = typer.Option(None, help="Folder in which Hypothesis keeps failing examples."),
        kernels: bool = typer.Option(False, "--kernels", help="The kernels by themselves, in every cell."),
        backend: str = typer.Option(
            "any", help="With --kernels: cpu, torch, interpreter (Triton's), cuda; any is all that can run."
        ),
        json_output: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    ) -> None:
        """Drive an engine and the reference in lock step until something differs, or all examples held."""
        from kvcrucible.fuzz.adapters.external import use_engine

        use_engine(engine)
        seed = seed_or_drawn(seed)
        other = {
            "--engine": engine != "paged",
            "--depth": depth not in ("both", "payload"),
            "--pools": pools != "any",
            "--host": host != "any",
            "--device": device != "cpu",
            "--database": database is not None,
        }
        of_raw = {
            "--seeds": seeds is not None,
            "--replay-twice": replay_twice,
            "--digest": digest,
            "--bench": bench,
        }
        if kernels:
            other |= {"--matrix": matrix, "--jobs": jobs != 1, "--raw": raw}
            other |= {"--capacity-at": capacity_at is not None}
            _leave_out("--kernels runs kernels alone", other | of_raw)
            from kvcrucible.cli.fuzz_kernels import fuzz_kernels

            fuzz_kernels(backend, profile, examples or _EXAMPLES_A_CELL, seed, seconds, out, json_output)
        other |= {"--backend": backend != "any"}
        if raw:
            refused = {
                "--depth": depth not in ("both", "ledger"),
                "--profile": profile != "any",
                "--device": device != "cpu",
                "--capacity-at": capacity_at is not None,
                "--matrix": matrix,
                "--examples": examples is not None,
                "--database": database is not None,
                "--backend": backend != "any",
            }
            _leave_out("--raw runs seeds at ledger depth", refused)
            from kvcrucible.cli.fuzz_raw import bench_and_print, plan_of, volume_and_print

            volume = plan_of(engine, seed, seeds, seconds, steps, _backends(pools), _hosts(host))
            if bench:
                of_raw |= {"--bench": False, "--seconds": seconds is not None, "--jobs": jobs != 1}
                _leave_out("--bench measures", of_raw)
                raise typer.Exit(bench_and_print(volume, json_output=json_output))
            volume = replace(volume, digest=digest, replay_twice=replay_twice)
            raise typer.Exit(volume_and_print(volume, jobs, out, json_output=json_output))
        _leave_out("this campaign is not one of --raw", of_raw)
        if matrix:
            other |= {"--profile": profile != "any", "--seconds": seconds is not None}
            other |= {"--capacity-at": capacity_at is not None}
            _leave_out("--matrix runs every configuration", other)
            from kvcrucible.cli.fuzz_matrix import run_and_print

            raise typer.Exit(run_and_print(examples, steps, seed, jobs, out, json_output=json_output))
        _leave_out("this campaign is not one of --kernels", {"--backend": backend != "any"})
        from kvcrucible.fuzz.campaign import Plan, keep_out_of_the_working_folder, run

        keep_out_of_the_working_folder()
        if database is not None and database.exists() and not database.is_dir():
            raise InputError(
                f"--database {database} is no folder; name one, it is made where it does not exist"
            )

        plan = Plan(
            engine,
            _depths(engine, depth, device),
            _DEFAULT_EXAMPLES if examples is None else examples,
            steps,
            seed,
            seconds,
            database,
            _backends(pools),
            _profiles(profile),
            _hosts(host),
            _capacities(capacity_at),
            device=device,
        )
        report = _run_with_progress(plan, run)
        path, trouble = write_reproduction(report.failure, out)
        if trouble is not None:
            stderr_line(trouble)
        if json_output:
            from kvcrucible.fuzz.report import report_to_plain

            print_json(report_to_plain(report, path))
        else:
            _print_report(console(), report, path)
        raise typer.Exit(_status(report))


def _leave_out(why: str, given: dict[str, bool]) -> None:
    """Refuse options that would have no effect."""
    refused = [name for name, there in given.items() if there]
    if refused:
        raise InputError(f"{why}; leave out {', '.join(refused)}")


def _depths(engine: str, depth: str, device: str) -> Any:
    from kvcrucible.contract.extras import install_remedy
    from kvcrucible.fuzz.adapters.external import depths_of, is_external
    from kvcrucible.fuzz.adapters.registry import ENGINES, PAYLOAD_ONLY, unknown_engine
    from kvcrucible.fuzz.campaign import default_depths
    from kvcrucible.fuzz.cheaters.cheats import CHEATS
    from kvcrucible.fuzz.cheaters.registry import judges_own
    from kvcrucible.fuzz.setting import DEVICES, Depth

    if device not in DEVICES:
        raise InputError(f"unknown device {safe(device)!r}; use {' or '.join(DEVICES)}")
    if device != DEVICES[0] and depth == Depth.LEDGER:
        raise InputError("ledger depth has nothing on a device; use --depth payload with --device cuda")
    if depth not in (*Depth, "both"):
        raise InputError(f"unknown depth {depth!r}; use ledger, payload or both")
    if depth != "both":
        return (Depth(depth),)
    if judges_own(engine) is not None:
        return (CHEATS[engine].depth if engine in CHEATS else Depth.LEDGER,)
    if engine not in ENGINES:
        raise unknown_engine(engine)
    if engine in PAYLOAD_ONLY or device != DEVICES[0]:
        return (Depth.PAYLOAD,)
    if is_external(engine):
        return depths_of(engine)
    depths = default_depths()
    if Depth.PAYLOAD not in depths:
        stderr_line(f"torch is not installed: ledger depth only; {install_remedy('engine')}")
    return depths


def _backends(pools: str) -> tuple[str | None, ...]:
    from kvcrucible.fuzz.matrix import POOLS

    if pools == "any":
        return tuple(POOLS.values())
    if pools not in POOLS:
        raise InputError(f"unknown pools {safe(pools)!r}; use {', '.join(POOLS)} or any")
    return (POOLS[pools],)


def _hosts(host: str) -> tuple[bool, ...]:
    from kvcrucible.fuzz.matrix import HOSTS

    if host == "any":
        return tuple(HOSTS.values())
    if host not in HOSTS:
        raise InputError(f"unknown host {safe(host)!r}; use {', '.join(HOSTS)} or any")
    return (HOSTS[host],)


def _capacities(asked: str | None) -> tuple[int, ...]:
    """Return how many pages beyond L each named capacity is."""
    found = []
    for name in asked.split(",") if asked is not None else ():
        match = re.fullmatch(r"L([+-][1-9][0-9]?)?", name.strip())
        if match is None:
            raise InputError(
                f"unknown capacity {safe(name)!r}; use L, or L and up to 99 pages more or fewer: L-1,L,L+1"
            )
        found.append(int(match[1] or 0))
    return tuple(found)


def _profiles(profile: str) -> tuple[str, ...]:
    from kvcrucible.contract.profiles import PROFILES, storage_profile

    return tuple(PROFILES) if profile == "any" else (storage_profile(profile).name,)


def _run_with_progress(plan: Any, run: Any) -> Report:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
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

        finished: Report = run(plan, show)
        return finished


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


def print_pairs(screen: Console, reached: int, missing: Sequence[Pair]) -> None:
    """Print how many ordered pairs of operations came up, and the first of those that did not."""
    from kvcrucible.fuzz.pairs import pair_name

    screen.print(f"[bold]ordered pairs of operations[/bold] {reached} of {reached + len(missing)} reached")
    if missing:
        more = f" and {len(missing) - _PAIRS_SHOWN} more" if len(missing) > _PAIRS_SHOWN else ""
        screen.print(f"  not reached: {', '.join(map(pair_name, missing[:_PAIRS_SHOWN]))}{more}")


def print_counts(screen: Console, title: str, counts: dict[str, int]) -> None:
    """Print a table of counts, the largest first; nothing where there are none."""
    from kvcrucible.cli.tables import Table

    if not counts:
        return
    table = Table(title=title, show_header=False)
    table.add_column("name")
    table.add_column("count", justify="right")
    for name, times in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(safe(name), f"{times:,}")
    screen.print(table)


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


def print_failure(screen: Console, failure: Failure, path: Path | None) -> None:
    """Print a minimal failing example, what it violates, and where it was written."""
    from kvcrucible.contract.in_words import in_words

    screen.print(
        f"\n[bold]minimal sequence[/bold] ({len(failure.steps)} operations) on {safe(in_words(failure.setting))}"
    )
    for number, step in enumerate(failure.steps, 1):
        screen.print(f"  {number}. {safe(in_words(step))}")
    for found in failure.violations:
        screen.print(f"[bold]{safe(found.invariant)}[/bold]: {safe(found.message)}")
    if path is not None:
        screen.print(f"reproduction: {safe(str(path))}")
