"""The accounting model's state: who holds which pages, kept as plainly as it can be.

A page is an object without contents that lies in one pool.  Who holds it is seen from the lists in which it lies, and
every counter is counted afresh from those lists: there is no free list, no page number, no reference count and no
stored total that could drift.  Every operation on :class:`Books` is meant for small pools.

Does not verify anything and refuses nothing: :mod:`kvcrucible.reference.accounting` asks whether an operation is due.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvcrucible.contract.config import EngineConfig, pages_for
from kvcrucible.contract.operations import Hit, Identity
from kvcrucible.contract.semantics import State
from kvcrucible.contract.tokens import EMPTY, Tokens, common_prefix, count, prefix


class Page:
    """One page: it is itself and nothing more."""


@dataclass(slots=True)
class Entry:
    """One sequence id's request, active sequence or continuation.

    ``prompt``: what is to be prefilled, from position 0.  ``tokens``: what is committed in Main.  ``backend``: how
    many of them the backend has too.  ``pages``: a list for each pool.  ``limit``: the last position that it may
    reach, plus 1.  ``unit``: the unit that has selected it.
    """

    prompt: Tokens
    limit: int
    session: str | None
    identity: Identity
    consume: bool = False
    tokens: Tokens = EMPTY
    backend: int = 0
    pages: list[list[Page]] = field(default_factory=list)
    unit: int | None = None
    cancelled: bool = False
    pinned: bool = False
    last_use: int = 0

    @property
    def frontier(self) -> int:
        """Number of tokens committed in Main."""
        return count(self.tokens)

    def copy(self) -> Entry:
        """Return an entry whose lists can be changed without changing these."""
        return replace(self, pages=[list(held) for held in self.pages])


@dataclass(frozen=True, slots=True)
class Mark:
    """One checkpoint: ``tokens`` of ``owner`` that can be found."""

    owner: int
    tokens: Tokens
    identity: Identity


@dataclass(frozen=True, slots=True)
class UnitWork:
    """What a unit writes into one row: ``tokens`` after the committed ones, and the backend up to ``backend``."""

    sequence: int
    tokens: Tokens
    backend: int


class Books:
    """All state that decides an outcome (DESIGN 4.3; numbering as decided in 0003, pools as in 0011)."""

    def __init__(self, config: EngineConfig, reserves: bool) -> None:
        self.config, self.reserves = config, reserves
        self.pools = range(len(config.pools))
        self.capacity = tuple(pool.capacity_pages for pool in config.pools)
        self.page_size = tuple(pool.page_size for pool in config.pools)
        self.queued: dict[int, Entry] = {}
        self.active: dict[int, Entry] = {}
        self.continuations: dict[int, Entry] = {}
        self.marks: dict[int, Mark] = {}
        self.units: dict[int, tuple[UnitWork, ...]] = {}
        self.next_sequence = self.next_mark = self.next_unit = self.clock = 0

    def copy(self) -> Books:
        """Return books that can be changed without changing these; the pages are the same objects."""
        twin = Books(self.config, self.reserves)
        twin.queued = {name: entry.copy() for name, entry in self.queued.items()}
        twin.active = {name: entry.copy() for name, entry in self.active.items()}
        twin.continuations = {name: entry.copy() for name, entry in self.continuations.items()}
        twin.marks, twin.units = dict(self.marks), dict(self.units)
        twin.next_sequence, twin.next_mark = self.next_sequence, self.next_mark
        twin.next_unit, twin.clock = self.next_unit, self.clock
        return twin

    # -- counting ------------------------------------------------------------------------------------------------------

    def leased(self, pool: int) -> int:
        """Number of different pages of the pool that anyone holds."""
        return len({page for entry in self.holders().values() for page in entry.pages[pool]})

    def reserved(self, pool: int) -> int:
        """Pages of the pool promised to active sequences and not yet leased."""
        return sum([self.reservation(entry, pool) for entry in self.active.values()])

    @property
    def free(self) -> tuple[int, ...]:
        """What is left in each pool; below 0 only in books that were changed to see whether something fits."""
        return tuple(free for _, _, free in self.counters)

    @property
    def counters(self) -> tuple[tuple[int, int, int], ...]:
        """(leased, reserved, free) of each pool."""
        found = []
        for pool, capacity in enumerate(self.capacity):
            leased, reserved = self.leased(pool), self.reserved(pool)
            found.append((leased, reserved, capacity - leased - reserved))
        return tuple(found)

    def reservation(self, entry: Entry, pool: int) -> int:
        """Pages promised to an active sequence: its entitlement less what it holds (0003), or none at all."""
        return self.pages(entry.limit, pool) - len(entry.pages[pool]) if self.reserves else 0

    def pages(self, tokens: int, pool: int) -> int:
        """Pages of the pool that hold ``tokens`` positions."""
        return pages_for(tokens, self.page_size[pool])

    def reach(self, entry: Entry) -> tuple[int, ...]:
        """How many positions each pool has."""
        return (entry.frontier, entry.backend)[: len(self.pools)]

    def common(self, entry: Entry) -> int:
        """How many positions every pool has: where a checkpoint stands (0011)."""
        return min(self.reach(entry))

    def is_shared(self, page: Page, pool: int) -> bool:
        """Whether at least two sequences or continuations hold the page."""
        return sum([page in entry.pages[pool] for entry in self.holders().values()]) > 1

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

    def grow(self, entry: Entry, pool: int, position: int) -> int:
        """Give the entry the pages that it lacks below ``position``; return how many these are."""
        new = self.pages(position, pool) - len(entry.pages[pool])
        entry.pages[pool].extend(Page() for _ in range(new))
        return new

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

    def cut(self, sequence: int, position: int) -> list[bool]:
        """Take all beyond ``position`` from a sequence or continuation; return, for each pool, whether its tail had to
        be copied.

        A cut inside a page that others hold puts a page of its own in that page's place (DESIGN 4.6).  A pool that has
        no more than ``position`` stays as it is.
        """
        entry = self.holders()[sequence]
        if position == entry.frontier:
            return [False for _ in self.pools]
        copied = []
        for pool, reach in enumerate(self.reach(entry)):
            held, size = entry.pages[pool], self.page_size[pool]
            inside = False
            if reach > position:
                del held[self.pages(position, pool) :]
                inside = position % size != 0 and self.is_shared(held[-1], pool)
            if inside:
                held[-1] = Page()
            copied.append(inside)
        entry.tokens = prefix(entry.tokens, position)
        entry.prompt = prefix(entry.prompt, position)
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
        self.marks[self.next_mark] = Mark(owner, prefix(entry.tokens, position), entry.identity)
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
