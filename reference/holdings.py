"""Who holds which pages in the accounting model, and what follows from that.

A page is an object without contents that lies in one pool.  Who holds it is seen from the lists in which it lies, and
every counter, bytes of the host arena included, is counted afresh from those lists after each act: there is no free
list, no page number, no reference count and no total that an act adds to.  The last count is kept until the next act,
which drops it before it changes anything (:meth:`Holdings.about_to_change`).  Meant for small pools.

Nothing here changes anything: :class:`kvcrucible.reference.books.Books` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Self, TypeAlias

from kvcrucible.contract.config import EngineConfig, pages_for
from kvcrucible.contract.operations import Identity
from kvcrucible.contract.quick import quick
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import EMPTY, Tokens, count
from kvcrucible.reference.labels import Spans
from kvcrucible.reference.pages import Extent, Fence, Move, Page, Transfer

#: (leased, reserved, free) of each pool.
Counters: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class Entry:
    """One sequence id's request, active sequence or continuation.

    ``prompt``: what is to be prefilled, from position 0.  ``tokens``: what is committed in Main.  Both are plain;
    ``spans`` say which of them stand for media (0022).  ``backend``: how
    many of them the backend has too.  ``pages``: a list for each pool.  ``returned``: for each pool, what has touched
    the pages that went back to its reservation and are not at rest, the earliest first (0013).  ``limit``: the last
    position that it may reach, plus 1.  ``unit``: the unit that has selected it.  ``passed``: the head of the queue
    that it was let past (0021).  Of a queued one (0020): ``tried``, the continuations of which it has started a
    restore; ``sunk``, those that were sunk for it, by the transfers ``sinks``.
    """

    prompt: Tokens
    limit: int
    session: str | None
    identity: Identity
    consume: bool = False
    spans: Spans = ()
    tokens: Tokens = EMPTY
    backend: int = 0
    pages: list[list[Page]] = field(default_factory=list)
    returned: list[list[Fence]] = field(default_factory=list)
    unit: int | None = None
    cancelled: bool = False
    pinned: bool = False
    passed: int | None = None
    last_use: int = 0
    tried: frozenset[int] = frozenset()
    sunk: frozenset[int] = frozenset()
    sinks: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.returned:
            self.returned = [[] for _ in self.pages]

    @property
    def frontier(self) -> int:
        """Number of tokens committed in Main."""
        return count(self.tokens)

    def copy(self, twin: Callable[[Page], Page]) -> Entry:
        """Return an entry with the pages' twins, whose lists can be changed without changing these."""
        # Written out: dataclasses.replace takes three times as long, and every attempt copies every entry.
        return Entry(
            self.prompt,
            self.limit,
            self.session,
            self.identity,
            self.consume,
            self.spans,
            self.tokens,
            self.backend,
            [list(map(twin, held)) for held in self.pages],
            [list(fences) for fences in self.returned],
            self.unit,
            self.cancelled,
            self.pinned,
            self.passed,
            self.last_use,
            self.tried,
            self.sunk,
            self.sinks,
        )


@quick
@dataclass(frozen=True, slots=True)
class Mark:
    """One checkpoint: ``tokens`` of ``owner`` that can be found, with what their ``spans`` say of them."""

    owner: int
    tokens: Tokens
    identity: Identity
    spans: Spans = ()


@quick
@dataclass(frozen=True, slots=True)
class UnitWork:
    """What a unit writes into one row: ``tokens`` after the committed ones, and the backend up to ``backend``."""

    sequence: int
    tokens: Tokens
    backend: int


