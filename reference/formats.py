"""Small floating-point formats as tables: every bit pattern with its value, and the rounding between them.

A format is spelled out from its definition, sign · exponent · mantissa, with no shift or cast of a library, so that
a kernel's bit tricks and this file can be wrong only independently.  Rounding is to the nearest value, ties to the
one whose last mantissa bit is 0, which among neighbouring codes is the even code.

=========  ======  ========  =========  ========  ==============  ==============  ========================
format     width   exponent  mantissa   bias      largest         least normal    patterns that are no number
=========  ======  ========  =========  ========  ==============  ==============  ========================
FP16       16      5         10         15        65504           2⁻¹⁴            exponent 31: ±∞ and NaN
E4M3FN     8       4         3          7         448             2⁻⁶             0x7F and 0xFF: NaN
E2M1       4       2         1          1         6               1               none
=========  ======  ========  =========  ========  ==============  ==============  ========================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bits = NDArray[np.uint16]


@dataclass(frozen=True)
class SmallFloat:
    """A format of at most 16 bits; ``finite_codes`` is how many non-negative patterns, from 0 on, are numbers.

    ``nan`` is the pattern written for "no number", None where the format has none.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    finite_codes: int
    nan: int | None
    #: Patterns beyond the finite ones that are infinite; the others beyond them are NaN.
    infinity: int | None = field(default=None)

    @property
    def sign_bit(self) -> int:
        """The pattern of −0, which is the sign bit alone."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def largest_code(self) -> int:
        """The pattern of the largest finite number."""
        return self.finite_codes - 1

    @property
    def least_normal_code(self) -> int:
        """The pattern of the smallest number with a full mantissa."""
        return 1 << self.mantissa_bits

    @cached_property
    def magnitudes(self) -> Array:
        """Every finite non-negative value, ascending: entry ``i`` is what pattern ``i`` stands for."""
        values = []
        for code in range(self.finite_codes):
            exponent, mantissa = divmod(code, 1 << self.mantissa_bits)
            fraction = mantissa / (1 << self.mantissa_bits)
            if exponent == 0:
                values.append(fraction * 2.0 ** (1 - self.bias))
            else:
                values.append((1 + fraction) * 2.0 ** (exponent - self.bias))
        return np.array(values)

    @cached_property
    def values(self) -> Array:
        """What each pattern stands for, indexed by the pattern."""
        positive = np.full(self.sign_bit, np.nan)
        positive[: self.finite_codes] = self.magnitudes
        if self.infinity is not None:
            positive[self.infinity] = np.inf
        return np.concatenate([positive, -positive])

    @cached_property
    def _midpoints(self) -> Array:
        return (self.magnitudes[:-1] + self.magnitudes[1:]) / 2

    def decode(self, bits: NDArray[np.generic]) -> Array:
        """Return what the patterns ``bits`` (any integer dtype, 0 to twice the sign bit) stand for."""
        return np.asarray(self.values[bits], dtype=np.float64)

    def encode(self, values: Array) -> Bits:
        """Return the pattern nearest to each of ``values``, ties to even; the sign, −0 included, is kept.

        Finite values beyond the largest number become the largest: callers choose scales so that this is
        clipping of the last half step at most, or mean it.  Values must be finite.
        """
        assert np.isfinite(values).all(), f"{self.name}: not finite"
        magnitude = np.abs(values)
        below = np.searchsorted(self._midpoints, magnitude, side="left")
        # The midpoints under the value number its nearest code; on a midpoint that is the lower of the two, where the
        # even one is due.
        padded = np.append(self._midpoints, np.inf)
        code = below + ((padded[below] == magnitude) & (below % 2 == 1))
        return np.asarray(code + np.where(np.signbit(values), self.sign_bit, 0), dtype=np.uint16)


FP16 = SmallFloat("float16", 5, 10, 15, finite_codes=0x7C00, nan=0x7E00, infinity=0x7C00)
E4M3FN = SmallFloat("e4m3fn", 4, 3, 7, finite_codes=0x7F, nan=0x7F)
E2M1 = SmallFloat("e2m1", 2, 1, 1, finite_codes=8, nan=None)


def pack_pairs(codes: Bits) -> Bits:
    """Return 4-bit ``codes [..., D]`` two to a byte, ``[..., D / 2]``: the even element in the low half."""
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << np.uint16(4), dtype=np.uint16)


def unpack_pairs(packed: NDArray[np.generic]) -> Bits:
    """Undo :func:`pack_pairs`."""
    bits = np.asarray(packed).astype(np.uint16)
    pairs = np.stack([bits & np.uint16(15), bits >> np.uint16(4)], axis=-1)
    return pairs.reshape(*bits.shape[:-1], 2 * bits.shape[-1])
