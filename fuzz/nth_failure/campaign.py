"""Tries cells of one workload after another until enough have been tried or one violates something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.fuzz.minimise import alike
from kvcrucible.fuzz.nth_failure.cells import Build, Cell, Ending, Tried, cells_of, try_cell
from kvcrucible.fuzz.nth_failure.sites import LOSING, UNFORESEEN, Failure, Site
from kvcrucible.fuzz.nth_failure.subject import Subject
from kvcrucible.fuzz.nth_failure.workloads import Workload, workloads
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step, step_to_plain, steps_from_plain
from kvcrucible.invariants.violation import InvariantViolated

#: Name and version of the report's form.
FORMAT = "kvcrucible.nth-failure/1"

#: Cells that making one shorter may try.
_MOST_TRIES = 400


@dataclass(slots=True)
class Line:
    """What came of the cells of one site in one kind of operation.

    ``exact``: those that were rolled back and whose digest, checkers and emptying agreed.  ``went_on``: admissions that
    did something else instead and reported it.  ``lost``: where the engine said that it is lost.
    """

    cells: int = 0
    exact: int = 0
    went_on: int = 0
    lost: int = 0
    emptied: int = 0
    emptied_exactly: int = 0
    violated: int = 0

    def add(self, tried: Tried) -> None:
        """Count one cell."""
        self.cells += 1
        held = not tried.violations
        self.exact += held and tried.ending is Ending.ROLLED_BACK
        self.went_on += held and tried.ending is Ending.WENT_ON
        self.lost += held and tried.ending is Ending.LOST
        self.violated += not held
        self.emptied += tried.emptied is not None
        self.emptied_exactly += tried.emptied is True


@dataclass(slots=True)
class NthFailureReport:
    """What was tried, by (site, operation), and the smallest cell found that violates something."""

    seed: int
    wanted: int
    workloads: int = 0
    lines: dict[tuple[Site, str], Line] = field(default_factory=dict)
    failure: Tried | None = None
    cut_short: str | None = None
    seconds: float = 0.0

    @property
    def total(self) -> Line:
        """Return the sum of all lines."""
        lines = list(self.lines.values())
        names = Line.__dataclass_fields__
        return Line(**{name: sum(getattr(line, name) for line in lines) for name in names})

    @property
    def due_rollbacks(self) -> int:
        """Cells that have to end in a rollback: all but those that lose the engine and those that went on.

        An error that nobody has foreseen may do either; where the engine says that it is lost no rollback is due.
        """
        lost = sum(
            line.cells if site in LOSING else line.lost
            for (site, _), line in self.lines.items()
            if site in LOSING | UNFORESEEN
        )
        return self.total.cells - lost - self.total.went_on

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        names = tuple(Line.__dataclass_fields__)
        return {
            "format": FORMAT,
            "seed": self.seed,
            "workloads": self.workloads,
            "seconds": round(self.seconds, 3),
            "total": {name: getattr(self.total, name) for name in names},
            "due_rollbacks": self.due_rollbacks,
            "cells": [
                {"site": site.value, "operation": operation, **{name: getattr(line, name) for name in names}}
                for (site, operation), line in sorted(self.lines.items())
            ],
            "cut_short": self.cut_short,
            "failure": None if self.failure is None else failure_to_plain(self.failure),
        }


def failure_to_plain(failed: Tried) -> dict[str, Any]:
    """Return a failing cell as JSON-ready data: :func:`run_cell` takes the first three."""
    cell = failed.cell
    return {
        "setting": cell.workload.setting.to_plain(),
        "steps": [step_to_plain(step) for step in cell.workload.steps[: cell.at + 1]],
        "failure": [cell.failure.site.value, cell.failure.k, cell.failure.persistent],
        "violations": [{"invariant": v.invariant, "message": v.message} for v in failed.violations],
    }


def run(
    seed: int,
    wanted: int,
    seconds: float | None = None,
    on_workload: Callable[[NthFailureReport], None] | None = None,
    source: Iterable[Workload] | None = None,
    build: Build = Subject,
) -> NthFailureReport:
    """Try cells until at least ``wanted`` had to be rolled back; stop at the first violation, which comes out smaller.

    ``source``: the workloads, None for those of ``seed``.  ``build`` makes the engine that is failed.  Raises
    ``InvariantViolated`` for an engine that is wrong without any failure.
    """
    report, began = NthFailureReport(seed, wanted), time.perf_counter()
    seen: set[Workload] = set()
    for workload in workloads(seed) if source is None else source:
        if workload in seen:
            continue
        seen.add(workload)
        report.workloads += 1
        for cell in cells_of(workload, build):
            tried = try_cell(cell)
            key = cell.failure.site, type(cell.operation).__name__
            report.lines.setdefault(key, Line()).add(tried)
            if tried.violations:
                report.failure = smaller(tried)
                break
        report.seconds = time.perf_counter() - began
        if on_workload is not None:
            on_workload(report)
        if report.failure is not None or report.due_rollbacks >= wanted:
            break
        if seconds is not None and report.seconds > seconds:
            report.cut_short = f"time limit of {seconds:g} s"
            break
    return report


def smaller(failed: Tried) -> Tried:
    """Take steps before the failing operation out one by one while it fails alike."""
    best, tries, shorter = failed, 0, True
    while shorter:
        shorter = False
        for index in range(best.cell.at - 1, -1, -1):
            tries += 1
            if tries > _MOST_TRIES:
                return best
            candidate = try_cell(_without(best.cell, index))
            if candidate.violations and alike(candidate.violations, failed.violations):
                best, shorter = candidate, True
                break
    return best


def _without(cell: Cell, index: int) -> Cell:
    steps = cell.workload.steps
    kept = steps[:index] + steps[index + 1 : cell.at + 1]
    return replace(cell, workload=replace(cell.workload, steps=kept), at=cell.at - 1)


def run_cell(setting: dict[str, Any], steps: list[Any], failure: list[Any]) -> None:
    """Try one cell given as plain data: the failure happens in the last step.

    Raises ``InvariantViolated`` for what it violates, and ``InputError`` for data that is no cell.
    """
    match failure:
        case [str(site), int(k), bool(persistent)] if site in list(Site) and k >= 1:
            pass
        case _:
            raise InputError(f"{failure!r:.80} is no failure: site, how-manieth from 1, whether persistently")
    taken: tuple[Step, ...] = tuple(steps_from_plain(steps))
    workload = Workload(Setting.from_plain(setting), taken)
    if not taken or isinstance(taken[-1], RunEffects | ReadBack):
        raise InputError("the last step of a cell is the operation that fails")
    tried = try_cell(Cell(workload, len(taken) - 1, Failure(Site(site), k, persistent)))
    if tried.violations:
        raise InvariantViolated(list(tried.violations))
