"""``kvcrucible perf selftest``: the gate's statistics on simulated machines whose truth is known."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcrucible.cli.tables import Table
    from kvcrucible.perf.selftest.figures import Figure

#: How a figure's status is coloured.
STYLES = {"held": "green", "missed": "bold red", "unresolved": "yellow", "shown": "dim"}


def register(group: typer.Typer) -> None:
    """Add the command to ``group``."""
    group.command("selftest")(selftest)


def selftest(
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of everything that is drawn."),
    only: list[str] = typer.Option(
        None,
        "--only",
        help="Only this check; repeatable: coverage, processes, false-failures, power, boundary, change-points.",
    ),
    scale: float = typer.Option(
        1.0, "--scale", help="Trials, as a multiple of the default; fewer leave bounds unresolved."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Check the gate's statistics on simulated machines: errors, power, intervals, change points.

    Every figure stands with its own Monte-Carlo error. Status 1 where one misses its bound, 3 where the trials are too
    few to say. Nothing here is measured: all of it is SIMULATED.
    """
    from kvcrucible.cli.console import print_json
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.cli.progress import spinner
    from kvcrucible.perf.selftest.names import require_known

    require_known(seed, only or (), scale)
    require_modules("perf", "numpy", "scipy")
    from kvcrucible.perf.selftest.figures import exit_status
    from kvcrucible.perf.selftest.run import CHECKS
    from kvcrucible.perf.selftest.run import selftest as figures

    started = time.monotonic()
    found = []
    with spinner("simulating") as shown:
        for figure in figures(seed, only or (), scale):
            found.append(figure)
            shown.keep(f"{figure.status.value:>10}  {figure.check}: {figure.name}")
    seconds = time.monotonic() - started
    status = exit_status(found)
    if as_json:
        print_json(
            {
                "origin": "SIMULATED",
                "seed": seed,
                "scale": scale,
                "checks": list(only or CHECKS),
                "figures": [figure.to_plain() for figure in found],
                "seconds": round(seconds, 1),
                "status": int(status),
            }
        )
    else:
        _show(found, seed, seconds)
    raise typer.Exit(status)


def _show(figures: Sequence[Figure], seed: int, seconds: float) -> None:
    from kvcrucible.cli.console import console

    out = console()
    out.print(_table(figures))
    counts = {status: sum(figure.status.value == status for figure in figures) for status in STYLES}
    out.print(
        f"SIMULATED, seed {seed}: {counts['held']} bounds held, {counts['missed']} missed, "
        f"{counts['unresolved']} unresolved; {counts['shown']} figures without a bound; {seconds:.0f} s",
        soft_wrap=True,
    )
    out.print(
        "± is the figure's own Monte-Carlo error: the 95 % interval, given so many trials.", style="dim"
    )


def _table(figures: Sequence[Figure]) -> Table:
    from kvcrucible.cli.tables import Table

    table = Table("check", "what", title="SIMULATED: the gate's statistics on known truth")
    for heading in ("rate", "± from", "± to", "bound", "trials"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for figure in figures:
        lower, upper = figure.monte_carlo
        table.add_row(
            figure.check,
            figure.name + (f" ({figure.note})" if figure.note else ""),
            f"{figure.rate:.2%}",
            f"{lower:.2%}",
            f"{upper:.2%}",
            _bound(figure),
            f"{figure.trials:,}",
            figure.status.value,
            style=STYLES[figure.status.value] if figure.status.value != "held" else None,
        )
    return table


def _bound(figure: Figure) -> str:
    if figure.at_least is not None and figure.at_most is not None:
        return f"{figure.at_least:.1%}–{figure.at_most:.1%}"
    if figure.at_least is not None:
        return f"≥ {figure.at_least:.1%}"
    return "" if figure.at_most is None else f"≤ {figure.at_most:.1%}"
