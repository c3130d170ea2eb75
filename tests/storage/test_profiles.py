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


@pytest.mark.parametrize(
    ("profile", "key_bytes", "value_bytes"),
    [
        (PROFILES["FP32"], 1024, 1024),
        (PROFILES["BF16"], 512, 512),
        (PROFILES["INT8-G64"], 264, 264),
        (PROFILES["FP8-E4M3FN-row256"], 258, 258),
        (PROFILES["NVFP4-G16"], 144, 144),
        (PROFILES["K8V4"], 258, 144),
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
        PROFILES["FP8-E4M3FN-row256"].bytes_per_token(Geometry(1, 1, 128))
    with pytest.raises(BadArgument, match="groups of 64"):
        PROFILES["INT8-G64"].check_head_dim(96)
    PROFILES["INT8-G64"].check_head_dim(128)
    with pytest.raises(BadArgument, match="k_code"):
        StorageProfile(
            "E2M1", tuple(Plane(side, Role.CODE, "e2m1", 4) for side in Side)
        ).bytes_per_token_and_head(3)


def test_plane_names_tell_side_and_role() -> None:
    profile = PROFILES["K8V4"]
    assert [plane.name for plane in profile.planes] == ["k_code", "k_scale", "v_code", "v_scale"]
    assert profile.plane(Side.VALUE, Role.SCALE) is profile.planes[3]
    assert PROFILES["BF16"].plane(Side.VALUE, Role.SCALE) is None
    assert [name for name in PROFILES if PROFILES[name].quantised] == list(PROFILES)[2:]


def test_sixteen_attention_layers_of_four_heads_of_256() -> None:
    geometry = Geometry(layers=16, kv_heads=4, head_dim=256)
    per_token = {name: profile.bytes_per_token(geometry) for name, profile in PROFILES.items()}
    assert per_token["BF16"] == 65_536
    assert per_token["INT8-G64"] == 33_792
    assert PROFILES["BF16"].bytes_per_page_group(geometry, 64) == 4 << 20
    assert PROFILES["INT8-G64"].bytes_per_page_group(geometry, 64) == 2.0625 * (1 << 20)


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
