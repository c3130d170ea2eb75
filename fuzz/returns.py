"""Journeys in which a request comes back to what is on Host (decision 0020)."""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.operations import (
    Cancel,
    CancelTransfer,
    Demote,
    Restore,
    Schedule,
    Submit,
)
from kvcrucible.contract.tokens import canonical, count, prefix
from kvcrucible.fuzz.draws import Length
from kvcrucible.fuzz.moving import Moving


@dataclass(frozen=True, slots=True)
class Route:
    """What a journey is drawn with; each uses what it has a use for."""

    length: Length
    back: int
    source: int
    first: int
    keep: bool
    release: bool
    cut: bool
    down: bool


class Returns(Moving):
    """Journeys, each a method of a :class:`Route`; no rules."""

    def return_to_host_hit(self, route: Route) -> None:
        """Demote a continuation and ask for what it holds, all of it or a part; the restore succeeds or is cancelled,
        and a second request waits behind.
        """
        kept, model = self.movable(route.back), self.lock.model
        if kept is None or model.queue:
            return
        self.take(Demote(kept))
        self.settle()
        if kept not in model.continuations():
            return
        frontier = model.frontier(kept)
        shared = frontier if route.keep else max(1, frontier - route.length.tokens(self.page_size))
        if route.release and model.restorable(kept):
            self.take(Restore(kept))
        known, identity = prefix(model.tokens(kept), shared), model.identity(kept)
        prompt = canonical([*known, (route.source, 800, 1)])
        length = self.placeable(count(prompt), 0, large=False)
        self.take(Submit(prefix(prompt, length), 0, model.session(kept), route.down, identity), Schedule())
        if route.cut:
            self.take(*(CancelTransfer(one) for one in model.transfers()))
        self.happens(route.first)
        self.take(Schedule())
        self.settle()
        self.take(Schedule())
        self.take(*(Cancel(one) for one in model.queue))
