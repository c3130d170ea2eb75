"""The codecs of quantised profiles in torch (DESIGN 4.2): the same bits as ``reference/codecs.py``, by other means.

Everything is float32 arithmetic that IEEE 754 rounds correctly, and integer arithmetic on bit patterns, so that every
device gives the same bits: no conversion to an 8-bit or 4-bit float is left to a library, no quotient is a product with
a reciprocal.  What a kernel in another language has to take over is written here step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcrucible.contract.errors import BadArgument

_FP32_MANTISSA_BITS, _FP32_BIAS = 23, 127


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A sign, exponent and mantissa format narrower than float32."""

    mantissa_bits: int
    bias: int
    #: Patterns of the largest finite number, of the sign alone, and of NaN (of the largest where there is none).
    largest_code: int
    sign_bit: int
    nan_code: int

    @property
    def least_normal_code(self) -> int:
        """Pattern of the smallest number with a full mantissa."""
        return 1 << self.mantissa_bits

    def patterns(self, x: Tensor) -> Tensor:
        """Return, int32, the pattern nearest to each float32 of ``x``, ties to even, the sign kept.

        Magnitudes must not exceed the largest finite number.
        """
        bits, magnitude = x.view(torch.int32), x.abs()
        drop = _FP32_MANTISSA_BITS - self.mantissa_bits
        kept = magnitude.view(torch.int32)
        # Half of what is dropped, less one where the last kept bit is 0: ties go to even, and a carry moves into the
        # exponent by itself.
        rounded = (kept + ((1 << (drop - 1)) - 1) + (kept >> drop & 1)) >> drop
        normal = rounded - ((_FP32_BIAS - self.bias) << self.mantissa_bits)
        # Below the least normal number the steps are equal, and the pattern is their count.
        steps = torch.round(magnitude * 2.0 ** (self.bias - 1 + self.mantissa_bits)).to(torch.int32)
        least_normal = 2.0 ** (1 - self.bias)
        code = torch.where(magnitude < least_normal, steps, normal)
        return torch.where(bits < 0, code | self.sign_bit, code)


FP16 = SmallFloat(10, 15, largest_code=0x7BFF, sign_bit=0x8000, nan_code=0x7E00)
E4M3FN = SmallFloat(3, 7, largest_code=0x7E, sign_bit=0x80, nan_code=0x7F)
E2M1 = SmallFloat(1, 1, largest_code=0x7, sign_bit=0x8, nan_code=0x7)

_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class _Code:
    """A code format: the largest code's value, the pattern of a void group's codes, the dtype that holds patterns."""

    top: float
    void: int
    number: SmallFloat | None


_CODES = {
    "int8": _Code(127.0, 127, None),
    "e4m3fn": _Code(448.0, 0x7F, E4M3FN),
    "e2m1": _Code(6.0, 0x7, E2M1),
}
_SCALES = {"float16": FP16, "e4m3fn": E4M3FN}


@dataclass(frozen=True, slots=True)
class GroupCodec:
    """Codes in groups of ``group`` under one scale each; ``code`` and ``scale`` are the contract's element names.

    In torch ``int8`` is int8, ``float16`` is float16, and ``e4m3fn`` patterns and pairs of ``e2m1`` are uint8.  Raises
    ``BadArgument`` for elements that no codec is made of.
    """

    code: str
    scale: str
    group: int

    def __post_init__(self) -> None:
        if self.code not in _CODES or self.scale not in _SCALES:
            found = f"codes {', '.join(_CODES)} and scales {', '.join(_SCALES)}"
            raise BadArgument(f"a codec of {self.code} codes and {self.scale} scales", found, "use these")

    @property
    def packed(self) -> bool:
        """Whether two codes share a byte, the even element in the low half."""
        return self.code == "e2m1"

    def encode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes ``[..., D]`` (``[..., D / 2]`` where packed) and scales ``[..., D / group]`` of float32 or
        bfloat16 ``rows [..., D]``, in the dtypes that planes have.
        """
        code, scale = _CODES[self.code], _SCALES[self.scale]
        grouped = self._grouped(rows.to(torch.float32))
        void = ~torch.isfinite(grouped).all(dim=-1)
        finite = grouped.masked_fill(void[..., None], 0.0)
        scale_patterns = self._scale_patterns(finite.abs().amax(dim=-1), code.top, scale)
        divisor = self._scale_values(self._stored_scales(scale_patterns))
        quotient = (finite / divisor[..., None]).clamp_(-code.top, code.top)
        if code.number is None:
            patterns = torch.round(quotient).to(torch.int32)
        else:
            patterns = code.number.patterns(quotient)
        patterns = patterns.masked_fill_(void[..., None], code.void).flatten(-2)
        scales = self._stored_scales(scale_patterns.masked_fill_(void, scale.nan_code))
        return self._stored_codes(patterns), scales

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Return code × scale, float32 ``[..., D]``, exact, for tensors as :meth:`encode` returns them."""
        if self.packed:
            numbers = _pairs(codes.device)[codes.to(torch.int32)].flatten(-2)
        elif self.code == "e4m3fn":
            numbers = codes.view(torch.float8_e4m3fn).to(torch.float32)
        else:
            numbers = codes.to(torch.float32)
        return (self._grouped(numbers) * self._scale_values(scales)[..., None]).flatten(-2)

    def _grouped(self, rows: Tensor) -> Tensor:
        return rows.reshape(*rows.shape[:-1], rows.shape[-1] // self.group, self.group)

    def _scale_patterns(self, largest: Tensor, top: float, scale: SmallFloat) -> Tensor:
        """Return the smallest normal scale with scale · top ≥ largest, or the largest scale there is."""
        bounds = torch.tensor([scale.least_normal_code, scale.largest_code], dtype=torch.int32)
        least, most = self._scale_values(self._stored_scales(bounds)).tolist()
        nearest = scale.patterns((largest / top).clamp_(least, most))
        # The nearest may lie below; scale · top is exact, so one comparison tells, and one step up is enough.
        short = self._scale_values(self._stored_scales(nearest)) * top < largest
        return torch.where(short & (nearest < scale.largest_code), nearest + 1, nearest)

    def _stored_scales(self, patterns: Tensor) -> Tensor:
        if self.scale == "float16":
            return patterns.to(torch.int16).view(torch.float16)
        return patterns.to(torch.uint8)

    def _scale_values(self, scales: Tensor) -> Tensor:
        if self.scale == "float16":
            return scales.to(torch.float32)
        return scales.view(torch.float8_e4m3fn).to(torch.float32)

    def _stored_codes(self, patterns: Tensor) -> Tensor:
        if self.packed:
            return (patterns[..., 0::2] | patterns[..., 1::2] << 4).to(torch.uint8)
        return patterns.to(torch.int8 if self.code == "int8" else torch.uint8)


def _pairs(device: torch.device) -> Tensor:
    """Return ``[256, 2]`` float32: the two numbers that each byte of E2M1 codes holds."""
    values = torch.tensor([*_E2M1_VALUES, *(-value for value in _E2M1_VALUES)], device=device)
    return torch.stack([values.repeat(16), values.repeat_interleave(16)], dim=-1)
