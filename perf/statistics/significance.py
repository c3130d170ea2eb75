"""Tests over pairs: Student's t, the exact sign-flip test, and what to do with many of them at once."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kvcrucible.perf.statistics.intervals import standard_error

Floats = NDArray[np.float64]

#: Pairs up to which every assignment of signs is tried (65,536 of them); beyond, as many are drawn.
EXACT_UP_TO_PAIRS = 16

#: Signs that are drawn beyond, and their fixed seed.
DRAWN_SIGNS, _SIGN_SEED = 1 << 14, 19_350_601

#: Rows whose sums are held at once: 64 rows of 65,536 sums are 32 MB.
_ROWS_AT_ONCE = 64


def slower_p(differences: Floats) -> Floats:
    """Return the one-sided p-value, by Student's t, of rows ``[..., pairs]`` whose true mean is 0 or below.

    A row without variation gives 0 where it lies above 0, else 1.
    """
    mean, error = differences.mean(axis=-1), standard_error(differences)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(error > 0, mean / error, np.where(mean > 0, np.inf, -np.inf))
    return np.asarray(special.stdtr(differences.shape[-1] - 1, -statistic))


@cache
def _signs(pairs: int) -> Floats:
    """Return assignments of signs ``[pairs, assignments]``, the one as observed among them."""
    if pairs <= EXACT_UP_TO_PAIRS:
        bits = (np.arange(1 << pairs)[None, :] >> np.arange(pairs)[:, None]) & 1
        return np.asarray(1.0 - 2.0 * bits)
    coins = np.random.default_rng([_SIGN_SEED, pairs]).integers(0, 2, (pairs, DRAWN_SIGNS))
    drawn: Floats = np.where(coins, 1.0, -1.0)
    drawn[:, 0] = 1.0
    return drawn


def sign_flip_p(differences: Floats) -> Floats:
    """Return the one-sided p-value, by flipping signs, of rows ``[..., pairs]`` that are symmetric about 0.

    Base and head are exchangeable inside a block if the code is equal, so each sign is a fair coin: no distribution is
    assumed.  Up to 16 pairs every assignment is counted; beyond, 16,383 drawn ones and the observed one, which keeps
    the test valid (Phipson and Smyth 2010).
    """
    pairs = differences.shape[-1]
    rows, signs = differences.reshape(-1, pairs), _signs(pairs)
    found = np.empty(len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        observed = part.sum(axis=1, keepdims=True)
        # Sums that are equal on paper differ in their last bits; counting them keeps the test conservative.
        slack = 1e-12 * np.abs(part).sum(axis=1, keepdims=True)
        found[start : start + _ROWS_AT_ONCE] = (part @ signs >= observed - slack).mean(axis=1)
    return found.reshape(differences.shape[:-1])


def discoveries(p_values: Floats, rate: float, family: int | None = None) -> NDArray[np.bool_]:
    """Say which of each family ``p_values[..., metrics]`` are discoveries at false discovery rate ``rate``.

    Benjamini and Hochberg (1995): with p-values in increasing order, the largest i with ``p(i) <= i · rate / m`` and
    all before it.  If nothing changed, any discovery at all has at most probability ``rate``.  ``family`` is m where
    some of the family are not in the array; they count as p-values of 1.
    """
    metrics = p_values.shape[-1]
    size = metrics if family is None else family
    if size < metrics:
        raise ValueError(f"a family of {size} with {metrics} p-values")
    ordered = np.sort(p_values, axis=-1)
    within = ordered <= rate * np.arange(1, metrics + 1) / size
    largest = np.where(within, ordered, -np.inf).max(axis=-1, keepdims=True)
    return np.asarray(p_values <= largest)
