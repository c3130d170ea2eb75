"""The replicas of a logical page: which there are, which are valid, which one is visible (DESIGN 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host.slots import HostSlot
from kvcrucible.engine.pool import Lease

Place: TypeAlias = Lease | HostSlot
"""What a replica occupies: a lease on the device, a slot on the host."""


@dataclass(slots=True)
class Replica:
    """One copy of a page: what it occupies, and the epoch and the columns that it has.

    ``pins`` counts the transfers that read or write it; a pinned replica stays where it is.
    """

    place: Place
    epoch: int
    coverage: int
    pins: int = 0


class Replicas:
    """At most one replica in each tier; exactly one is visible, from the first to the last moment of the page."""

    __slots__ = ("_held", "visible")

    def __init__(self, tier: Tier, replica: Replica) -> None:
        self._held = {tier: replica}
        self.visible = tier

    def at(self, tier: Tier) -> Replica | None:
        """Return the replica in ``tier``, None where there is none."""
        return self._held.get(tier)

    def get(self, tier: Tier) -> Replica:
        """Return the replica in ``tier``, which exists."""
        return self._held[tier]

    @property
    def shown(self) -> Replica:
        """The visible replica."""
        return self._held[self.visible]

    @property
    def hidden(self) -> Replica | None:
        """The replica that is not visible, None where there is none."""
        return self._held.get(self.visible.other)

    def attach(self, tier: Tier, replica: Replica) -> None:
        """Add a hidden replica where there is none.  Mutates."""
        assert tier not in self._held, f"there is a {tier.value} replica already"
        self._held[tier] = replica

    def detach(self, tier: Tier) -> Replica:
        """Remove the hidden, unpinned replica of ``tier`` and return it; its place is the caller's to free."""
        assert tier is not self.visible, "the visible replica cannot go"
        assert not self._held[tier].pins, "a pinned replica cannot go"
        return self._held.pop(tier)

    def end(self) -> list[tuple[Tier, Replica]]:
        """Return every replica, at the end of the page; none is pinned and the places are the caller's to free."""
        assert not any(replica.pins for replica in self._held.values()), "a pinned replica cannot go"
        return list(self._held.items())


class ReplicatedPage(Protocol):
    """A logical page as transfers see it.  ``epoch`` and ``committed`` are what its content is *now*."""

    @property
    def page(self) -> int:
        """Identity of the page, never reused."""

    @property
    def epoch(self) -> int:
        """Rises when committed columns are taken back."""

    @property
    def committed(self) -> int:
        """Committed columns."""

    @property
    def replicas(self) -> Replicas:
        """Its replicas."""


def is_valid(page: ReplicatedPage, replica: Replica) -> bool:
    """Tell whether the replica holds all that is committed: same epoch, enough columns."""
    return replica.epoch == page.epoch and replica.coverage >= page.committed


def note_change(page: ReplicatedPage) -> Replica | None:
    """Bring the visible replica up to date after a committed write or a cut, which happened in its place.

    Returns the hidden replica where that made it invalid and nothing pins it; it is detached, and its place is the
    caller's to free.  A pinned one stays: its transfer finds out and ends it.  Mutates.
    """
    shown = page.replicas.shown
    shown.epoch, shown.coverage = page.epoch, page.committed
    hidden = page.replicas.hidden
    if hidden is None or hidden.pins or is_valid(page, hidden):
        return None
    return page.replicas.detach(page.replicas.visible.other)
