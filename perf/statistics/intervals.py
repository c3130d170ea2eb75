"""Confidence intervals for the mean log ratio of pairs: Student's t below 20 pairs, a corrected bootstrap from there.

All functions take ``differences[..., pairs]`` and work on the last axis, so that the gate (one row) and the self-test
(a hundred thousand) run the same lines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

#: Pairs from which the bootstrap is used.  Below, it has too few values to draw from (see :func:`bca_interval`).
BOOTSTRAP_FROM_PAIRS = 20

#: Resamples of a bootstrap: at a tail of 0.025 the end's own Monte-Carlo error is about 2 % of a standard error.
RESAMPLES = 9_999

#: Rows that are resampled at once, which bounds memory: 256 rows of 9,999 means are 20 MB.
_ROWS_AT_ONCE = 256

#: Seed of the resamples.  Fixed, so that a verdict can be computed again from its pairs alone.
_RESAMPLING_SEED = 20_050_817


def standard_error(differences: Floats) -> Floats:
    """Return the standard error of the mean of each row."""
    return np.asarray(differences.std(axis=-1, ddof=1) / np.sqrt(differences.shape[-1]))


def t_interval(differences: Floats, tail: float) -> tuple[Floats, Floats]:
    """Return lower and upper end of Student's interval, each of which errs with probability ``tail``."""
    pairs = differences.shape[-1]
    half_width = special.stdtrit(pairs - 1, 1 - tail) * standard_error(differences)
    mean = differences.mean(axis=-1)
    return mean - half_width, mean + half_width


def bca_interval(differences: Floats, tail: float, resamples: int = RESAMPLES) -> tuple[Floats, Floats]:
    """Return the bias-corrected and accelerated bootstrap interval (Efron 1987), widened for small samples.

    Plain BCa is a percentile interval: for normal data it is narrower than Student's by √((n-1)/n) and by z/t, and at
    20 pairs covers 92.9 % where it says 95 %.  Hesterberg (2015) moves the percentiles so that for normal data the
    interval is Student's, ``z = √(n/(n-1)) · t``; the corrections for bias and skewness are applied on top.

    A row without variation gives an interval of no width.
    """
    pairs = differences.shape[-1]
    rows = differences.reshape(-1, pairs)
    generator = np.random.default_rng([_RESAMPLING_SEED, pairs, resamples])
    weights = generator.multinomial(pairs, np.full(pairs, 1 / pairs), size=resamples).T / pairs
    widened = float(np.sqrt(pairs / (pairs - 1)) * special.stdtrit(pairs - 1, 1 - tail))
    ends = np.empty((2, len(rows)))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        ends[:, start : start + _ROWS_AT_ONCE] = _bca(part, part @ weights, widened)
    shape = differences.shape[:-1]
    return ends[0].reshape(shape), ends[1].reshape(shape)


def _bca(rows: Floats, means: Floats, normal_quantile: float) -> Floats:
    """Return the ends ``[2, rows]`` for the resampled ``means[rows, resamples]``."""
    resamples = means.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    below = (means < rows.mean(axis=1, keepdims=True)).mean(axis=1)
    bias = special.ndtri(np.clip(below, 1 / resamples, 1 - 1 / resamples))
    squares = (centred**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        acceleration = np.where(squares > 0, (centred**3).sum(axis=1) / (6 * squares**1.5), 0.0)
    means.sort(axis=1)
    ends = np.empty((2, len(rows)))
    for which, quantile in enumerate((-normal_quantile, normal_quantile)):
        moved = bias + quantile
        share = special.ndtr(bias + moved / (1 - acceleration * moved))
        place = np.clip(share * (resamples + 1) - 1, 0, resamples - 1)
        lower = np.floor(place).astype(np.intp)
        upper = np.minimum(lower + 1, resamples - 1)
        row = np.arange(len(rows))
        ends[which] = means[row, lower] + (place - lower) * (means[row, upper] - means[row, lower])
    return ends


def interval(differences: Floats, tail: float, resamples: int = RESAMPLES) -> tuple[Floats, Floats]:
    """Return the interval that fits the number of pairs; each end errs with probability ``tail``.

    Below :data:`BOOTSTRAP_FROM_PAIRS` Student's.  From there the bootstrap's, which follows skewed data, but at no end
    inside Student's: over heavy tails the estimated skewness is itself noise, and the bootstrap alone covers 93.4 %.
    """
    lower, upper = t_interval(differences, tail)
    if differences.shape[-1] < BOOTSTRAP_FROM_PAIRS:
        return lower, upper
    bootstrap_lower, bootstrap_upper = bca_interval(differences, tail, resamples)
    return np.minimum(lower, bootstrap_lower), np.maximum(upper, bootstrap_upper)
