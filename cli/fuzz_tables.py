"""What the campaigns of ``kvcrucible fuzz`` print alike: counts, ordered pairs, and a failing example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcrucible.cli.console import safe

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from kvcrucible.fuzz.campaign import Failure
    from kvcrucible.fuzz.pairs import Pair
    from kvcrucible.fuzz.steps import Step
    from kvcrucible.invariants.violation import Violation

#: How many of the pairs that are missing are named.
_PAIRS_SHOWN = 12


def print_pairs(screen: Console, reached: int, missing: Sequence[Pair]) -> None:
    """Print how many ordered pairs of operations came up, and the first of those that did not."""
    from kvcrucible.fuzz.pairs import pair_name

    screen.print(f"[bold]ordered pairs of operations[/bold] {reached} of {reached + len(missing)} reached")
    if missing:
        more = f" and {len(missing) - _PAIRS_SHOWN} more" if len(missing) > _PAIRS_SHOWN else ""
        screen.print(f"  not reached: {', '.join(map(pair_name, missing[:_PAIRS_SHOWN]))}{more}")


def print_counts(screen: Console, title: str, counts: dict[str, int]) -> None:
    """Print a table of counts, the largest first; nothing where there are none."""
    from kvcrucible.cli.tables import Table

    if not counts:
        return
    table = Table(title=title, show_header=False)
    table.add_column("name")
    table.add_column("count", justify="right")
    for name, times in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(safe(name), f"{times:,}")
    screen.print(table)


def print_failure(screen: Console, failure: Failure, path: Path | None) -> None:
    """Print a minimal failing example, what it violates, and where it was written."""
    from kvcrucible.contract.in_words import in_words

    screen.print(
        f"\n[bold]minimal sequence[/bold] ({len(failure.steps)} operations) on {safe(in_words(failure.setting))}"
    )
    print_example(screen, failure.steps, failure.violations, path)


def print_example(
    screen: Console, steps: Sequence[Step], violations: Sequence[Violation], path: Path | None
) -> None:
    """Print the steps of an example that fails, numbered from 1, what they violate, and where it was written."""
    from kvcrucible.contract.in_words import in_words

    for number, step in enumerate(steps, 1):
        screen.print(f"  {number}. {safe(in_words(step))}")
    for found in violations:
        screen.print(f"[bold]{safe(found.invariant)}[/bold]: {safe(found.message)}")
    if path is not None:
        screen.print(f"reproduction: {safe(str(path))}")
