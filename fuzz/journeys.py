"""Whole journeys between Device and Host: situations that single steps, drawn one by one, would hardly ever meet."""

from __future__ import annotations

from kvcrucible.contract.operations import (
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    Finish,
    Fork,
    Lookup,
    Progress,
    Release,
    Restore,
    Submit,
    Truncate,
)
from kvcrucible.contract.tokens import canonical, run
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.draws import SOURCES, lengths
from kvcrucible.fuzz.moving import ALL_EFFECTS
from kvcrucible.fuzz.returns import Returns, Route
from kvcrucible.fuzz.steps import RunEffects

#: How many single effects a transfer is watched for; one that takes longer is left to itself. With two pools, six
#: planes and a unit's own effects before it, the end of a short one comes after about thirty.
WATCHED_EFFECTS = 40

#: Most extents that an arena is filled with.
FILLING_EXTENTS = 8

#: Most sequences that take what is left of a pool.
FILLERS = 2

#: How many open effects take place before the next look; mostly some or all.
some_effects = st.sampled_from((ALL_EFFECTS, 3, 0, 1, 8))


routes = st.builds(
    Route,
    lengths,
    st.integers(0, 3),
    st.sampled_from(SOURCES),
    some_effects,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


class Journeys(Returns):
    """Journeys, each a method of a :class:`Route`; no rules."""

    def there_and_back(self, route: Route) -> None:
        """Demote, restore and demote again, keeping copies on the way; something else may happen right before the
        restore, and right after it, perhaps while a unit is in flight.
        """
        model = self.lock.model
        kept = self.movable(route.back)
        if kept is None and (sequence := self.grown()) is not None:
            self.take(Finish(sequence))
            kept = self.movable(route.back)
        beside = self.grown() if route.down else None
        if beside is not None and route.cut and not model.in_flight(beside):
            work = self.work(beside, route.length, route.source)
            if work is not None:
                self.take(BeginUnit((work,)))
        for kind, keep in ((Demote, route.keep), (Restore, route.release), (Demote, route.cut)):
            if kept is None or kept not in model.continuations():
                return
            if kind is Restore and beside is not None:
                first = ("fork", "cancel" if route.keep else "demote", "release", "checkpoint")[route.back]
                self.beside_a_move(kept, beside, first)
                if kept in model.continuations():
                    self.take(Restore(kept, keep))
                    self.beside_a_move(kept, beside, ("end", "demote", "nothing")[route.source])
            else:
                self.take(kind(kept, keep))
            self.settle()

    def beside_a_move(self, kept: int, beside: int, what: str) -> None:
        """Do a single thing to ``beside``, an active sequence, or to a continuation other than ``kept``, if it can be
        done.
        """
        model = self.lock.model
        others = [one for one in model.continuations() if one != kept and not model.pinned(one)]
        active = beside in model.sequences()
        match what:
            case "fork" if active:
                self.take(Fork(beside, max(1, model.frontier(beside) - 1), 0))
            case "checkpoint" if active and not model.in_flight(beside) and "Checkpoint" in self.supported:
                self.take(Checkpoint(beside))
            case "end" if active and model.in_flight(beside):
                self.end(max(model.units), commit=True)
            case "end" if active:
                self.take(Finish(beside))
            case "demote" | "cancel":
                if active and not others and not model.in_flight(beside):
                    self.take(Finish(beside))
                    others = [beside] if beside in model.continuations() else []
                self.take(*(Demote(one) for one in others if model.movable(one)))
                if what == "cancel" and "CancelTransfer" in self.supported:
                    self.take(*(CancelTransfer(one) for one in model.transfers()))
            case "release":
                self.take(*(Release(one) for one in others[:1]))

    def next_turn(self, route: Route) -> None:
        """Let the next turn of a session come and go while what its last one left moves."""
        sequence, model = self.grown(), self.lock.model
        if sequence is None or model.queue:
            return
        alive = set(model.sequences())
        self.take(Fork(sequence, max(1, model.frontier(sequence) - route.back), 0, "s"))
        turn = self.newest(alive)
        if turn is None:
            return
        self.take(Finish(turn), *([Finish(sequence)] if route.release else []))
        if turn not in model.continuations() or not model.movable(turn):
            return
        self.take(Demote(turn, route.keep))
        self.happens(route.first)
        child = self.come_back(turn, route.length, consume=False)
        if child is not None and not model.in_flight(child):
            self.take(Finish(child))
        self.settle()

    def twins(self, route: Route) -> None:
        """Move two continuations that share pages: one is released while it moves, or both come back at once."""
        sequence, model = self.grown(), self.lock.model
        if sequence is None:
            return
        alive = set(model.sequences())
        self.take(Fork(sequence, max(1, model.frontier(sequence) - route.back), 0))
        other = self.newest(alive)
        self.take(*(Finish(one) for one in (sequence, other) if one is not None))
        if sequence not in model.continuations() or other not in model.continuations():
            return
        self.take(Demote(sequence))
        if route.release and not model.pinned(sequence):
            self.take(Release(sequence))
        self.settle()
        if route.cut:
            prompt = canonical([*model.tokens(other), (2, 900, 1)])
            spans = self.spans_of(other, model.frontier(other))
            self.take(Lookup(prompt, model.identity(other), spans))
        for kept in (other, sequence):
            if kept in model.continuations():
                self.take(Restore(kept, route.keep))
        self.settle()

    def last_holder(self, route: Route) -> None:
        """Release a continuation that moves, so that a child alone holds its pages; then cut or end the child."""
        sequence = self.grown()
        if sequence is None or not self.sent_down(sequence, route.keep):
            return
        position = max(1, self.lock.model.frontier(sequence) - route.back)
        child = self.last_child(sequence, position, self.placeable(self.page_size, position, large=False))
        if child is None:
            return
        if route.cut:
            inside = max(0, (position // self.page_size - 1) * self.page_size + 1)
            self.take(Truncate(child, min(position, route.back if route.down else inside)))
        else:
            self.take(Cancel(child) if route.down else Finish(child))
        self.settle()

    def cut_what_moves(self, route: Route) -> None:
        """Let a child be the last to hold a continuation that moves, in a pool that has little or nothing left, and cut
        it, at the edge of a page or inside.
        """
        size = self.page_size
        sequence = self.cleared(route.source, self.lock.setting.placeable_tokens - route.back)
        if sequence is None or not self.sent_down(sequence, route.keep):
            return
        frontier = self.lock.model.frontier(sequence)
        child = self.last_child(sequence, frontier, 0)
        if child is None:
            return
        if route.release:
            # What a longest sequence leaves of the pool is taken by others, so that a cut has to be refused.
            for name in range(FILLERS):
                self.fresh(name, self.lock.setting.placeable_tokens)
        beyond = min(frontier, route.length.tokens(size) + 1)
        position = frontier - beyond
        self.take(Truncate(child, position // size * size if route.cut else position))
        self.settle()

    def taken_up_in_one_pool(self, route: Route) -> None:
        """Fork a continuation that moves where its first pages are shared in the backend, whose pages are smaller, and
        in Main none is yet.
        """
        model, small = self.lock.model, self.lock.setting.backend_page_size
        if self.lock.setting.backend is None or small >= self.page_size:
            return
        sequence = self.cleared(route.source, self.page_size + small)
        if sequence is None or not self.sent_down(sequence, route.keep):
            return
        self.happens(route.first)
        position = min(small + route.back, self.page_size - 1, model.frontier(sequence))
        self.take(Fork(sequence, position, 0))
        self.settle()

    def change_what_has_a_copy(self, route: Route) -> None:
        """Bring a continuation back to Device with copies on Host, take it up, and write or cut where it ends; then
        demote it again, so that whatever copy is left shows.
        """
        kept, model = self.grown(), self.lock.model
        if kept is None or model.queue:
            return
        frontier = model.frontier(kept)
        self.take(Finish(kept))
        for kind in (Demote, Restore):
            if kept not in model.continuations():
                return
            self.take(kind(kept, True))
            self.settle()
        if kept not in model.continuations():
            return
        child = self.come_back(kept, route.length, consume=True, prefill=route.release)
        if child is None or model.in_flight(child):
            return
        if route.cut:
            inside = frontier // self.page_size * self.page_size - 1 if route.keep else frontier - route.back
            self.take(Truncate(child, max(0, min(inside, model.frontier(child)))))
        self.take(Finish(child))
        if route.down and child in model.continuations():
            self.take(Demote(child))
        self.settle()

    def fill_the_arena(self, route: Route) -> None:
        """Fill the arena with extents of a page, free every other one, and demote two pages."""
        model = self.lock.model
        sequence = self.cleared(route.source, self.page_size + 1)
        if sequence is None:
            return
        away: list[int] = []
        for _ in range(FILLING_EXTENTS):
            alive, used = set(model.sequences()), model.host_used_bytes
            self.take(Fork(sequence, 1, 0))
            child = self.newest(alive)
            if child is None:
                break
            self.take(Finish(child), Demote(child))
            self.settle()
            if model.host_used_bytes == used:
                break
            away.append(child)
        self.take(*(Release(one) for one in away[int(route.down) :: 2] if one in model.continuations()))
        self.take(Finish(sequence), Demote(sequence))
        self.settle()

    def restore_under_pressure(self, route: Route) -> None:
        """Demote a continuation, fill the pool with something else, and restore it."""
        kept, model = self.movable(route.back), self.lock.model
        if kept is None or model.queue:
            return
        self.take(Demote(kept))
        self.settle()
        size = self.lock.setting.placeable_tokens - route.back * self.page_size
        if size > 0:
            alive = set(model.sequences())
            self.start(Submit(run(route.source, 700, size), 0), patient=False, prefill=True)
            filler = self.newest(alive)
            if filler is not None and not route.release:
                self.take(Finish(filler))
        if kept in model.continuations():
            self.take(Restore(kept, route.keep))
        self.settle()

    def sent_down(self, sequence: int, keep: bool) -> bool:
        """Retain an active sequence and start to demote it; say whether that could be asked for."""
        model = self.lock.model
        self.take(Finish(sequence))
        if sequence not in model.continuations() or not model.movable(sequence):
            return False
        self.take(Demote(sequence, keep))
        return True

    def last_child(self, continuation: int, position: int, max_new: int) -> int | None:
        """Fork a continuation and release it, so that the child alone holds its pages; return the child, None where
        there is none.
        """
        model, alive = self.lock.model, set(self.lock.model.sequences())
        self.take(Fork(continuation, position, max_new))
        child = self.newest(alive)
        if child is not None and not model.pinned(continuation):
            self.take(Release(continuation))
        return child

    def cleared(self, source: int, tokens: int) -> int | None:
        """Start a sequence as :meth:`fresh` does; where it would have to wait, end what stands in the way."""
        model = self.lock.model
        self.take(*(Cancel(request) for request in model.queue))
        self.settle()
        sequence = self.fresh(source, tokens)
        if sequence is None:
            self.take(
                *(Cancel(one) for one in (*model.queue, *model.sequences()) if not model.in_flight(one))
            )
            self.take(*(Release(one) for one in model.continuations() if not model.pinned(one)))
            self.settle()
            sequence = None if model.queue else self.fresh(source, tokens)
        return sequence

    def watch(self, route: Route) -> None:
        """Write, retain and move at once, and look after every single thing that the device does; what stands in the
        way is ended before.
        """
        model = self.lock.model
        sequence = self.cleared(route.source, route.length.tokens(self.page_size) + 1)
        if sequence is None:
            return
        self.take(Finish(sequence))
        for kind in (Demote, Restore)[: 1 + route.down]:
            if sequence not in model.continuations():
                return
            self.take(kind(sequence, route.keep and route.cut))
            for _ in range(WATCHED_EFFECTS if self.lock.setting.lagging else 1):
                if not model.transfers():
                    break
                self.take(RunEffects(1), Progress())


#: The journeys by name.
JOURNEYS = {
    "there-and-back": Journeys.there_and_back,
    "next-turn": Journeys.next_turn,
    "twins": Journeys.twins,
    "last-holder": Journeys.last_holder,
    "cut-what-moves": Journeys.cut_what_moves,
    "taken-up-in-one-pool": Journeys.taken_up_in_one_pool,
    "change-what-has-a-copy": Journeys.change_what_has_a_copy,
    "fill-the-arena": Journeys.fill_the_arena,
    "restore-under-pressure": Journeys.restore_under_pressure,
    "watch": Journeys.watch,
    "return-to-host-hit": Journeys.return_to_host_hit,
    "sink-under-pressure": Journeys.sink_under_pressure,
}
