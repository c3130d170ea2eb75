"""Codecs of the storage profiles, defined to the bit (DESIGN 4.2).

A row of D elements is groups of G; a group is G codes and one scale, and an element decodes to code × scale.  The
product is exact in float32 for every codec here (at most 8 and 11 significant bits), so decoding never rounds.

**Encoding a group.**  Elements are float32 (others are rounded to it first, to nearest even; bfloat16 is contained).

1. The *scale* is the smallest normal positive number s of the scale's format with s · top ≥ max |x|, where *top* is the
   largest code's value; the largest number of the format where none is large enough.  It is rounded upwards, so that
   no element within range overflows, and never subnormal, so that rounding it up (by less than 2⁻¹⁰, or 2⁻³) costs a
   largest element less than half a step: it takes the top code, from which the same scale is found again.
2. The *code* of x is the code nearest to the exact quotient x / s, ties to even, at most ± top.

The quotient is exact in this file's sense although float64 divides: a tie is a product of so few bits that it is a
float32 itself, and any other float32 is further from it than division can round.  The same holds for a correctly
rounded *float32* division, so that a kernel may divide in float32 (``div.rn``) and round the quotient, and must not
multiply by a reciprocal.

==============  =================  ==================  ==================  ====================================
codec           INT8, G = 64       E4M3FN, G = 256     E2M1, G = 16        why
==============  =================  ==================  ==================  ====================================
scale           FP16               FP16                E4M3FN
top             127                448                 6                   −128 is never written
in range        max |x| ≤ 8.3·10⁶  max |x| ≤ 2.9·10⁷   max |x| ≤ 2688      top × largest scale
error, |x − x̂|  s / 2              max(|x|/16, s/2¹⁰)  max(|x|/4, s/4)     half a step of the code's format
all zero        codes 0, least s   codes ±0, least s   codes ±0, least s   no special case: the rule gives it
all equal       ± top              ± top               ± top               reads at most 2⁻¹⁰ (E2M1: 2⁻³) larger
−0              reads as +0        kept                kept                two's complement has one zero
tiny group      least s, codes     the same            the same            least s: 2⁻¹⁴ (FP16), 2⁻⁶ (E4M3FN)
                round, maybe to 0
max |x| beyond  clipped to ± top · largest scale, in order                 finite stays finite
NaN or ±∞       *void*: the scale is NaN (0x7E00; 0x7F) and every code     a number that is lost is lost loudly,
                0x7F (INT8: 127; E4M3FN: NaN; E2M1: 0x7, two to a byte);   for the whole group: one scale cannot
                all of the group reads as NaN                              hold its neighbours either
==============  =================  ==================  ==================  ====================================

What follows, and is tested: encode ∘ decode is the identity on everything that encode writes; order within a group is
kept; every pattern decodes, also those that are never written (INT8 −128, subnormal, zero, infinite or negative scales,
NaN codes), by the same product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import Role, Side, StorageProfile
from kvcrucible.reference.formats import E2M1, E4M3FN, FP16, Array, Bits, SmallFloat, pack_pairs, unpack_pairs
from kvcrucible.reference.rounding import ROUNDING, to_fp32

#: Largest INT8 code that is written, so that a negated number has the negated code.
INT8_TOP = 127


class Int8Code:
    """Two's complement, rounded to the nearest integer, ties to even; the pattern is the low byte."""

    top = float(INT8_TOP)
    void = INT8_TOP
    largest = INT8_TOP

    def encode(self, quotients: Array) -> Bits:
        """Return patterns 0 to 255 of finite ``quotients``."""
        clipped = np.clip(np.rint(quotients), -INT8_TOP, INT8_TOP)
        return (clipped.astype(np.int64) & 0xFF).astype(np.uint16)

    def decode(self, bits: NDArray[np.generic]) -> Array:
        """Return the numbers that patterns 0 to 255 stand for."""
        return np.asarray(bits).astype(np.uint8).view(np.int8).astype(np.float64)


class FloatCode:
    """A small float as a code; ``void`` is written for every element of a void group."""

    def __init__(self, number: SmallFloat, void: int) -> None:
        self.void, self._number = void, number
        self.top = float(number.magnitudes[-1])
        self.largest = number.largest_code

    def encode(self, quotients: Array) -> Bits:
        """Return the patterns of finite ``quotients``."""
        return self._number.encode(quotients)

    def decode(self, bits: NDArray[np.generic]) -> Array:
        """Return the numbers that the patterns stand for."""
        return self._number.decode(bits)


