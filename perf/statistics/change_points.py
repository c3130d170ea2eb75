"""Change points of a nightly series, where tonight's noise remembers last night's.

Most detectors take noise to be independent.  On a series with lag-1 autocorrelation 0.5, which a machine room easily
gives, they find changes in nine of ten series that have none.  This one

1. estimates the autocorrelation ρ beside the most likely step, which would pass for memory if it stayed in.  To find
   that step it takes a rougher estimate, from differences over one and two nights, which a step hardly moves (the
   ratio of their variances is ``1 + ρ`` for AR(1));
2. whitens, ``e(t) = y(t) - ρ y(t-1)``, and takes the largest standardised difference of means over *seeded intervals*
   (Kovács, Bühlmann, Li and Munk 2023): a fixed set of about as many intervals as nights, short and long, so that a
   step and its way back, which cancel over the whole series, show in a short one;
3. confirms by permutation: shuffled innovations are made into series of the same autocorrelation and go through steps 1
   and 2 themselves, so that neither the choice of the place nor the error in ρ is counted as evidence;
4. asks for a minimum effect, for a share of nights on the right side, and for nights on both sides;
5. goes on left and right of what it found.

Verifies: steps of the mean.  Does not verify: slow trends, changes of scatter; a trend can be found as several steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import signal

Floats = NDArray[np.float64]

#: Most nights that are searched: ten years.
MAX_NIGHTS = 4_096

#: Autocorrelation is held below this: at 1 there is no mean that could step.
MAX_RHO = 0.95

#: Permutations of a full confirmation, and how many exceedances end one early (Besag and Clifford 1991): with 10 of
#: them, a series without a change is let go after a few dozen permutations.
PERMUTATIONS, ENOUGH_EXCEEDANCES = 999, 10

#: Permutations that are made at first; each further batch has twice as many.
_FIRST_BATCH = 36

#: Nights before the first one of a made-up series: 0.95 to the power of 60 is 5 %, of what is not kept.
_BURN_IN = 60

#: Each layer's intervals are half as long as those of the layer above.
_DECAY = 0.5


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A confirmed step.

    ``at``: the first night of the new level.  ``change``: relative, of the geometric means of the nights on both
    sides up to the next change.  ``p``: of the permutation test.  ``superiority``: the probability that a night after
    lies on the new side of one before.
    """

    at: int
    change: float
    p: float
    superiority: float


@dataclass(frozen=True, slots=True)
class Search:
    """What counts as a change: at most ``p``, at least ``minimum_effect``, ``nights`` a side and ``superiority``.

    ``p`` leaves room below 2 % of series without a change for what estimating ρ costs: 0.6 to 1.2 % in the self-test.
    """

    p: float = 0.0075
    minimum_effect: float = 0.01
    nights: int = 5
    superiority: float = 0.8


