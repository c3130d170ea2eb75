"""``kvcrucible plan``: how many pages each pool gets, by tokens or by the bytes that are free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kvcrucible.perf.planner import CapacityPlan, Demand


def register(app: typer.Typer) -> None:
    """Add the ``plan`` command to ``app``."""
    app.command("plan")(plan)


def plan(
    max_context: int = typer.Option(..., "--max-context", help="Most positions of one sequence."),
    max_concurrency: int = typer.Option(
        ..., "--max-concurrency", help="Most sequences that are active at a time."
    ),
    heads: int = typer.Option(..., "--heads", help="KV heads of a layer."),
    dim: int = typer.Option(..., "--dim", help="Elements of one head's row."),
    layers: int = typer.Option(..., "--layers", help="Layers that keep keys and values."),
    page_size: int = typer.Option(64, "--page-size", help="Tokens in a page, a power of two."),
    tokens: int | None = typer.Option(None, "--tokens", help="Explicit: tokens that Main is to hold."),
    free_bytes: int | None = typer.Option(None, "--free-bytes", help="Automatic: bytes that are free."),
    headroom: int = typer.Option(0, "--headroom", help="Bytes of these to leave alone."),
    profile: str = typer.Option("BF16", "--profile", help="Storage profile of every pool."),
    pools: str = typer.Option("main", "--pools", help="main, main+mtp or main+draft."),
    backend_layers: int = typer.Option(1, "--backend-layers", help="Layers of the pool beside Main."),
    draft_tokens: int = typer.Option(
        1, "--draft-tokens", help="Tokens drafted in one round; counts for MTP."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Plan the pools' capacities: --tokens says how much, or --free-bytes (less --headroom) how much there is.

    What cannot serve one whole context and one page a row, or could never be used, is refused with status 2.
    """
    from kvcrucible.cli.console import print_json
    from kvcrucible.contract.errors import InputError
    from kvcrucible.perf.planner import plan_automatic, plan_explicit

    if (tokens is None) == (free_bytes is None):
        raise InputError("give --tokens or --free-bytes, one of the two")
    demand = _demand(
        max_context,
        max_concurrency,
        page_size,
        profile,
        (layers, heads, dim),
        pools,
        backend_layers,
        draft_tokens,
    )
    if tokens is not None:
        if headroom:
            raise InputError("--headroom goes with --free-bytes")
        found = plan_explicit(demand, tokens)
    else:
        assert free_bytes is not None
        found = plan_automatic(demand, free_bytes, headroom)
    if as_json:
        print_json(_plain(found))
    else:
        _show(found)


def _demand(
    max_context: int,
    max_concurrency: int,
    page_size: int,
    profile: str,
    shape: tuple[int, int, int],
    pools: str,
    backend_layers: int,
    draft_tokens: int,
) -> Demand:
    from kvcrucible.contract.errors import BadArgument, InputError
    from kvcrucible.contract.profiles import Geometry, storage_profile
    from kvcrucible.perf.planner import Demand

    main, _, backend = pools.partition("+")
    if main != "main" or backend not in ("", "mtp", "draft"):
        raise InputError(f"--pools {pools}: use main, main+mtp or main+draft")
    layers, heads, dim = shape
    planes = storage_profile(profile)
    try:
        page_bytes = planes.bytes_per_page_group(Geometry(layers, heads, dim), page_size)
        backend_bytes = (
            planes.bytes_per_page_group(Geometry(backend_layers, heads, dim), page_size) if backend else 0
        )
    except BadArgument as error:
        raise InputError(str(error)) from None
    return Demand(
        max_context, max_concurrency, page_size, page_bytes, backend or None, backend_bytes, draft_tokens
    )


def _plain(found: CapacityPlan) -> dict[str, Any]:
    demand = found.demand
    return {
        "main_pages": found.main_pages,
        "backend": demand.backend,
        "backend_pages": found.backend_pages,
        "tokens": found.tokens,
        "bytes": found.bytes,
        "page_bytes": demand.page_bytes,
        "backend_page_bytes": demand.backend_page_bytes,
        "table_bytes": demand.table_bytes,
        "blocks_per_row": demand.blocks,
        "fewest_pages": demand.fewest_pages,
        "most_pages": demand.most_pages,
        "fewest_bytes": demand.fewest_bytes,
        "step_bytes": demand.step_bytes,
    }


def _show(found: CapacityPlan) -> None:
    from kvcrucible.cli.console import console

    demand, out = found.demand, console()
    out.print(
        f"[bold]main: {found.main_pages:,} pages[/bold] of {demand.page_size:,} tokens, {found.tokens:,} in all"
    )
    if found.backend_pages is not None:
        lead = f", {demand.lead_pages:,} of them for its lead" if demand.lead_pages else ""
        out.print(f"[bold]{demand.backend}: {found.backend_pages:,} pages[/bold]{lead}")
    out.print(
        f"bytes: {found.bytes:,}, of which block tables {demand.table_bytes:,}; one more page costs "
        f"{demand.step_bytes:,}",
        soft_wrap=True,
    )
    out.print(
        f"bounds: {demand.fewest_pages:,} pages (the larger of {demand.blocks:,} for one context and "
        f"{demand.max_concurrency:,} rows) to {demand.most_pages:,} (every row a whole context)",
        soft_wrap=True,
    )
