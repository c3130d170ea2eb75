"""Tables of ``kvcrucible faults``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvcrucible.cli.console import console, safe
from kvcrucible.cli.tables import Table

if TYPE_CHECKING:
    from kvcrucible.fuzz.faults.catalogue import Fault
    from kvcrucible.fuzz.faults.coverage import Covered
    from kvcrucible.fuzz.faults.matrix import FaultRow
    from kvcrucible.fuzz.faults.run import FaultRun


def _table_of(ids: Sequence[str], title: str, *, show_lines: bool = False) -> Table:
    """Return a table whose first column shows each of ``ids`` whole: they are there to be copied."""
    table = Table(title=title, show_lines=show_lines)
    table.add_column("fault", min_width=max(map(len, ids), default=0))
    return table


def print_list(faults: Sequence[Fault]) -> None:
    """Print what there is."""
    table = _table_of([fault.id for fault in faults], f"{len(faults)} faults", show_lines=True)
    for heading in ("depth", "told by", "re-creates"):
        table.add_column(heading)
    for fault in faults:
        # One id a line: they are there to be copied.
        recreates = "\n".join(bug.id for bug in fault.recreates) or "–"
        named = f"[bold]{safe(fault.id)}[/bold]\n{safe(fault.title)}"
        depth = fault.depth.value if fault.part == "engine" else fault.part
        table.add_row(named, depth, "\n".join(fault.expects), recreates)
    console().print(table)


def print_runs(done: Sequence[FaultRun], sums: dict[str, Any]) -> None:
    """Print campaigns, remarks and their totals."""
    screen = console()
    table = _table_of([one.fault for one in done], "faults")
    table.add_column("verdict")
    for heading in ("seed", "tries", "steps", "minimal"):
        table.add_column(heading, justify="right")
    for one in done:
        numbers = [_number(number) for number in (one.seed, one.examples, one.steps, one.length)]
        told = f"{one.verdict.value} by {', '.join(one.fired[:2])}" if one.fired else one.verdict.value
        table.add_row(safe(one.fault), safe(told), *numbers)
    screen.print(table)
    for one in done:
        if one.note:
            screen.print(f"{safe(one.fault)}: {safe(one.note)}")
        if one.told_otherwise:
            screen.print(f"{safe(one.fault)}: told by none of the invariants that the catalogue names")
    crashed = f", {sums['by_crash_alone']} of them by a crash alone" if sums["by_crash_alone"] else ""
    screen.print(f"[bold]killed {sums['killed']} of {sums['runs']}[/bold]{crashed}")
    if sums["told_otherwise"]:
        screen.print(
            f"[bold]found by luck[/bold]: {sums['told_otherwise']} of the kills were told by none of the invariants "
            "that the fault names, and count as missed"
        )
    for driver, figures in sums["by_driver"].items():
        if not figures["killed"]:
            continue
        line = (
            f"{driver}: killed {figures['killed']}, median tries to detection {figures['median_examples']:g}"
        )
        if figures["median_steps"] is not None:
            line += f", steps {figures['median_steps']:g}"
        if figures["median_length"] is not None:
            line += f"; median minimal length {figures['median_length']:g}, longest {figures['longest']}"
        screen.print(line)


def print_unchanged(held: Sequence[FaultRun]) -> None:
    """Print how the engine as it is fared."""
    screen = console()
    for one in held:
        screen.print(f"the engine as it is, {one.depth} depth: {one.verdict.value} {safe(one.note)}".rstrip())
        if one.invariants:
            told = safe(", ".join(one.invariants))
            screen.print(
                f"[bold]the kills above prove nothing[/bold]: nothing was planted, yet it is told by {told}"
            )


def print_matrix(runs: Sequence[FaultRun]) -> None:
    """Print the kill matrix: by fault, then by invariant."""
    from kvcrucible.fuzz.faults.catalogue import every_fault
    from kvcrucible.fuzz.faults.matrix import fault_rows, invariant_rows

    screen, rows = console(), fault_rows(runs)
    table = Table("fault", "killed", "first", "then", title="by fault: who told it first, and who beside")
    for heading in ("seeds", "tries", "steps", "minimal"):
        table.add_column(heading, justify="right")
    for row in rows:
        beside = [name for name in row.fired if name not in row.first]
        table.add_row(
            safe(row.fault),
            _killed(row),
            _ids(row.first, "alone" if row.alone else None),
            _ids(beside),
            *[_number(number) for number in (row.seeds, row.examples, row.steps, row.length)],
        )
    screen.print(table)
    crashed = [row.fault for row in rows if row.told_by_crash_alone]
    if crashed:
        screen.print(f"told by a crash of the engine alone, by no invariant: {', '.join(map(safe, crashed))}")
    _print_invariants(rows, invariant_rows(rows, every_fault().values()))


def _print_invariants(rows: Sequence[FaultRow], invariants: Sequence[Any]) -> None:
    screen = console()
    table = Table("invariant", title=f"by invariant: of {len(rows)} faults")
    for heading in ("told", "first", "alone", "expected by"):
        table.add_column(heading, justify="right")
    for row in invariants:
        table.add_row(safe(row.invariant), *map(str, (row.told, row.first, row.alone, row.expected_by)))
    screen.print(table)
    for what, names in (
        ("no fault of the catalogue expects", [row.invariant for row in invariants if not row.expected_by]),
        ("no fault was told by", [row.invariant for row in invariants if not row.told]),
    ):
        if names:
            screen.print(f"{what}: {', '.join(names)}")


def print_coverage(found: Sequence[Covered], plain: dict[str, Any]) -> None:
    """Print every public bug and the recall."""
    from kvcrucible.fuzz.faults.coverage import Standing

    screen = console()
    table = Table("bug", "class", "standing", "by", title=f"{len(found)} public bugs", show_lines=True)
    for one in found:
        by = safe("\n".join(one.faults) or one.bug.not_expressible or "–")
        named = f"[bold]{safe(one.bug.id)}[/bold]\n{safe(one.bug.url)}"
        table.add_row(named, safe(one.bug.failure_class), one.standing.value, by)
    screen.print(table)
    for standing, count in plain["standings"].items():
        screen.print(f"{standing}: {count}")
    if plain["standings"][Standing.WITHOUT_CONTROL]:
        screen.print(
            "without a control: nothing in the same file shows that the engine as it is survives what killed these "
            "faults, so that the kills prove nothing"
        )
    screen.print(f"re-created by a fault: {plain['re_created']} of {plain['expressible']} expressible")
    if plain["recall"] is None:
        screen.print(
            "[bold]recall: not measured[/bold]; run `kvcrucible faults run --all` and give --results"
        )
        return
    recall = f"{plain['caught']} of {plain['expressible']} expressible ({plain['recall']:.0%})"
    at = f", measured at {safe(', '.join(plain['measured_at']))}" if plain["measured_at"] else ""
    screen.print(f"[bold]recall: {recall}[/bold]{at}")


def _killed(row: FaultRow) -> str:
    """Return how many of a fault's campaigns killed it, and the worst that became of it where not all did."""
    counts = f"{row.killed}/{row.runs}"
    return counts if row.killed == row.runs else f"{counts} {row.verdict.value}"


def _ids(names: Any, note: str | None = None) -> str:
    shown = "\n".join(safe(name) for name in names) or "–"
    return f"{shown} ({note})" if note else shown


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:,g}"
