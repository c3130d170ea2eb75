"""Attention in float64 over contiguous keys and values, and how far a float32 kernel may be from it.

Too plain to be wrong in a kernel's way: one query and one head at a time, a full softmax, no tiles, no
pages.  Nothing here is fast.  The budget below is a bound that follows from the arithmetic, not a tolerance
that was tuned until tests passed.

The bound.  Let u = 2⁻²⁴ be float32's unit roundoff, D the head dimension, n the visible positions, t the
tiles, and S the largest Σ_d |scale · q_d · k_d| over visible positions.  Each relative error below multiplies
as (1 + δ), so the sum of the |δ| bounds the whole to first order, and ``expm1`` with a margin of 1 % covers
the rest.

* A score is a product of D terms in any order, its query scaled by a rounded constant: off by at most
  (D + 2) · u · S.
* A weight exp(s − m) takes that as a relative error, adds the rounding of the difference, at most 2 · u · S,
  and the exponential's own 2 ulp = 4u.  The maximum m may be any number: it cancels.
* Online softmax rescales once a tile.  The differences of successive maxima add up to at most 2S, so their
  roundings to 2 · u · S; each exponential and each product add 4u + u.
* Where the context is cut into splits that are reduced afterwards, no more: a tile's sums are rescaled within its
  split and once in the reduction, and there is another split with a tile at least, so that is t times at most.
* Together a weight is off by W = u · ((D + 6) · S + 4 + 5t), relatively.
* The sums, over n terms and t tiles in any order, add (n + t) · u to numerator and denominator; the division
  adds u.
* An output therefore errs by at most 2 · (W + (n + t) · u) + u, relative to Σ_j p_j |v_j|, which is not
  |Σ_j p_j v_j|: where values cancel, so do digits.  What underflows adds at most 2⁻¹²⁶ a term.  Narrower
  outputs add their own roundoff.
* The log-sum-exp errs by W + (n + t) · u, the logarithm's 2 ulp of at most ln n, and 3u · |LSE| for the last
  sum and, where a kernel works in base two, the product with a rounded ln 2.

Not covered: scores or values so large that float32 overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.errors import BadArgument

Array = NDArray[np.float64]

FP32_ROUNDOFF = 2.0**-24
FP32_SMALLEST_NORMAL = 2.0**-126
#: Unit roundoff of an output's dtype beyond float32's own, which the bound contains already.
OUTPUT_ROUNDOFF = {"float32": 0.0, "bfloat16": 2.0**-8}
SECOND_ORDER_MARGIN = 1.01


@dataclass(frozen=True, slots=True)
class Attention:
    """The oracle's answer and what its error budget is made of; T queries, Hq heads, dimension D.

    ``out [T, Hq, D]``, ``lse [T, Hq]``: the result; 0 and −∞ for a query that sees nothing (DESIGN 4.14.12).
    ``visible [T]``: positions seen.
    ``score_mass [T, Hq]``: the S of the bound.
    ``value_mass [T, Hq, D]``: Σ p |v|.
    ``value_peak [T, Hq, D]``: largest |v| seen.
    """

    out: Array
    lse: Array
    visible: Array
    score_mass: Array
    value_mass: Array
    value_peak: Array


@dataclass(frozen=True, slots=True)
class Budget:
    """Largest admissible distance from the oracle: ``out [T, Hq, D]``, ``lse [T, Hq]``, both absolute."""

    out: Array
    lse: Array

    def admits(self, oracle: Attention, out: Array, lse: Array) -> bool:
        """Tell whether a result stays within the budget everywhere; NaN never does, −∞ only where the oracle
        has it.
        """
        if out.shape != oracle.out.shape or lse.shape != oracle.lse.shape:
            return False
        with np.errstate(invalid="ignore"):
            near = np.abs(lse - oracle.lse) <= self.lse
        return bool(np.all(np.abs(out - oracle.out) <= self.out) and np.all(near | (lse == oracle.lse)))


def attention(
    q: Array, k: Array, v: Array, positions: NDArray[np.int64], scale: float | None = None
) -> Attention:
    """Return attention of ``q [T, Hq, D]`` over one sequence's ``k``, ``v`` ``[n, Hkv, D]``, all float64.

    Query ``i`` sees positions 0 to ``positions[i]`` inclusive (causal by absolute position; −1 sees nothing,
    ``n − 1`` the whole cache).  Query head h reads KV head h // (Hq // Hkv).  ``scale`` is 1/√D unless
    given.  Pass keys and values as they are *stored*: rounding into the cache is the codec's doing, not the
    kernel's.  Raises ``BadArgument`` for shapes or positions that do not fit.
    """
    _check_shapes(q, k, v, positions)
    queries, query_heads, dim = q.shape
    heads = k.shape[1]
    factor = 1.0 / math.sqrt(dim) if scale is None else scale
    out, value_mass, value_peak = (np.zeros(q.shape) for _ in range(3))
    lse, score_mass = np.full((queries, query_heads), -np.inf), np.zeros((queries, query_heads))
    for query in range(queries):
        seen = int(positions[query]) + 1
        if seen == 0:
            continue
        for head in range(query_heads):
            keys = k[:seen, head // (query_heads // heads)]
            values = v[:seen, head // (query_heads // heads)]
            scores = factor * (keys @ q[query, head])
            lse[query, head] = scores.max() + np.log(np.exp(scores - scores.max()).sum())
            weights = np.exp(scores - lse[query, head])
            out[query, head] = weights @ values
            score_mass[query, head] = abs(factor) * (np.abs(keys) @ np.abs(q[query, head])).max()
            value_mass[query, head] = weights @ np.abs(values)
            value_peak[query, head] = np.abs(values).max(axis=0)
    return Attention(out, lse, positions.astype(np.float64) + 1, score_mass, value_mass, value_peak)


def error_budget(oracle: Attention, page_size: int, output: str = "float32") -> Budget:
    """Return how far a tiled float32 kernel may be from ``oracle``, by the bound at the top of this file.

    ``page_size`` is the tile: the kernel rescales once for every ``page_size`` positions.  ``output`` names
    the dtype of the kernel's outputs (``float32`` or ``bfloat16``); the log-sum-exp is float32 always.
    """
    u, dim = FP32_ROUNDOFF, oracle.out.shape[2]
    visible = oracle.visible[:, None]
    tiles = np.ceil(visible / page_size)
    weight = u * ((dim + 6) * oracle.score_mass + 4 + 5 * tiles)
    summed = weight + (visible + tiles) * u
    relative = np.expm1(SECOND_ORDER_MARGIN * (2 * summed + u))[..., None]
    underflow = ((visible + tiles) * FP32_SMALLEST_NORMAL)[..., None] * (1 + oracle.value_peak)
    error = relative * oracle.value_mass + underflow
    out = error + OUTPUT_ROUNDOFF[output] * (np.abs(oracle.out) + error)
    finite_lse = np.where(visible > 0, np.abs(oracle.lse), 0.0)
    lse = SECOND_ORDER_MARGIN * (summed + 4 * u * np.log(np.maximum(visible, 1)) + 3 * u * finite_lse)
    sees = visible > 0
    return Budget(np.where(sees[..., None], out, 0.0), np.where(sees, lse, 0.0))


def _check_shapes(q: Array, k: Array, v: Array, positions: NDArray[np.int64]) -> None:
    """Refuse arguments that do not describe one attention."""
    fits = q.ndim == k.ndim == 3 and k.shape == v.shape and q.shape[2] == k.shape[2]
    fits = fits and q.shape[1] % k.shape[1] == 0
    if not fits or positions.shape != q.shape[:1]:
        found = f"k {k.shape}, v {v.shape}, {positions.shape} positions"
        raise BadArgument(f"attention of q {q.shape}", found, "give [T, Hq, D], twice [n, Hkv, D] and [T]")
    if positions.size and not -1 <= positions.min() <= positions.max() < len(k):
        raise BadArgument(f"queries at {positions.tolist()}", f"{len(k)} positions held", "append keys first")
