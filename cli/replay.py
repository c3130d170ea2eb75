"""``kvcrucible replay``: a recorded trace drives the control plane, every step judged."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvcrucible.contract.config import MAX_LOOKAHEAD
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.perf.replay_figures import Figures
    from kvcrucible.perf.replay_settings import ReplaySettings

PAGE_SIZES = (16, 64)

#: Largest pool that a replay builds; its lists take some 100 bytes a page.
MAX_REPLAY_PAGES = 4_000_000

#: Most rows of the block table; every decode round looks at each.
MAX_CONCURRENCY = 4_096


def register(app: typer.Typer) -> None:
    """Add the ``replay`` command to ``app``."""
    app.command("replay")(replay)


def replay(
    trace: Path = typer.Argument(
        ..., help="Trace: normalised or Mooncake JSONL, or Azure CSV; plain or gzip."
    ),
    capacity_pages: int = typer.Option(
        20_000, "--capacity-pages", min=1, max=MAX_REPLAY_PAGES, help="Pages in the pool."
    ),
    page_size: int = typer.Option(64, "--page-size", help="Tokens in a page: 16 or 64."),
    limit: int | None = typer.Option(
        None, "--limit", min=1, help="Stop after this many requests of the file."
    ),
    seed: int = typer.Option(
        0, "--seed", min=0, help="Seed of the order in which active sequences take turns."
    ),
    concurrency: int = typer.Option(
        32, "--concurrency", min=1, max=MAX_CONCURRENCY, help="Requests queued or active at a time."
    ),
    prefill_chunk: int = typer.Option(8192, "--prefill-chunk", min=1, help="Most prompt tokens in one unit."),
    decode_run: int = typer.Option(
        256,
        "--decode-run",
        min=1,
        help="Most tokens that a sequence decodes in one unit; past 262,144 tokens it grows with the sequence.",
    ),
    max_context: int | None = typer.Option(
        None, "--max-context", min=1, help="Most positions of one sequence; by default what the pool holds."
    ),
    full_every: int = typer.Option(
        10_000,
        "--full-every",
        min=1,
        help="Check the whole state after every this many operations, and at the end.",
    ),
    host_pages: int = typer.Option(
        0,
        "--host-pages",
        min=0,
        max=MAX_REPLAY_PAGES,
        help="Pages that a Host tier has room for: continuations sink there and come back; 0 for none.",
    ),
    policy: str = typer.Option("lru", "--policy", help="Which continuation yields first: lru or cost-aware."),
    lookahead: int = typer.Option(
        0,
        "--lookahead",
        min=0,
        max=MAX_LOOKAHEAD,
        help="Requests behind one that waits that are looked at, to let pass who cannot delay it; 0 for none.",
    ),
    history: Path | None = typer.Option(
        None, "--history", help="Write the engine's history here, for `kvcrucible check`."
    ),
    as_json: bool = typer.Option(False, "--json", help="Write the figures as JSON; no progress bar."),
) -> None:
    """Drive the control plane by a real trace: prefix sharing, retention, admission; every step is checked.

    Requests come in order of arrival, as fast as --concurrency allows.  Status 1 on a broken invariant, 3 where every
    request was refused.
    """
    from kvcrucible.contract.config import POLICIES
    from kvcrucible.perf.replay import Replay
    from kvcrucible.perf.replay_input import load_requests
    from kvcrucible.perf.replay_settings import ReplaySettings

    if page_size not in PAGE_SIZES:
        raise InputError(f"--page-size {page_size}: use 16 or 64")
    if policy not in POLICIES:
        raise InputError(f"--policy {policy:.40}: use {' or '.join(POLICIES)}")
    settings = ReplaySettings(
        capacity_pages,
        page_size,
        concurrency,
        prefill_chunk,
        decode_run,
        max_context,
        full_every,
        seed,
        host_pages,
        policy,
        lookahead,
    )
    requests = load_requests(trace, limit)
    with _collector_spared(), _progress(len(requests), quiet=as_json) as advance:
        figures = Replay(requests, settings, advance, history).run()
    _report(figures, trace, len(requests), settings, as_json)
    raise typer.Exit(_status(figures))


def _status(figures: Figures) -> ExitStatus:
    if figures.failure is not None:
        return ExitStatus.VIOLATION
    if figures.cut_short:
        return ExitStatus.INTERRUPTED
    return ExitStatus.INCONCLUSIVE if figures.inconclusive else ExitStatus.HELD


@contextmanager
def _collector_spared() -> Iterator[None]:
    """Keep the garbage collector from walking the whole trace again and again: it stays to the end as it is."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar of requests on a terminal's standard error; yield what sets it."""
    from kvcrucible.cli.progress import progress_bar

    with progress_bar(left=True, hidden=quiet) as bar:
        task = bar.add_task("replay, requests", total=total)
        yield lambda done: bar.update(task, completed=done)


def _report(figures: Figures, trace: Path, total: int, settings: ReplaySettings, as_json: bool) -> None:
    from kvcrucible.cli.console import console, print_json, safe, stderr_console

    if as_json:
        print_json(
            figures.to_plain()
            | {
                "trace": trace.name,
                "trace_requests": total,
                "capacity_pages": settings.capacity_pages,
                "page_size": settings.page_size,
                "host_pages": settings.host_pages,
                "policy": settings.policy,
                "lookahead": settings.lookahead,
            }
        )
    else:
        from kvcrucible.cli.tables import Table

        table = Table(title=f"Replay of {safe(trace.name)}")
        table.add_column("figure")
        table.add_column("value", justify="right")
        for name, value in _rows(figures, total, settings):
            table.add_row(name, value)
        out = console()
        out.print(table)
        if (reason := _why_few_hits(figures, settings)) is not None:
            out.print(reason)
    errors = stderr_console()
    if figures.failure is not None:
        errors.print(f"[bold red]VIOLATION[/bold red] {safe(str(figures.failure))}", soft_wrap=True)
    elif figures.cut_short:
        errors.print("[yellow]interrupted: the figures are cut short[/yellow]")
    elif figures.inconclusive:
        errors.print(f"INCONCLUSIVE: nothing was replayed, {_refusals(figures, settings)}", soft_wrap=True)
    elif figures.refused and not as_json:
        errors.print(_refusals(figures, settings), soft_wrap=True)


