"""The kill matrix: which invariants told which fault, which of them first, and which alone.

One campaign stops at its first failing step, and a step may break several invariants at once.  *First* is the one that
its report names first; *alone* means that over all campaigns against a fault nothing but this one was ever named.
An invariant that tells no fault has not been shown to find anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvcrucible.fuzz.faults.catalogue import Fault
from kvcrucible.fuzz.faults.run import WORST_FIRST, FaultRun, Verdict
from kvcrucible.invariants.registry import IDS


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault over all its campaigns.

    ``killed`` of ``runs`` campaigns found it; ``first``: by which invariant, with how many of them; ``fired``: with all
    that they named; ``alone``: the only one that was ever named, else None.  ``verdict``: the worst of all campaigns'
    (``WORST_FIRST``), so killed where every one found it, whatever its seed.  ``by_crash_alone``: kills that name
    nothing but ``engine-fault``.  ``seeds``: campaigns until the first kill, by their seeds; ``examples``,
    ``steps``: medians until a failure was seen; ``length``: of the shortest minimal example; each None where there is
    none.
    """

    fault: str
    depth: str
    runs: int
    verdict: Verdict
    killed: int
    by_crash_alone: int
    first: dict[str, int]
    fired: dict[str, int]
    alone: str | None
    expected: bool
    seeds: int | None
    examples: float | None
    steps: float | None
    length: int | None

    @property
    def told_by_crash_alone(self) -> bool:
        """Whether it was killed, and in no campaign by an invariant."""
        return 0 < self.killed == self.by_crash_alone


@dataclass(frozen=True, slots=True)
class InvariantRow:
    """One invariant: how many faults it told in some campaign, how many first, how many alone, and how many entries of
    the catalogue expect it.
    """

    invariant: str
    told: int
    first: int
    alone: int
    expected_by: int


def fault_rows(runs: Iterable[FaultRun]) -> list[FaultRow]:
    """Return one row for each fault, in the order in which they come."""
    by_fault: dict[str, list[FaultRun]] = {}
    for run in runs:
        by_fault.setdefault(run.fault, []).append(run)
    return [_row(name, found) for name, found in by_fault.items()]


def _row(name: str, runs: list[FaultRun]) -> FaultRow:
    runs = sorted(runs, key=lambda run: run.seed)
    killed = [run for run in runs if run.verdict is Verdict.KILLED]
    fired = Counter(invariant for run in killed for invariant in run.fired)
    return FaultRow(
        fault=name,
        depth=runs[0].depth,
        runs=len(runs),
        verdict=min((run.verdict for run in runs), key=WORST_FIRST.index),
        killed=len(killed),
        by_crash_alone=sum(run.by_crash_alone for run in killed),
        first=dict(Counter(name for run in killed for name in run.fired[:1]).most_common()),
        fired=dict(fired.most_common()),
        alone=next(iter(fired)) if len(fired) == 1 else None,
        expected=any(run.expected for run in killed),
        seeds=1 + runs.index(killed[0]) if killed else None,
        examples=_median([run.examples for run in killed]),
        steps=_median([run.steps for run in killed]),
        length=min((run.length for run in killed if run.length is not None), default=None),
    )


def _median(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def invariant_rows(rows: Sequence[FaultRow], faults: Iterable[Fault]) -> list[InvariantRow]:
    """Return one row for each invariant of the catalogue, in its order, then for each judgement that was named."""
    expected = Counter(invariant for fault in faults for invariant in fault.expects)
    told = Counter(invariant for row in rows for invariant in row.fired)
    first = Counter(invariant for row in rows for invariant in row.first)
    alone = Counter(row.alone for row in rows if row.alone is not None)
    beside = sorted((told.keys() | expected.keys()) - set(IDS))
    return [
        InvariantRow(name, told[name], first[name], alone[name], expected[name]) for name in (*IDS, *beside)
    ]


def matrix_to_plain(rows: Sequence[FaultRow], invariants: Sequence[InvariantRow]) -> dict[str, Any]:
    """Return both sides as JSON-ready data.

    ``untold`` are the invariants that told nothing, ``told_by_crash_alone`` the faults that no invariant told.
    """
    return {
        "faults": {row.fault: _plain_row(row) for row in rows},
        "invariants": {
            row.invariant: {
                "told": row.told,
                "first": row.first,
                "alone": row.alone,
                "expected_by": row.expected_by,
            }
            for row in invariants
        },
        "untold": [row.invariant for row in invariants if not row.told],
        "told_by_crash_alone": [row.fault for row in rows if row.told_by_crash_alone],
    }


def _plain_row(row: FaultRow) -> dict[str, Any]:
    return {
        "depth": row.depth,
        "runs": row.runs,
        "verdict": row.verdict.value,
        "killed": row.killed,
        "by_crash_alone": row.by_crash_alone,
        "first": row.first,
        "fired": row.fired,
        "alone": row.alone,
        "expected": row.expected,
        "seeds_to_detection": row.seeds,
        "median_examples": row.examples,
        "median_steps": row.steps,
        "length": row.length,
    }
