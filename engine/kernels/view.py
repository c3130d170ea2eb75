"""What a kernel is given: one layer's planes and the block tables, owned by others (DESIGN 2, 4.11)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LayerView:
    """Non-owning view of one layer of one pool, page-major.

    ``key``, ``value``: ``[page, kv_head, offset, dim]``, float32 or bfloat16, the same shape and dtype.
    ``block_tables``: ``[row, logical_block]``, int32, −1 where nothing is mapped.  The tensors are the
    storage's own: what is appended through the view is visible in the storage at once, and the view must not
    outlive it.
    """

    key: Tensor
    value: Tensor
    block_tables: Tensor

    @property
    def pages(self) -> int:
        """Number of pages that the planes hold."""
        return int(self.key.shape[0])

    @property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return int(self.key.shape[1])

    @property
    def page_size(self) -> int:
        """Tokens per page, a power of two."""
        return int(self.key.shape[2])

    @property
    def head_dim(self) -> int:
        """Elements of one head's row."""
        return int(self.key.shape[3])
