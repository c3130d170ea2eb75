"""``kvcrucible arena``: what each placement policy of the host arena loses to fragmentation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcrucible.perf.arena_study import Demotion, PolicyFigures

#: Requests that are read, or made up where no trace is given.
DEFAULT_REQUESTS = 20_000


def register(app: typer.Typer) -> None:
    """Add the ``arena`` command to ``app``."""
    app.command("arena")(arena)


def arena(
    trace: Path | None = typer.Option(
        None, "--trace", help="Take requests from this recorded trace instead of synthetic ones."
    ),
    limit: int = typer.Option(DEFAULT_REQUESTS, "--limit", help="Only the first requests, so many."),
    residents: int | None = typer.Option(
        None, "--residents", help="Sequences of mean length that the arena is made for.", show_default="32"
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of synthetic requests and of drawn restores."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Replay demotions and restores through the host arena under every placement policy.

    Each request is demoted at its end and brought back by the one that continues it; where there is no room, the least
    recently demoted go.
    """
    from kvcrucible.perf.arena_study import RESIDENTS, capacity_bytes, demotions, study
    from kvcrucible.perf.traces import open_trace, synthetic_trace

    if trace is None:
        load = demotions(synthetic_trace(seed, limit), seed)
        source = f"synthetic, seed {seed}"
    else:
        with open_trace(trace, limit) as requests:
            load = demotions(requests, seed)
        source = trace.name
    capacity = capacity_bytes(load, RESIDENTS if residents is None else residents)
    figures = study(load, capacity)
    if as_json:
        from kvcrucible.cli.console import print_json

        print_json(_plain(figures, load, capacity, source))
    else:
        _show(figures, load, capacity, source)


def _plain(
    figures: Sequence[PolicyFigures], load: Sequence[Demotion], capacity: int, source: str
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "source": source,
        "requests": len(load),
        "continuing": sum(demotion.continues is not None for demotion in load),
        "capacity_bytes": capacity,
        "policies": {
            one.policy: asdict(one) | {"geometry_refusal_rate": one.geometry_refusal_rate} for one in figures
        },
    }


def _show(figures: Sequence[PolicyFigures], load: Sequence[Demotion], capacity: int, source: str) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.cli.tables import Table

    continuing = sum(demotion.continues is not None for demotion in load)
    table = Table(
        title=f"{safe(source)}: {len(load):,} requests, {continuing:,} continue another, "
        f"arena of {capacity / 2**30:,.1f} GiB"
    )
    table.add_column("policy", no_wrap=True)
    for name in (
        "did not fit",
        "for its shape",
        "rate",
        "given up",
        "lost to shape",
        "free in pieces",
        "used",
    ):
        table.add_column(name, justify="right")
    for one in figures:
        table.add_row(
            one.policy,
            f"{one.refused:,}",
            f"{one.geometry_refusals:,}",
            f"{one.geometry_refusal_rate:.2%}",
            f"{one.released:,}",
            f"{one.lost_to_shape:,}",
            _share(one.external_fragmentation),
            _share(one.used),
        )
    console().print(table)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
