"""``kvcrucible perf compare``: two revisions of this repository, by exact work and by time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kvcrucible.perf.compare.revisions import Revision
    from kvcrucible.perf.compare.run import Comparison

#: Lines of attribution and of unchanged counters that are shown; --json has all.
MAX_SHOWN = 12


def register(group: typer.Typer) -> None:
    """Add the command to ``group``."""
    group.command("compare")(compare)


def compare(
    base: str = typer.Option(..., "--base", help="Revision to compare with, as git names it."),
    head: str = typer.Option(
        ".", "--head", help="Revision to judge; `.` is the tracked files as they are now."
    ),
    repository: Path = typer.Option(Path("."), "--repository", help="Checkout that has both."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the order in which processes run."),
    counts_only: bool = typer.Option(False, "--counts-only", help="Exact work alone; takes seconds."),
    thresholds: Path | None = typer.Option(
        None, "--thresholds", help="Thresholds file.", show_default="those that come with the package"
    ),
    noise_floor: Path | None = typer.Option(
        None, "--noise-floor", help="Certificate of noise.", show_default="measured in this run"
    ),
    out: Path | None = typer.Option(None, "--out", help="File for the whole result, all pairs included."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Judge a revision against another: the smoke suite in fresh processes, in random blocks.

    Status 0 where nothing got worse, 1 where something did, 3 where the pairs do not decide. Work counters and
    executed bytecodes are exact; time is judged beside an unchanged and a slowed twin, which run with it.
    """
    import tempfile

    from kvcrucible.cli.console import print_json
    from kvcrucible.cli.former import set_aside
    from kvcrucible.cli.optional import require_modules
    from kvcrucible.cli.progress import progress_bar
    from kvcrucible.contract.json_files import write_json
    from kvcrucible.perf.compare.revisions import check_out, require_revision
    from kvcrucible.perf.statistics.thresholds import default_thresholds, read_thresholds

    limits = default_thresholds() if thresholds is None else read_thresholds(thresholds)
    for revision in (base, head):
        require_revision(repository, revision)
    require_modules("perf", "numpy", "scipy")
    from kvcrucible.perf.compare.run import Runner
    from kvcrucible.perf.compare.run import compare as run
    from kvcrucible.perf.statistics.noise_floor import read_noise_floor

    floor = None if noise_floor is None else read_noise_floor(noise_floor)
    with tempfile.TemporaryDirectory(prefix="kvcrucible-compare-") as name:
        folder = Path(name)
        sides = [
            check_out(repository, revision, folder / side)
            for side, revision in (("base", base), ("head", head))
        ]
        with progress_bar(left=True, hidden=as_json) as progress:
            total = 4 if counts_only else 4 + limits.plan.most_pairs
            task = progress.add_task("counting work", total=total)
            found = run(
                sides[0],
                sides[1],
                Runner(folder),
                limits,
                seed=seed,
                noise_floor=floor,
                counts_only=counts_only,
                progress=lambda what: progress.update(task, advance=1, description=what),
            )
    plain = _plain(found, sides, seed)
    if out is not None:
        set_aside(out)
        write_json(out, plain, "name another file with --out")
    if as_json:
        print_json(plain)
    else:
        _show(found, sides)
    raise typer.Exit(found.verdict.exit_status)


def _plain(found: Comparison, sides: list[Revision], seed: int) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "base": {"name": sides[0].name, "commit": sides[0].commit},
        "head": {"name": sides[1].name, "commit": sides[1].commit},
        "seed": seed,
        "blocks": found.blocks,
        **found.verdict.to_plain(),
        "bytecodes": [asdict(one) for one in found.bytecodes],
        "left_out": dict(found.left_out),
        "not_measured": list(found.not_measured),
        "pairs": [
            {"metric": one.metric, "base": one.base, "head": one.head, "head_first": one.head_first}
            for one in found.samples
        ],
    }


def _show(found: Comparison, sides: list[Revision]) -> None:
    from kvcrucible.cli.console import console, safe
    from kvcrucible.cli.tables import Table
    from kvcrucible.perf.statistics.metrics import MetricKind
    from kvcrucible.perf.statistics.verdict import Verdict

    styles = {
        Verdict.FAIL: "bold red",
        Verdict.INVALID: "yellow",
        Verdict.INCONCLUSIVE: "yellow",
        Verdict.IMPROVED: "green",
        Verdict.PASS: None,
    }
    out, verdict = console(), found.verdict
    title = f"{verdict.origin}: {safe(sides[1].name)} ({sides[1].commit[:10]}) against "
    table = Table("metric", title=title + f"{safe(sides[0].name)} ({sides[0].commit[:10]})")
    for heading in ("change", "95 % interval", "bound"):
        table.add_column(heading, justify="right")
    table.add_column("verdict", no_wrap=True)
    table.add_column("why")
    quiet = 0
    for one in verdict.metrics:
        if one.kind is MetricKind.EXACT and one.verdict is Verdict.PASS and not one.change:
            quiet += 1
            continue
        exact = one.kind is MetricKind.EXACT
        between = "exact" if exact else "–"
        if one.lower is not None and one.upper is not None:
            between = f"{one.lower:+.1%} to {one.upper:+.1%}"
        why = ": ".join(part for part in (one.reason.value if one.reason else "", one.detail) if part)
        if one.needed_pairs:
            why += f"; {one.needed_pairs:,} pairs would decide"
        table.add_row(
            safe(one.metric),
            "–" if one.change is None else f"{one.change:+.2%}",
            between,
            f"{one.minimum_effect:.1%}",
            one.verdict.value,
            safe(why),
            style=styles[one.verdict],
        )
    out.print(table)
    if quiet:
        out.print(f"{quiet} exact counts are the same on both sides")
    for change in found.bytecodes[:MAX_SHOWN]:
        ratio = f"{change.head / change.base - 1:+.1%}" if change.base else "new"
        out.print(
            f"bytecodes in {safe(change.case)}: {safe(change.function)} {change.base:,} to {change.head:,} ({ratio})",
            soft_wrap=True,
        )
    for case, why in found.left_out.items():
        out.print(f"left out: {safe(case)}: {safe(why)}", style="yellow", soft_wrap=True)
    for missing in found.not_measured:
        out.print(f"not measured: {safe(missing)}", style="dim", soft_wrap=True)
    for reason in verdict.void:
        out.print(f"nothing of time counts: {reason.value}", style="yellow", soft_wrap=True)
    blocks = f", {found.blocks} blocks of 4 processes" if found.blocks else ""
    out.print(f"{verdict.verdict.value}{blocks}", style=styles[verdict.verdict])
