"""The accounting model's state, as an operation finds and changes it.

Verifies nothing and refuses nothing: :mod:`kvcrucible.reference.accounting` asks whether an operation is due.
"""

from __future__ import annotations

from dataclasses import replace

from kvcrucible.contract.operations import Hit, Identity
from kvcrucible.contract.semantics import State
from kvcrucible.contract.tokens import Tokens, concat, count, prefix
from kvcrucible.reference.holdings import Entry, Holdings, Mark, UnitWork
from kvcrucible.reference.labels import Spans, common, cut
from kvcrucible.reference.pages import Page


class Books(Holdings):
    """All state that decides an outcome (DESIGN 4.3; numbering as in 0003, pools as in 0011, replicas as in 0013)."""

    # -- finding -------------------------------------------------------------------------------------------------------

    def entry(self, sequence: int) -> Entry | None:
        """The entry of a queued, active or retained sequence, None where the id names nothing."""
        return self.active.get(sequence) or self.continuations.get(sequence) or self.queued.get(sequence)

    def state(self, sequence: int) -> State:
        """Where the id is in its life."""
        if sequence in self.queued:
            return State.QUEUED
        if sequence in self.continuations:
            return State.CONTINUATION
        if sequence not in self.active:
            return State.GONE
        entry = self.active[sequence]
        return State.PREFILL if entry.frontier < count(entry.prompt) else State.DECODE

    def best_hit(
        self, prompt: Tokens, spans: Spans, identity: Identity, left_out: frozenset[int]
    ) -> Hit | None:
        """Compare ``prompt`` and its ``spans`` with every checkpoint whose owner is not ``left_out``; of equal hits a
        resident owner's wins, then the lowest id.
        """
        found: list[tuple[int, bool, int, int]] = []
        for mark_id, mark in self.marks.items():
            if mark.identity != identity or mark.owner in left_out:
                continue
            length = min(common(prompt, spans, mark.tokens, mark.spans), count(prompt) - 1)
            if length > 0:
                owner = self.active.get(mark.owner) or self.continuations[mark.owner]
                found.append((-length, not self.resident(owner), mark_id, mark.owner))
        if not found:
            return None
        length, _, mark_id, name = min(found)
        return Hit(name, mark_id, -length)

    # -- changing ------------------------------------------------------------------------------------------------------

    def new_sequence(self) -> int:
        """Give out the next sequence id."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def stamp(self, sequence: int) -> None:
        """Note that a continuation was used; of an active sequence there is nothing to note."""
        if sequence in self.continuations:
            self.clock += 1
            self.continuations[sequence].last_use = self.clock

    def grow(self, entry: Entry, pool: int, position: int) -> int:
        """Give the entry the pages that it lacks below ``position``; return how many these are."""
        new = self.pages(position, pool) - len(entry.pages[pool])
        entry.pages[pool].extend(self._granted(entry, pool) for _ in range(new))
        return new

    def _granted(self, entry: Entry, pool: int) -> Page:
        """A page out of the entry's reservation: one that came back and is not at rest first, the latest first."""
        returned = entry.returned[pool]
        return Page(touched=returned.pop()) if returned else Page()

    def let_go(self, pool: int, pages: list[Page], heir: Entry | None = None) -> None:
        """See to pages that a list has lost: of those that nobody holds any more, the ones that are not at rest go to
        the reservation of ``heir``, an active sequence, or retire.
        """
        for page in pages:
            # A page without a Device page has been touched by nobody.
            if self.is_at_rest(page.touched):
                continue
            if not self.references(page, pool) and not self.in_transfer(page):
                (self.retiring if heir is None else heir.returned)[pool].append(page.touched)

    def return_beyond(self, entry: Entry, pool: int, keep: int, heir: Entry | None = None) -> int:
        """Take all but the entry's first ``keep`` pages from it, in the order of their blocks; return how many.

        They go to the reservation of ``heir``, who takes the others over, or back to its own if it has one.
        """
        lost = entry.pages[pool][keep:]
        del entry.pages[pool][keep:]
        if lost:
            promised = self.reserves and any(entry is one for one in self.active.values())
            self.let_go(pool, lost, entry if promised else heir)
        return len(lost)

    def shrink(self, entry: Entry, pool: int) -> int:
        """Let what came back to an active entry beyond its reservation retire, the earliest first; return how much."""
        excess = max(0, len(entry.returned[pool]) - self.reservation(entry, pool))
        self.retiring[pool] += entry.returned[pool][:excess]
        del entry.returned[pool][:excess]
        return excess

    def close_reservation(self, entry: Entry) -> None:
        """Let what came back to the entry and is not at rest retire."""
        for pool, fences in enumerate(entry.returned):
            self.retiring[pool] += fences
        entry.returned = [[] for _ in self.pools]

    def commit(self, entry: Entry, work: UnitWork, tokens: Tokens) -> None:
        """Add ``tokens`` of what a unit has written, and the backend as far as it was written and these reach (0023); a
        page that gains columns loses its clean copy.
        """
        before = self.reach(entry)
        entry.tokens = concat(entry.tokens, tokens)
        entry.backend = min(work.backend, entry.frontier)
        for pool, (old, new) in enumerate(zip(before, self.reach(entry), strict=True)):
            block, offset = divmod(old, self.page_size[pool])
            if new > old and offset:
                entry.pages[pool][block].host = None

    def shared_by_fork(self, source: Entry, position: int) -> list[list[Page]]:
        """The pages of a child at ``position``, or where the source ends: its full pages, then a page of the child's
        own for a partial tail.
        """
        found = []
        for pool, reach in enumerate(self.reach(source)):
            stop = min(position, reach)
            full = stop // self.page_size[pool]
            found.append(source.pages[pool][:full] + [Page() for _ in range(self.pages(stop, pool) - full)])
        return found

    def cut(self, sequence: int, position: int, heir: Entry | None = None) -> list[bool]:
        """Take all beyond ``position`` from a sequence or continuation; return, for each pool, whether its tail had to
        be copied.  ``heir``: the active sequence that takes a continuation over, with what it loses.

        A cut inside a page that others hold puts a page of its own in that page's place (DESIGN 4.6); inside its own
        page it ends that page's clean copy.  A pool that has no more than ``position`` stays as it is.
        """
        entry = self.holders()[sequence]
        if position == entry.frontier:
            return [False for _ in self.pools]
        copied = []
        for pool, reach in enumerate(self.reach(entry)):
            held, size = entry.pages[pool], self.page_size[pool]
            shared = False
            if reach > position:
                self.return_beyond(entry, pool, self.pages(position, pool), heir)
                if position % size:
                    shared = self.is_shared(held[-1], pool)
                    if shared:
                        held[-1] = self._granted(entry if heir is None else heir, pool)
                    else:
                        held[-1].version += 1
                        held[-1].host = None
            copied.append(shared)
        entry.tokens = prefix(entry.tokens, position)
        entry.prompt = prefix(entry.prompt, position)
        entry.spans = cut(entry.spans, position)
        entry.backend = min(entry.backend, position)
        self.marks = {
            mark_id: mark
            for mark_id, mark in self.marks.items()
            if mark.owner != sequence or count(mark.tokens) <= position
        }
        return copied

    def mark(self, owner: int) -> int:
        """Make the tokens that every pool has findable; return the checkpoint, the old one where there is one."""
        entry = self.holders()[owner]
        position = self.common(entry)
        for mark_id, mark in self.marks.items():
            if mark.owner == owner and count(mark.tokens) == position:
                return mark_id
        self.marks[self.next_mark] = Mark(
            owner, prefix(entry.tokens, position), entry.identity, cut(entry.spans, position)
        )
        self.next_mark += 1
        return self.next_mark - 1

    def hand_over(self, old: int, new: int) -> None:
        """Let the checkpoints of ``old`` belong to ``new``."""
        self.marks = {
            mark_id: replace(mark, owner=new) if mark.owner == old else mark
            for mark_id, mark in self.marks.items()
        }

    def drop(self, sequence: int) -> None:
        """Forget a sequence in whatever state, with its checkpoints; what nobody else holds is free or retires."""
        entry = self.entry(sequence)
        for entries in (self.queued, self.active, self.continuations):
            entries.pop(sequence, None)
        self.marks = {mark_id: mark for mark_id, mark in self.marks.items() if mark.owner != sequence}
        if entry is not None:
            self.close_reservation(entry)
            for pool, held in enumerate(entry.pages):
                self.let_go(pool, held)
