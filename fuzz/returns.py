"""Journeys in which a request comes back to what is on Host (decision 0020)."""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.operations import (
    Cancel,
    CancelTransfer,
    Demote,
    Finish,
    Fork,
    Pin,
    Release,
    Restore,
    Schedule,
    Submit,
)
from kvcrucible.contract.tokens import canonical, count, prefix, run
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


#: How many short continuations a journey leaves on the way.
FEW = 3


class Returns(Moving):
    """Journeys, each a method of a :class:`Route`; no rules."""

    def return_to_host_hit(self, route: Route) -> None:
        """Demote a continuation and ask for what it holds, all of it or a part; the restore succeeds or is cancelled,
        and a second request waits behind.
        """
        model = self.lock.model
        self.take(*(Cancel(request) for request in model.queue))
        self.take(*(Release(one) for one in model.continuations() if not model.pinned(one)))
        self.settle()
        # Short, so that it has room on Host, where little may be left; of tokens that nobody else has.
        source, tokens = 1000 + model.books.next_sequence, self.page_size + 1 + route.back
        kept = self.fresh(source, tokens)
        if kept is None and not model.queue:
            self.take(*(Cancel(one) for one in model.sequences() if not model.in_flight(one)))
            self.settle()
            kept = self.fresh(source, tokens)
        if kept is None:
            return
        self.take(Finish(kept))
        if kept not in model.continuations() or not model.movable(kept):
            return
        self.take(Demote(kept))
        self.settle()
        if route.back == 2:
            # Something large stands in the way that is too large to sink.
            self.fill(route)
        if kept not in model.continuations():
            return
        frontier = model.frontier(kept)
        shared = frontier if route.keep else max(1, frontier - route.length.tokens(self.page_size))
        if route.release and model.restorable(kept):
            self.take(Restore(kept))
        known, identity = prefix(model.tokens(kept), shared), model.identity(kept)
        prompt = canonical([*known, (route.source, 800, 1)])
        length = self.placeable(count(prompt), 0, large=False)
        spans, session = self.spans_of(kept, shared, length), model.session(kept)
        self.take(Submit(prefix(prompt, length), 0, session, route.down, identity, spans), Schedule())
        if route.cut:
            self.take(*(CancelTransfer(one) for one in model.transfers()))
        self.happens(route.first)
        self.take(Schedule())
        self.settle()
        self.take(Schedule())
        self.take(*(Cancel(one) for one in model.queue))

    def sink_under_pressure(self, route: Route) -> None:
        """Leave a few continuations, some with copies in the other tier, some that share pages, and ask for the whole
        pool; what sinks for that succeeds or is cancelled.
        """
        model, size = self.lock.model, self.page_size
        self.take(*(Cancel(request) for request in model.queue))
        self.settle()
        left = []
        for name in range(FEW):
            sequence = self.fresh(name, size + route.length.tokens(size) + 1)
            if sequence is None:
                break
            if route.keep and not name:
                alive = set(model.sequences())
                self.take(Fork(sequence, model.frontier(sequence), 0))
                left += sorted(set(model.sequences()) - alive)
            left.append(sequence)
            self.take(*(Finish(one) for one in left if one in model.sequences() and not model.in_flight(one)))
        left = [one for one in left if one in model.continuations()]
        if left and route.cut:
            for kind in (Demote, Restore)[: 1 + route.release]:
                if left[0] in model.continuations():
                    self.take(kind(left[0], True))
                    self.settle()
        if route.back == 1 or route.release:
            # With copies on Host, if there are any: these may be given up, pinned or not.
            some = left[1 - route.release :][:1]
            self.take(*(Pin(one) for one in some if one in model.continuations()))
        self.fill(route)
        if route.keep or (route.cut and route.release):
            # Once more, so that what has sunk may have to make room for what sinks now, and no copy goes twice.
            self.fill(route)

    def fill(self, route: Route) -> None:
        """Ask for all that can be had, or nearly; wait, and leave a continuation of it."""
        model = self.lock.model
        pools = self.lock.setting.engine_config().pools
        there = [pages * pool.page_size for pages, pool in zip(model.available_pages(), pools, strict=True)]
        most = min(self.lock.setting.placeable_tokens, *there)
        wanted = max(1, most - route.back % 2 * self.page_size)
        alive = set(model.sequences())
        self.take(Submit(run(route.source + 20, 700, wanted), 0), Schedule())
        if route.down and not route.keep:
            self.take(*(CancelTransfer(one) for one in model.transfers()))
        for _ in range(2):
            self.settle()
            self.take(Schedule())
        self.take(*(Cancel(one) for one in model.queue))
        started = self.newest(alive)
        if started is not None and not model.in_flight(started) and model.prompt_left(started):
            works = self.works([(index, route.length) for index in range(6)], route.source)
            mine = tuple(work for work in works if work.sequence == started)
            if mine:
                self.write(mine, commit=True)
            self.take(Finish(started))
