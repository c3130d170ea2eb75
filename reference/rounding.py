"""What storing a number does to it, by storage profile (DESIGN 4.2): round to nearest, ties to even.

NaN stays NaN, infinities stay, and a finite number that rounds past the largest one becomes infinite, as IEEE
754 has it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def to_fp32(values: Array) -> Array:
    """Return ``values`` rounded to float32, as float64."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64)


def to_bf16(values: Array) -> Array:
    """Return float32 ``values`` rounded to bfloat16, as float64; other values are rounded to float32 first.

    bfloat16 is the upper half of float32, so rounding is an addition to the bit pattern: half of the lower
    half's range, less one where the last kept bit is 0, so that ties go to even.
    """
    with np.errstate(over="ignore"):
        bits = np.atleast_1d(values.astype(np.float32)).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    stored = rounded.view(np.float32).astype(np.float64)
    stored[np.isnan(bits.view(np.float32))] = np.nan
    return stored.reshape(values.shape)


def keep(values: Array) -> Array:
    """Return ``values`` as they are, float64: a cache that loses nothing."""
    return values.astype(np.float64)


#: Rounding by the name of the storage profile.
ROUNDING: dict[str, Callable[[Array], Array]] = {"FP32": to_fp32, "BF16": to_bf16}
