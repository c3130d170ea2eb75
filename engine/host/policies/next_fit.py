"""Next fit: first fit that goes on where it left off."""

from __future__ import annotations

from bisect import bisect_left

from kvcrucible.engine.host.policies.by_address import HolesByAddress


class NextFit(HolesByAddress):
    """Searches from the end of the last extent that was placed, once round.

    Short searches, and holes that are spread over the whole arena.
    """

    def choose(self, size: int) -> int | None:
        """Return the first hole of at least ``size`` from the cursor on, else the first one from the bottom."""
        here = bisect_left(self.starts, self.cursor)
        after = self.first_between(here, len(self.starts), size)
        return after if after is not None else self.first_between(0, here, size)

    def placed(self, stop: int) -> None:
        """Go on from ``stop`` next time."""
        self.cursor = stop
