"""How a sequential test divides its error over its looks.

Looking again and again until something is significant finds something.  The spending function of Lan and DeMets (1983)
in the shape of O'Brien and Fleming says how much error may be spent by the time a share t of the pairs is there:

    spent(t) = 2 (1 - Φ(z / √t)),   z = Φ⁻¹(1 - rate / 2),   spent(1) = rate

Each look tests at what it newly spends.  By the union bound the looks together err at most at the whole rate, whatever
the joint distribution of their statistics; the exact boundaries of normal theory would win a little power at the last
look and lose that independence of assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

_NORMAL = NormalDist()


def spent(rate: float, share: float) -> float:
    """Return the error that may be spent once ``share`` (0 to 1) of the pairs is there, of ``rate`` in all."""
    if not 0 < rate < 1 or not 0 < share <= 1:
        raise ValueError(f"rate {rate} and share {share} lie between 0 and 1")
    return 2 * (1 - _NORMAL.cdf(_NORMAL.inv_cdf(1 - rate / 2) / share**0.5))


def levels(rate: float, looks: Sequence[int]) -> tuple[float, ...]:
    """Return the level at which each look tests, so that all looks together err at most at ``rate``.

    ``looks``: pairs at each look, increasing.
    """
    total = [spent(rate, pairs / looks[-1]) for pairs in looks]
    return tuple(now - before for before, now in zip([0.0, *total], total, strict=False))