def find_change_points(
    values: Floats, search: Search | None = None, seed: int = 0
) -> tuple[ChangePoint, ...]:
    """Return the change points of ``values[night]`` (positive and finite), in order of time; nothing is changed.

    The same values and ``seed`` give the same answer.  Raises ``ValueError`` for other values, and for more than
    :data:`MAX_NIGHTS`.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) > MAX_NIGHTS:
        raise ValueError(f"one series of at most {MAX_NIGHTS:,} nights, not shape {values.shape}")
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("every night has a positive and finite value")
    search = search or Search()
    logs = np.log(values)
    found = sorted(_changes(logs, 0, search, np.random.default_rng(seed)))
    edges = [0, *(at for at, _ in found), len(logs)]
    points = []
    for place, (at, p) in enumerate(found):
        before, after = logs[edges[place] : at], logs[at : edges[place + 2]]
        step = float(after.mean() - before.mean())
        points.append(ChangePoint(at, float(np.expm1(step)), p, superiority(before, after)))
    return tuple(points)


def superiority(before: Floats, after: Floats) -> float:
    """Return the share of pairs of nights, one before and one after, in the order of the means; ties count half."""
    order = np.sign(after[:, None] - before[None, :]) * np.sign(after.mean() - before.mean())
    return float((order.mean() + 1) / 2)


def lag_one_autocorrelation(series: Floats) -> Floats:
    """Return ρ of each row of ``series[..., night]``, from clipped differences, which steps hardly move.

    Rough: at 200 nights its standard deviation is half as large again as that of the usual estimate, which however
    takes a step for memory.
    """
    one = _clipped_variance(np.diff(series, axis=-1))
    two = _clipped_variance(series[..., 2:] - series[..., :-2])
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.where(one > 0, two / one - 1, 0.0)
    return np.asarray(np.clip(rho, -MAX_RHO, MAX_RHO))


def _clipped_variance(differences: Floats) -> Floats:
    """Return the mean square of each row, no difference counting for more than 3.5 robust standard deviations."""
    most = 3.5 * 1.4826 * np.median(np.abs(differences), axis=-1, keepdims=True)
    return np.asarray((np.clip(differences, -most, most) ** 2).mean(axis=-1))


def _changes(
    logs: Floats, offset: int, search: Search, generator: np.random.Generator
) -> Iterator[tuple[int, float]]:
    """Yield place and p-value of each change in ``logs``, which begins at night ``offset``."""
    if len(logs) < 2 * search.nights + 2 or not np.ptp(logs):
        return
    statistics, best = _scan(logs[None], search.nights)
    # A night of the whitened series is one later in the series itself.  Steps outside the interval would move the
    # means.
    start, _, end = (int(edge[best[0]]) + 1 for edge in _splits(len(logs) - 1, search.nights))
    at = start - 1 + _best_split(logs[start - 1 : end])
    if min(at, len(logs) - at) < search.nights:
        return
    before, after = logs[start - 1 : at], logs[at:end]
    if abs(after.mean() - before.mean()) < np.log1p(search.minimum_effect):
        return
    if superiority(before, after) < search.superiority:
        return
    p = _permutation_p(logs, float(statistics[0]), search, generator)
    if p > search.p:
        return
    yield offset + at, p
    yield from _changes(logs[:at], offset, search, generator)
    yield from _changes(logs[at:], offset + at, search, generator)


def _best_split(logs: Floats) -> int:
    """Return where to split ``logs`` in two so that the parts scatter least about their means; each has a night.

    The scan keeps away from the edges, and would move a step that is too young to be believed to where it may look.
    """
    size = np.arange(1, len(logs))
    sums = np.cumsum(logs - logs.mean())[:-1]
    return int(np.argmax(sums**2 / (size * (len(logs) - size)))) + 1


@cache
def _splits(length: int, nights: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return start, split and end (exclusive) of each split of a seeded interval that leaves ``nights`` a side."""
    intervals: list[tuple[int, int]] = []
    layer = 0
    while (size := length * _DECAY**layer) >= 2 * nights:
        count = 2 * int(np.ceil(_DECAY**-layer)) - 1
        for start in np.linspace(0, length - size, count):
            first = int(np.floor(start))
            intervals.append((first, min(length, int(np.ceil(start + size)))))
        layer += 1
    triples = [
        (start, split, end)
        for start, end in dict.fromkeys(intervals)
        for split in range(start + nights, end - nights + 1)
    ]
    starts, splits, ends = np.array(triples, dtype=np.intp).T
    return starts, splits, ends


