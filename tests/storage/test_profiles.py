"""Bytes come from the plane list, and reproduce the published figures."""

from __future__ import annotations

import pytest

from kvcrucible.contract.errors import BadArgument, InputError
from kvcrucible.contract.profiles import (
    PROFILES,
    Geometry,
    Plane,
    Role,
    Side,
    StorageProfile,
    storage_profile,
)


def quantised(name: str, *sides: tuple[str, int, int]) -> StorageProfile:
    """Return a profile of codes and scales; a side is code format, scale bits and group."""
    bits = {"int8": 8, "e4m3fn": 8, "e2m1": 4}
    planes = []
    for side, (code, scale_bits, group) in zip(Side, sides, strict=True):
        planes.append(Plane(side, Role.CODE, code, bits[code]))
        planes.append(Plane(side, Role.SCALE, f"scale{scale_bits}", scale_bits, group))
    return StorageProfile(name, tuple(planes))


INT8, FP8, NVFP4 = ("int8", 16, 64), ("e4m3fn", 16, 256), ("e2m1", 8, 16)


@pytest.mark.parametrize(
    ("profile", "key_bytes", "value_bytes"),
    [
        (PROFILES["FP32"], 1024, 1024),
        (PROFILES["BF16"], 512, 512),
        # Not offered yet; the plane list is able to say them, uneven sides included.
        (quantised("INT8-G64", INT8, INT8), 264, 264),
        (quantised("FP8-row256", FP8, FP8), 258, 258),
        (quantised("NVFP4-G16", NVFP4, NVFP4), 144, 144),
        (quantised("K8V4", FP8, NVFP4), 258, 144),
    ],
    ids=lambda value: value.name if isinstance(value, StorageProfile) else None,
)
def test_the_table_at_dimension_256(profile: StorageProfile, key_bytes: int, value_bytes: int) -> None:
    assert profile.bytes_per_token_and_head(256, Side.KEY) == key_bytes
    assert profile.bytes_per_token_and_head(256, Side.VALUE) == value_bytes
    assert profile.bytes_per_token_and_head(256) == key_bytes + value_bytes


def test_llama_2_70b_takes_327680_bytes_a_token() -> None:
    geometry = Geometry(layers=80, kv_heads=8, head_dim=128)
    assert PROFILES["BF16"].bytes_per_token(geometry) == 327_680
    assert PROFILES["BF16"].bytes_per_page_group(geometry, 64) == 64 * 327_680


def test_a_group_that_does_not_divide_the_dimension_is_refused() -> None:
    with pytest.raises(BadArgument, match="groups of 256"):
        quantised("FP8-row256", FP8, FP8).bytes_per_token(Geometry(1, 1, 128))
    with pytest.raises(BadArgument, match="k_code"):
        StorageProfile(
            "E2M1", tuple(Plane(side, Role.CODE, "e2m1", 4) for side in Side)
        ).bytes_per_token_and_head(3)


def test_plane_names_tell_side_and_role() -> None:
    names = [plane.name for plane in quantised("K8V4", FP8, NVFP4).planes]
    assert names == ["k_code", "k_scale", "v_code", "v_scale"]


@pytest.mark.parametrize("page_size", [0, -16, 48])
def test_a_page_size_is_a_power_of_two(page_size: int) -> None:
    with pytest.raises(BadArgument, match="power of two"):
        PROFILES["FP32"].bytes_per_page_group(Geometry(1, 1, 8), page_size)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, -8)])
def test_a_geometry_has_no_empty_side(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(BadArgument):
        Geometry(*numbers)


def test_profiles_are_found_by_name_and_an_unknown_one_is_told_the_names() -> None:
    assert storage_profile("BF16") is PROFILES["BF16"]
    assert all(name == profile.name for name, profile in PROFILES.items())
    with pytest.raises(InputError, match="FP32, BF16"):
        storage_profile("bf17")
