"""``kvcrucible perf sampler``: what the driver says about the GPU, and what asking costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kvcrucible.perf.nvml.energy import Energy
    from kvcrucible.perf.nvml.evidence import Evidence
    from kvcrucible.perf.nvml.records import Record
    from kvcrucible.perf.nvml.rejection import Rejection


def register(group: typer.Typer) -> None:
    """Add the command to ``group``."""
    group.command("sampler")(sampler)


def sampler(
    context: typer.Context,
    seconds: float = typer.Option(6.0, "--seconds", min=0.1, max=3600, help="How long to watch."),
    device: str = typer.Option("0", "--device", help="Index of a GPU, or the UUID of a MIG slice."),
    interval_ms: float = typer.Option(100.0, "--interval-ms", help="Between two readings."),
    selfcheck: bool = typer.Option(
        False, "--selfcheck", help="Measure what the sampler does to a timing instead."
    ),
    pairs: int = typer.Option(12, "--pairs", min=6, max=1000, help="Pairs of processes of --selfcheck."),
    command: str | None = typer.Option(
        None,
        "--command",
        help="Benchmark of --selfcheck: prints one JSON object, metric to a list of seconds.",
        show_default="the built-in one, on the CPU",
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the order of --selfcheck."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Watch a GPU for a while: energy, clocks, why they fell, temperature, memory, foreign processes, errors.

    Says whether a sample timed meanwhile would count (status 0) or be rejected (status 3), and why. Status 5 where
    there is no driver to ask. It reads and never sets anything.
    """
    from kvcrucible.cli.given import was_given
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.cli.perf_calibrate import words_of
    from kvcrucible.contract.errors import InputError

    words = words_of(command)
    others = ("--seconds",) if selfcheck else ("--pairs", "--command", "--seed")
    if unused := [option for option in others if was_given(context, option)]:
        what = "--selfcheck does not watch" if selfcheck else "watching is no --selfcheck"
        raise InputError(f"{what}; leave {', '.join(unused)} out")
    require_modules("perf", "numpy", "scipy")
    if selfcheck:
        _selfcheck(device, interval_ms, pairs, words, seed, as_json)
    else:
        _watch(seconds, device, interval_ms, as_json)


def _watch(seconds: float, device: str, interval_ms: float, as_json: bool) -> None:
    import os
    import time
    from dataclasses import asdict

    from kvcrucible.cli.console import print_json
    from kvcrucible.contract.errors import ExitStatus
    from kvcrucible.perf.nvml.energy import energy
    from kvcrucible.perf.nvml.evidence import evidence, timed
    from kvcrucible.perf.nvml.rejection import reject_sample
    from kvcrucible.perf.nvml.sampler import Sampler, sampler_cpu

    poll_ms = min(10.0, interval_ms)
    with Sampler(device, interval_ms=interval_ms, poll_ms=poll_ms, cpu=sampler_cpu()) as watching:
        with timed() as window:
            time.sleep(seconds)
        record = watching.stop()
    found = evidence(record, window, {os.getpid()}, uses_gpu=False)
    used = energy(record, window.start_ns, window.stop_ns)
    rejections = reject_sample(found)
    if as_json:
        print_json(
            {
                "origin": record.origin.value,
                "header": asdict(record.header),
                "evidence": found.to_plain(),
                "energy": asdict(used),
                "rejected": [str(one) for one in rejections],
            }
        )
    else:
        _show(record, found, used, rejections)
    raise typer.Exit(ExitStatus.INCONCLUSIVE if rejections else ExitStatus.HELD)


