"""Append writes the mapped slots of its batch and not one byte more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("backend")]

P = 4


def storage_with_rows(profile: str = "FP32") -> Any:
    """Return two layers of random bytes; row 0 owns pages 5, 0, 3 and row 1 page 2, with pages 1 and 4 free."""
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    storage = TorchStorage(PROFILES[profile], Geometry(2, 2, 3), 6, P, 2, 4)
    draw = torch.Generator().manual_seed(1)
    for plane in storage.planes():
        plane.copy_(torch.randn(plane.shape, generator=draw))
    storage.write_table(0, 0, [5, 0, 3])
    storage.write_table(1, 0, [2])
    return storage


def rows_of(tokens: int, seed: int = 2) -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(seed)
    k, v = torch.randn((2, tokens, 2, 3), generator=draw)
    return k, v


@pytest.mark.parametrize("profile", ["FP32", "BF16"])
@given(
    start=st.integers(0, 3 * P),
    length=st.integers(0, 3 * P),
    other=st.integers(0, P),
    layer=st.integers(0, 1),
)
@settings(max_examples=40)
def test_only_the_mapped_slots_of_one_layer_change(
    profile: str, start: int, length: int, other: int, layer: int
) -> None:
    length = min(length, 3 * P - start)
    storage = storage_with_rows(profile)
    expected = [plane.clone() for plane in storage.planes()]
    k, v = rows_of(length + other)
    tables, token = [[5, 0, 3], [2]], 0
    for row, first, count in ((0, start, length), (1, 0, other)):
        for position in range(first, first + count):
            page, offset = tables[row][position // P], position % P
            expected[2 * layer][page, :, offset] = k[token]
            expected[2 * layer + 1][page, :, offset] = v[token]
            token += 1
    storage.append(layer, [0, 1], [start, 0], [length, other], k, v)
    for plane, want in zip(storage.planes(), expected, strict=True):
        assert torch.equal(plane, want)


def test_what_was_appended_is_read_back_by_row_and_by_pages() -> None:
    storage, (k, v) = storage_with_rows(), rows_of(7)
    storage.append(1, [0], [3], [7], k, v)
    for read_k, read_v in (storage.read_row(1, 0, 3, 10), storage.read_pages(1, [5, 0, 3], 3, 10)):
        assert torch.equal(read_k, k)
        assert torch.equal(read_v, v)
    assert torch.equal(storage.read_page(1, 3, 2)[0], k[5:])
    assert storage.read_row(1, 0, 3, 3)[0].shape == (0, 2, 3)


def test_bfloat16_planes_round_to_nearest_even_as_the_reference_does() -> None:
    from kvcrucible.reference.rounding import ROUNDING

    storage, (k, v) = storage_with_rows("BF16"), rows_of(12)
    k[0, 0] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38])
    storage.append(0, [0], [0], [12], k, v)
    stored = storage.read_row(0, 0, 0, 12)
    assert stored[0][0, 0].tolist() == [1.0, 1 + 2**-6, float("inf")]
    for read, given_ in zip(stored, (k, v), strict=True):
        assert (read.double().numpy() == ROUNDING["BF16"](given_.double().numpy())).all()


def widened_wrongly(backend: str | None) -> list[int]:
    """Return the bfloat16 patterns, of all but NaN, that become another number in a plane of float32."""
    from kvcrucible.engine.kernels import api
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    rows = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).view(256, 2, 128)
    storage = TorchStorage(PROFILES["FP32"], Geometry(1, 2, 128), 4, 64, 1, 4)
    storage.write_table(0, 0, [2, 0, 3, 1])
    api.append(storage.layer_view(0), [0], [0], [256], rows, rows, backend=backend)
    # The upper half of the float32 that equals it is the bfloat16 itself.
    exact = rows.view(torch.int16).to(torch.int32) << 16
    found = [read.contiguous().view(torch.int32) for read in storage.read_row(0, 0, 0, 256)]
    wrong = ((found[0] != exact) | (found[1] != exact)) & ~rows.isnan()
    return rows.view(torch.int16)[wrong].tolist()


def test_every_bfloat16_number_is_widened_exactly() -> None:
    assert widened_wrongly(None) == []


def test_appended_tensors_leave_no_graph_behind() -> None:
    storage, (k, v) = storage_with_rows(), rows_of(1)
    storage.append(0, [0], [0], [1], k.requires_grad_(), v)
    assert not any(plane.requires_grad for plane in storage.planes())


@pytest.mark.parametrize(
    ("rows", "starts", "lengths", "says"),
    [
        ([0, 1], [0, 3], [1, 2], "hole"),
        ([0, 1], [0, 14], [1, 3], "blocks"),
        ([0, 2], [0, 0], [1, 1], "rows 0 to 1"),
        ([0, -1], [0, 0], [1, 1], "rows 0 to 1"),
        ([0, 1], [0, -1], [1, 1], "negative"),
        ([0, 0], [4, 6], [3, 1], "one slot"),
        ([0], [0, 1], [1, 1], "one entry a row"),
    ],
)
def test_a_batch_that_does_not_fit_writes_nothing(
    rows: list[int], starts: list[int], lengths: list[int], says: str
) -> None:
    storage = storage_with_rows()
    before = [plane.clone() for plane in storage.planes()]
    with pytest.raises(BadArgument, match=says):
        storage.append(0, rows, starts, lengths, *rows_of(sum(lengths)))
    assert all(torch.equal(plane, want) for plane, want in zip(storage.planes(), before, strict=True))


@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize(
    "bad", [torch.ones(1, 2, 3), torch.ones(2, 2, 3, dtype=torch.float64), torch.ones(2, 3)]
)
def test_a_wrong_tensor_writes_nothing(which: str, bad: Any) -> None:
    storage = storage_with_rows()
    before = [plane.clone() for plane in storage.planes()]
    k, v = rows_of(2)
    with pytest.raises(BadArgument, match=f"{which} of"):
        storage.append(0, [0], [0], [2], **{"k": k, "v": v, which: bad})
    assert all(torch.equal(plane, want) for plane, want in zip(storage.planes(), before, strict=True))


def test_two_rows_that_share_a_page_may_not_append_to_one_slot() -> None:
    storage = storage_with_rows()
    storage.write_table(1, 0, [5])
    with pytest.raises(BadArgument, match="one slot"):
        storage.append(0, [0, 1], [1, 1], [1, 1], *rows_of(2))


def test_a_page_id_beyond_the_planes_is_refused() -> None:
    storage = storage_with_rows()
    storage.block_tables[1, 0] = 6
    with pytest.raises(BadArgument, match="page 6 mapped"):
        storage.append(0, [1], [0], [1], *rows_of(1))
