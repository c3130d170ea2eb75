"""``kvcrucible kernels``: what the Triton kernels cost on a GPU, compiled ahead of time; no GPU is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.given import was_given
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.perf.kernel_table import KernelTable


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("kernels")(kernels)


def kernels(
    context: typer.Context,
    arch: list[str] = typer.Option(
        ["sm_90"], "--arch", help="Target: sm_80, sm_90, sm_100, gfx942; may be repeated."
    ),
    profile: list[str] = typer.Option(
        [], "--profile", help="Storage profile; may be repeated.", show_default="all"
    ),
    tune: bool = typer.Option(
        False, "--tune", help="Time configurations on the GPU here and print a new launch table instead."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compile every kernel variant for a GPU: registers, spills, shared memory, instructions, and what does not fit.

    Fails (1) where a variant of BF16 or INT8-G64 spills or does not fit.
    """
    from kvcrucible.cli.console import print_json
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.contract.profiles import storage_profile
    from kvcrucible.perf.kernel_table import require_target

    for target in arch:
        require_target(target)
    profiles = [storage_profile(name).name for name in profile]
    if tune and (unused := [option for option in ("--arch", "--json") if was_given(context, option)]):
        raise InputError(f"--tune times the GPU here and prints a table; leave {' and '.join(unused)} out")
    require_modules("triton", "torch", "triton")
    if tune:
        _tune(profiles)
        return
    tables = [_compile(target, profiles) for target in dict.fromkeys(arch)]
    if as_json:
        print_json({"tables": [table.to_plain() for table in tables]})
    else:
        for table in tables:
            _show(table)
    if any(table.broken_promises for table in tables):
        raise typer.Exit(ExitStatus.VIOLATION)


def _tune(profiles: list[str]) -> None:
    """Print the launch table as it should be for the device that is there; it replaces ``launch_table.json``."""
    from kvcrucible.contract.profiles import PROFILES
    from kvcrucible.engine.kernels.triton import ahead, tune

    keys, timers = [], {}
    for name in profiles or list(PROFILES):
        for key in tune.device_keys([name], ahead.HEAD_DIMS, ahead.GROUPS):
            keys.append(key)
            timers[key.profile] = tune.time_on_device(name)
    print(tune.to_text(tune.tune(keys, lambda key, chosen: timers[key.profile](key, chosen))), end="")


def _compile(target: str, profiles: list[str]) -> KernelTable:
    from kvcrucible.cli.console import safe
    from kvcrucible.cli.progress import progress_bar
    from kvcrucible.perf.kernel_table import compile_table

    with progress_bar(spinner=True) as progress:
        # How many there are is known once all have been compiled.
        task = progress.add_task(f"compiling for {safe(target)}, variants", total=None)

        def show(done: int) -> None:
            progress.update(task, completed=done)

        return compile_table(target, profiles, show)


def _show(table: KernelTable) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.cli.tables import Table

    out = console()
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    shown = Table(title=f"{table.target} ({safe(versions)})")
    for heading in ("kernel", "profile"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("D", "group", "length", "regs", "spills", "shared", "warps", "matrix", "all"):
        shown.add_column(heading, justify="right")
    for variant in table.variants:
        if "unsupported" not in variant:
            shown.add_row(*_row(variant))
    out.print(shown)
    for variant in table.unsupported:
        name = " ".join(str(variant[key]) for key in ("kernel", "profile", "head_dim", "group", "length"))
        out.print(f"unsupported: {safe(name)}: {safe(variant['unsupported'])}", soft_wrap=True)
    out.print(
        f"{len(table.variants)} variants, {len(table.spilling)} spill, {len(table.unsupported)} unsupported",
        soft_wrap=True,
    )
    for variant in table.broken_promises:
        name = " ".join(str(variant[key]) for key in ("kernel", "profile", "head_dim", "group", "length"))
        out.print(f"[bold]must not spill[/bold]: {safe(name)}", soft_wrap=True)


def _row(variant: dict[str, Any]) -> list[str]:
    counts = variant["instructions"]
    spilled = variant["spill_store_bytes"] + variant["spill_load_bytes"]
    cost = variant["registers"], spilled, variant["shared_bytes"], variant["num_warps"]
    figures = (*cost, counts["matrix"], counts["all"])
    names = (
        variant["kernel"],
        variant["profile"],
        *(str(variant[key] or "") for key in ("head_dim", "group")),
    )
    return [*names, variant["length"], *(f"{figure:,}" for figure in figures)]
