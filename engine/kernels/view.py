"""What a kernel is given: one layer's planes and the block tables, owned by others (DESIGN 2, 4.11)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcrucible.engine.kernels.codec import GroupCodec


@dataclass(frozen=True, slots=True, eq=False)
class SideView:
    """Non-owning view of the keys or the values of one layer.

    ``codes``: ``[page, kv_head, offset, stored]``.  Without a codec these are the numbers, float32 or bfloat16, D of
    them; with one they are its codes, D int8 or uint8, or D / 2 bytes where two share one.
    ``scales``: ``[page, kv_head, offset, D / group]`` with a codec, else None.

    The axes are in this order whatever the plane order: a head-major plane is the same view with other strides, so a
    kernel takes strides from the tensor and never assumes that it is contiguous.
    """

    codes: Tensor
    scales: Tensor | None = None
    codec: GroupCodec | None = None

    @property
    def head_dim(self) -> int:
        """Elements of one head's row."""
        stored = int(self.codes.shape[3])
        return 2 * stored if self.codec is not None and self.codec.packed else stored

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the planes of this side, codes first."""
        return (self.codes,) if self.scales is None else (self.codes, self.scales)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return what is stored for ``rows [..., D]``, float32 or bfloat16: one tensor for each plane."""
        return (rows.to(self.codes.dtype),) if self.codec is None else self.codec.encode(rows)

    def decode(self, *stored: Tensor) -> Tensor:
        """Return the numbers ``[..., D]`` in a part of each plane: the planes' own dtype, or float32 of a codec."""
        return stored[0] if self.codec is None else self.codec.decode(*stored)


@dataclass(frozen=True, slots=True, eq=False)
class LayerView:
    """Non-owning view of one layer of one pool.

    ``key``, ``value``: the two sides; they may be stored in different formats, but share pages, heads and D.
    ``block_tables``: ``[row, logical_block]``, int32, −1 where nothing is mapped.  The tensors are the
    storage's own: what is appended through the view is visible in the storage at once, and the view must not
    outlive it.  ``backend``: the kernels that the owner asked for, by name; None is the best that works.
    """

    key: SideView
    value: SideView
    block_tables: Tensor
    backend: str | None = None

    @property
    def device(self) -> torch.device:
        """Where the planes are."""
        return self.key.codes.device

    @property
    def pages(self) -> int:
        """Number of pages that the planes hold."""
        return int(self.key.codes.shape[0])

    @property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return int(self.key.codes.shape[1])

    @property
    def page_size(self) -> int:
        """Tokens per page, a power of two."""
        return int(self.key.codes.shape[2])

    @property
    def head_dim(self) -> int:
        """Elements of one head's row."""
        return self.key.head_dim
