"""Stored formats by integer tricks, as device functions: the bits of ``reference/codecs.py`` on every target.

No conversion to or from a small float is left to a cast: targets differ in which 8-bit floats they have, and Triton's
interpreter cuts where hardware rounds.  What remains of floating point is float32 arithmetic that IEEE 754 rounds
correctly, and widening from float16.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Whether kernels of this process run in the interpreter; fixed when Triton was imported.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

_INFINITY_BITS = tl.constexpr(0x7F800000)
_MAGNITUDE_BITS = tl.constexpr(0x7FFFFFFF)
#: 1.5 · 2²³: adding it to a number below 2²² leaves the nearest integer, ties to even, in the low bits.
_ROUNDER = tl.constexpr(12582912.0)
_ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def float_bits(x):
    """Return the patterns of float32 ``x``, int32."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def widened(x):
    """Return floating ``x`` as float32, exactly.

    A bfloat16 is the upper half of the float32 that it equals, so its pattern is moved and no cast is asked: the
    interpreter's own gives subnormal numbers another mantissa.
    """
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def not_finite(x):
    """Tell where float32 ``x`` is infinite or NaN."""
    return (float_bits(x) & _MAGNITUDE_BITS) >= _INFINITY_BITS


@triton.jit
def bfloat16_patterns(x):
    """Return the bfloat16 patterns nearest to float32 ``x``, int16, ties to even; a NaN stays one, quiet."""
    bits = float_bits(x)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & _MAGNITUDE_BITS) > _INFINITY_BITS, (bits >> 16) | 0x40, rounded).to(tl.int16)


@triton.jit
def upper_half(x):
    """Return float32 ``x`` cut to the eight leading bits of its mantissa, which bfloat16 holds exactly."""
    # The complement of the low half, written as the negative number that it is.
    return (float_bits(x) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def nearest_integer(x):
    """Return the integer nearest to float32 ``x``, ties to even, int32; |x| < 2²²."""
    return float_bits(x + _ROUNDER) - _ROUNDER_BITS


@triton.jit
def small_float_patterns(x, MANTISSA_BITS: tl.constexpr, BIAS: tl.constexpr, SIGN_BIT: tl.constexpr):
    """Return the patterns nearest to float32 ``x`` in a narrower format, int32, ties to even, the sign kept.

    Magnitudes must not exceed the largest finite number of the format.
    """
    bits = float_bits(x)
    kept = bits & _MAGNITUDE_BITS
    drop: tl.constexpr = 23 - MANTISSA_BITS
    rounded = (kept + ((1 << (drop - 1)) - 1) + ((kept >> drop) & 1)) >> drop
    normal = rounded - ((127 - BIAS) << MANTISSA_BITS)
    # Below the least normal number the steps are equal, and the pattern is their count.
    step: tl.constexpr = 2.0 ** (BIAS - 1 + MANTISSA_BITS)
    least_normal: tl.constexpr = 2.0 ** (1 - BIAS)
    magnitude = kept.to(tl.float32, bitcast=True)
    is_small = magnitude < least_normal
    steps = nearest_integer(tl.where(is_small, magnitude, 0.0) * step)
    code = tl.where(is_small, steps, normal)
    return tl.where(bits < 0, code | SIGN_BIT, code)


@triton.jit
def half_value(patterns):
    """Return the float32 numbers that float16 ``patterns`` (integers) stand for."""
    return patterns.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e4m3fn_value(patterns):
    """Return the float32 numbers that E4M3FN ``patterns`` (0 to 255) stand for.

    As a float16 with the same exponent field, every pattern is 2⁻⁸ times its number, subnormal ones too.
    """
    code = patterns.to(tl.int32)
    number = half_value(((code & 0x80) << 8) | ((code & 0x7F) << 7)) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), number)


@triton.jit
def e2m1_value(patterns):
    """Return the float32 numbers that E2M1 ``patterns`` (0 to 15) stand for: as a float16, 2⁻¹⁴ times the number."""
    code = patterns.to(tl.int32)
    return half_value(((code & 0x8) << 12) | ((code & 0x7) << 9)) * 16384.0


@triton.jit
def scale_value(patterns, SCALE: tl.constexpr):
    """Return the float32 scales that ``patterns`` stand for; ``SCALE`` is the contract's element name."""
    if SCALE == "float16":
        return half_value(patterns)
    else:
        return e4m3fn_value(patterns)


@triton.jit
def scale_patterns(largest, TOP: tl.constexpr, SCALE: tl.constexpr):
    """Return the pattern of the smallest normal scale with scale · TOP ≥ ``largest``, or of the largest scale."""
    if SCALE == "float16":
        least: tl.constexpr = 2.0**-14
        most: tl.constexpr = 65504.0
        largest_pattern: tl.constexpr = 0x7BFF
        nearest = small_float_patterns(
            tl.minimum(tl.maximum(tl.div_rn(largest, TOP), least), most), 10, 15, 0x8000
        )
    else:
        least: tl.constexpr = 2.0**-6
        most: tl.constexpr = 448.0
        largest_pattern: tl.constexpr = 0x7E
        nearest = small_float_patterns(
            tl.minimum(tl.maximum(tl.div_rn(largest, TOP), least), most), 3, 7, 0x80
        )
    # The nearest may lie below; scale · TOP is exact, so one comparison tells, and one step up is enough.
    short = scale_value(nearest, SCALE) * TOP < largest
    return tl.where(short & (nearest < largest_pattern), nearest + 1, nearest)
