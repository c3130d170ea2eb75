"""Rules that build, from an empty engine, a pool in which everything is counted to the page: whoever counts one page
wrongly is seen at once.

Each is a situation that single steps meet only by an accident of sizes, so sizes are worked out from the setting.
"""

from __future__ import annotations

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.operations import (
    Append,
    Cancel,
    Checkpoint,
    Demote,
    Finish,
    Fork,
    Pin,
    Progress,
    Release,
    Restore,
    Schedule,
    Submit,
    Truncate,
)
from kvcrucible.contract.tokens import canonical, count, prefix, run
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.backfill_rules import BackfillRules
from kvcrucible.fuzz.draws import SOURCES
from kvcrucible.fuzz.host_rules import hosted
from kvcrucible.fuzz.offers import can
from kvcrucible.fuzz.ruling import precondition, rule

#: Most sequences, active or pinned, that are started to take pages away.
MOST_FILLERS = 6


class TightRules(BackfillRules):
    """Further rules; ``beyond`` of each says how many pages more than the exact number are asked for."""

    @can("Fork", "Finish", "Lookup", "Release", "Cancel", "Pin")
    @rule(
        pages=st.integers(1, 3),
        twins=st.sampled_from((1, 1, 2)),
        back=st.integers(1, 200),
        beyond=st.sampled_from((0, 0, 0, -1, 1)),
        source=st.sampled_from(SOURCES),
    )
    def take_all_over(self, pages: int, twins: int, back: int, beyond: int, source: int) -> None:
        """Retain a sequence of whole pages and twins that share them all, and come back to the inside of a page for
        every page that can be had.

        The move that cuts the sequence fits just because its twins go: the copy that it would take is no more needed
        once nobody shares the cut page.  Nothing of the twins can sink instead: all that they hold stays where it is.
        """
        model, size = self.lock.model, self.page_size
        most = pages_for(self.lock.setting.max_context, size)
        if size == 1 or not self.emptied():
            return
        sequence = self.fresh(source, min(pages, most) * size)
        if sequence is None:
            return
        self.filled(max(0, most - pages_for(model.frontier(sequence), size)))
        self.take(Finish(sequence))
        for _ in range(twins):
            alive = set(model.sequences())
            if sequence not in model.continuations():
                return
            self.take(Fork(sequence, model.frontier(sequence), 0))
            self.take(*[Finish(twin) for twin in set(model.sequences()) - alive])
        if sequence not in model.continuations():
            return
        tokens = model.tokens(sequence)
        hit = 1 + back % (model.frontier(sequence) - 1)
        prompt = canonical([*prefix(tokens, hit), (source, 750, 1)])
        limit = self.placeable((model.available_pages()[0] + beyond) * size, 0, large=False)
        if limit > hit:
            self.start(Submit(prompt, limit - hit - 1), patient=False, prefill=True)

    @precondition(lambda self: self.capabilities.backfills and self.lock.setting.lookahead > 0)
    @can("Cancel", "Finish", "Pin", "Release", "Schedule")
    @rule(
        beyond=st.sampled_from((1, 1, 0)),
        source=st.sampled_from(SOURCES),
        head=st.sampled_from((1, 1, 2, 3)),
        moving=st.booleans(),
        busy=st.sampled_from((False, False, True)),
    )
    def pass_beside_the_protected(
        self, beyond: int, source: int, head: int, moving: bool, busy: bool
    ) -> None:
        """Protect as much as leaves a head that waits just what it takes, and let a small request try to pass it.

        ``moving``: where there is a Host tier, what is protected is held by transfers alone; else it is pinned.
        ``busy``: the small one is of a session that is active, so that it may not start, whatever room there is.
        """
        model, size = self.lock.model, self.page_size
        if not self.emptied():
            return
        capacity = self.capacity
        head_pages = min(self.most_pages, capacity - head)
        protected, blocked = capacity - head_pages + beyond - 1, max(1, 2 - beyond)
        if head_pages < 2 or protected + blocked >= capacity:
            return
        left = protected
        while left > 0:
            kept = self.fresh(source, min(left, self.most_pages) * size)
            if kept is None:
                return
            left -= pages_for(model.frontier(kept), size)
            self.take(Finish(kept))
            if kept in model.continuations():
                self._protect(kept, moving)
        session = "a" if busy else None
        if self.reserved(0, blocked, session) is None:
            return
        self.take(Submit(run(source, 700, 1), head_pages * size - 1))
        self.take(Submit(run(source, 710, 1), size - 1, session), Schedule())
        self._let_the_head_start()

    @precondition(lambda self: self.capabilities.backfills and self.lock.setting.lookahead > 0)
    @can("Cancel", "Checkpoint", "Finish", "Release", "Schedule", "Pin")
    @rule(
        shared=st.sampled_from((1, 1, 2)),
        beyond=st.sampled_from((1, 1, 0)),
        source=st.sampled_from(SOURCES),
    )
    def pass_beside_who_shares(self, shared: int, beyond: int, source: int) -> None:
        """Let a request pass that shares pages with somebody who is active, and then one that there is no more room
        for unless these pages are left out.
        """
        model, size = self.lock.model, self.page_size
        if not self.emptied():
            return
        capacity = self.capacity
        head = min(self.most_pages, capacity - shared - 2 + beyond)
        blocked, last = capacity - shared - head + 1, capacity - head - shared - 1 + beyond
        if shared + 1 > self.most_pages or head < 2 or last < 1 or shared + blocked + 1 + last > capacity:
            return
        sequence = self.fresh(source, shared * size)
        if sequence is None:
            return
        self.take(Checkpoint(sequence))
        for name in range(MOST_FILLERS):
            taken = min(blocked, self.most_pages)
            if taken <= 0 or self.reserved(name, taken) is None:
                break
            blocked -= taken
        if blocked:
            return
        tokens = model.tokens(sequence)
        self.take(Submit(run(source, 700, 1), head * size - 1))
        self.take(Submit(canonical([*tokens, (source, 710, 1)]), size - 1), Schedule())
        self.take(Submit(run(source, 720, 1), last * size - 1), Schedule())
        self._let_the_head_start()

    @can("Cancel", "Demote", "Finish", "Fork", "Pin", "Release", "Truncate", there=hosted)
    @rule(
        pages=st.integers(1, 4),
        back=st.integers(1, 200),
        left=st.sampled_from((1, 2, 3, 0)),
        edge=st.booleans(),
        keep=st.booleans(),
        source=st.sampled_from(SOURCES),
    )
    def cut_what_moves_in_a_full_pool(
        self, pages: int, back: int, left: int, edge: bool, keep: bool, source: int
    ) -> None:
        """Cut the last who holds what is on its way to Host, at the edge of a page or inside, where no page is free and
        as many can be had as decide whether it gets those that it cannot give back: by a release, and by that alone.
        """
        model, size = self.lock.model, self.page_size
        if size == 1 or not self.emptied():
            return
        sequence = self.fresh(source, min(pages, self.most_pages) * size)
        yielding = None if not left else self.fresh(source + 1, min(left, self.most_pages) * size)
        if sequence is None or (left and yielding is None):
            return
        self.take(*[Finish(one) for one in (yielding,) if one is not None])
        self.filled(min(left, self.most_pages))
        if not self.sent_down(sequence, keep):
            return
        frontier = model.frontier(sequence)
        child = self.last_child(sequence, frontier, 0)
        if child is not None:
            position = frontier - 1 - back % frontier
            self.take(Truncate(child, position // size * size if edge else position))
        self.settle()

    @can("Cancel", "Demote", "Finish", "Pin", "Release", "Schedule", there=hosted)
    @rule(
        pages=st.integers(1, 4),
        first=st.integers(1, 4),
        beyond=st.sampled_from((1, 1, 1, 0, 2)),
        cut=st.booleans(),
        source=st.sampled_from(SOURCES),
    )
    def take_what_has_a_copy(self, pages: int, first: int, beyond: int, cut: bool, source: int) -> None:
        """Fill a pool but for what copies of a continuation on Host take on Device, take those in two parts, and ask
        for more than there is.

        ``cut``: beside a copy of one page is a longer continuation, which a request cuts off for as many pages as that
        one has, or one more or less.  What is cut off comes to the request itself, so that the copy goes for one more.
        """
        model, size = self.lock.model, self.page_size
        if not self.emptied():
            return
        sequence = self.fresh(source, size if cut else min(pages, self.most_pages) * size)
        if sequence is None:
            return
        longer, left = None, 0
        if cut:
            longer = self.fresh(source + 1, min(pages + first, self.most_pages, self.capacity - 1) * size)
        if longer is not None:
            left = pages_for(model.frontier(longer), size)
            self.take(Finish(longer))
        self.filled(left)
        if not self.sent_down(sequence, keep=True):
            return
        self.settle()
        if longer is not None and longer in model.continuations():
            prompt = canonical([*prefix(model.tokens(longer), 1), (source, 750, 1)])
            limit = self.placeable((left + beyond - 1) * size, 0, large=False)
            if limit >= count(prompt):
                self.start(Submit(prompt, limit - count(prompt)), patient=False, prefill=True)
            return
        room = model.available_pages()[0]
        for name, wanted in ((MOST_FILLERS, min(first, room)), (MOST_FILLERS + 1, room - first + beyond)):
            if 0 < wanted <= self.most_pages:
                self.reserved(name, wanted)

    @precondition(lambda self: self.lock.setting.lagging)
    @can("BeginUnit", "Cancel", "Demote", "Finish", "Fork", "Pin", "Release", "Restore", there=hosted)
    @rule(pages=st.integers(2, 4), beyond=st.sampled_from((0, 0, -1, 1)), source=st.sampled_from(SOURCES))
    def take_over_copies_in_use(self, pages: int, beyond: int, source: int) -> None:
        """Come back to the first page of a continuation whose others are on Host, with copies on Device that a unit may
        touch and that another continuation shares, where nothing is free beside them.

        Cut off, they return to the request that takes the continuation over; given up before, they would retire.
        """
        model, size = self.lock.model, self.page_size
        if not self.emptied():
            return
        sequence = self.fresh(source, min(pages, self.most_pages - 1) * size)
        if sequence is None:
            return
        self.filled(1)
        self.take(Finish(sequence), Demote(sequence))
        self.settle()
        self.take(Restore(sequence, keep=True))
        self.settle()
        if sequence not in model.continuations():
            return
        frontier = model.frontier(sequence)
        borrower = self.forked(sequence, frontier, 1)
        if borrower is None:
            return
        self.write((Append(borrower, run(source, 770, 1)),), commit=True)
        self.take(
            Finish(borrower), Fork(sequence, min(size, frontier), 0), Demote(sequence, keep=True), Progress()
        )
        prompt = canonical([*prefix(model.tokens(sequence), min(size, frontier)), (source, 750, 1)])
        limit = self.placeable(frontier + beyond * size, 0, large=False)
        self.start(Submit(prompt, max(0, limit - size - 1)), patient=False, prefill=False)
        self.settle()

    # -- what they share -----------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Pages that Main has."""
        return self.lock.setting.capacity_pages

    @property
    def most_pages(self) -> int:
        """Whole pages of Main that one sequence can be entitled to."""
        return self.lock.setting.placeable_tokens // self.page_size

    def emptied(self) -> bool:
        """End all that there is, and look until nothing is on its way; say whether every page of Main can be had."""
        model = self.lock.model
        for unit in model.units:
            self.end(unit, commit=not self.capabilities.aborts)
        self.take(*[Cancel(one) for one in (*model.queue, *model.sequences())])
        self.take(*[Pin(one, pinned=False) for one in model.continuations() if model.pinned(one)])
        self.settle()
        self.take(*[Release(one) for one in model.continuations()])
        self.settle()
        return model.available_pages()[0] == self.capacity

    def reserved(self, name: int, pages: int, session: str | None = None) -> int | None:
        """Start a sequence that is promised so many pages and writes nothing; return it, None where it has to wait."""
        alive = set(self.lock.model.sequences())
        request = Submit(run(0, 760 + 10 * name, 1), pages * self.page_size - 1, session)
        self.start(request, patient=False, prefill=False)
        return self.newest(alive)

    def forked(self, source: int, position: int, max_new: int) -> int | None:
        """Fork; return the child, None where that was refused."""
        alive = set(self.lock.model.sequences())
        self.take(Fork(source, position, max_new))
        return self.newest(alive)

    def filled(self, left: int) -> None:
        """Start sequences that are promised all pages but ``left``, as far as so many sequences can be."""
        for name in range(MOST_FILLERS):
            spare = self.lock.model.available_pages()[0] - left
            if spare <= 0 or self.reserved(name, min(spare, self.most_pages)) is None:
                break

    def _protect(self, kept: int, moving: bool) -> None:
        """Pin a continuation; or, ``moving``, start to move it and release it, so that only the transfer holds its
        pages.
        """
        model = self.lock.model
        if moving and hosted(self.lock) and "Demote" in self.supported:
            self.take(Demote(kept))
        self.take(Pin(kept) if model.movable(kept) else Release(kept))

    def _let_the_head_start(self) -> None:
        """End everybody but those who passed, so that the head starts beside them; then clear up."""
        model = self.lock.model
        passers = set(model.passers())
        self.take(*[Finish(one, retain=False) for one in model.sequences() if one not in passers])
        self.settle()
        self.take(Schedule())
        self.take(*[Cancel(one) for one in (*model.queue, *passers)])
        self.take(*[Pin(one, pinned=False) for one in model.continuations() if model.pinned(one)])
