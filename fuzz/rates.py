"""How quick the raw loop is, with Hypothesis beside it in the same run, and where its time goes.

Both run the same rules at ledger depth against the same engine, in turns, so that what else the machine does meets
both; time is that of the processor.  A third takes the raw loop with every check in full after every operation, which
tells apart what is gained by leaving Hypothesis out and what by looking in full only now and then.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

from kvcrucible.fuzz import campaign
from kvcrucible.fuzz.report import failure_to_plain
from kvcrucible.fuzz.setting import Depth
from kvcrucible.fuzz.source import source_commit
from kvcrucible.fuzz.volume import VolumePlan, run_block

#: Rounds of a measurement unless told otherwise.
DEFAULT_ROUNDS = 5

#: Seeds, and examples of Hypothesis, of a round: each side takes a few seconds.
ROUND_SEEDS, ROUND_EXAMPLES = 64, 40

#: Seeds that are profiled.
PROFILED_SEEDS = 64

#: What is measured, in the order of a round.
KINDS = ("raw", "raw, all in full", "hypothesis")

#: Folders of the package by which a profile is summed; what lies elsewhere is Python's own.
_FOLDERS = ("contract", "reference", "engine", "invariants", "fuzz")

#: Functions of a profile that are named.
_FUNCTIONS = 15


class FailedMeanwhile(Exception):
    """Something failed while it was timed: what does not hold is to be looked into.

    ``failure``: the minimal example.  ``where``: which kind of loop, in which round.
    """

    def __init__(self, where: str, failure: campaign.Failure) -> None:
        super().__init__(f"{where}: {failure.violations[0].message}")
        self.where, self.failure = where, failure


@dataclass(slots=True)
class Rates:
    """Checked operations per second of processor time, by kind and round; and the profile's shares of time."""

    commit: str | None
    by_round: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    shares: dict[str, float] = field(default_factory=dict)
    functions: list[tuple[str, float, int]] = field(default_factory=list)

    def rate(self, kind: str) -> float:
        """Median over the rounds."""
        return median(self.by_round[kind])

    def ratios(self, kind: str = "raw", to: str = "hypothesis") -> list[float]:
        """How many times as quick one kind was as another, round by round."""
        return [a / b for a, b in zip(self.by_round[kind], self.by_round[to], strict=True)]

    def to_plain(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "format": "kvcrucible.fuzz-rates/1",
            "commit": self.commit,
            "unit": "checked operations per second of processor time",
            "rounds": {kind: [round(rate, 1) for rate in rates] for kind, rates in self.by_round.items()},
            "median": {kind: round(self.rate(kind), 1) for kind in KINDS},
            "raw_to_hypothesis": {
                "median": round(median(self.ratios()), 2),
                "least": round(min(self.ratios()), 2),
                "most": round(max(self.ratios()), 2),
            },
            "profile": {
                "self_time_by_folder": {name: round(share, 4) for name, share in self.shares.items()},
                "self_time_by_function": [
                    {"function": name, "share": round(share, 4), "calls": calls}
                    for name, share, calls in self.functions
                ],
            },
        }


def measure(
    plan: VolumePlan, rounds: int = DEFAULT_ROUNDS, on_round: Callable[[int], None] | None = None
) -> Rates:
    """Measure all kinds in turn, ``rounds`` times, each time on further seeds; then profile the raw loop.

    Raises ``FailedMeanwhile`` where something fails, ``KeyboardInterrupt`` where it is interrupted, ``InputError`` for
    an unknown engine and ``NotRunError`` for one that cannot be run at ledger depth.
    """
    rates = Rates(source_commit())
    for number in range(rounds):
        first = plan.first_seed + number * ROUND_SEEDS
        for kind in KINDS:
            began = time.process_time()
            done = _run(kind, plan, first, number)
            rates.by_round[kind].append(done / (time.process_time() - began))
        if on_round is not None:
            on_round(number + 1)
    _profile(plan, rates)
    return rates


def failed_to_plain(found: FailedMeanwhile, reproduction: str | None) -> dict[str, Any]:
    """Return JSON-ready data of a measurement that is off, which has none of the keys of one that came about and so
    another format; ``reproduction``: where the failing steps were written.
    """
    return {
        "format": "kvcrucible.fuzz-rates-failed/1",
        "commit": source_commit(),
        "failed": found.where,
        "failure": failure_to_plain(found.failure, reproduction),
    }


def _run(kind: str, plan: VolumePlan, first: int, number: int) -> int:
    """Run one kind once; return how many operations it has checked."""
    if kind == "hypothesis":
        asked = campaign.Plan(
            plan.engine,
            (Depth.LEDGER,),
            ROUND_EXAMPLES,
            plan.rules,
            plan.first_seed + number,
            backends=plan.backends,
            hosts=plan.hosts,
        )
        report = campaign.run(asked)
        failure, tally = report.failure, report.tally
        if report.cut_short == "interrupted":
            raise KeyboardInterrupt
    else:
        block = run_block(plan if kind == "raw" else replace(plan, full_every=1), first, ROUND_SEEDS)
        failure, tally = block.failure, block.tally
    if failure is not None:
        raise FailedMeanwhile(f"{kind}, round {number + 1}", failure)
    return tally.operations.total()


def _profile(plan: VolumePlan, rates: Rates) -> None:
    profile = cProfile.Profile()
    profile.enable()
    run_block(plan, plan.first_seed, PROFILED_SEEDS)
    profile.disable()
    package = Path(str(resources.files("kvcrucible")))
    found: Counter[str] = Counter()
    named: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for (path, line, function), (_, times, seconds, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        folder, name = _place(package, path)
        found[folder] += seconds
        where = f"{name}:{line} {function}" if folder in _FOLDERS else f"{function}"
        named[where] += seconds
        calls[where] += times
    total = sum(found.values())
    rates.shares = {name: seconds / total for name, seconds in found.most_common()}
    rates.functions = [
        (name, seconds / total, calls[name]) for name, seconds in named.most_common(_FUNCTIONS)
    ]


def _place(package: Path, path: str) -> tuple[str, str]:
    """Return the folder of the package in which a profiled function lies, and its file as it is shown."""
    try:
        inside = Path(path).relative_to(package)
    except ValueError:
        return "Python", Path(path).name
    return (inside.parts[0] if inside.parts[0] in _FOLDERS else "Python"), inside.as_posix()
