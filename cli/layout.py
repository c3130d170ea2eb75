"""``kvcrucible layout``: what a storage profile costs, in bytes, by its planes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kvcrucible.cli.tables import Table
    from kvcrucible.perf.layout import Layout, Scenario


def register(app: typer.Typer) -> None:
    """Add the ``layout`` command to ``app``."""
    app.command("layout")(layout)


def layout(
    heads: int = typer.Option(..., "--heads", help="KV heads of a layer."),
    dim: int = typer.Option(..., "--dim", help="Elements of one head's row."),
    layers: int = typer.Option(..., "--layers", help="Layers that keep keys and values."),
    profile: str | None = typer.Option(
        None, "--profile", help="One storage profile.", show_default="all, at one byte budget"
    ),
    page_size: int = typer.Option(64, "--page-size", help="Tokens in a page, a power of two."),
    context: int = typer.Option(131_072, "--context", help="Longest sequence, in tokens."),
    concurrency: int = typer.Option(16, "--concurrency", help="Rows of the block tables."),
    budget: int | None = typer.Option(
        None, "--budget-bytes", help="Bytes to fill with pages.", show_default="1 GiB"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print what storage profiles cost: bytes per token and page group, tail slack, block tables, tokens per GiB."""
    from kvcrucible.cli.console import print_json
    from kvcrucible.contract.errors import BadArgument, InputError
    from kvcrucible.contract.profiles import PROFILES, Geometry, storage_profile
    from kvcrucible.perf import layout as figures

    chosen = PROFILES if profile is None else {profile: storage_profile(profile)}
    laid_out, refused = [], {}
    try:
        scenario = figures.Scenario(
            Geometry(layers, heads, dim),
            page_size,
            context,
            concurrency,
            figures.GIB if budget is None else budget,
        )
        for name, planes in chosen.items():
            try:
                laid_out.append(figures.layout(planes, scenario))
            except BadArgument as error:
                if profile is not None:
                    raise
                refused[name] = f"{error.found}; {error.remedy}"
    except BadArgument as error:
        raise InputError(str(error)) from None
    if as_json:
        print_json(_plain(scenario, laid_out, refused))
    else:
        _show(scenario, laid_out, refused)


def _plain(scenario: Scenario, laid_out: list[Layout], refused: dict[str, str]) -> dict[str, Any]:
    return {
        "scenario": asdict(scenario),
        "block_table_bytes": scenario.block_table_bytes,
        "profiles": {one.profile: asdict(one) for one in laid_out},
        "refused": refused,
    }


def _show(scenario: Scenario, laid_out: list[Layout], refused: dict[str, str]) -> None:
    from kvcrucible.cli.console import console

    out, geometry = console(), scenario.geometry
    out.print(
        f"[bold]{geometry.layers:,} layers × {geometry.kv_heads:,} KV heads × {geometry.head_dim:,}[/bold], "
        f"pages of {scenario.page_size:,} tokens",
        soft_wrap=True,
    )
    out.print(
        f"block tables: {scenario.concurrency:,} rows × {scenario.blocks_per_row:,} blocks for contexts of "
        f"{scenario.context_tokens:,} = {_binary(scenario.block_table_bytes)} a pool",
        soft_wrap=True,
    )
    if len(laid_out) == 1:
        _show_one(laid_out[0], scenario)
    elif laid_out:
        out.print(_costs(laid_out))
        out.print(_capacities(laid_out, scenario))
    for name, reason in refused.items():
        out.print(f"{name}: {reason}", style="dim", soft_wrap=True)


def _show_one(one: Layout, scenario: Scenario) -> None:
    from kvcrucible.cli.console import console

    out = console()
    out.print(_planes(one, scenario.page_size))
    for name, value in (
        ("a token", f"{one.bytes_per_token:,} bytes"),
        ("a page group", _binary(one.bytes_per_page_group)),
        (
            "tail slack of a sequence",
            f"at most {_binary(one.tail_slack_worst_bytes)}, {_binary(one.tail_slack_mean_bytes)} on average",
        ),
        ("tokens per GiB", f"{one.tokens_per_gib:,}, in whole pages"),
        (f"pages in {_binary(scenario.budget_bytes)}", f"{one.pages:,}"),
    ):
        out.print(f"{name}: {value}", soft_wrap=True)


def _planes(one: Layout, page_size: int) -> Table:
    from kvcrucible.cli.tables import Table

    table = Table(title=f"{one.profile}: bytes")
    table.add_column("plane")
    table.add_column("element")
    for heading in ("group", "token and head", "token", f"page of {page_size:,}"):
        table.add_column(heading, justify="right")
    for plane in one.planes:
        table.add_row(
            plane.name,
            plane.element,
            f"{plane.group:,}",
            f"{plane.bytes_per_token_and_head:,}",
            f"{plane.bytes_per_token:,}",
            f"{plane.bytes_per_page_group:,}",
        )
    table.add_section()
    table.add_row(
        "all",
        "",
        "",
        f"{one.bytes_per_token_and_head:,}",
        f"{one.bytes_per_token:,}",
        f"{one.bytes_per_page_group:,}",
    )
    return table


def _costs(laid_out: list[Layout]) -> Table:
    from kvcrucible.cli.tables import Table

    table = Table(title="Bytes over all planes")
    table.add_column("profile", no_wrap=True)
    for heading in ("a head", "a token"):
        table.add_column(heading, justify="right", no_wrap=True)
    # These may go on in the next line, between number and unit.
    for heading in ("page group", "worst tail", "mean tail"):
        table.add_column(heading, justify="right")
    for one in laid_out:
        table.add_row(
            one.profile,
            f"{one.bytes_per_token_and_head:,}",
            f"{one.bytes_per_token:,}",
            _binary(one.bytes_per_page_group),
            _binary(one.tail_slack_worst_bytes, 1),
            _binary(one.tail_slack_mean_bytes, 1),
        )
    return table


def _capacities(laid_out: list[Layout], scenario: Scenario) -> Table:
    """Return what one budget holds; the last column sets the bytes of BF16's page (or the first's) against each."""
    from kvcrucible.cli.tables import Table

    base = next((one for one in laid_out if one.profile == "BF16"), laid_out[0])
    table = Table(title="At one budget")
    table.add_column("profile", no_wrap=True)
    for heading in ("tokens per GiB", f"pages in {_binary(scenario.budget_bytes)}", f"× {base.profile}"):
        table.add_column(heading, justify="right")
    for one in laid_out:
        table.add_row(
            one.profile,
            f"{one.tokens_per_gib:,}",
            f"{one.pages:,}",
            f"{base.bytes_per_page_group / one.bytes_per_page_group:.2f}",
        )
    return table


def _binary(count: float, decimals: int = 4) -> str:
    """Return a number of bytes in the largest binary unit that leaves 1 or more, to at most ``decimals``."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.{decimals}f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{count:g} bytes"
