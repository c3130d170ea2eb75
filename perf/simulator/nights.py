"""Simulated nightly series: noise that remembers last night, and steps where the truth puts them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import signal

Floats = NDArray[np.float64]


def autoregressive(
    generator: np.random.Generator, series: int, nights: int, rho: float, deviation: float
) -> Floats:
    """Return stationary AR(1) noise ``[series, nights]``, lag-1 autocorrelation ``rho``, standard ``deviation``."""
    noise = generator.standard_normal((series, nights))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return np.asarray(deviation * signal.lfilter([1.0], [1.0, -rho], noise, axis=1))


def with_step(log_values: Floats, at: int, size: float) -> Floats:
    """Return a copy in which every night from ``at`` on takes ``size`` (relative) longer."""
    stepped = log_values.copy()
    stepped[:, at:] += np.log1p(size)
    return stepped
