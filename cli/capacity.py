"""``kvcrucible capacity``: how many sequences fit, by static, contiguous and paged allocation of one budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvcrucible.contract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcrucible.perf.capacity import Scenario
    from kvcrucible.perf.traces import TraceRequest

#: What an option is where it is not given; None tells the two apart.
DEFAULT_SEED, DEFAULT_DISTRIBUTION, DEFAULT_STATIC_MAX = 42, "gauss", 1_024


def register(app: typer.Typer) -> None:
    """Add the ``capacity`` command to ``app``."""
    app.command("capacity")(capacity)


def capacity(
    seed: int | None = typer.Option(
        None, "--seed", help="Seed of the lengths.", show_default=str(DEFAULT_SEED)
    ),
    distribution: str | None = typer.Option(
        None,
        "--distribution",
        help="Lengths: gauss (the source article's), uniform, lognormal or bimodal.",
        show_default=DEFAULT_DISTRIBUTION,
    ),
    page_size: int = typer.Option(16, "--page-size", help="Tokens in a page, a power of two."),
    static_max: int | None = typer.Option(
        None,
        "--static-max",
        help="Tokens that static reservation sets aside for a sequence.",
        show_default=f"{DEFAULT_STATIC_MAX}; for a trace the longest length, rounded up to a power of two",
    ),
    trace: Path | None = typer.Option(
        None, "--trace", help="Take the lengths (prompt and output) of this recorded trace instead."
    ),
    limit: int | None = typer.Option(None, "--limit", help="Only the first requests of the trace, so many."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare static, contiguous and paged allocation on the same lengths and the same budget.

    The budget is what the first two thirds of the lengths need, token for token, plus 32 slots. Each strategy is
    filled; then every second sequence ends and one long request asks to come in: 800 tokens, or for a trace the
    static maximum.
    """
    from kvcrucible.cli.capacity_report import plain, show
    from kvcrucible.perf.capacity import article_scenario, study
    from kvcrucible.perf.capacity_storage import storage_figures

    if trace is not None:
        if seed is not None or distribution is not None:
            raise InputError("--trace brings its own lengths: leave out --seed and --distribution")
        scenario = _trace_scenario(trace, limit, page_size, static_max, quiet=as_json)
        source = trace.name
    else:
        if limit is not None:
            raise InputError("--limit goes with --trace")
        seed = DEFAULT_SEED if seed is None else seed
        name = distribution or DEFAULT_DISTRIBUTION
        static = DEFAULT_STATIC_MAX if static_max is None else static_max
        scenario = article_scenario(seed, name, page_size, static)
        source = f"{name}, seed {seed}"

    figures, storage = study(scenario), storage_figures(page_size)
    if as_json:
        from kvcrucible.cli.console import print_json

        print_json(plain(figures, storage, source))
    else:
        show(figures, storage, source)


def _trace_scenario(
    path: Path, limit: int | None, page_size: int, static_max: int | None, quiet: bool
) -> Scenario:
    from kvcrucible.cli.progress import progress_bar
    from kvcrucible.perf.capacity import recorded_scenario
    from kvcrucible.perf.capacity_lengths import recorded_lengths
    from kvcrucible.perf.traces import open_trace

    with (
        open_trace(path, limit) as requests,
        progress_bar(in_bytes=True, left=True, hidden=quiet) as progress,
    ):
        task = progress.add_task("reading", total=requests.total_bytes)

        def watched() -> Iterator[TraceRequest]:
            for request in requests:
                progress.update(task, completed=requests.bytes_read)
                yield request

        lengths = recorded_lengths(watched())
    return recorded_scenario(lengths, page_size, static_max)
