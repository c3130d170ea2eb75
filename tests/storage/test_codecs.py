"""The codecs' properties, and every line of the table in ``reference/codecs.py``."""

from __future__ import annotations

import math
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kvcrucible.contract.errors import BadArgument  # noqa: E402
from kvcrucible.contract.profiles import PROFILES, Side  # noqa: E402
from kvcrucible.reference.codecs import GroupCodec, group_codec, storing  # noqa: E402
from kvcrucible.reference.exact import LEAST_PEAK, PEAK_LIMIT, drawn_bytes, exact_rows, nearby  # noqa: E402

INT8, FP8, NVFP4 = (
    GroupCodec("int8", "float16", 64),
    GroupCodec("e4m3fn", "float16", 256),
    GroupCodec("e2m1", "e4m3fn", 16),
)
CODECS = {"INT8": INT8, "FP8": FP8, "NVFP4": NVFP4}
LEAST_SCALE = {"float16": 2.0**-14, "e4m3fn": 2.0**-6}
NAN_SCALE = {"float16": 0x7E00, "e4m3fn": 0x7F}
LARGEST_SCALE = {"float16": 65504.0, "e4m3fn": 448.0}

every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


@st.composite
def groups(draw: Any, group: int) -> Any:
    """Return two groups of float32 numbers: a few magnitudes, drawn ones among them, and any special value."""
    seed, scale = draw(st.integers(0, 2**32 - 1)), draw(st.integers(-30, 25))
    values = np.random.default_rng(seed).standard_normal(2 * group) * 2.0**scale
    specials = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
        (0.0, -0.0, 6.0, 5.0, -2.5, 127.0, 126.5, 448.0, 432.0, 2.0**-149, -(2.0**-14), 65504.0, 8_319_008.0)
    )
    for place, value in draw(st.dictionaries(st.integers(0, 2 * group - 1), specials, max_size=4)).items():
        values[place] = value
    return values.astype(np.float32).astype(np.float64)


def same(left: Any, right: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@every_codec
@given(data=st.data())
@settings(max_examples=60)
def test_what_is_stored_is_stored_again_to_the_bit(codec: GroupCodec, data: Any) -> None:
    values = data.draw(groups(codec.group))
    written = codec.encode(values)
    read = codec.decode(*written)
    assert np.isfinite(read).all()
    assert same(codec.encode(read), written)
    assert np.array_equal(read.astype(np.float32), read), "a decoded number is a float32"


@every_codec
@given(data=st.data())
@settings(max_examples=60)
def test_the_error_is_at_most_half_a_step(codec: GroupCodec, data: Any) -> None:
    values = data.draw(groups(codec.group))
    codes, scales = codec.encode(values)
    s = np.repeat(codec.scale_format.decode(scales), codec.group)
    bound = {
        "int8": s / 2,
        "e4m3fn": np.maximum(np.abs(values) / 16, s / 2**10),
        "e2m1": np.maximum(np.abs(values) / 4, s / 4),
    }[codec.code]
    largest = np.repeat(np.abs(values).reshape(-1, codec.group).max(axis=1), codec.group)
    in_range = largest <= codec.top * LARGEST_SCALE[codec.scale]
    error = np.abs(codec.decode(codes, scales) - values)
    assert (error <= bound)[in_range].all()
    clipped = np.clip(values, -codec.top * s, codec.top * s)
    assert (np.abs(codec.decode(codes, scales) - clipped) <= bound)[~in_range].all()


@every_codec
@given(data=st.data())
@settings(max_examples=60)
def test_order_within_a_group_is_kept(codec: GroupCodec, data: Any) -> None:
    values = np.sort(data.draw(groups(codec.group)).reshape(-1, codec.group), axis=1)
    assert (np.diff(codec.stored(values), axis=1) >= 0).all()


@every_codec
@given(data=st.data())
@settings(max_examples=60)
def test_the_scale_is_the_smallest_normal_one_that_reaches(codec: GroupCodec, data: Any) -> None:
    values = data.draw(groups(codec.group))
    scales = codec.encode(values)[1]
    numbers = codec.scale_format
    for peak, pattern in zip(np.abs(values).reshape(-1, codec.group).max(axis=1), scales, strict=True):
        assert numbers.least_normal_code <= pattern <= numbers.largest_code
        reaches = numbers.decode(pattern) * codec.top >= peak
        assert reaches or pattern == numbers.largest_code
        below = numbers.decode(pattern - 1) * codec.top
        assert below < peak or pattern == numbers.least_normal_code


@every_codec
def test_a_group_of_zeros_has_the_least_scale_and_minus_zero_is_kept_by_floats(codec: GroupCodec) -> None:
    zeros = np.zeros(codec.group)
    zeros[1::2] = -0.0
    codes, scales = codec.encode(zeros)
    assert codec.scale_format.decode(scales).tolist() == [LEAST_SCALE[codec.scale]]
    read = codec.decode(codes, scales)
    assert not read.any()
    assert np.signbit(read).tolist() == [codec.code != "int8" and i % 2 == 1 for i in range(codec.group)]


@every_codec
@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf, 1e39])
def test_one_number_that_is_none_voids_its_group_and_no_other(codec: GroupCodec, lost: float) -> None:
    values = np.ones(3 * codec.group)
    values[codec.group + 5] = lost
    codes, scales = codec.encode(values)
    code_void = {"int8": 0x7F, "e4m3fn": 0x7F, "e2m1": 0x77}[codec.code]
    middle = np.split(codes, 3)[1]
    assert (middle == code_void).all()
    assert scales[1] == NAN_SCALE[codec.scale]
    read = codec.decode(codes, scales).reshape(3, -1)
    assert np.isnan(read[1]).all()
    assert np.isfinite(read[[0, 2]]).all()
    assert same(codec.encode(read.reshape(-1)), (codes, scales))


