"""``kvcrucible perf``: the group of commands that measure, and that show that measuring can be trusted."""

from __future__ import annotations

import typer

from kvcrucible.cli import perf_calibrate, perf_compare, perf_history, perf_sampler, perf_selftest


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    group = typer.Typer(no_args_is_help=True, help="Measure, and show that the measurement can be trusted.")
    app.add_typer(group, name="perf")
    perf_calibrate.register(group)
    perf_selftest.register(group)
    perf_sampler.register(group)
    perf_history.register(group)
    perf_compare.register(group)
