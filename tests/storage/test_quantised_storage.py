"""Planes of codes and scales, in both orders: what each effect changes, and that it changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder, Side

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("backend")]

P, D = 4, 256
GEOMETRY = Geometry(layers=2, kv_heads=3, head_dim=D)
QUANTISED = [name for name, profile in PROFILES.items() if profile.quantised]

every_profile = pytest.mark.parametrize("profile", PROFILES)
every_order = pytest.mark.parametrize("order", PlaneOrder)


def random_storage(profile: str, order: PlaneOrder) -> Any:
    """Return random bytes in every plane; row 0 owns pages 4, 0, 3."""
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    storage = TorchStorage(PROFILES[profile], GEOMETRY, 5, P, 2, 6, order=order)
    draw = torch.Generator().manual_seed(0)
    for plane in storage.planes():
        if plane.is_floating_point():
            plane.copy_(torch.randn(plane.shape, generator=draw))
        else:
            plane.copy_(torch.randint(0, 100, plane.shape, generator=draw))
    storage.write_table(0, 0, [4, 0, 3])
    return storage


def same_bits(left: list[Any], right: list[Any]) -> bool:
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(left, right, strict=True)
    )


def rows_of(tokens: int, seed: int = 0) -> tuple[Any, Any]:
    k, v = torch.randn((2, tokens, GEOMETRY.kv_heads, D), generator=torch.Generator().manual_seed(seed))
    return k, v


def stored(profile: str, side: Side, rows: Any) -> Any:
    from kvcrucible.reference.codecs import storing

    return storing(PROFILES[profile], side)(rows.double().numpy())


@every_profile
@every_order
def test_planes_take_the_bytes_that_the_profile_says_in_the_order_asked_for(
    profile: str, order: PlaneOrder
) -> None:
    storage = random_storage(profile, order)
    per_row = [plane.bytes_per_row(D) for plane in PROFILES[profile].planes] * GEOMETRY.layers
    assert [plane[0, 0, 0].nbytes for plane in storage.planes()] == per_row
    assert sum(plane.nbytes for plane in storage.planes()) == storage.plane_bytes
    for plane in storage.planes():
        assert plane.shape[:3] == (5, 3, P)
        by_memory = plane if order is PlaneOrder.PAGE_MAJOR else plane.transpose(0, 1)
        assert by_memory.is_contiguous()
    view = storage.layer_view(1)
    assert (view.pages, view.kv_heads, view.page_size, view.head_dim) == (5, 3, P, D)
    assert view.value.head_dim == D


@every_profile
@every_order
def test_what_was_appended_is_read_back_as_the_reference_stores_it(profile: str, order: PlaneOrder) -> None:
    storage, (k, v) = random_storage(profile, order), rows_of(7)
    storage.append(1, [0], [3], [7], k, v)
    for read in (storage.read_row(1, 0, 3, 10), storage.read_pages(1, [4, 0, 3], 3, 10)):
        for side, got, given_ in zip(Side, read, (k, v), strict=True):
            assert np.array_equal(got.double().numpy(), stored(profile, side, given_))
    assert torch.equal(storage.read_page(1, 3, 2)[1], storage.read_row(1, 0, 8, 10)[1])
    assert storage.read_row(1, 0, 3, 3)[0].shape == (0, 3, D)


@every_profile
@every_order
@given(start=st.integers(0, 3 * P), length=st.integers(0, 3 * P), layer=st.integers(0, 1))
@settings(max_examples=15)
def test_an_append_changes_the_mapped_slots_of_one_layer_and_no_other_byte(
    profile: str, order: PlaneOrder, start: int, length: int, layer: int
) -> None:
    length = min(length, 3 * P - start)
    storage = random_storage(profile, order)
    expected = [plane.clone() for plane in storage.planes()]
    rows = rows_of(length)
    view = storage.layer_view(layer)
    planes_of_a_layer = len(expected) // GEOMETRY.layers
    encoded = [part for side, x in zip((view.key, view.value), rows, strict=True) for part in side.encode(x)]
    for plane, part in zip(expected[layer * planes_of_a_layer :], encoded, strict=False):
        for token in range(length):
            block, offset = divmod(start + token, P)
            plane[[4, 0, 3][block], :, offset] = part[token]
    storage.append(layer, [0], [start], [length], *rows)
    assert same_bits(storage.planes(), expected)


@every_profile
@every_order
@given(pages=st.permutations(range(5)), columns=st.integers(0, P))
@settings(max_examples=15)
def test_a_copy_takes_exactly_its_columns_over_all_planes(
    profile: str, order: PlaneOrder, pages: list[int], columns: int
) -> None:
    storage = random_storage(profile, order)
    source, destination = pages[:2]
    storage.raw_write(source, columns, P, float("nan"))  # stale columns of the source must stay there
    expected = [plane.clone() for plane in storage.planes()]
    for plane in expected:
        plane[destination, :, :columns] = plane[source, :, :columns]
    storage.copy_columns(0, source, destination, columns)
    assert same_bits(storage.planes(), expected)


@every_profile
@every_order
@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_poison_reads_as_nan_or_huge_and_stays_in_its_columns(
    profile: str, order: PlaneOrder, value: float
) -> None:
    storage = random_storage(profile, order)
    before = [plane.clone() for plane in storage.planes()]
    storage.raw_write(3, 1, 3, value)
    for plane, was in zip(storage.planes(), before, strict=True):
        changed = (plane != was).any(dim=-1)
        assert bool(changed[3, :, 1:3].all()), "each plane alone is poisoned"
        changed[3, :, 1:3] = False
        assert not bool(changed.any())
    for side, read in zip(Side, storage.read_pages(1, [3], 1, 3), strict=True):
        four_bits = "e2m1" in {plane.element for plane in PROFILES[profile].planes if plane.side is side}
        assert bool(read.isnan().all() if value != value else (read >= (2688 if four_bits else 8e6)).all())


@pytest.mark.parametrize("profile", QUANTISED)
@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_each_plane_of_poison_alone_is_wrong(profile: str, value: float) -> None:
    """A copy that forgets codes, or scales, leaves poison behind: neither half may read as a small number."""
    storage = random_storage(profile, PlaneOrder.PAGE_MAJOR)
    for forgotten in range(len(PROFILES[profile].planes)):
        storage.append(0, [0], [0], [1], *rows_of(1, seed=3))
        kept = [plane.clone() for plane in storage.planes()]
        due = storage.read_row(0, 0, 0, 1)
        storage.raw_write(4, 0, 1, value)
        for index, plane in enumerate(storage.planes()):
            if index != forgotten:
                plane.copy_(kept[index])
        side = 0 if PROFILES[profile].planes[forgotten].side is Side.KEY else 1
        got = storage.read_row(0, 0, 0, 1)[side]
        # Every element but those that carry the poison's own code already.
        assert float((got != due[side]).float().mean()) > 0.8


@pytest.mark.parametrize("profile", QUANTISED)
def test_a_head_dimension_that_groups_do_not_divide_is_refused(profile: str) -> None:
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    with pytest.raises(BadArgument, match="groups of"):
        TorchStorage(PROFILES[profile], Geometry(1, 1, 8), 1, 4, 1, 1)


@every_order
def test_a_batch_that_does_not_fit_writes_nothing(order: PlaneOrder) -> None:
    storage = random_storage("K8V4", order)
    before = [plane.clone() for plane in storage.planes()]
    with pytest.raises(BadArgument, match="shape"):
        storage.append(0, [0], [0], [2], rows_of(2)[0], rows_of(2)[1][..., :128])
    with pytest.raises(BadArgument, match="hole"):
        storage.append(0, [0], [3 * P], [1], *rows_of(1))
    assert same_bits(storage.planes(), before)