@every_codec
def test_what_is_out_of_range_is_clipped(codec: GroupCodec) -> None:
    values = np.zeros(codec.group)
    values[:3] = [1e30, -3e38, 1.0]
    read = codec.stored(values)
    limit = codec.top * LARGEST_SCALE[codec.scale]
    assert read[:2].tolist() == [limit, -limit]
    assert codec.stored(np.full(codec.group, limit)).tolist() == [limit] * codec.group


@every_codec
@pytest.mark.parametrize("value", [1.0, -3.0, 0.7, 1e-3, 1e-6, -1e-9, 900.0])
def test_equal_numbers_read_equal_and_a_little_larger(codec: GroupCodec, value: float) -> None:
    read = np.unique(codec.stored(np.full(codec.group, value)))
    assert len(read) == 1
    if abs(value) > codec.top * LEAST_SCALE[codec.scale]:
        assert 1 - 2**-24 <= read[0] / value <= 1 + (2**-3 if codec.scale == "e4m3fn" else 2**-10) + 2**-23


@every_codec
def test_every_pattern_decodes_by_the_product(codec: GroupCodec) -> None:
    codes = np.arange(16 if codec.packed else 256, dtype=np.uint16)
    scales = np.arange(256 if codec.scale == "e4m3fn" else 1 << 16, dtype=np.uint16)
    sampled = scales[:: max(1, len(scales) // 512)]
    scale_values = codec.scale_format.decode(sampled)
    for code in codes:
        row = np.full(
            (len(sampled), codec.group // (2 if codec.packed else 1)), code * (17 if codec.packed else 1)
        )
        read = codec.decode(row, sampled[:, None])
        if codec.code == "int8":
            number = float(code) - 256 * (code >= 128)
        else:
            number = {"e4m3fn": FP8, "e2m1": NVFP4}[codec.code].decode(
                np.full(codec.group // (2 if codec.packed else 1), code * (17 if codec.packed else 1)),
                np.array([{"e4m3fn": 0x3C00, "e2m1": 0x38}[codec.code]]),
            )[0]
        with np.errstate(invalid="ignore"):
            assert np.array_equal(read[:, 0], number * scale_values, equal_nan=True)


@every_codec
def test_ties_go_to_the_even_code_under_a_scale_that_is_no_power_of_two(codec: GroupCodec) -> None:
    code_numbers = {
        "int8": np.arange(128.0),
        "e4m3fn": FP8.decode(np.arange(256) % 127, np.array([0x3C00]))[:127],
        "e2m1": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]),
    }[codec.code]
    scale = 1.375
    for low in range(len(code_numbers) - 1):
        row = np.zeros(codec.group)
        row[0] = codec.top * scale
        middle = (code_numbers[low] + code_numbers[low + 1]) / 2 * scale
        row[1:4] = [np.nextafter(np.float32(middle), np.float32(x)) for x in (-1, middle, 1e9)]
        even = low + low % 2
        due = code_numbers[[low, even, low + 1]] * scale
        assert codec.stored(row)[1:4].tolist() == due.tolist()


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("side", Side)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_exact_rows_come_back_and_other_draws_give_other_rows(profile: Any, side: Side, seed: int) -> None:
    draw = np.random.default_rng(seed)
    drawn = draw.integers(0, 256, (3, drawn_bytes(profile, side, 256)), dtype=np.uint8)
    rows = exact_rows(profile, side, 256, drawn)
    assert np.array_equal(storing(profile, side)(rows), rows)
    beside = nearby(profile, side, rows)
    assert np.array_equal(storing(profile, side)(beside), rows)
    codec = group_codec(profile, side)
    if codec is not None:
        assert (beside != rows).mean() > 0.5
        peaks = np.abs(rows).reshape(3, -1, codec.group).max(axis=2)
        assert ((peaks >= LEAST_PEAK) & (peaks < PEAK_LIMIT)).all()
    other = exact_rows(profile, side, 256, drawn ^ np.uint8(1))
    assert (rows != other).any(axis=1).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadArgument, match="groups of 256"):
        FP8.encode(np.zeros((2, 128)))
    with pytest.raises(BadArgument, match="groups of 64"):
        exact_rows(PROFILES["INT8-G64"], Side.KEY, 32, np.zeros(32, dtype=np.uint8))
    with pytest.raises(BadArgument, match="67 needed"):
        exact_rows(PROFILES["INT8-G64"], Side.KEY, 64, np.zeros(64, dtype=np.uint8))
    assert INT8.encode(np.zeros((0, 3, 128)))[1].shape == (0, 3, 2)


def test_sides_of_a_profile_have_their_own_codec() -> None:
    assert group_codec(PROFILES["K8V4"], Side.KEY) == FP8
    assert group_codec(PROFILES["K8V4"], Side.VALUE) == NVFP4
    assert group_codec(PROFILES["BF16"], Side.KEY) is None