class Holdings:
    """All state that decides an outcome (DESIGN 4.3; numbering as decided in 0003, pools as in 0011, replicas in 0013).

    ``immediate``: the effects of a unit are done when it ends; else it is outstanding from then on.
    """

    def __init__(self, config: EngineConfig, reserves: bool, immediate: bool = True) -> None:
        self.config, self.reserves, self.immediate = config, reserves, immediate
        self.pools = range(len(config.pools))
        self.capacity = tuple(pool.capacity_pages for pool in config.pools)
        self.page_size = tuple(pool.page_size for pool in config.pools)
        self.queued: dict[int, Entry] = {}
        self.active: dict[int, Entry] = {}
        self.continuations: dict[int, Entry] = {}
        self.marks: dict[int, Mark] = {}
        self.units: dict[int, tuple[UnitWork, ...]] = {}
        #: Units that have ended and that no progress has reported yet, in the order of their ends.
        self.ended: list[int] = []
        self.transfers: dict[int, Transfer] = {}
        #: For each pool, what has touched each page that nobody holds any more and that is not at rest.
        self.retiring: list[list[Fence]] = [[] for _ in config.pools]
        self.next_sequence = self.next_mark = self.next_unit = self.next_transfer = self.clock = 0
        self._counted: Counters | None = None

    def copy(self) -> Self:
        """Return books that can be changed without changing these; every page has a twin there."""
        pages = {page for entry in self.entries() for held in entry.pages for page in held}
        pages.update([move.page for transfer in self.transfers.values() for move in transfer.moves])
        twins = {page: page.copy() for page in pages}
        twin = twins.__getitem__

        def moved(transfer: Transfer) -> Transfer:
            return replace(transfer, moves=tuple(replace(m, page=twin(m.page)) for m in transfer.moves))

        other = object.__new__(type(self))
        # What never changes, and every number; what can be changed through the other follows.
        other.__dict__.update(self.__dict__)
        other.queued = {name: entry.copy(twin) for name, entry in self.queued.items()}
        other.active = {name: entry.copy(twin) for name, entry in self.active.items()}
        other.continuations = {name: entry.copy(twin) for name, entry in self.continuations.items()}
        other.transfers = {name: moved(transfer) for name, transfer in self.transfers.items()}
        other.retiring = [list(fences) for fences in self.retiring]
        other.marks, other.units, other.ended = dict(self.marks), dict(self.units), list(self.ended)
        return other

    # -- counting ------------------------------------------------------------------------------------------------------

    def holders(self) -> dict[int, Entry]:
        """Everyone who may hold pages."""
        return self.active | self.continuations

    def entries(self) -> Iterable[Entry]:
        """The entries of everyone who may hold pages."""
        return chain(self.active.values(), self.continuations.values())

    def leased(self, pool: int) -> int:
        """Device pages of the pool that are in use: of pages that anyone holds, held by transfers beside, or retiring.

        Beside, a transfer holds the Device pages of pages that have ended, and its own destinations.
        """
        held = {page for entry in self.active.values() for page in entry.pages[pool] if page.device}
        held.update([p for entry in self.continuations.values() for p in entry.pages[pool] if p.device])
        for transfer, move in self.moves(pool) if self.transfers else ():
            if move.page.device or (move.fresh and transfer.source is Tier.HOST):
                held.add(move.page)
        return len(held) + len(self.retiring[pool])

    @property
    def host_used(self) -> int:
        """Bytes of the host arena's extents in which some slot has not ended."""
        pages = [page for entry in self.entries() for held in entry.pages for page in held]
        moves = [move for pool in self.pools for _, move in self.moves(pool)]
        extents = {page.host for page in [*pages, *(move.page for move in moves)]} | {m.extent for m in moves}
        return sum([extent.size_bytes for extent in extents if extent is not None])

    def reserved(self, pool: int) -> int:
        """Pages of the pool promised to active sequences and not yet leased."""
        if not self.reserves:
            return 0
        size = self.page_size[pool]
        return sum([pages_for(one.limit, size) - len(one.pages[pool]) for one in self.active.values()])

    @property
    def free(self) -> tuple[int, ...]:
        """What is left in each pool; below 0 only in books that were changed to see whether something fits."""
        return tuple([free for _, _, free in self.counters])

    @property
    def counters(self) -> Counters:
        """(leased, reserved, free) of each pool, as they were counted after the last act."""
        return self.count_again() if self._counted is None else self._counted

    def count_again(self) -> Counters:
        """Count what every pool has leased, promised and left, from the lists; (leased, reserved, free) of each."""
        found = []
        for pool, capacity in enumerate(self.capacity):
            leased, reserved = self.leased(pool), self.reserved(pool)
            found.append((leased, reserved, capacity - leased - reserved))
        self._counted = tuple(found)
        return self._counted

    def about_to_change(self) -> Counters:
        """Return the counters before an act that may change them, and forget them, so that they are counted again."""
        counters, self._counted = self.counters, None
        return counters

    def protected(self, pool: int) -> int:
        """Device pages of the pool that are held, whoever else does, by a pinned continuation, by one of which a page
        is in a transfer, or by a transfer.
        """
        kept = [one for one in self.continuations.values() if one.pinned or self.any_in_transfer(one)]
        held = {page for one in kept for page in one.pages[pool] if page.device}
        return len(held | {move.page for _, move in self.moves(pool)})

    def passers(self, head: int) -> list[int]:
        """Active sequences that were let past this head of the queue (0021)."""
        return [name for name, entry in self.active.items() if entry.passed == head]

    def reservation(self, entry: Entry, pool: int) -> int:
        """Pages promised to an active sequence: its entitlement less what it holds (0003), or none at all."""
        return pages_for(entry.limit, self.page_size[pool]) - len(entry.pages[pool]) if self.reserves else 0

    def pages(self, tokens: int, pool: int) -> int:
        """Pages of the pool that hold ``tokens`` positions."""
        return pages_for(tokens, self.page_size[pool])

    def reach(self, entry: Entry) -> tuple[int, ...]:
        """How many positions each pool has."""
        return (entry.frontier, entry.backend)[: len(self.pools)]

    def common(self, entry: Entry) -> int:
        """How many positions every pool has: where a checkpoint stands (0011)."""
        return min(self.reach(entry))

    def references(self, page: Page, pool: int) -> int:
        """How many sequences and continuations hold the page; 0 for one that has ended."""
        found = 0
        for entries in (self.active, self.continuations):
            for entry in entries.values():
                if page in entry.pages[pool]:
                    found += 1
        return found

    def is_shared(self, page: Page, pool: int) -> bool:
        """Whether at least two hold the page, of whom one may be a transfer."""
        return self.references(page, pool) + self.in_transfer(page) > 1

    def columns(self, page: Page, pool: int) -> int:
        """Committed columns of a page that lives."""
        size, found = self.page_size[pool], [0]
        for entry in self.entries():
            if page in entry.pages[pool]:
                found.append(self.reach(entry)[pool] - entry.pages[pool].index(page) * size)
        return min(size, max(found))

    # -- replicas and fences -------------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> Fence:
        """Units that have ended and whose effects are not known to be done."""
        return frozenset(() if self.immediate else self.ended)

    def is_at_rest(self, fence: Fence) -> bool:
        """Whether no outstanding unit has touched the page."""
        return not fence or fence.isdisjoint(self.outstanding)

    def moves(self, pool: int) -> list[tuple[Transfer, Move]]:
        """The pages of the pool that transfers hold, each with its transfer."""
        if not self.transfers:
            return []
        return [
            (transfer, move)
            for transfer in self.transfers.values()
            for move in transfer.moves
            if move.pool == pool
        ]

    def in_transfer(self, page: Page) -> bool:
        """Whether a transfer holds the page."""
        return bool(self.transfers) and any(transfer.holds(page) for transfer in self.transfers.values())

    def any_in_transfer(self, entry: Entry) -> bool:
        """Whether a transfer holds one of the entry's pages."""
        return bool(self.transfers) and any(self.in_transfer(page) for held in entry.pages for page in held)

    def living(self, transfer: Transfer) -> list[Move]:
        """Those of its pages that somebody else holds too, so that they have not ended."""
        return [move for move in transfer.moves if self.references(move.page, move.pool)]

    def is_cancelled(self, transfer: Transfer) -> bool:
        """Whether somebody has cancelled it, or every page of it has ended."""
        return transfer.cancelled or not self.living(transfer)

    def resident(self, entry: Entry) -> bool:
        """Whether every page of the entry is visible on Device."""
        return all(page.visible is Tier.DEVICE for held in entry.pages for page in held)

    def missing(self, entry: Entry, position: int) -> list[list[Page]]:
        """For each pool, the pages of the entry's first ``position`` positions that are visible on Host."""
        return [
            [page for page in entry.pages[pool][: self.pages(position, pool)] if page.visible is Tier.HOST]
            for pool in self.pools
        ]

    def sinkable(self, continuation: int, beside: Iterable[int]) -> list[list[Page]]:
        """For each pool, what of a continuation can sink: movable, and held by nobody but it and those ``beside``."""
        names = {continuation, *beside}
        others = [entry for name, entry in self.holders().items() if name not in names]
        return [
            [
                page
                for page in self.movable(self.continuations[continuation], Tier.DEVICE, pool)
                if not any(page in entry.pages[pool] for entry in others)
            ]
            for pool in self.pools
        ]

    def copies(self, entry: Entry, tier: Tier) -> list[list[Page]]:
        """For each pool, the entry's pages with a hidden copy in ``tier``, the ones in transfers left out."""
        return [
            [
                page
                for page in held
                if page.visible is not tier and page.has(tier) and not self.in_transfer(page)
            ]
            for held in entry.pages
        ]

    def all_movable(self, entry: Entry, source: Tier) -> list[list[Page]]:
        """For each pool, the entry's pages that can leave ``source``."""
        return [self.movable(entry, source, pool) for pool in self.pools]

    def movable(self, entry: Entry, source: Tier, pool: int) -> list[Page]:
        """The entry's pages that can leave ``source``: visible there, in no transfer, held by no active sequence."""
        active = [page for other in self.active.values() for page in other.pages[pool]]
        return [
            page
            for page in entry.pages[pool]
            if page.visible is source and not self.in_transfer(page) and page not in active
        ]

    def extents(self, pages: list[list[Page]]) -> tuple[Extent | None, ...]:
        """For each pool, the extent that a demotion of ``pages`` takes for those that have no clean copy on Host; None
        where all have, or without a Host tier.
        """
        host, found = self.config.host, []
        for pool, spec in enumerate(self.config.pools):
            slots = len([page for page in pages[pool] if page.host is None])
            new = Extent(pool, host.rounded(slots * spec.page_bytes)) if host is not None and slots else None
            found.append(new)
        return tuple(found)
