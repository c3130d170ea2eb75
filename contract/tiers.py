"""The two places where a replica of a page can live (DESIGN 4.4)."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Where a replica of a page lives (DESIGN 4.4)."""

    DEVICE = "device"
    HOST = "host"

    @property
    def other(self) -> Tier:
        """The tier at the other end of a transfer."""
        return Tier.HOST if self is Tier.DEVICE else Tier.DEVICE
