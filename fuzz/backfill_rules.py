"""Rules for a queue whose head has to wait: who is let past it, and how it starts in the end (decision 0021)."""

from __future__ import annotations

from kvcrucible.contract.operations import Cancel, Checkpoint, Finish, Pin, Schedule, Submit
from kvcrucible.contract.tokens import canonical, count, prefix, run
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.draws import SOURCES, picks
from kvcrucible.fuzz.offers import any_active, can
from kvcrucible.fuzz.ruling import rule
from kvcrucible.fuzz.succession import SuccessionRules


class BackfillRules(SuccessionRules):
    """Further rules; the one here lines requests up behind one that cannot start while the others run."""

    @can("Cancel", "Finish", "Pin", "Schedule", there=any_active)
    @rule(
        pick=picks,
        more=st.sampled_from((1, 1, 2, -1)),
        busy=st.booleans(),
        pinned=st.booleans(),
        behind=st.lists(
            st.tuples(st.sampled_from((True, True, False)), st.sampled_from((0, 0, -1))),
            min_size=1,
            max_size=2,
        ),
        last=st.sampled_from((1, 1, 0)),
        source=st.sampled_from(SOURCES),
        together=st.sampled_from((False, False, True)),
        keep=st.booleans(),
        finish=st.sampled_from((True, True, False)),
    )
    def queue_up(
        self,
        pick: int,
        more: int,
        busy: bool,
        pinned: bool,
        behind: list[tuple[bool, int]],
        last: int,
        source: int,
        together: bool,
        keep: bool,
        finish: bool,
    ) -> None:
        """Queue a request for ``more`` pages than can be had, or of a session that is active, and small ones behind it;
        then let those end that were there before, so that the head starts beside who has passed it.

        ``behind``: of each whether it begins with what another holds, and how many pages more than may pass it takes;
        one of its own comes after them and takes ``last`` more.
        """
        model = self.lock.model
        if model.queue or not self.capabilities.backfills:
            return
        if pinned:
            self.start(Submit(run(source, 740, 1), 0), patient=False, prefill=True)
            newest = max(model.sequences())
            if not model.in_flight(newest):
                self.take(Finish(newest), *[Pin(newest) for _ in range(min(model.reach(newest)))])
        # What is to end before the head can start: half of what there is.
        half = self.placeable((min(model.available_pages()) + 1) // 2 * self.page_size, 0, large=False)
        taken = [model.session(one) for one in model.sequences()]
        key = "a" if busy and "a" not in taken else None
        self.start(Submit(run(source, 720, max(1, half)), 0, key), patient=False, prefill=True)
        if not model.sequences():
            return
        longest = max(model.sequences(), key=lambda one: min(model.reach(one)))
        there = [one for one in model.sequences() if not model.in_flight(one)]
        # So that the small ones find something to share.
        self.take(*[Checkpoint(one) for one in there if min(model.reach(one))])
        named = [one for one in model.sequences() if model.session(one) is not None]
        session = model.session(named[pick % len(named)]) if busy and named else None
        size = self.page_size if session else (model.available_pages()[0] + more) * self.page_size
        size = self.placeable(max(1, size), 0, large=False)
        self.take(Submit(run(source, 700, 1), size - 1, session))
        asked = 0
        wanted = [*behind, (pick % 3 > 0, last)]
        for number, (known, beyond) in enumerate(wanted):
            length = self.placeable(max(1, self._beside_the_head(asked, beyond)), 0, large=False)
            shares = known and longest in model.sequences()
            tokens = model.tokens(longest) if shares else ()
            prompt = prefix(canonical([*prefix(tokens, length - 1), (source, 710, 1)]), length)
            spans = self.spans_of(longest, count(tokens), length - 1) if shares else ()
            self.take(Submit(prompt, length - count(prompt), spans=spans))
            asked = asked + length if together else 0
            if not together or number == len(wanted) - 1:
                self.take(Schedule())
        passers = model.passers()
        if finish:
            self.take(*[Finish(one, keep) for one in there if one in model.sequences()])
        self.take(Schedule())
        if not keep:
            self.take(*[Finish(one, keep) for one in passers if one in model.sequences()], Schedule())
        self.take(*[Cancel(one) for one in list(model.queue)])
        self.take(*[Pin(one, pinned=False) for one in model.continuations() if model.pinned(one)])

    def _beside_the_head(self, asked: int, beyond: int) -> int:
        """Return how many tokens may pass the head, ``asked`` others before them, and ``beyond`` pages more, where
        there is least room.
        """
        books = self.lock.model.books
        if not self.lock.model.queue:
            return self.page_size
        for_ever = [books.queued[self.lock.model.queue[0]].limit]
        for_ever += [books.active[one].limit for one in self.lock.model.passers()]
        left = []
        for pool, size in enumerate(books.page_size):
            taken = sum([books.pages(limit, pool) for limit in for_ever]) + books.protected(pool)
            left.append((books.capacity[pool] - taken + beyond) * size)
        return min(left) - asked
