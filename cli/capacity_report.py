"""The capacity study for people (tables) and for machines (plain data)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvcrucible.cli.console import console, safe
from kvcrucible.cli.tables import Table
from kvcrucible.perf.capacity import CapacityStudy, Occupancy, StrategyFigures
from kvcrucible.perf.capacity_storage import MODEL, ProfileFigures

_NOTHING = "–"


def plain(study: CapacityStudy, storage: Sequence[ProfileFigures], source: str) -> dict[str, Any]:
    """Return every figure as JSON data; shares run from 0 to 1, None where a denominator is 0."""
    scenario = study.scenario
    return {
        "scenario": {
            "source": source,
            "sequences": len(scenario.lengths),
            "sum_tokens": sum(scenario.lengths),
            "mean_tokens": sum(scenario.lengths) / len(scenario.lengths),
            "longest_tokens": max(scenario.lengths),
            "offered": scenario.offered,
            "budget_slots": scenario.budget_slots,
            "page_size": scenario.page_size,
            "capacity_pages": study.capacity_pages,
            "static_max_tokens": scenario.static_max_tokens,
            "probe_tokens": scenario.probe_tokens,
            "probe_pages": study.probe_pages,
        },
        "strategies": {figures.name: _strategy(figures) for figures in study.strategies},
        "paged_against_static": study.paged_against_static,
        "storage": {
            "model": MODEL,
            "profiles": {
                profile.name: {
                    "bytes_per_token": profile.bytes_per_token,
                    "bytes_per_page": profile.bytes_per_page,
                    "pages_against": profile.pages_against,
                    "refusal": profile.refusal,
                }
                for profile in storage
            },
        },
    }


def _strategy(figures: StrategyFigures) -> dict[str, Any]:
    return {
        "offered": figures.offered,
        "admitted": figures.admitted,
        "refused": figures.refused,
        "full": _occupancy(figures.full),
        "released": figures.released,
        "after": _occupancy(figures.after),
        "probe_admitted": figures.probe_admitted,
    }


def _occupancy(moment: Occupancy) -> dict[str, Any]:
    return {
        "sequences": moment.sequences,
        "held_slots": moment.held_slots,
        "used_tokens": moment.used_tokens,
        "used_of_held": moment.used_of_held,
        "used_of_budget": moment.used_of_budget,
        "waste_slots": moment.waste_slots,
        "waste_of_held": moment.waste_of_held,
        "worst_waste_slots": moment.worst_waste_slots,
        "free_slots": moment.free_slots,
        "largest_grant_slots": moment.largest_grant_slots,
    }


def show(study: CapacityStudy, storage: Sequence[ProfileFigures], source: str) -> None:
    """Print the scenario, the three strategies and the storage profiles."""
    out, scenario = console(), study.scenario
    lengths = scenario.lengths
    out.print(
        f"[bold]{len(lengths):,} lengths[/bold] ({safe(source)}): sum {sum(lengths):,}, "
        f"mean {sum(lengths) / len(lengths):,.0f}, longest {max(lengths):,}",
        soft_wrap=True,
    )
    out.print(
        f"budget {scenario.budget_slots:,} slots, for the first {scenario.offered:,}; "
        f"{study.capacity_pages:,} pages of {scenario.page_size:,}",
        soft_wrap=True,
    )
    out.print(_strategies(study))
    for line in _reading(study):
        out.print(line, soft_wrap=True)
    out.print()
    out.print(_profiles(storage, scenario.page_size))
    for profile in storage:
        if profile.refusal is not None:
            out.print(f"{profile.name}: {profile.refusal}", style="dim", soft_wrap=True)


def _reading(study: CapacityStudy) -> Iterator[str]:
    """Yield what the table comes to, a line for each strategy and one for the comparison."""
    budget, probe = study.scenario.budget_slots, study.scenario.probe_tokens
    static, contiguous, paged = study.strategies
    full, after = static.full, paged.after
    yield (
        f"static: {static.admitted:,} admitted, {static.refused:,} refused; {full.used_tokens:,} of "
        f"{full.held_slots:,} slots held used ({_percent(full.used_of_held, 0)}), "
        f"{_percent(full.used_of_budget, 0)} of the budget of {budget:,}"
    )
    yield (
        f"contiguous: {contiguous.admitted:,} admitted ({contiguous.full.held_slots:,} occupied), "
        f"{contiguous.released:,} freed; {contiguous.after.free_slots:,} slots free, largest hole "
        f"{contiguous.after.largest_grant_slots:,}; a request of {probe:,} {_answer(contiguous, study)}"
    )
    yield (
        f"paged: {paged.admitted:,} admitted, {paged.released:,} freed; "
        f"{after.free_slots:,} slots free in whole pages; "
        f"a request of {probe:,} {_answer(paged, study)}; tail waste {after.waste_slots:,} of {after.held_slots:,} "
        f"({_percent(after.waste_of_held)}), at most {after.worst_waste_slots:,} in one sequence; "
        f"{_percent(after.used_of_held)} of what is held is used, {_percent(after.used_of_budget)} of the budget"
    )
    ratio = study.paged_against_static
    yield f"static {static.admitted:,} against paged {paged.admitted:,}" + (
        f" ({ratio:.1f} ×)" if ratio else ""
    )


def _strategies(study: CapacityStudy) -> Table:
    scenario = study.scenario
    table = Table(title="Allocation")
    table.add_column("", no_wrap=True)
    table.add_column(f"static {scenario.static_max_tokens:,}", justify="right")
    table.add_column("contiguous", justify="right")
    table.add_column(f"paged {scenario.page_size:,}", justify="right")

    def row(name: str, cell: Callable[[StrategyFigures], str]) -> None:
        table.add_row(name, *(cell(figures) for figures in study.strategies))

    row("sequences offered", lambda figures: f"{figures.offered:,}")
    row("  admitted", lambda figures: f"{figures.admitted:,}")
    row("  refused", lambda figures: f"{figures.refused:,}")
    _add_moment(row, lambda figures: figures.full)
    table.add_section()
    row("every second ends", lambda figures: f"{figures.released:,}")
    _add_moment(row, lambda figures: figures.after)
    row("slots free", lambda figures: f"{figures.after.free_slots:,}")
    row("  one can get", lambda figures: f"{figures.after.largest_grant_slots:,}")
    row(f"a request of {scenario.probe_tokens:,}", lambda figures: _answer(figures, study))
    return table


def _answer(figures: StrategyFigures, study: CapacityStudy) -> str:
    if not figures.probe_admitted:
        return "refused"
    return f"admitted ({study.probe_pages:,} pages)" if figures is study.paged else "admitted"


def _add_moment(
    row: Callable[[str, Callable[[StrategyFigures], str]], None], of: Callable[[StrategyFigures], Occupancy]
) -> None:
    row("slots held", lambda figures: f"{of(figures).held_slots:,}")
    row("  used by tokens", lambda figures: f"{of(figures).used_tokens:,}")
    row("    of what is held", lambda figures: _percent(of(figures).used_of_held))
    row("    of the budget", lambda figures: _percent(of(figures).used_of_budget))
    row("  wasted", lambda figures: f"{of(figures).waste_slots:,}")
    row("    of what is held", lambda figures: _percent(of(figures).waste_of_held))
    row("    most in one", lambda figures: f"{of(figures).worst_waste_slots:,}")


def _percent(share: float | None, digits: int = 1) -> str:
    return _NOTHING if share is None else f"{100 * share:.{digits}f} %"


def _profiles(storage: Sequence[ProfileFigures], page_size: int) -> Table:
    suiting = [profile for profile in storage if profile.refusal is None]
    title = f"{MODEL}: bytes, × the pages of another"
    table = Table(title=title)
    table.add_column("profile")
    table.add_column("a token", justify="right")
    table.add_column(f"a page of {page_size:,}", justify="right")
    for profile in suiting:
        table.add_column(f"× {profile.name}", justify="right")
    for profile in suiting:
        against = profile.pages_against or {}
        table.add_row(
            profile.name,
            f"{profile.bytes_per_token:,}",
            f"{profile.bytes_per_page:,}",
            *(f"{against[other.name]:.2f}" for other in suiting),
        )
    return table
