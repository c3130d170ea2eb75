"""What the accounting model's books hold: pages with their replicas, extents of the host arena, transfers (0013).

Plain objects that are themselves and have no numbers.  Nothing here counts: what is leased or used follows from which
of them somebody holds (:mod:`kvcrucible.reference.books`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kvcrucible.contract.quick import quick
from kvcrucible.contract.snapshot import Tier

#: Units that have touched a physical page; it is at rest once none of them is outstanding.
Fence: TypeAlias = frozenset[int]

AT_REST: Fence = frozenset()


@dataclass(frozen=True, eq=False, slots=True)
class Extent:
    """One extent of the host arena: whole aligned bytes for pages of one pool; it is there while one of them is."""

    pool: int
    size_bytes: int


@dataclass(eq=False, slots=True)
class Page:
    """One logical page.

    ``device``: it has a Device page, and ``host`` the extent in which it has a slot; one of the two is ``visible``, the
    other, where it is there, a clean copy.  ``version`` rises with each cut inside.  ``touched``: the units that have
    touched its Device page.
    """

    device: bool = True
    host: Extent | None = None
    visible: Tier = Tier.DEVICE
    version: int = 0
    touched: Fence = AT_REST

    def has(self, tier: Tier) -> bool:
        """Whether it has a replica there."""
        return self.device if tier is Tier.DEVICE else self.host is not None

    def copy(self) -> Page:
        """Return another page that is as this one is now."""
        return Page(self.device, self.host, self.visible, self.version, self.touched)


@quick
@dataclass(frozen=True, slots=True)
class Move:
    """One page of a transfer, with its ``version`` and committed ``columns`` when the transfer began.

    ``fresh``: the destination is the transfer's own, a Device page or a slot in ``extent``; else the page had a clean
    copy there, and nothing is copied.
    """

    page: Page
    pool: int
    fresh: bool
    extent: Extent | None
    version: int
    columns: int


@quick
@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer under way, from ``source`` to the other tier; it holds its pages as a sequence does."""

    continuation: int
    source: Tier
    keep: bool
    moves: tuple[Move, ...]
    cancelled: bool = False

    def holds(self, page: Page) -> bool:
        """Whether the page is one of its own."""
        return any(move.page is page for move in self.moves)
