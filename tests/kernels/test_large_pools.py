"""Pools of more than 2³¹ elements, of which only the pages in use are ever touched, so that they cost no memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("backend")]

HEADS, P, D = 2, 64, 256
PAGES = 2**31 // (HEADS * P * D) + 2


def huge_view(pages_of_row: list[int], head_major: bool) -> Any:
    """Return a view whose keys and values are the same INT8 planes, a little over 2³¹ codes, not initialised."""
    from kvcrucible.engine.kernels.codec import GroupCodec
    from kvcrucible.engine.kernels.view import LayerView, SideView

    def plane(stored: int, dtype: Any) -> Any:
        if head_major:
            return torch.empty((HEADS, PAGES, P, stored), dtype=dtype).transpose(0, 1)
        return torch.empty((PAGES, HEADS, P, stored), dtype=dtype)

    side = SideView(plane(D, torch.int8), plane(D // 64, torch.float16), GroupCodec("int8", "float16", 64))
    assert side.codes.numel() > 2**31
    return LayerView(side, side, torch.tensor([pages_of_row], dtype=torch.int32))


@pytest.mark.parametrize("head_major", [False, True])
def test_the_last_page_is_written_copied_and_read_and_the_first_is_left_alone(head_major: bool) -> None:
    from kvcrucible.engine.kernels.api import append, copy_columns, paged_attention
    from kvcrucible.engine.kernels.blocks import PageCopy

    try:
        view = huge_view([PAGES - 1], head_major)
    except RuntimeError:
        pytest.skip("this machine does not promise two gigabytes of address space")
    planes = view.key.tensors()
    for plane in planes:
        plane[0], plane[PAGES - 1], plane[PAGES - 2] = 1, 1, 1
    rows = torch.full((3, HEADS, D), 5.0)
    append(view, [0], [2], [3], rows, rows)
    copy_columns(planes, [PageCopy(PAGES - 1, PAGES - 2, 5)])
    for plane in planes:
        assert bool((plane[0] == 1).all())
        assert torch.equal(plane[PAGES - 2, :, :5], plane[PAGES - 1, :, :5])
        assert bool((plane[PAGES - 1, :, 5:] == 1).all())
    codes, scales = (plane[PAGES - 1, :, 2:5] for plane in planes)
    # Keys and values are one plane: a query of zeros weighs all five positions alike.
    out, _ = paged_attention(torch.zeros(1, HEADS, D), view, [0], [1], [5])
    mean = (2 * 1 + 3 * float(codes[0, 0, 0]) * float(scales[0, 0, 0])) / 5
    assert torch.allclose(out, torch.full_like(out, mean), rtol=1e-5)
