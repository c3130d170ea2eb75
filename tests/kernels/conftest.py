"""Ragged batches over a paged storage, with the oracle's answer beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

#: A kernel's tile is a page, or this many tokens of a larger one; the budget grows with the number of tiles.
MOST_TILE_TOKENS = 64


@dataclass
class Batch:
    """A storage filled through its tables, every byte that no row owns set to ``poison``, and queries over it.

    Entry i of ``contexts`` and ``queries`` is row i.  ``order`` lists page ids in the order in which rows take them;
    it must hold enough of them.  The same seed gives the same keys, values and queries whatever the order.
    """

    contexts: list[int]
    queries: list[int]
    page_size: int = 4
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 8
    profile: str = "FP32"
    plane_order: str = "page-major"
    output: str = "float32"
    seed: int = 0
    poison: float = float("nan")
    order: list[int] | None = None
    capacity: int | None = None
    storage: Any = field(init=False)
    q: Any = field(init=False)
    sequences: list[tuple[Any, Any]] = field(init=False)

    def __post_init__(self) -> None:
        import torch

        from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder, Side
        from kvcrucible.engine.storage.torch_storage import TorchStorage
        from kvcrucible.reference.codecs import storing

        blocks = [-(-context // self.page_size) for context in self.contexts]
        order = list(range(sum(blocks))) if self.order is None else self.order
        capacity = self.capacity or max([*order, 0]) + 2
        geometry = Geometry(1, self.kv_heads, self.head_dim)
        rows, width = max(1, len(self.contexts)), max([1, *blocks])
        profile, plane_order = PROFILES[self.profile], PlaneOrder(self.plane_order)
        self.storage = TorchStorage(
            profile, geometry, capacity, self.page_size, rows, width, order=plane_order
        )
        for page in range(capacity):
            self.storage.raw_write(page, 0, self.page_size, self.poison)
        draw = torch.Generator().manual_seed(self.seed)
        self.sequences = []
        taken = iter(order)
        for row, context in enumerate(self.contexts):
            self.storage.write_table(row, 0, [next(taken) for _ in range(blocks[row])])
            k, v = torch.randn((2, context, self.kv_heads, self.head_dim), generator=draw) * 3
            self.storage.append(0, [row], [0], [context], k, v)
            sides = zip(Side, (k, v), strict=True)
            self.sequences.append(tuple(storing(profile, side)(x.double().numpy()) for side, x in sides))
        shape = (sum(self.queries), self.kv_heads * self.group, self.head_dim)
        self.q = torch.randn(shape, generator=draw).to(getattr(torch, self.output))

    def run(self, **options: Any) -> tuple[Any, Any]:
        """Return the kernel's ``out`` and ``lse`` as tensors."""
        from kvcrucible.engine.kernels.api import paged_attention

        rows = list(range(len(self.contexts)))
        return paged_attention(
            self.q, self.storage.layer_view(0), rows, self.queries, self.contexts, **options
        )

    def misfit(self, out: Any, lse: Any, causal: bool = True) -> list[int]:
        """Return the rows whose lines of ``out`` and ``lse`` are outside the oracle's error budget."""
        import numpy as np

        from kvcrucible.reference.attention import attention, error_budget

        bad, line = [], 0
        for row, (context, queries) in enumerate(zip(self.contexts, self.queries, strict=True)):
            lines = slice(line, line + queries)
            line += queries
            positions = np.arange(context - queries, context) if causal else np.full(queries, context - 1)
            oracle = attention(
                self.q[lines].double().numpy(), *self.sequences[row], np.maximum(positions, -1)
            )
            budget = error_budget(oracle, min(self.page_size, MOST_TILE_TOKENS), self.output)
            if not budget.admits(oracle, out[lines].double().numpy(), lse[lines].double().numpy()):
                bad.append(row)
        return bad


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """Return the maker of batches."""
    pytest.importorskip("torch")
    return Batch
