"""``kvcrucible perf calibrate``: how much unchanged code differs from itself on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kvcrucible.perf.statistics.noise_floor import NoiseFloor
    from kvcrucible.perf.statistics.thresholds import Thresholds


def register(group: typer.Typer) -> None:
    """Add the command to ``group``."""
    group.command("calibrate")(calibrate)


def calibrate(
    pairs: int | None = typer.Option(
        None, "--pairs", min=6, max=1_000, help="Pairs of processes.", show_default="what the thresholds say"
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the order in which processes run."),
    command: str | None = typer.Option(
        None,
        "--command",
        help="Benchmark to run instead: prints one JSON object, metric to a list of seconds.",
        show_default="the built-in one, on the CPU",
    ),
    thresholds: Path | None = typer.Option(
        None, "--thresholds", help="Thresholds file.", show_default="the one that comes with the package"
    ),
    out: Path = typer.Option(Path("results/noise-floor.json"), "--out", help="File for the certificate."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure the noise floor of this machine and write it down as a certificate that expires.

    Pairs of fresh processes of the same code run in random order. Status 3 where the noise is above what a threshold
    asks: the gate would refuse that metric.
    """
    from datetime import UTC, datetime

    from kvcrucible.cli.console import console, print_json, safe
    from kvcrucible.cli.former import set_aside
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.cli.progress import progress_bar
    from kvcrucible.contract.errors import ExitStatus
    from kvcrucible.perf.statistics.thresholds import default_thresholds, read_thresholds

    limits = default_thresholds() if thresholds is None else read_thresholds(thresholds)
    asked = words_of(command)
    require_modules("perf", "numpy", "scipy")
    from kvcrucible.perf.calibration import BUILTIN, fresh_process, unchanged_pairs
    from kvcrucible.perf.statistics.fingerprint import this_machine
    from kvcrucible.perf.statistics.noise_floor import certify, measure_noise
    from kvcrucible.perf.statistics.samples import PairedSamples

    wanted = limits.calibration_pairs if pairs is None else pairs
    words = BUILTIN if asked is None else asked
    machine = this_machine()
    samples: list[PairedSamples] = []
    with progress_bar(left=True, hidden=as_json) as progress:
        task = progress.add_task("pairs of processes", total=wanted)
        for samples in unchanged_pairs(machine, wanted, seed, lambda: fresh_process(words)):
            for one in samples:
                limits.policy(one.metric)
            progress.advance(task)
    noise = {one.metric: measure_noise(one, limits.policy(one.metric)) for one in samples}
    certificate = certify(noise, machine, datetime.now(UTC), limits.expires_days)
    set_aside(out)
    certificate.write(out)
    rows = _rows(certificate, limits)
    if as_json:
        print_json({"certificate": certificate.to_plain(), "file": str(out), "metrics": rows})
    else:
        _show(certificate, rows, limits)
        console().print(f"written to {safe(str(out))}", soft_wrap=True)
    raise typer.Exit(ExitStatus.HELD if all(row["usable"] for row in rows) else ExitStatus.INCONCLUSIVE)


def words_of(command: str | None) -> tuple[str, ...] | None:
    """Return a benchmark's command in words, None where none was given; raises ``InputError``."""
    import shlex

    from kvcrucible.contract.errors import InputError

    if command is None:
        return None
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"--command: {error}") from None
    if not words:
        raise InputError("--command: name a program")
    return words


def _rows(certificate: NoiseFloor, limits: Thresholds) -> list[dict[str, Any]]:
    """Return for each metric its floor at every look of the plan, and whether the gate can use its threshold."""
    plan = limits.plan
    rows = []
    for metric, noise in sorted(certificate.noise.items()):
        floors = {pairs: noise.floor(pairs, plan.error_rate) for pairs in plan.looks}
        effect = limits.policy(metric).minimum_effect
        rows.append(
            {
                "metric": metric,
                "deviation": noise.deviation,
                "deviation_upper": noise.deviation_upper,
                "floors": {str(pairs): floor for pairs, floor in floors.items()},
                "minimum_effect": effect,
                "usable": effect >= floors[plan.most_pairs],
            }
        )
    return rows


def _show(certificate: NoiseFloor, rows: list[dict[str, Any]], limits: Thresholds) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.cli.tables import Table

    out = console()
    table = Table("metric", title=f"{certificate.origin}: how much unchanged code differs from itself")
    table.add_column("noise of a pair", justify="right")
    table.add_column("at most (95 %)", justify="right")
    for pairs in limits.plan.looks:
        table.add_column(f"floor, {pairs} pairs", justify="right")
    table.add_column("threshold", justify="right")
    for row in rows:
        table.add_row(
            safe(row["metric"]),
            f"{row['deviation']:.2%}",
            f"{row['deviation_upper']:.2%}",
            *(f"{floor:.2%}" for floor in row["floors"].values()),
            f"{row['minimum_effect']:.1%}",
            style=None if row["usable"] else "yellow",
        )
    out.print(table)
    for row in rows:
        if not row["usable"]:
            out.print(
                f"{safe(row['metric'])}: the threshold lies below the floor, so the gate will refuse to judge it; "
                "quieten the machine, plan more pairs, or raise the threshold",
                soft_wrap=True,
            )
    out.print(
        f"machine {certificate.machine.id}, good until {certificate.expires:%Y-%m-%d %H:%M} UTC",
        soft_wrap=True,
    )
