"""Planes and tables: what each effect changes, and that it changes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry, Plane, Role, Side, StorageProfile

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("backend")]

P = 8


def random_storage(profile: str = "FP32", **options: Any) -> Any:
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    storage = TorchStorage(PROFILES[profile], Geometry(2, 3, 4), 5, P, 2, 6, **options)
    draw = torch.Generator().manual_seed(0)
    for plane in storage.planes():
        plane.copy_(torch.randn(plane.shape, generator=draw))
    return storage


def same_bits(left: list[Any], right: list[Any]) -> bool:
    return all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("profile", ["FP32", "BF16"])
def test_planes_take_the_bytes_that_the_profile_says(profile: str) -> None:
    storage = random_storage(profile)
    assert sum(plane.nbytes for plane in storage.planes()) == storage.plane_bytes
    assert storage.plane_bytes == 5 * P * 2 * 3 * PROFILES[profile].bytes_per_token_and_head(4)
    assert len(storage.planes()) == 4


@pytest.mark.parametrize("profile", ["FP32", "BF16"])
@given(pages=st.permutations(range(5)), columns=st.integers(0, P))
@settings(max_examples=30)
def test_a_copy_takes_exactly_its_columns_over_all_planes(
    profile: str, pages: list[int], columns: int
) -> None:
    storage = random_storage(profile)
    source, destination = pages[:2]
    storage.raw_write(source, columns, P, float("nan"))  # stale columns of the source must stay there
    expected = [plane.clone() for plane in storage.planes()]
    for plane in expected:
        plane[destination, :, :columns] = plane[source, :, :columns]
    storage.copy_columns(0, source, destination, columns)
    assert same_bits(storage.planes(), expected)


def test_raw_write_poisons_its_columns_in_every_plane_and_no_other() -> None:
    storage = random_storage()
    expected = [plane.clone() for plane in storage.planes()]
    for plane in expected:
        plane[3, :, 2:5] = float("nan")
    storage.raw_write(3, 2, 5, float("nan"))
    assert same_bits(storage.planes(), expected)


def test_tables_start_as_holes_and_stay_at_their_address() -> None:
    storage = random_storage()
    address = storage.block_tables.data_ptr()
    assert storage.table_row(0) == [-1] * 6
    storage.write_table(0, 1, [4, 0, 2])
    storage.write_table(0, 2, [3])
    storage.write_table(1, 5, [1])
    storage.write_table(1, 6, [])
    assert storage.table_row(0) == [-1, 4, 3, 2, -1, -1]
    storage.clear_table(0, 1, 2)
    assert storage.table_row(0) == [-1, -1, -1, 2, -1, -1]
    assert storage.table_row(1) == [-1, -1, -1, -1, -1, 1]
    assert storage.block_tables.dtype == torch.int32
    assert storage.block_tables.data_ptr() == address
    assert storage.layer_view(1).block_tables is storage.block_tables


def test_a_view_owns_nothing() -> None:
    storage = random_storage()
    view = storage.layer_view(1)
    assert [view.key.codes.data_ptr(), view.value.codes.data_ptr()] == [
        plane.data_ptr() for plane in storage.planes()[2:]
    ]
    assert (view.pages, view.kv_heads, view.page_size, view.head_dim) == (5, 3, P, 4)


def test_reading_starts_where_it_is_told_even_behind_holes() -> None:
    storage = random_storage()
    storage.write_table(0, 1, [4])
    k, v = storage.read_row(0, 0, P + 2, P + 5)
    assert torch.equal(k, storage.planes()[0][4, :, 2:5].transpose(0, 1))
    assert torch.equal(v, storage.planes()[1][4, :, 2:5].transpose(0, 1))
    k.zero_()
    assert storage.planes()[0][4, :, 2:5].any()


REFUSED: dict[str, Callable[[Any], object]] = {
    "copy in another pool": lambda s: s.copy_columns(1, 0, 1, 1),
    "copy from no page": lambda s: s.copy_columns(0, 5, 1, 1),
    "copy to no page": lambda s: s.copy_columns(0, 0, -1, 1),
    "copy of too much": lambda s: s.copy_columns(0, 0, 1, P + 1),
    "copy of less than nothing": lambda s: s.copy_columns(0, 0, 1, -1),
    "copy onto itself": lambda s: s.copy_columns(0, 1, 1, 1),
    "table page too high": lambda s: s.write_table(0, 0, [1, 5]),
    "table page is a hole": lambda s: s.write_table(0, 0, [1, -1]),
    "table row": lambda s: s.write_table(2, 0, [1]),
    "table block": lambda s: s.write_table(0, 5, [1, 2]),
    "table block below": lambda s: s.write_table(0, -1, [1, 2]),
    "clear row": lambda s: s.clear_table(-1, 0, 1),
    "clear too much": lambda s: s.clear_table(0, 0, 7),
    "clear less than nothing": lambda s: s.clear_table(0, 3, -1),
    "poison of no page": lambda s: s.raw_write(5, 0, 1, 0.0),
    "poison beyond the page": lambda s: s.raw_write(0, 0, P + 1, 0.0),
    "poison backwards": lambda s: s.raw_write(0, 3, 2, 0.0),
    "layer": lambda s: s.layer_view(2),
    "layer below": lambda s: s.layer_view(-1),
    "read of a hole": lambda s: s.read_row(0, 1, 0, 1),
    "read backwards": lambda s: s.read_row(0, 0, 2, 1),
    "read beyond the pages": lambda s: s.read_pages(0, [1], 0, P + 1),
    "read of no page": lambda s: s.read_pages(0, [5], 0, 1),
    "no such row": lambda s: s.table_row(2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_shapes_cannot_hold_is_refused_and_changes_nothing(name: str) -> None:
    storage = random_storage()
    storage.write_table(0, 0, [1, 2])
    planes, tables = [plane.clone() for plane in storage.planes()], storage.block_tables.clone()
    with pytest.raises(BadArgument):
        REFUSED[name](storage)
    assert same_bits(storage.planes(), planes)
    assert torch.equal(storage.block_tables, tables)


@pytest.mark.parametrize(
    "change", [{"capacity_pages": 0}, {"page_size": 12}, {"max_rows": 0}, {"max_blocks_per_row": 0}]
)
def test_an_impossible_shape_is_refused(change: dict[str, int]) -> None:
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    shape = {"capacity_pages": 2, "page_size": 4, "max_rows": 1, "max_blocks_per_row": 1} | change
    with pytest.raises(BadArgument):
        TorchStorage(PROFILES["FP32"], Geometry(1, 1, 4), **shape)


def test_a_profile_of_codes_and_scales_is_refused() -> None:
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    plain = PROFILES["FP32"].planes
    scaled = StorageProfile("SCALED", (*plain, Plane(Side.KEY, Role.SCALE, "float32", 32, 4)))
    codes = StorageProfile("CODES", tuple(Plane(side, Role.CODE, "int8", 8) for side in Side))
    for profile in (scaled, codes):
        with pytest.raises(BadArgument, match=profile.name):
            TorchStorage(profile, Geometry(1, 1, 4), 1, 4, 1, 1)


def test_another_pool_has_its_own_storage() -> None:
    random_storage(pool=1).copy_columns(1, 0, 1, 2)
