"""``kvcrucible bench-decode``: paged decode on the CPU against contiguous attention and the read bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvcrucible.contract.errors import InputError

if TYPE_CHECKING:
    from kvcrucible.perf.decode_bench import CaseFigures, Machine

CONTEXTS = [4096, 16384]


def register(app: typer.Typer) -> None:
    """Add the ``bench-decode`` command to ``app``."""
    app.command("bench-decode")(bench_decode)


def bench_decode(
    context: list[int] = typer.Option(CONTEXTS, "--context", min=1, max=1 << 20, help="Tokens in a row."),
    profile: list[str] = typer.Option(["FP32", "BF16"], "--profile", help="Storage profile."),
    threads: int = typer.Option(0, "--threads", min=0, max=256, help="Threads; 0 is what torch chooses."),
    rounds: int = typer.Option(15, "--rounds", min=3, max=1000, help="Rounds in which all take turns."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure paged decode beside contiguous attention and plain reading: 8 rows, 32 query and 8 KV heads of 128.

    Status 5 where the kernels cannot be compiled.
    """
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.perf.decode_profiles import PROFILES

    unknown = [name for name in profile if name not in PROFILES]
    if unknown:
        raise InputError(f"no contiguous attention holds {unknown[0]!r:.60}; use {' or '.join(PROFILES)}")
    require_modules("engine", "torch", "numpy")
    import torch

    from kvcrucible.perf.decode_bench import Shape, machine, measure

    if threads:
        torch.set_num_threads(threads)
    where = machine()
    figures = [measure(name, length, Shape(), rounds) for name in profile for length in context]
    if as_json:
        from dataclasses import asdict

        from kvcrucible.cli.console import print_json

        print_json({"machine": asdict(where), "rounds": rounds, "cases": [asdict(one) for one in figures]})
    else:
        _show(where, figures)


def _show(where: Machine, figures: list[CaseFigures]) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.cli.tables import Table

    title = f"{where.processor}, {where.cores} cores, {where.threads} threads; torch {where.torch}; {where.compiler}"
    table = Table(title=safe(title))
    table.add_column("profile")
    for name in ("context", "paged ms", "contig. ms", "read ms", "faster", "GB/s", "of read"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in figures:
        table.add_row(
            one.profile,
            f"{one.context:,}",
            f"{one.paged_ms:.1f}",
            f"{one.contiguous_ms:.1f}",
            f"{one.read_ms:.1f}",
            f"{one.speedup.median:.2f}x",
            f"{one.paged_gb_per_s:.1f}",
            f"{one.of_read.median:.2f}",
        )
    out = console()
    out.print(table)
    extra = sorted({one.working_bytes for one in figures})
    out.print(f"memory beyond the results: {' or '.join(f'{size:,}' for size in extra)} bytes a call")
