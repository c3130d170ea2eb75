"""A campaign over cells on one back-end, in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from kvcrucible.fuzz.kernels.backends import Target
from kvcrucible.fuzz.kernels.cases import Case, cases
from kvcrucible.fuzz.kernels.cells import Cell, uncovered_pairs
from kvcrucible.invariants.violation import InvariantViolated, Violation


@dataclass
class KernelReport:
    """What was tried on one back-end and what was found.

    ``tried``: examples that held or failed, by cell.  ``failure``: the smallest case found and what it violates.
    ``not_run``: why nothing was tried.  ``cut_short``: whether the time ran out before every cell had its examples.
    """

    target: str
    seed: int
    wanted: Sequence[Cell]
    tried: Counter[Cell] = field(default_factory=Counter)
    seconds: float = 0.0
    failure: tuple[Case, tuple[Violation, ...]] | None = None
    cut_short: bool = False
    not_run: str | None = None

    @property
    def uncovered(self) -> list[Cell]:
        """The wanted cells that no example was of."""
        return [cell for cell in self.wanted if not self.tried[cell]]

    def by_kernel_and_profile(self) -> Counter[tuple[str, str]]:
        """Return how many examples each kernel had with each profile."""
        counts: Counter[tuple[str, str]] = Counter()
        for cell, times in self.tried.items():
            counts[cell.kernel, cell.profile] += times
        return counts

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain data."""
        counts = self.by_kernel_and_profile()
        return {
            "target": self.target,
            "seed": self.seed,
            "examples": self.tried.total(),
            "seconds": round(self.seconds, 1),
            "cells": len(self.wanted),
            "uncovered_cells": [str(cell) for cell in self.uncovered],
            "uncovered_pairs": uncovered_pairs(self.wanted, self.tried),
            "examples_by_kernel_and_profile": {f"{k} × {p}": n for (k, p), n in sorted(counts.items())},
            "fewest_by_kernel_and_profile": min(counts.values(), default=0),
            "cut_short": self.cut_short,
            "not_run": self.not_run,
            "failure": None if self.failure is None else _failure(*self.failure),
        }


def run(
    target: Target,
    wanted: Sequence[Cell],
    examples_a_cell: int,
    chosen_seed: int,
    seconds: float | None = None,
    on_cell: Callable[[KernelReport], None] | None = None,
    *,
    shrink: bool = True,
) -> KernelReport:
    """Try every cell of ``wanted`` with so many examples, in order; stop at the first violation, which ``shrink`` makes
    small: where kernels are interpreted that takes minutes.
    """
    from kvcrucible.fuzz.kernels.checks import check

    report, started = KernelReport(target.name, chosen_seed, wanted), time.monotonic()

    def judge(case: Case) -> list[Violation]:
        return check(case, target.backend, target.device)

    for number, cell in enumerate(wanted):
        if seconds is not None and time.monotonic() - started > seconds:
            report.cut_short = True
            break
        report.failure = _try(cell, examples_a_cell, chosen_seed + number, judge, report.tried, shrink)
        report.seconds = time.monotonic() - started
        if on_cell is not None:
            on_cell(report)
        if report.failure is not None:
            break
    return report


def _try(
    cell: Cell,
    examples: int,
    cell_seed: int,
    judge: Callable[[Case], list[Violation]],
    tried: Counter[Cell],
    shrink: bool,
) -> tuple[Case, tuple[Violation, ...]] | None:
    """Draw examples of one cell; return the smallest or the first that fails, None where all hold."""
    failing: list[Case] = []

    @seed(cell_seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(cases(cell))
    def every_example(case: Case) -> None:
        if not failing:
            tried[cell] += 1
        found = judge(case)
        if found:
            failing.append(case)
            raise InvariantViolated(found)

    try:
        every_example()
    except InvariantViolated as found:
        # Hypothesis runs the smallest example last.
        return failing[-1], found.violations
    return None


def _failure(case: Case, violations: Sequence[Violation]) -> dict[str, Any]:
    return {
        "case": case.to_json(),
        "violations": [{"invariant": found.invariant, "message": found.message} for found in violations],
    }
