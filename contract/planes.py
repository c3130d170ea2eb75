"""What a typed pool declares about its planes, and why planes are refused (DESIGN 3, 4.1, decision 0011).

All planes of a pool share one page-group id, so they have to agree in what a page is, how far it is written and when it
ends.  A state that does not (one state per sequence, say, whatever its length) belongs into a pool of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import Geometry, PlaneOrder, StorageProfile

MAIN = "main"

#: The speculative backends, of which an engine has at most one.
BACKENDS: tuple[str, ...] = ("mtp", "draft")

#: Backends that may run ahead of Main inside a unit; any other only catches up with it (DESIGN 4.8, decision 0023).
LEADING: frozenset[str] = frozenset({"mtp"})

#: Every kind of pool with the order of its planes; there is no other (DESIGN 4.1).
ORDERS: dict[str, PlaneOrder] = {
    MAIN: PlaneOrder.PAGE_MAJOR,
    "mtp": PlaneOrder.PAGE_MAJOR,
    "draft": PlaneOrder.HEAD_MAJOR,
}


class Lifetime(StrEnum):
    """When what a plane holds ends."""

    #: With the page: a column for every position.  What every pool here holds.
    PAGE = "page"
    #: With the sequence: one state, whatever the number of positions.
    SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True)
class PlaneSpec:
    """The planes of one profile over ``geometry``, as a pool declares them.

    ``page_size``: tokens in a page.  ``frontier``: the kind of pool whose committed frontier says how far they are
    written.  ``order``: their slowest axis.  Raises ``BadArgument`` where the profile's groups do not divide the head
    dimension.
    """

    profile: StorageProfile
    geometry: Geometry
    page_size: int
    frontier: str = MAIN
    lifetime: Lifetime = Lifetime.PAGE
    order: PlaneOrder = PlaneOrder.PAGE_MAJOR

    def __post_init__(self) -> None:
        self.profile.check_head_dim(self.geometry.head_dim)

    def require_fit(self, pool: str, page_size: int) -> None:
        """Raise ``BadArgument`` unless the planes can live in a pool of this kind and page size."""
        for what, mine, due in (
            ("pages of other size", self.page_size, page_size),
            ("another frontier", self.frontier, pool),
            ("another lifetime", self.lifetime, Lifetime.PAGE),
            ("another order", self.order, ORDERS[pool]),
        ):
            if mine != due:
                raise BadArgument(
                    f"{self.profile.name} planes with {what} in pool {pool}",
                    f"{mine}, where the pool has {due}",
                    "put them into a pool of their own, or let them follow this one",
                )
