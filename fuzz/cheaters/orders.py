"""Honest engines: ours, which grants free pages in another order.  A judge that minds has an opinion too many."""

from __future__ import annotations

import random
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.errors import InputError
from kvcrucible.engine.free_pages import FreePages
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.streams import UnitFences
from kvcrucible.fuzz.adapters.paged import PagedAdapter
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.fuzz.setting import Depth, Setting


class FirstInFirstOut:
    """The page that has been free for longest goes first."""

    def __init__(self, capacity_pages: int) -> None:
        self._pages = deque(range(capacity_pages))

    def take(self, pages: int) -> list[int]:
        """Remove the pages that were put first."""
        return [self._pages.popleft() for _ in range(pages)]

    def put(self, pages: Iterable[int]) -> None:
        """Add pages behind all others."""
        self._pages.extend(pages)

    def remove(self, pages: Collection[int]) -> None:
        """Remove pages, wherever they are."""
        self._pages = deque(page for page in self._pages if page not in pages)

    def __iter__(self) -> Iterator[int]:
        """Yield all pages, the next to go first."""
        return iter(self._pages)


class AnyOrder:
    """Any page goes, drawn by a fixed seed."""

    def __init__(self, capacity_pages: int) -> None:
        self._pages = list(range(capacity_pages))
        self._random = random.Random(capacity_pages)

    def take(self, pages: int) -> list[int]:
        """Remove pages at random."""
        taken = self._random.sample(self._pages, pages)
        self.remove(set(taken))
        return taken

    def put(self, pages: Iterable[int]) -> None:
        """Add pages."""
        self._pages.extend(pages)

    def remove(self, pages: Collection[int]) -> None:
        """Remove pages."""
        self._pages = [page for page in self._pages if page not in pages]

    def __iter__(self) -> Iterator[int]:
        """Yield all pages."""
        return iter(self._pages)


class LowestFirst:
    """The page with the lowest id goes first."""

    def __init__(self, capacity_pages: int) -> None:
        self._pages = list(range(capacity_pages))

    def take(self, pages: int) -> list[int]:
        """Remove the lowest pages."""
        taken = self._pages[:pages]
        del self._pages[:pages]
        return taken

    def put(self, pages: Iterable[int]) -> None:
        """Add pages, each in its place."""
        for page in pages:
            insort(self._pages, page)

    def remove(self, pages: Collection[int]) -> None:
        """Remove pages."""
        self._pages = [page for page in self._pages if page not in pages]

    def __iter__(self) -> Iterator[int]:
        """Yield all pages in order."""
        return iter(self._pages)


#: Honest engines by name: what each grants free pages by.
ORDERS: dict[str, Callable[[int], FreePages]] = {
    "honest-fifo": FirstInFirstOut,
    "honest-random": AnyOrder,
    "honest-sorted": LowestFirst,
}


def honest(setting: Setting) -> EngineAdapter:
    """Return the honest engine that a setting names; raises ``InputError`` at payload depth, where there is none."""
    if setting.depth is not Depth.LEDGER:
        raise InputError(f"{setting.engine} exists at ledger depth alone; use --depth ledger")
    order = ORDERS[setting.engine]

    def pool(spec: PoolSpec, fences: UnitFences) -> PagePool:
        return PagePool(spec, fences, order(spec.capacity_pages))

    return PagedAdapter(setting, pool=pool)
