"""``kvcrucible perf history``: stored results, and the results of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

_STORE = typer.Option(None, "--store", help="Database URL.", show_default="sqlite:///results/history.sqlite")
_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(group: typer.Typer) -> None:
    """Add the commands to ``group``."""
    commands = typer.Typer(no_args_is_help=True, help="Stored results: list, show, import, time the store.")
    group.add_typer(commands, name="history")
    commands.command("list")(list_series)
    commands.command("show")(show)
    commands.command("import")(import_file)
    commands.command("benchmark")(benchmark)


def _require() -> None:
    from kvcrucible.cli.optional import require_modules

    require_modules("perf", "sqlalchemy")


def _url(store: str | None) -> str:
    from kvcrucible.perf.history.database import DEFAULT_URL

    return DEFAULT_URL if store is None else store


def list_series(store: str | None = _STORE, as_json: bool = _JSON) -> None:
    """List every series: metric, machine, number of figures."""
    _require()
    from kvcrucible.cli.console import console, print_json, safe
    from kvcrucible.cli.tables import Table
    from kvcrucible.perf.history.store import Store

    with Store(_url(store)) as found:
        names = found.names()
    if as_json:
        print_json(
            [
                {"metric": metric, "machine": machine.to_plain(), "figures": count}
                for metric, machine, count in names
            ]
        )
        return
    table = Table("metric", "origin", "machine", title=f"{len(names):,} series")
    table.add_column("figures", justify="right")
    for metric, machine, count in names:
        facts = dict(machine.facts)
        where = facts.get("gpu") or facts.get("machine") or facts.get("cpu", "")
        short = machine.id.rpartition(":")[2][:12]
        table.add_row(safe(metric), machine.origin.value, f"{safe(where)} ({short})", f"{count:,}")
    console().print(table)


def show(
    metric: str = typer.Argument(help="Metric, as `list` names it."),
    machine: str = typer.Option(
        "", "--machine", help="Beginning of the machine's id; needed where there are two."
    ),
    last: int = typer.Option(20, "--last", min=1, help="Only the last figures, so many."),
    store: str | None = _STORE,
    as_json: bool = _JSON,
) -> None:
    """Show one series, the last figures first."""
    _require()
    from dataclasses import asdict
    from datetime import UTC, datetime

    from kvcrucible.cli.console import console, print_json, safe
    from kvcrucible.cli.tables import Table
    from kvcrucible.contract.errors import InputError
    from kvcrucible.perf.history.store import Store

    with Store(_url(store)) as found:
        fitting = [one for name, one, _ in found.names() if name == metric and _begins(one.id, machine)]
        if len(fitting) != 1:
            ids = ", ".join(one.id.rpartition(":")[2][:12] for one in fitting)
            raise InputError(
                f"{metric[:200]}: on {len(fitting)} machines; choose one with --machine: {ids}"
                if fitting
                else f"no figures of {metric[:200]}; `kvcrucible perf history list` names the metrics"
            )
        series = found.series(metric, fitting[0])
    points = series.points[-last:][::-1]
    if as_json:
        print_json(
            {
                "metric": metric,
                "origin": series.origin.value,
                "unit": series.unit,
                "machine": series.machine.to_plain(),
                "points": [asdict(point) for point in points],
            }
        )
        return
    table = Table("when (UTC)", "revision", title=f"{series.origin}: {safe(metric)} in {safe(series.unit)}")
    for heading in ("value", "samples", "rejected"):
        table.add_column(heading, justify="right")
    for point in points:
        when = datetime.fromtimestamp(point.started_s, UTC)
        table.add_row(
            f"{when:%Y-%m-%d %H:%M}",
            safe(point.revision[:12]),
            f"{point.value:.6g}",
            str(point.samples),
            str(point.rejected),
            style="yellow" if point.rejected else None,
        )
    console().print(table)


def _begins(identity: str, wanted: str) -> bool:
    return identity.startswith(wanted) or identity.rpartition(":")[2].startswith(wanted)


def import_file(
    file: Path = typer.Argument(help="JSON of pytest-benchmark, asv, Google Benchmark or nvbench."),
    label: str = typer.Option(..., "--label", help="Name of the machine; one name, one series."),
    revision: str = typer.Option("", "--revision", help="Revision, where the file names none."),
    store: str | None = _STORE,
    as_json: bool = _JSON,
) -> None:
    """Take in the results of another tool."""
    from kvcrucible.cli.optional import require_file

    require_file(file)
    _require()
    from kvcrucible.cli.console import console, print_json, safe
    from kvcrucible.perf.history.foreign import read_foreign
    from kvcrucible.perf.history.store import Store

    found = read_foreign(file, label, revision)
    with Store(_url(store)) as target:
        run = target.add_run(
            found.machine, found.revision, found.started_s, found.figures, source=found.tool, command=""
        )
    if as_json:
        print_json({"run": run, "tool": found.tool, "figures": len(found.figures), "skipped": found.skipped})
    else:
        console().print(
            f"run {run}: {len(found.figures):,} figures of {found.tool} at {safe(found.revision)}, "
            f"{found.skipped:,} without a usable figure",
            soft_wrap=True,
        )


def benchmark(
    rows: int = typer.Option(2_000_000, "--rows", min=1_500, help="Figures to make up."),
    series: int = typer.Option(1_500, "--series", min=1, help="Series that they belong to."),
    store: str | None = typer.Option(
        None,
        "--store",
        help="URL of an empty database.",
        show_default="a SQLite file that is removed afterwards",
    ),
    as_json: bool = _JSON,
) -> None:
    """Time the store on many made-up figures: one series, and a comparison of all.

    Status 1 where one series takes 20 ms or more, or a comparison of all series a second.
    """
    _require()
    import tempfile
    from dataclasses import asdict

    from kvcrucible.cli.console import console, print_json
    from kvcrucible.contract.errors import ExitStatus
    from kvcrucible.perf.history.benchmark import COMPARE_BOUND_S, SERIES_BOUND_S, measure

    with tempfile.TemporaryDirectory(prefix="kvcrucible-store-") as folder:
        url = f"sqlite:///{folder}/history.sqlite" if store is None else store
        found = measure(url, series, -(-rows // series))
    if as_json:
        plain: dict[str, Any] = {"origin": "SIMULATED", "held": found.held, **asdict(found)}
        print_json(plain)
    else:
        console().print(
            f"{found.database}, {found.rows:,} made-up figures in {found.series:,} series "
            f"(filled in {found.fill_s:.0f} s)\n"
            f"one series of {found.runs:,}: {found.series_s * 1e3:.1f} ms (bound {SERIES_BOUND_S * 1e3:.0f} ms)\n"
            f"all series against the 100 runs before: {found.compare_s:.2f} s (bound {COMPARE_BOUND_S:.0f} s)",
            soft_wrap=True,
        )
    raise typer.Exit(ExitStatus.HELD if found.held else ExitStatus.VIOLATION)
