"""The tables of FP16, E4M3FN and E2M1 against libraries that have those formats, pattern by pattern."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from kvcrucible.reference.formats import E2M1, E4M3FN, FP16, pack_pairs, unpack_pairs  # noqa: E402


def test_every_fp16_pattern_is_what_numpy_says() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    expected = patterns.view(np.float16).astype(np.float64)
    assert np.array_equal(FP16.decode(patterns), expected, equal_nan=True)
    finite = np.isfinite(expected)
    assert np.array_equal(FP16.encode(expected[finite]), patterns[finite])


def test_every_e4m3fn_pattern_is_what_torch_says() -> None:
    torch = pytest.importorskip("torch")
    patterns = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(patterns).view(torch.float8_e4m3fn).double().numpy()
    assert np.array_equal(E4M3FN.decode(patterns), expected, equal_nan=True)
    assert np.isnan(expected).sum() == 2


def test_the_sixteen_e2m1_patterns() -> None:
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert E2M1.decode(np.arange(16)).tolist() == [*positive, *(-x for x in positive)]
    assert np.signbit(E2M1.decode(np.array([8])))[0]


@pytest.mark.parametrize("number", [FP16, E4M3FN, E2M1], ids=lambda number: number.name)
def test_numbers_between_two_go_to_the_nearer_and_ties_to_the_even_code(number: object) -> None:
    assert isinstance(number, type(FP16))
    values, codes = number.magnitudes, np.arange(number.finite_codes)
    middle = (values[:-1] + values[1:]) / 2
    even = codes[:-1] + codes[:-1] % 2
    for sign, bit in ((1, 0), (-1, number.sign_bit)):
        assert np.array_equal(number.encode(sign * values), codes + bit)
        assert np.array_equal(number.encode(sign * middle), even + bit)
        assert np.array_equal(number.encode(sign * np.nextafter(middle, 0)), codes[:-1] + bit)
        assert np.array_equal(number.encode(sign * np.nextafter(middle, np.inf)), codes[1:] + bit)
    beyond = np.array([values[-1] * 1.5, -1e300])
    assert number.encode(beyond).tolist() == [number.largest_code, number.largest_code + number.sign_bit]


def test_rounding_agrees_with_numpy_and_torch_where_they_have_the_format() -> None:
    torch = pytest.importorskip("torch")
    drawn = np.random.default_rng(0).standard_normal(20_000) * np.exp2(
        np.random.default_rng(1).integers(-26, 9, 20_000)
    )
    values = drawn.astype(np.float32)
    assert np.array_equal(FP16.encode(values.astype(np.float64)), values.astype(np.float16).view(np.uint16))
    small = values[np.abs(values) <= 448]
    due = torch.from_numpy(small).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(E4M3FN.encode(small.astype(np.float64)), due)


def test_the_named_patterns() -> None:
    assert (FP16.largest_code, FP16.least_normal_code, FP16.sign_bit) == (0x7BFF, 0x400, 0x8000)
    assert FP16.decode(np.array([FP16.least_normal_code]))[0] == 2**-14
    assert (E4M3FN.largest_code, E4M3FN.least_normal_code, E4M3FN.sign_bit) == (0x7E, 8, 0x80)
    assert E4M3FN.decode(np.array([E4M3FN.largest_code, 8])).tolist() == [448, 2**-6]


def test_two_codes_share_a_byte_the_even_element_in_the_low_half() -> None:
    codes = np.arange(16, dtype=np.uint16).reshape(2, 8)
    packed = pack_pairs(codes)
    assert packed[0].tolist() == [0x10, 0x32, 0x54, 0x76]
    assert np.array_equal(unpack_pairs(packed), codes)
