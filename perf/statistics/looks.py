"""One look at the pairs so far, for families of metrics at once: the arithmetic of the gate without its bookkeeping.

A metric has changed if three things agree:

    size        the interval, at this look's level, lies wholly beyond the minimum effect
    presence    against "no change at all" it is a discovery over the family (Benjamini-Hochberg)
    symmetry    the sign-flip test against the minimum effect agrees at the whole error rate

The multiplicity correction belongs to *presence*: it bounds how often a suite of unchanged code is called changed.  To
correct *size* as well would hide true changes of twice the minimum effect in any suite of more than a few metrics.

A metric passes if its interval lies wholly below the minimum effect.  One that seems to have improved by more than that
waits with its pass until the last look, so that more pairs can show the improvement.  Everything else is undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kvcrucible.perf.statistics import intervals, significance
from kvcrucible.perf.statistics.spending import levels
from kvcrucible.perf.statistics.thresholds import Plan

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]


class Decision(IntEnum):
    """What one look says of a metric, as numbers for arrays."""

    UNDECIDED = 0
    PASS = 1
    FAIL = 2
    IMPROVED = 3


@dataclass(frozen=True, slots=True)
class LookRates:
    """The errors of one look.

    ``level``: one-sided, of the interval.  ``discovery``: false discovery rate.  ``error``: of the whole plan, at which
    the sign-flip test has to agree; with few pairs its smallest p-value lies above a single look's level.  ``last``: no
    look follows.
    """

    level: float
    discovery: float
    error: float
    last: bool


def look_rates(plan: Plan) -> tuple[LookRates, ...]:
    """Return the errors of each look of ``plan``."""
    return tuple(
        LookRates(level, discovery, plan.error_rate, pairs == plan.most_pairs)
        for pairs, level, discovery in zip(
            plan.looks,
            levels(plan.error_rate, plan.looks),
            levels(plan.false_discovery_rate, plan.looks),
            strict=True,
        )
    )


def look(
    differences: Floats,
    minimum_effect: Floats | float,
    rates: LookRates,
    *,
    family: int | None = None,
    undecided: NDArray[np.bool_] | None = None,
    resamples: int = intervals.RESAMPLES,
) -> Codes:
    """Return a :class:`Decision` for each metric of ``differences[families, metrics, pairs]``.

    ``minimum_effect`` is a log ratio, broadcast over metrics.  ``family``: metrics in a family, where not all are in
    the array.  ``undecided[families, metrics]``: those that are still asked; the rest count in the family and are no
    discovery again, and their codes mean nothing.
    """
    effect = np.broadcast_to(np.asarray(minimum_effect, dtype=np.float64), differences.shape[:-1])
    asked = np.ones(effect.shape, dtype=np.bool_) if undecided is None else undecided
    lower, upper = intervals.interval(differences, rates.level, resamples)

    def changed(turned: Floats, beyond_effect: NDArray[np.bool_]) -> NDArray[np.bool_]:
        p_values = np.where(asked, significance.slower_p(turned), 1.0)
        found = beyond_effect & asked & significance.discoveries(p_values, rates.discovery, family)
        beyond = turned[found] - effect[found][:, None]
        found[found] = significance.sign_flip_p(beyond) <= rates.error
        return found

    codes = np.full(effect.shape, Decision.UNDECIDED, dtype=np.int8)
    may_pass = rates.last | (differences.mean(axis=-1) >= -effect)
    codes[(upper < effect) & may_pass] = Decision.PASS
    codes[changed(differences, lower > effect)] = Decision.FAIL
    codes[changed(-differences, upper < -effect)] = Decision.IMPROVED
    return codes


def all_looks(
    differences: Floats,
    minimum_effect: Floats | float,
    plan: Plan,
    resamples: int = intervals.RESAMPLES,
) -> tuple[Codes, NDArray[np.int64]]:
    """Return decisions and pairs used, ``[families, metrics]`` each, where every pair of the plan has been taken.

    A metric stops at the look that decides it; a suite of which nothing is undecided is not looked at again.
    """
    shape = differences.shape[:-1]
    effect = np.broadcast_to(np.asarray(minimum_effect, dtype=np.float64), shape)
    decided = np.full(shape, Decision.UNDECIDED, dtype=np.int8)
    used = np.full(shape, plan.looks[0], dtype=np.int64)
    for pairs, rates in zip(plan.looks, look_rates(plan), strict=True):
        open_metrics = decided == Decision.UNDECIDED
        families = np.flatnonzero(open_metrics.any(axis=1))
        if not len(families):
            break
        still_open = open_metrics[families]
        now = look(
            differences[families, :, :pairs],
            effect[families],
            rates,
            undecided=still_open,
            resamples=resamples,
        )
        decided[families] = np.where(still_open, now, decided[families])
        used[families] = np.where(still_open, pairs, used[families])
    return decided, used


def required_pairs(
    differences: Sequence[float], minimum_effect: float, error_rate: float, most: int = 100_000
) -> int | None:
    """Return how many pairs would decide between FAIL and PASS with probability 0.9, were the estimate the truth.

    More than there are already: the sequential levels can leave open what one interval over all pairs would decide.
    From the normal approximation ``n = ((z(error) + z(0.9)) · s / |mean - effect|)²``, then raised until Student's t
    agrees.  None where it is more than ``most``: the effect lies on the threshold, and no number of pairs is sensible.
    """
    values = np.asarray(differences, dtype=np.float64)
    distance, deviation = abs(float(values.mean()) - minimum_effect), float(values.std(ddof=1))
    if distance == 0:
        return None
    z = float(-special.ndtri(error_rate) + special.ndtri(0.9))
    pairs = max(len(values) + 1, int(np.ceil(min(most + 1.0, (z * deviation / distance) ** 2))))
    while pairs <= most:
        quantiles = special.stdtrit(pairs - 1, np.array([1 - error_rate, 0.9])).sum()
        if quantiles * deviation / np.sqrt(pairs) <= distance:
            return pairs
        pairs += 1
    return None
