"""Allocates a profile's planes as torch tensors, in either plane order (DESIGN 4.1, 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import (
    BITS_PER_BYTE,
    ELEMENT_BITS,
    Geometry,
    Plane,
    PlaneOrder,
    Role,
    Side,
    StorageProfile,
)
from kvcrucible.engine.kernels.codec import GroupCodec
from kvcrucible.engine.kernels.view import SideView

#: Formats that planes of numbers may have, by the name that profiles use.
NUMBERS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

#: What holds the elements of a plane.  Small floats are patterns in uint8: torch cannot index its own 8-bit floats
#: everywhere, and has no 4-bit one that could be.
DTYPES = NUMBERS | {
    "float16": torch.float16,
    "int8": torch.int8,
    "e4m3fn": torch.uint8,
    "e2m1": torch.uint8,
}


def allocate_side(
    profile: StorageProfile,
    side: Side,
    geometry: Geometry,
    capacity_pages: int,
    page_size: int,
    order: PlaneOrder,
    device: str | torch.device,
) -> SideView:
    """Return zeroed planes of one side of one layer, a new view of tensors that only it refers to.

    Raises ``BadArgument`` for a profile that is neither plain numbers nor codes with scales of a known codec, or
    whose groups do not divide the head dimension.
    """
    code, scale = profile.plane(side, Role.CODE), profile.plane(side, Role.SCALE)
    assert code is not None, f"{profile.name} has no codes on side {side}"
    known = code.element in NUMBERS if scale is None else code.element not in NUMBERS
    if not known:
        raise BadArgument(
            f"profile {profile.name} in torch planes",
            f"plain {', '.join(NUMBERS)}, or codes with scales, are stored",
            "use a profile of the contract",
        )

    def plane(kind: Plane) -> Tensor:
        bits = ELEMENT_BITS[kind.element]
        stored = kind.elements_per_row(geometry.head_dim) * bits // max(bits, BITS_PER_BYTE)
        return _zeros(
            (capacity_pages, geometry.kv_heads, page_size, stored), DTYPES[kind.element], order, device
        )

    if scale is None:
        return SideView(plane(code))
    codec = GroupCodec(code.element, scale.element, scale.group)
    return SideView(plane(code), plane(scale), codec)


def _zeros(
    shape: tuple[int, int, int, int], dtype: torch.dtype, order: PlaneOrder, device: str | torch.device
) -> Tensor:
    """Return zeros seen as ``[page, head, offset, stored]`` that lie in memory in the order given."""
    if order is PlaneOrder.PAGE_MAJOR:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages, heads, offsets, stored = shape
    return torch.zeros((heads, pages, offsets, stored), dtype=dtype, device=device).transpose(0, 1)
