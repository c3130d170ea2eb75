"""The accounting model's state: who holds which pages, kept as plainly as it can be.

A page is an object without contents.  Who holds it is seen from the lists in which it lies, and every counter is
counted afresh from those lists: there is no free list, no page number, no reference count and no stored total that
could drift.  Every operation on :class:`Books` is meant for small pools.

Does not verify anything and refuses nothing: :mod:`kvcrucible.reference.accounting` asks whether an operation is due.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvcrucible.contract.config import EngineConfig, pages_for
from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.operations import Hit, Identity
from kvcrucible.contract.semantics import State
from kvcrucible.contract.tokens import EMPTY, Tokens, common_prefix, count, prefix


class Page:
    """One page: it is itself and nothing more."""


@dataclass(slots=True)
class Entry:
    """One sequence id's request, active sequence or continuation.

    ``prompt``: what is to be prefilled, from position 0.  ``tokens``: what is committed.  ``limit``: the last position
    that it may reach, plus 1.  ``unit``: the unit that has selected it.
    """

    prompt: Tokens
    limit: int
    session: str | None
    identity: Identity
    consume: bool = False
    tokens: Tokens = EMPTY
    pages: list[Page] = field(default_factory=list)
    unit: int | None = None
    cancelled: bool = False
    pinned: bool = False
    last_use: int = 0

    @property
    def frontier(self) -> int:
        """Number of committed tokens."""
        return count(self.tokens)


@dataclass(frozen=True, slots=True)
class Mark:
    """One checkpoint: ``tokens`` of ``owner`` that can be found."""

    owner: int
    tokens: Tokens
    identity: Identity


@dataclass(frozen=True, slots=True)
class UnitWork:
    """What a unit writes into one row: ``tokens`` after the committed ones."""

    sequence: int
    tokens: Tokens


class Books:
    """All state that decides an outcome (one pool, DESIGN 4.3; numbering as decided in 0003)."""

    def __init__(self, config: EngineConfig, reserves: bool) -> None:
        if len(config.pools) != 1:
            raise BadArgument(
                f"accounting of {len(config.pools)} pools",
                "one pool can be predicted",
                "configure Main alone",
            )
        self.config, self.reserves = config, reserves
        self.capacity, self.page_size = config.main.capacity_pages, config.main.page_size
        self.queued: dict[int, Entry] = {}
        self.active: dict[int, Entry] = {}
        self.continuations: dict[int, Entry] = {}
        self.marks: dict[int, Mark] = {}
        self.units: dict[int, tuple[UnitWork, ...]] = {}
        self.next_sequence = self.next_mark = self.next_unit = self.clock = 0

    def copy(self) -> Books:
        """Return books that can be changed without changing these; the pages are the same objects."""
        twin = Books(self.config, self.reserves)
        twin.queued = {name: replace(entry, pages=list(entry.pages)) for name, entry in self.queued.items()}
        twin.active = {name: replace(entry, pages=list(entry.pages)) for name, entry in self.active.items()}
        twin.continuations = {
            name: replace(entry, pages=list(entry.pages)) for name, entry in self.continuations.items()
        }
        twin.marks, twin.units = dict(self.marks), dict(self.units)
        twin.next_sequence, twin.next_mark = self.next_sequence, self.next_mark
        twin.next_unit, twin.clock = self.next_unit, self.clock
        return twin

    # -- counting ------------------------------------------------------------------------------------------------------

    @property
    def leased(self) -> int:
        """Number of different pages that anyone holds."""
        return len({page for entry in self.holders().values() for page in entry.pages})

    @property
    def reserved(self) -> int:
        """Pages promised to active sequences and not yet leased."""
        return sum(self.reservation(entry) for entry in self.active.values())

    @property
    def free(self) -> int:
        """What is left; below 0 only in books that were changed to see whether something fits."""
        return self.capacity - self.leased - self.reserved

    @property
    def counters(self) -> tuple[int, int, int]:
        """(leased, reserved, free)."""
        return self.leased, self.reserved, self.free

    def reservation(self, entry: Entry) -> int:
        """Pages promised to an active sequence: its entitlement less what it holds (0003), or none at all."""
        return self.pages(entry.limit) - len(entry.pages) if self.reserves else 0

    def pages(self, tokens: int) -> int:
        """Pages that hold ``tokens`` positions."""
        return pages_for(tokens, self.page_size)

    def is_shared(self, page: Page) -> bool:
        """Whether at least two sequences or continuations hold the page."""
        return sum(page in entry.pages for entry in self.holders().values()) > 1

    # -- finding -------------------------------------------------------------------------------------------------------

    def holders(self) -> dict[int, Entry]:
        """Everyone who may hold pages."""
        return self.active | self.continuations

    def entry(self, sequence: int) -> Entry | None:
        """The entry of a queued, active or retained sequence, None where the id names nothing."""
        return (self.queued | self.active | self.continuations).get(sequence)

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

    def best_hit(self, prompt: Tokens, identity: Identity, left_out: frozenset[int]) -> Hit | None:
        """Compare ``prompt`` with every checkpoint whose owner is not ``left_out``; the lowest id wins a tie."""
        best: Hit | None = None
        for mark_id, mark in sorted(self.marks.items()):
            if mark.identity != identity or mark.owner in left_out:
                continue
            length = min(common_prefix(prompt, mark.tokens), count(prompt) - 1)
            if length > (best.length if best else 0):
                best = Hit(mark.owner, mark_id, length)
        return best

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

    def grow(self, entry: Entry, position: int) -> int:
        """Give the entry the pages that it lacks below ``position``; return how many these are."""
        new = self.pages(position) - len(entry.pages)
        entry.pages.extend(Page() for _ in range(new))
        return new

    def shared_by_fork(self, source: Entry, position: int) -> list[Page]:
        """The pages of a child at ``position``: the source's full pages, then a page of its own for a partial tail."""
        full = position // self.page_size
        return source.pages[:full] + [Page() for _ in range(self.pages(position) - full)]

    def cut(self, sequence: int, position: int) -> bool:
        """Take all beyond ``position`` from a sequence or continuation; return whether its tail had to be copied.

        A cut inside a page that others hold puts a page of its own in that page's place (DESIGN 4.6).
        """
        entry = self.holders()[sequence]
        if position == entry.frontier:
            return False
        entry.tokens = prefix(entry.tokens, position)
        entry.prompt = prefix(entry.prompt, position)
        del entry.pages[self.pages(position) :]
        self.marks = {
            mark_id: mark
            for mark_id, mark in self.marks.items()
            if mark.owner != sequence or count(mark.tokens) <= position
        }
        copied = position % self.page_size != 0 and self.is_shared(entry.pages[-1])
        if copied:
            entry.pages[-1] = Page()
        return copied

    def mark(self, owner: int) -> int:
        """Make the owner's committed tokens findable; return the checkpoint, the old one where there is one."""
        entry = self.holders()[owner]
        for mark_id, mark in self.marks.items():
            if mark.owner == owner and count(mark.tokens) == entry.frontier:
                return mark_id
        self.marks[self.next_mark] = Mark(owner, entry.tokens, entry.identity)
        self.next_mark += 1
        return self.next_mark - 1

    def hand_over(self, old: int, new: int) -> None:
        """Let the checkpoints of ``old`` belong to ``new``."""
        self.marks = {
            mark_id: replace(mark, owner=new) if mark.owner == old else mark
            for mark_id, mark in self.marks.items()
        }

    def drop(self, sequence: int) -> None:
        """Forget a sequence in whatever state, with its checkpoints; pages that nobody else holds are free."""
        for entries in (self.queued, self.active, self.continuations):
            entries.pop(sequence, None)
        self.marks = {mark_id: mark for mark_id, mark in self.marks.items() if mark.owner != sequence}
