"""What the sampler itself does to a timing: pairs of fresh processes of one benchmark, with it and without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.nvml.records import Record
from kvcrucible.perf.nvml.sampler import Sampler
from kvcrucible.perf.origin import Origin, common_origin
from kvcrucible.perf.statistics.blocks import head_first, log_ratios, process_summary
from kvcrucible.perf.statistics.intervals import interval
from kvcrucible.perf.statistics.thresholds import MIN_PAIRS

#: What the sampler may cost a timed region, relative.
BOUND = 0.002


@dataclass(frozen=True, slots=True)
class Perturbation:
    """One metric with the sampler against without: relative change and its 95 % interval, above 0 for slower with it.

    ``held``: True where the interval lies below :data:`BOUND`, False where it lies above, None where the pairs are
    too few or the machine too noisy to say.
    """

    origin: Origin
    metric: str
    pairs: int
    change: float
    lower: float
    upper: float

    @property
    def held(self) -> bool | None:
        """The verdict, of which None is no pass."""
        if self.upper < BOUND:
            return True
        return False if self.lower > BOUND else None


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What :func:`selfcheck` found: the metrics, the sampler's CPU share, the cost of one reading (median, in ns)."""

    metrics: tuple[Perturbation, ...]
    cpu_share: float
    reading_ns: float
    late_ns: int


def selfcheck(
    process: Callable[[], Mapping[str, Sequence[float]]],
    sampler: Callable[[], Sampler],
    pairs: int,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> SelfCheck:
    """Run ``pairs`` blocks of ``process`` with and without a sampler beside it, in random order, and compare.

    Raises :class:`NvmlAbsentError` where there is nothing to sample, :class:`InputError` for too few pairs or a
    benchmark that prints other metrics each time.
    """
    if pairs < MIN_PAIRS:
        raise InputError(f"selfcheck: at least {MIN_PAIRS} pairs")
    sides: dict[bool, list[Mapping[str, Sequence[float]]]] = {False: [], True: []}
    records: list[Record] = []
    for first in head_first(np.random.default_rng(seed), 1, pairs)[0]:
        for sampled in (bool(first), not first):
            if sampled:
                with sampler() as watching:
                    sides[True].append(process())
                    records.append(watching.stop())
            else:
                sides[False].append(process())
        progress()
    names = set(sides[False][0])
    if any(set(one) != names for one in (*sides[False], *sides[True])):
        raise InputError("selfcheck: the benchmark does not print the same metrics each time")
    origin = common_origin((record.origin for record in records), "selfcheck")
    found = []
    for name in sorted(names):
        without, with_it = (
            np.array([process_summary(np.asarray(one[name], dtype=np.float64)) for one in sides[side]])
            for side in (False, True)
        )
        differences = log_ratios(without, with_it)
        lower, upper = (float(np.expm1(end)) for end in interval(differences, 0.025))
        found.append(Perturbation(origin, name, pairs, float(np.expm1(differences.mean())), lower, upper))
    readings = [one for record in records for one in record.readings]
    seconds = sum((record.readings[-1].at_ns - record.readings[0].at_ns) / 1e9 for record in records)
    return SelfCheck(
        tuple(found),
        sum(record.cpu_ns for record in records) / 1e9 / seconds,
        float(np.median([one.cost_ns for one in readings])),
        max(record.late_ns for record in records),
    )