def _show(record: Record, found: Evidence, used: Energy, rejections: tuple[Rejection, ...]) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.cli.tables import Table
    from kvcrucible.perf.nvml.values import reason_names

    header = record.header
    table = Table(title=f"{record.origin}: {safe(header.facts.get('gpu', 'GPU'))}", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value")
    rows = {
        "energy": _energy(used),
        "power": "–" if found.power_w is None else f"{found.power_w:.1f} W ({header.power_source})",
        "SM clock": _unit(found.sm_mhz, "MHz"),
        "memory clock": _unit(found.memory_mhz, "MHz"),
        "clock events": "–" if found.reasons is None else ", ".join(reason_names(found.reasons)) or "none",
        "counted events": ", ".join(
            f"{name} {held / 1e6:,.1f} ms" for name, held in found.held_ns.items() if held
        )
        or ("none" if found.held_ns else "–"),
        "temperature": f"{_unit(found.start_c, '°C')}, highest {_unit(found.highest_c, '°C')}, "
        f"margin {_unit(found.margin_c, 'K')}",
        "memory used": "–" if found.used_bytes is None else f"{found.used_bytes / 2**30:.2f} GiB",
        "foreign processes": "–" if found.foreign is None else str(found.foreign),
        "new memory errors": f"{_count(found.uncorrected)} uncorrected, {_count(found.remapped)} rows remapped",
        "split (MIG)": f"yes, {header.facts.get('mig_profile', '')}" if header.mig else "no",
        "sampler": f"{found.readings} readings, {record.cpu_ns / 1e6:.0f} ms of CPU time, on CPU "
        f"{'any' if header.cpu is None else header.cpu}",
    }
    for name, value in rows.items():
        table.add_row(name, safe(value))
    out = console()
    out.print(table)
    for name, why in sorted(header.refused.items()):
        out.print(f"not told: {safe(name)}: {safe(why)}", soft_wrap=True)
    for one in rejections:
        out.print(f"sample rejected: {safe(str(one))}", style="bold red", soft_wrap=True)
    if not rejections:
        out.print("sample counts", style="green")


def _energy(used: Energy) -> str:
    figure = "–" if used.joules is None else f"{used.joules:,.1f} J in {used.seconds:.2f} s"
    if used.reason is not None:
        return f"{figure}; does not count: {used.reason}" + (f" ({used.detail})" if used.detail else "")
    beside = "" if used.integrated_joules is None else f"; power says {used.integrated_joules:,.1f} J"
    return f"{figure} ± {used.resolution or 0:.2%}, {used.updates} updates{beside}"


def _unit(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.0f} {unit}"


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _selfcheck(
    device: str,
    interval_ms: float,
    pairs: int,
    command: tuple[str, ...] | None,
    seed: int,
    as_json: bool,
) -> None:
    from dataclasses import asdict

    from kvcrucible.cli.console import console, print_json, safe
    from kvcrucible.cli.progress import progress_bar
    from kvcrucible.cli.tables import Table
    from kvcrucible.contract.errors import ExitStatus
    from kvcrucible.perf.calibration import BUILTIN, fresh_process
    from kvcrucible.perf.nvml.perturbation import BOUND
    from kvcrucible.perf.nvml.perturbation import selfcheck as check
    from kvcrucible.perf.nvml.sampler import Sampler, sampler_cpu

    words = BUILTIN if command is None else command
    poll_ms = min(10.0, interval_ms)
    # Without a driver this ends here, before a benchmark has run.
    with Sampler(device, interval_ms=interval_ms, poll_ms=poll_ms) as probe:
        probe.stop()
    with progress_bar(left=True, hidden=as_json) as progress:
        task = progress.add_task("pairs of processes", total=pairs)
        found = check(
            lambda: fresh_process(words),
            lambda: Sampler(device, interval_ms=interval_ms, poll_ms=poll_ms, cpu=sampler_cpu()),
            pairs,
            seed,
            lambda: progress.advance(task),
        )
    held = [one.held for one in found.metrics]
    status = ExitStatus.HELD if all(held) else ExitStatus.INCONCLUSIVE
    if False in held:
        status = ExitStatus.VIOLATION
    if as_json:
        print_json({"bound": BOUND, "status": int(status), **asdict(found)})
        raise typer.Exit(status)
    origin = found.metrics[0].origin
    table = Table(
        "metric", title=f"{origin}: with the sampler against without it, {pairs} pairs of processes"
    )
    for heading in ("change", "from", "to", f"below {BOUND:.1%}"):
        table.add_column(heading, justify="right")
    words_of = {True: "yes", False: "NO", None: "not decided"}
    for one in found.metrics:
        table.add_row(
            safe(one.metric),
            f"{one.change:+.2%}",
            f"{one.lower:+.2%}",
            f"{one.upper:+.2%}",
            words_of[one.held],
        )
    console().print(table)
    console().print(
        f"the sampler took {found.cpu_share:.2%} of one CPU; a reading took {found.reading_ns / 1e6:.2f} ms (median); "
        f"the latest came {found.late_ns / 1e6:.1f} ms late",
        soft_wrap=True,
    )
    raise typer.Exit(status)