#: Codes by the element name of a code plane.
CODES: dict[str, Int8Code | FloatCode] = {
    "int8": Int8Code(),
    "e4m3fn": FloatCode(E4M3FN, void=0x7F),
    "e2m1": FloatCode(E2M1, void=0x7),
}

#: Formats of scales by the element name of a scale plane.
SCALES: dict[str, SmallFloat] = {"float16": FP16, "e4m3fn": E4M3FN}


@dataclass(frozen=True, slots=True)
class GroupCodec:
    """Codes in groups of ``group`` under one scale each, by element names of the contract's planes."""

    code: str
    scale: str
    group: int

    @property
    def packed(self) -> bool:
        """Whether two codes share a byte."""
        return self.code == "e2m1"

    @property
    def top(self) -> float:
        """Value of the largest code."""
        return CODES[self.code].top

    @property
    def largest_code(self) -> int:
        """Pattern of the largest code."""
        return CODES[self.code].largest

    @property
    def scale_format(self) -> SmallFloat:
        """The format of the scales."""
        return SCALES[self.scale]

    def encode(self, values: Array) -> tuple[Bits, Bits]:
        """Return the patterns of ``values [..., D]``: codes ``[..., D]`` (bytes ``[..., D / 2]`` where packed) and
        scales ``[..., D / group]``.

        Raises ``BadArgument`` where the group does not divide D.
        """
        grouped = to_fp32(self._grouped(values))
        numbers, code = self.scale_format, CODES[self.code]
        assert numbers.nan is not None
        void = np.asarray(~np.isfinite(grouped).all(axis=-1))
        finite = np.where(void[..., None], 0.0, grouped)
        scales = self._scale_codes(np.abs(finite).max(axis=-1))
        codes = code.encode(finite / numbers.decode(scales)[..., None])
        codes = np.where(void[..., None], np.uint16(code.void), codes).reshape(values.shape)
        scales = np.where(void, np.uint16(numbers.nan), scales)
        return (pack_pairs(codes) if self.packed else codes), scales

    def decode(self, codes: NDArray[np.generic], scales: NDArray[np.generic]) -> Array:
        """Return code × scale for patterns as :meth:`encode` shapes them, ``[..., D]``; exact."""
        bits = unpack_pairs(codes) if self.packed else codes
        numbers = self._grouped(CODES[self.code].decode(bits))
        with np.errstate(invalid="ignore"):
            product = numbers * self.scale_format.decode(scales)[..., None]
        return product.reshape(bits.shape)

    def stored(self, values: Array) -> Array:
        """Return what ``values [..., D]`` read as once they are stored."""
        return self.decode(*self.encode(values))

    def _scale_codes(self, largest: Array) -> Bits:
        """Return the pattern of the smallest normal scale that brings ``largest`` within the top code, or the last."""
        numbers = self.scale_format
        reach = numbers.magnitudes * self.top
        found = np.searchsorted(reach, largest, side="left")
        return np.clip(found, numbers.least_normal_code, numbers.largest_code).astype(np.uint16)

    def _grouped(self, values: Array) -> Array:
        if values.shape[-1] % self.group:
            found = f"groups of {self.group}"
            raise BadArgument(
                f"rows of {values.shape[-1]} elements", found, f"use a multiple of {self.group}"
            )
        return values.reshape(*values.shape[:-1], values.shape[-1] // self.group, self.group)


def group_codec(profile: StorageProfile, side: Side) -> GroupCodec | None:
    """Return the codec of one side of a profile; None where it stores the numbers themselves."""
    code, scale = profile.plane(side, Role.CODE), profile.plane(side, Role.SCALE)
    assert code is not None
    return None if scale is None else GroupCodec(code.element, scale.element, scale.group)


def storing(profile: StorageProfile, side: Side) -> Callable[[Array], Array]:
    """Return what storing does to rows of one side, in values: float64 ``[..., D]`` to float64 ``[..., D]``."""
    codec = group_codec(profile, side)
    return ROUNDING[profile.name] if codec is None else codec.stored
