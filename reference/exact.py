"""Rows that a storage profile holds exactly, drawn from bytes (DESIGN 4.14.15).

Codes and scales are drawn, not values, and then decoded; one element of each group takes the top code, without which
encoding would find a smaller scale.  Largest values lie between 1 and 8, so that attention over such rows has a tight
error budget.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import Side, StorageProfile
from kvcrucible.reference.codecs import INT8_TOP, GroupCodec, group_codec
from kvcrucible.reference.formats import Array, Bits, pack_pairs

#: Bytes that a group takes beyond one for each code: two for the scale, one for the place of the top code.
_GROUP_BYTES = 3

#: How far off, relatively, a number may be and still round to where it came from: less than half a step of the largest
#: INT8 code but one, which of all codes here has the smallest step relative to itself.
NEARBY = 2.0**-9

#: Between these lies the largest magnitude of a group.
LEAST_PEAK, PEAK_LIMIT = 1.0, 8.0


def drawn_bytes(profile: StorageProfile, side: Side, head_dim: int) -> int:
    """Return how many bytes :func:`exact_rows` takes for one row."""
    codec = group_codec(profile, side)
    return head_dim if codec is None else head_dim + _GROUP_BYTES * (head_dim // codec.group)


def exact_rows(profile: StorageProfile, side: Side, head_dim: int, drawn: NDArray[np.uint8]) -> Array:
    """Return rows ``[..., head_dim]`` that the side stores without loss, from ``drawn [..., drawn_bytes(…)]``.

    A side that stores the numbers themselves gets the bytes as integers in [−128, 127].
    Raises ``BadArgument`` for another count of bytes or a head dimension that groups do not divide.
    """
    profile.check_head_dim(head_dim)
    needed = drawn_bytes(profile, side, head_dim)
    if drawn.shape[-1] != needed:
        raise BadArgument(f"rows from {drawn.shape[-1]} bytes each", f"{needed} needed", "see drawn_bytes")
    codec = group_codec(profile, side)
    if codec is None:
        return np.asarray(drawn.view(np.int8), dtype=np.float64)
    groups = head_dim // codec.group
    scale_bytes = drawn[..., head_dim : head_dim + 2 * groups].astype(np.uint16)
    scales = _scales(codec, scale_bytes[..., :groups] << np.uint16(8) | scale_bytes[..., groups:])
    codes = _codes(codec, drawn[..., :head_dim], drawn[..., head_dim + 2 * groups :])
    return codec.decode(pack_pairs(codes) if codec.packed else codes, scales)


def nearby(profile: StorageProfile, side: Side, rows: Array) -> Array:
    """Return numbers that the side stores as ``rows [..., D]``, which are exact, but that are not exactly those.

    They lie above and below in turn, by ``NEARBY``, so that a codec which cuts instead of rounding shows; the largest
    of each group stay, since the scale hangs on them.  A side that stores the numbers themselves gets ``rows``.
    """
    codec = group_codec(profile, side)
    if codec is None:
        return rows
    grouped = np.abs(rows).reshape(*rows.shape[:-1], rows.shape[-1] // codec.group, codec.group)
    largest = (grouped == grouped.max(axis=-1, keepdims=True)).reshape(rows.shape)
    turn = np.where(np.arange(rows.shape[-1]) % 2 == 0, 1 + NEARBY, 1 - NEARBY)
    return np.where(largest, rows, rows * turn)


def _scales(codec: GroupCodec, drawn: Bits) -> Bits:
    """Return scale patterns whose top codes stand for values within the limits of a peak."""
    first, stop = np.searchsorted(codec.scale_format.magnitudes * codec.top, [LEAST_PEAK, PEAK_LIMIT])
    return np.asarray(first + drawn % (stop - first), dtype=np.uint16)


def _codes(codec: GroupCodec, drawn: NDArray[np.uint8], places: NDArray[np.uint8]) -> Bits:
    """Return code patterns that encoding could write, the element at ``places`` of each group with the top code."""
    grouped = drawn.reshape(*places.shape, codec.group)
    at_place = np.arange(codec.group) == (places.astype(np.int64) % codec.group)[..., None]
    if codec.code == "int8":
        numbers = np.maximum(grouped.view(np.int8), -INT8_TOP)
        peak = np.where(numbers < 0, -INT8_TOP, INT8_TOP)
        patterns = np.where(at_place, peak, numbers).astype(np.int8).view(np.uint8)
    else:
        sign = np.uint8(0x8 if codec.packed else 0x80)
        largest = np.uint8(codec.largest_code)
        magnitude = np.where(at_place, largest, np.minimum(grouped & (sign - np.uint8(1)), largest))
        patterns = (grouped & sign) | magnitude
    return patterns.reshape(drawn.shape).astype(np.uint16)
