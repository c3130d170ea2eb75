"""Which of the pages that nobody leases is granted next: the one choice of a pool on which nothing may depend.

Page ids may be handed out in any order (DESIGN 4.1), so the order is a part that can be exchanged: a pool asks for it
and never looks behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol


class FreePages(Protocol):
    """The unleased pages of one pool, each at most once; it owns no page and counts nothing."""

    def take(self, pages: int) -> list[int]:
        """Remove ``pages`` pages and return them, first to be granted first; there are as many.  Mutates."""

    def put(self, pages: Iterable[int]) -> None:
        """Add pages that are not there.  Mutates."""

    def remove(self, pages: Collection[int]) -> None:
        """Remove pages that are there.  Mutates."""

    def __iter__(self) -> Iterator[int]:
        """Yield all pages, in any order."""


class LastInFirstOut:
    """A page is granted again at once, which makes a stale handle show itself soon.  Begins with pages 0, 1, 2 …"""

    __slots__ = ("_pages",)

    def __init__(self, capacity_pages: int) -> None:
        self._pages = list(range(capacity_pages - 1, -1, -1))

    def take(self, pages: int) -> list[int]:
        """Remove the pages that were put last."""
        rest = len(self._pages) - pages
        taken = self._pages[rest:][::-1]
        del self._pages[rest:]
        return taken

    def put(self, pages: Iterable[int]) -> None:
        """Add pages; the last of them is taken first."""
        self._pages.extend(pages)

    def remove(self, pages: Collection[int]) -> None:
        """Remove pages, wherever they are; linear in what there is."""
        self._pages = [page for page in self._pages if page not in pages]

    def __iter__(self) -> Iterator[int]:
        """Yield all pages, the longest unused first."""
        return iter(self._pages)
