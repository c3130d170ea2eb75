"""What the arena asks of a placement policy."""

from __future__ import annotations

from typing import Protocol


class PlacementPolicy(Protocol):
    """Keeps the holes in the order that suits it and picks one.

    The arena alone makes holes and joins neighbours; a policy only mirrors them.  Two promises make refusals the same
    under every policy and dry runs exact: :meth:`choose` finds a hole whenever one is large enough, and the state is a
    function of the set of holes and the cursor, never of the order in which holes came and went.  All sizes and
    positions are bytes.
    """

    def add(self, start: int, size: int) -> None:
        """Note a new hole ``[start, start + size)``; it touches no other hole.  Mutates."""

    def remove(self, start: int, size: int) -> None:
        """Forget a hole that was added.  Mutates."""

    def choose(self, size: int) -> int | None:
        """Return the start of a hole of at least ``size``, None where there is none.  Mutates nothing."""

    def placed(self, stop: int) -> None:
        """Learn that an extent was placed which ends at ``stop``.  Mutates the cursor where there is one."""

    @property
    def cursor(self) -> int:
        """What the policy remembers beside the holes; 0 where that is nothing.  Settable."""

    @cursor.setter
    def cursor(self, value: int) -> None: ...
