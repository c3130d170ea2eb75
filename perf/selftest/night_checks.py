"""Checks of change points: false alarms where noise remembers, and power for a step that is a few nights old."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvcrucible.perf.selftest.figures import Figure
from kvcrucible.perf.simulator.nights import autoregressive, with_step
from kvcrucible.perf.statistics.change_points import Search, find_change_points

#: Nights of a series, and how old the step is at its end.
NIGHTS, STEP_AGE = 200, 8

#: Size of the step, and standard deviation of a night.
STEP, DEVIATION = 0.02, 0.01

#: How far from the truth a change point may lie and count as found.
PLACE_TOLERANCE = 3


def change_points(generator: np.random.Generator, scale: float) -> Iterator[Figure]:
    """Check false alarms without help from the minimum effect, then power with the defaults."""
    bare = Search(minimum_effect=0.0, superiority=0.0)
    for rho, trials in ((0.5, 2_500), (0.0, 2_000)):
        total = max(50, round(trials * scale))
        series = autoregressive(generator, total, NIGHTS, rho, DEVIATION)
        hits = sum(bool(find_change_points(np.exp(one), bare, seed)) for seed, one in enumerate(series))
        yield Figure(
            "change-points", f"false series of {NIGHTS} nights, AR(1) {rho}", hits, total, at_most=0.02
        )
    for rho, age, bound, trials in (
        (0.0, STEP_AGE, 0.8, 500),
        (0.5, STEP_AGE, None, 100),
        (0.5, 24, None, 100),
    ):
        total = max(50, round(trials * scale))
        series = with_step(autoregressive(generator, total, NIGHTS, rho, DEVIATION), NIGHTS - age, STEP)
        hits = sum(_found(np.exp(one), NIGHTS - age, seed) for seed, one in enumerate(series))
        name = f"{STEP:.0%} step {age} nights ago found, AR(1) {rho}"
        yield Figure("change-points", name, hits, total, at_least=bound)


def _found(values: np.ndarray[tuple[int], np.dtype[np.float64]], at: int, seed: int) -> bool:
    return any(abs(point.at - at) <= PLACE_TOLERANCE for point in find_change_points(values, seed=seed))
