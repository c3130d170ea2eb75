"""From timings to one number a pair: the process is the unit, and the pair is its own control.

Timings of one process share its memory layout, its page colours and its start; they say little about the next process.
A test over pooled timings takes each of them for evidence, and calls every second comparison of equal code a change.
So one process gives one number.  Processes of base and head run in *blocks* of one each, in random order, so that what
drifts over minutes falls on both alike, and only the log ratio within a block is looked at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def head_first(generator: np.random.Generator, series: int, blocks: int) -> NDArray[np.bool_]:
    """Draw the order inside each block: bool ``[series, blocks]``, True where head runs before base.

    Exactly half of the blocks (rounded down) start with head, in random places: a coin for each block could fall on one
    side too often, and then a drift inside blocks would not cancel.
    """
    places = generator.random((series, blocks)).argsort(axis=1)
    return places < blocks // 2


def process_summary(timings: Floats, quantile: float = 0.5) -> Floats:
    """Return one number for each process: ``timings[..., timing]`` at ``quantile``, the median unless said otherwise.

    A tail metric (p95, p99) is the quantile of each process, never of pooled timings.
    """
    return np.asarray(np.quantile(timings, quantile, axis=-1))


def log_ratios(base: Floats, head: Floats, higher_is_better: bool = False) -> Floats:
    """Return ``log head - log base`` for each pair; above 0 is worse, also where a higher value is better.

    ``base``, ``head``: positive and finite, of one shape.
    """
    ratios = np.log(head) - np.log(base)
    return np.asarray(-ratios if higher_is_better else ratios)


def differences_of_timings(
    base: Floats, head: Floats, quantile: float = 0.5, higher_is_better: bool = False
) -> Floats:
    """Return ``[..., block]`` log ratios from timings ``[..., block, timing]``: one number a process, then the pair."""
    return log_ratios(process_summary(base, quantile), process_summary(head, quantile), higher_is_better)
