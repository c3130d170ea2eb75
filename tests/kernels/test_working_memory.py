"""Attention's working memory does not grow with the context (DESIGN 4.11)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

from kvcrucible.contract.profiles import PROFILES, PlaneOrder

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("backend")]


class Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that operators make: the largest, and the most alive at one moment.

    A view counts as if it were a copy, so the figures may overstate; what an in-place operator returns counts once.
    """

    def __init__(self, *known: Any) -> None:
        super().__init__()
        self.largest = self.alive = self.peak = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self._counted:
                self._count(tensor)
        return result

    def _count(self, tensor: Any) -> None:
        if tensor.untyped_storage().data_ptr() in self._known:
            return
        size = tensor.numel() * tensor.element_size()
        self._counted.add(id(tensor))
        self.alive += size
        self.largest, self.peak = max(self.largest, size), max(self.peak, self.alive)
        weakref.finalize(tensor, self._gone, id(tensor), size)

    def _gone(self, identity: int, size: int) -> None:
        self._counted.discard(identity)
        self.alive -= size


def measure(batch: Any, attend: Callable[[Any], Any]) -> tuple[int, int]:
    view = batch.storage.layer_view(0)
    with Allocations(*view.key.tensors(), *view.value.tensors(), view.block_tables) as seen:
        attend(batch)
    return seen.largest, seen.peak


def kernel(batch: Any) -> Any:
    return batch.run()


def gathering(batch: Any) -> Any:
    """What the kernel must not do: bring the whole context together first."""
    view = batch.storage.layer_view(0)
    return view.key.codes[view.block_tables[0].long()].flatten().sum()


def hoarding(batch: Any) -> Any:
    """The same in instalments: every tile is small, and none is let go."""
    view = batch.storage.layer_view(0)
    return [view.key.codes[page] * 2 for page in view.block_tables[0].tolist()]


@pytest.mark.parametrize("order", PlaneOrder)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("queries", [1, 7])
def test_four_pages_and_sixty_four_take_the_same(
    make_batch: Callable[..., Any], queries: int, profile: str, order: PlaneOrder
) -> None:
    short, long = (
        make_batch([16 * pages, 5], [queries, 1], 16, 1, 2, 256, profile=profile, plane_order=order.value)
        for pages in (4, 64)
    )
    assert measure(short, kernel) == measure(long, kernel)


def test_the_measure_sees_a_gather_and_a_hoard(make_batch: Callable[..., Any]) -> None:
    short, long = (make_batch([16 * pages], [1], page_size=16) for pages in (4, 64))
    assert measure(long, gathering)[0] > 10 * measure(short, gathering)[0]
    assert measure(long, hoarding)[0] == measure(short, hoarding)[0]
    assert measure(long, hoarding)[1] > 10 * measure(short, hoarding)[1]