def _refusals(figures: Figures, settings: ReplaySettings) -> str:
    """Say how many requests can never run here, and what would let the smallest and the largest of them."""
    from kvcrucible.contract.config import pages_for

    smallest, largest = figures.smallest_refused_tokens, figures.largest_refused_tokens
    assert smallest is not None
    assert largest is not None
    pages = [pages_for(tokens, settings.page_size) for tokens in (smallest, largest)]
    options = []
    if pages[1] > settings.capacity_pages:
        options.append(f"--capacity-pages {pages[1]}")
    if settings.max_context is not None and largest > settings.max_context:
        options.append(f"--max-context {largest}")
    times = sum(figures.refused.values())
    remedy = f"; for every one of them give {' and '.join(options)}" if options else ""
    return (
        f"{times:,} of {figures.requests:,} requests were refused ({', '.join(figures.refused)}): they need "
        f"{pages[0]:,} to {pages[1]:,} pages of {settings.page_size}, the pool has {settings.capacity_pages:,}{remedy}"
    )


def _why_few_hits(figures: Figures, settings: ReplaySettings) -> str | None:
    """Say why an engine that is right hit less than half of what an infinite cache would, else None."""
    if 2 * figures.hit_tokens >= figures.ideal_hit_tokens:
        return None
    admitted = sum(figures.admitted.values())
    together = min(settings.concurrency, admitted)
    which = f"all {admitted:,}" if together == admitted else f"up to {together:,}"
    reasons = [
        f"{which} requests run at the same time, and a prompt is found only once it is complete: "
        "try a smaller --concurrency, or more requests"
    ]
    if figures.evictions:
        reasons.append(
            f"{figures.evictions:,} continuations were evicted for want of pages: try more --capacity-pages"
        )
    return "Few hits where an infinite cache has many: " + "; ".join(reasons) + "."


def _host_rows(figures: Figures) -> Iterator[tuple[str, str]]:
    yield "hits on Host", f"{figures.host_hits:,}"
    yield "  tokens of their prompts hit", f"{figures.host_hit_tokens:,}"
    yield "  pages restored", f"{figures.pages_restored:,}"
    yield "  bytes restored", f"{figures.bytes_restored:,}"
    yield "continuations sunk", f"{figures.sunk:,}"
    yield "  pages sunk", f"{figures.pages_sunk:,}"
    yield "  bytes sunk", f"{figures.bytes_sunk:,}"
    yield "transfers abandoned", f"{figures.transfers_abandoned:,}"


def _rows(figures: Figures, total: int, settings: ReplaySettings) -> Iterator[tuple[str, str]]:
    capacity_pages, page_size = settings.capacity_pages, settings.page_size
    if figures.cut_short:
        yield "CUT SHORT", f"{figures.requests:,} of {total:,} requests"
    yield "requests", f"{figures.requests:,}"
    for mode, times in figures.admitted.items():
        yield f"  admitted, {mode}", f"{times:,}"
    for kind, times in figures.refused.items():
        yield f"  refused, {kind}", f"{times:,}"
    if not figures.refused:
        yield "  refused", "0"
    for kind, times in figures.waits.items():
        yield f"  rounds in which the head waited, {kind}", f"{times:,}"
    if settings.lookahead:
        yield "  admitted past a head that waited", f"{figures.backfilled:,}"
    yield "prompt tokens", f"{figures.prompt_tokens:,}"
    yield "  hit", f"{figures.hit_tokens:,}"
    yield "  hit ratio", f"{figures.hit_ratio:.1%}"
    yield "  ideal hit ratio, whole blocks", f"{figures.ideal_block_hit_ratio:.1%}"
    yield "  ideal hit ratio, token for token", f"{figures.ideal_hit_ratio:.1%}"
    for reason, tokens in figures.gap.items():
        yield f"  no hit, {reason}", f"{tokens:,}"
    yield "continuations at once, at most", f"{figures.peak_continuations:,}"
    yield "  wholly on Device, at most", f"{figures.peak_continuations_on_device:,}"
    yield "hits on Device", f"{figures.device_hits:,}"
    if settings.host_pages:
        yield from _host_rows(figures)
    yield "appended tokens", f"{figures.appended_tokens:,}"
    yield "page grants", f"{figures.page_grants:,}"
    yield "peak leased pages", f"{figures.peak_leased_pages:,} of {capacity_pages:,} (of {page_size} tokens)"
    yield "evictions", f"{figures.evictions:,}"
    yield "allocator calls", f"{figures.allocator_calls:,}"
    yield "page copies", f"{figures.page_copies:,}"
    yield "operations", f"{figures.operations:,}"
    yield "  steps checked", f"{figures.step_checks:,}"
    yield "  full checks", f"{figures.full_checks:,}"
    idle = [name for name, premises in figures.judged.items() if not premises]
    yield (
        "  invariants with something to judge",
        f"{len(figures.judged) - len(idle)} of {len(figures.judged)}",
    )
    yield "violations", str(0 if figures.failure is None else len(figures.failure.violations))
    yield "CPU seconds", f"{figures.cpu_seconds:.1f}"
    yield "operations per second", f"{figures.operations_per_second:,.0f}"
