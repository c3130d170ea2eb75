"""Where the pages of retained continuations are, kept up to date as they move (DESIGN 4.4, 4.9).

Making room asks again and again who has a Device page, a copy to give up or a page in a transfer, and walks over the
answer in order of last use.  Each answer is linear in the pages of one continuation, so it is worked out once and
dropped when one of those pages has changed.  Two change where retained pages are, and say so: the Host tier, and the
room of an operation (:mod:`kvcrucible.engine.room`) as it gives up copies and takes them back.

Who owns what: nothing here owns a page.  An entry lasts from :meth:`Residency.add` to :meth:`Residency.remove`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.records import Continuation


@dataclass(frozen=True, slots=True)
class Places:
    """Where the pages of one continuation are: each list pool by pool in logical order.

    ``on_device``: pages that have a Device replica, visible or not.  ``device_copies`` and ``host_copies``: pages in no
    transfer that have a hidden copy in that tier.  ``in_transfer``: whether one of its pages is; ``away``: whether one
    of its pages is visible on Host.
    """

    on_device: tuple[LogicalPage, ...]
    device_copies: tuple[LogicalPage, ...]
    host_copies: tuple[LogicalPage, ...]
    in_transfer: bool
    away: bool

    def copies(self, tier: Tier) -> tuple[LogicalPage, ...]:
        """Return the pages that have a hidden copy in ``tier`` and are in no transfer."""
        return self.device_copies if tier is Tier.DEVICE else self.host_copies


class ByLastUse:
    """Some of the continuations, the least recently used first.  No two have the same last use."""

    __slots__ = ("_members", "_order")

    def __init__(self) -> None:
        self._order: list[int] = []
        self._members: dict[int, Continuation] = {}

    def __iter__(self) -> Iterator[Continuation]:
        """Yield them; whoever leaves meanwhile is left out, whoever comes is not seen."""
        members = self._members
        for use in tuple(self._order):
            kept = members.get(use)
            if kept is not None:
                yield kept

    def put(self, kept: Continuation, member: bool) -> None:
        """Take ``kept`` in, or see that it is out."""
        use = kept.last_use
        if member == (use in self._members):
            return
        if member:
            insort(self._order, use)
            self._members[use] = kept
        else:
            del self._order[bisect_left(self._order, use)]
            del self._members[use]


class Residency:
    """The places of every retained continuation of an engine with a Host tier, and orders over some of them.

    Whoever changes ``last_use`` of an entry removes it before and adds it after.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Continuation] = {}
        self._places: dict[int, Places] = {}
        #: Continuations of which a page has changed since their places were found.
        self._stale: set[int] = set()
        #: The continuations that retain a page.
        self._holders: dict[int, set[int]] = {}
        self._away: set[int] = set()
        self._yielding, self._on_host_alone = ByLastUse(), ByLastUse()
        self._with_copies = {tier: ByLastUse() for tier in Tier}

    # -- what changes --------------------------------------------------------------------------------------------------

    def add(self, kept: Continuation) -> None:
        """Learn that a continuation is retained.  Linear in its pages."""
        self._kept[kept.continuation] = kept
        self._stale.add(kept.continuation)
        for page in kept.pages():
            self._holders.setdefault(page.page, set()).add(kept.continuation)

    def remove(self, kept: Continuation) -> None:
        """Learn that it is retained no more, while it still has its pages.  Linear in them."""
        name = kept.continuation
        del self._kept[name]
        self._stale.discard(name)
        self._places.pop(name, None)
        self._away.discard(name)
        for order in (self._yielding, self._on_host_alone, *self._with_copies.values()):
            order.put(kept, False)
        for page in kept.pages():
            holders = self._holders[page.page]
            holders.remove(name)
            if not holders:
                del self._holders[page.page]

    def changed(self, pages: Iterable[LogicalPage]) -> None:
        """Learn that the replicas of ``pages`` have changed, or the transfer that has them."""
        for page in pages:
            holders = self._holders.get(page.page)
            if holders is not None:
                self._stale |= holders

    # -- what is asked -------------------------------------------------------------------------------------------------

    def of(self, kept: Continuation) -> Places:
        """Return where the pages of a retained continuation are now."""
        if kept.continuation in self._stale:
            self._stale.remove(kept.continuation)
            self._file(kept)
        return self._places[kept.continuation]

    @property
    def away(self) -> Set[int]:
        """Continuations of which a page is visible on Host."""
        self._refresh()
        return self._away

    def yielding(self) -> Iterator[Continuation]:
        """Yield, in order of last use, those whose release can free something on Device now: they have a Device page,
        and none in a transfer.

        What they have may be shared: it goes with the last of its holders, so each of them is among these, one that
        has sunk but for a common beginning too (decision 0020).
        """
        self._refresh()
        return iter(self._yielding)

    def on_host_alone(self) -> Iterator[Continuation]:
        """Yield, in order of last use, those without any Device page or page in a transfer."""
        self._refresh()
        return iter(self._on_host_alone)

    def with_copies(self, tier: Tier) -> Iterator[Continuation]:
        """Yield, in order of last use, those with a hidden copy in ``tier`` of a page in no transfer."""
        self._refresh()
        return iter(self._with_copies[tier])

    def retaining(self, page: LogicalPage) -> Set[int]:
        """Return the continuations that retain ``page``."""
        return self._holders.get(page.page, set())

    def in_use(self, page: LogicalPage) -> bool:
        """Tell whether an active sequence holds ``page``: somebody does who does not retain it."""
        return page.references > len(self.retaining(page))

    # -- internals -----------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        while self._stale:
            self._file(self._kept[self._stale.pop()])

    def _file(self, kept: Continuation) -> None:
        """Find out where its pages are, and bring the orders in line."""
        places = self._places[kept.continuation] = _places_of(kept)
        (self._away.add if places.away else self._away.discard)(kept.continuation)
        there, moving = bool(places.on_device), places.in_transfer
        self._yielding.put(kept, there and not moving)
        self._on_host_alone.put(kept, not there and not moving)
        for tier, order in self._with_copies.items():
            order.put(kept, bool(places.copies(tier)))


def _places_of(kept: Continuation) -> Places:
    on_device: list[LogicalPage] = []
    copies: dict[Tier, list[LogicalPage]] = {tier: [] for tier in Tier}
    moving = away = False
    for page in kept.pages():
        if page.device >= 0:
            on_device.append(page)
        if page.only_on_device:
            continue
        if page.transfer is not None:
            moving = True
        replicas = page.replicas
        away = away or replicas.visible is Tier.HOST
        if replicas.hidden is not None and page.transfer is None:
            copies[replicas.visible.other].append(page)
    return Places(tuple(on_device), tuple(copies[Tier.DEVICE]), tuple(copies[Tier.HOST]), moving, away)
