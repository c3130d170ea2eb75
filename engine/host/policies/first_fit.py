"""First fit: the lowest hole that is large enough."""

from __future__ import annotations

from kvcrucible.engine.host.policies.by_address import HolesByAddress


class FirstFit(HolesByAddress):
    """Fills from the bottom, which keeps the top in one piece.  Linear in the holes below the one that it takes."""

    def choose(self, size: int) -> int | None:
        """Return the lowest hole of at least ``size``."""
        return self.first_between(0, len(self.starts), size)

    def placed(self, stop: int) -> None:
        """Nothing to learn: the search always starts at the bottom."""