def _without_a_step(series: Floats, nights: int) -> tuple[Floats, Floats]:
    """Return each row with its most likely step taken out, and the ρ of what is left.

    Both sides of the step lose their own mean.  Where the step has a way back, what lies outside its interval loses
    means of its own, if that leaves clearly less: every mean that is taken out without need makes ρ smaller.
    """
    rows, length = series.shape
    rho = lag_one_autocorrelation(series)
    _, best = _largest(series[:, 1:] - rho[:, None] * series[:, :-1], nights)
    starts, splits, ends = (edges[best] for edges in _splits(length - 1, nights))
    first, last = np.zeros(rows, np.intp), np.full(rows, length)
    left = _centred(series, [first, splits + 1, last])
    beside = _centred(series, [first, np.where(starts > 0, starts + 1, 0), splits + 1, ends + 1, last])
    squares, fewer = (left**2).sum(axis=1), (beside**2).sum(axis=1)
    way_back = fewer < squares * (1 - 4 * np.log(length) / length)
    left[way_back], squares[way_back] = beside[way_back], fewer[way_back]
    # What is left of a series that only steps is the last bits of its numbers, which do remember.
    squares[squares < 1e-20 * ((series - series.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(squares > 0, (left[:, 1:] * left[:, :-1]).sum(axis=1) / squares, 0.0)
    # What fitted means take away, to first order (Kendall 1954).
    means = np.where(way_back, 4, 2)
    return left, np.clip(found + means * (1 + 3 * found) / length, -MAX_RHO, MAX_RHO)


def _centred(series: Floats, edges: list[NDArray[np.intp]]) -> Floats:
    """Return ``series[rows, nights]``, each part between two of the ``edges`` (``[rows]`` each) less its mean."""
    rows, length = series.shape
    sums = np.zeros((rows, length + 1))
    np.cumsum(series, axis=1, out=sums[:, 1:])
    night, row, left = np.arange(length), np.arange(rows), series.copy()
    for first, after in pairwise(edges):
        mean = (sums[row, after] - sums[row, first]) / np.maximum(after - first, 1)
        left -= ((night >= first[:, None]) & (night < after[:, None])) * mean[:, None]
    return left


def _scan(series: Floats, nights: int) -> tuple[Floats, NDArray[np.intp]]:
    """Return the largest statistic of each row of ``series[rows, nights]``, and which of :func:`_splits` it is."""
    _, rho = _without_a_step(series, nights)
    return _largest(series[:, 1:] - rho[:, None] * series[:, :-1], nights)


def _largest(innovations: Floats, nights: int) -> tuple[Floats, NDArray[np.intp]]:
    """Return the largest standardised difference of means over all splits, and which split it is, for each row."""
    scale = np.sqrt((np.diff(innovations, axis=1) ** 2).mean(axis=1) / 2)
    starts, splits, ends = _splits(innovations.shape[1], nights)
    sums = np.zeros((len(innovations), innovations.shape[1] + 1))
    np.cumsum(innovations, axis=1, out=sums[:, 1:])
    at_split = sums[:, splits]
    left, right = splits - starts, ends - splits
    statistics = (sums[:, ends] - at_split) / right - (at_split - sums[:, starts]) / left
    statistics *= np.sqrt(left * right / (left + right))
    np.abs(statistics, out=statistics)
    best = statistics.argmax(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = np.where(scale > 0, statistics[np.arange(len(sums)), best] / scale, 0.0)
    return largest, best


def _permutation_p(logs: Floats, observed: float, search: Search, generator: np.random.Generator) -> float:
    """Return how often a series without a change, made from shuffled innovations of this one, shows as much.

    The most likely step is taken out first; further steps stay in and make the answer larger, never smaller.
    """
    left, rhos = _without_a_step(logs[None], search.nights)
    rho = float(rhos[0])
    innovations = left[0, 1:] - rho * left[0, :-1]
    innovations -= innovations.mean()
    exceeded, made, batch = 0, 0, _FIRST_BATCH
    while made < PERMUTATIONS:
        batch = min(batch, PERMUTATIONS - made)
        shuffled = generator.permuted(np.tile(innovations, (batch, 1)), axis=1)
        # The nights before the first are drawn too, so that the series does not begin at its mean.
        earlier = generator.choice(innovations, (batch, _BURN_IN + 1))
        series = signal.lfilter([1.0], [1.0, -rho], np.hstack([earlier, shuffled]), axis=1)[:, _BURN_IN:]
        exceeded += int((_scan(series, search.nights)[0] >= observed).sum())
        made += batch
        if exceeded >= ENOUGH_EXCEEDANCES:
            return exceeded / made
        batch *= 2
    return (exceeded + 1) / (made + 1)
