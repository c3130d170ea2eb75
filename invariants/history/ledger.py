"""Who holds which pages in the history so far, kept up to date line by line (DESIGN 4.3-4.5; decisions 0003, 0013).

Everything that an operation needs is a number that is at hand, so that a line costs what it changes and not what is
alive.  A page has three counts beside its place:

``references``  spaces and transfers that hold it; with none it has ended
``active``      spaces of active sequences among them
``firm``        holders that making room may not release: active sequences, protected continuations, transfers

``yielding`` counts, for each pool, the Device pages that would be free if every continuation that may be released were:
those with ``firm`` 0 and at rest.

Verifies: places, generations, and every count that follows from them.  Knows nothing of operations.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvcrucible.contract.history_header import Header, Shown
from kvcrucible.contract.planes import LEADING
from kvcrucible.invariants.history.arena import Arena, Transfer
from kvcrucible.invariants.history.index import CheckpointIndex
from kvcrucible.invariants.history.outcome import Broken, Undecided
from kvcrucible.invariants.history.records import NO_PAGE, Holder, Page

if TYPE_CHECKING:
    from kvcrucible.invariants.history.units import Unit

#: Entries (pages, places in spaces, runs, checkpoints, generations) that may be alive at a time.  One takes some 100 to
#: 250 bytes, so that the most memory is some 500 MB.
MAX_LIVE_ENTRIES = 2_000_000


class Ledger:
    """All holders and pages of a history, with the counters of every pool.  Methods raise ``Broken``."""

    def __init__(self, header: Header, max_entries: int = MAX_LIVE_ENTRIES) -> None:
        self.header = header
        self.pools = range(len(header.pools))
        self.names = [pool.name for pool in header.pools]
        self.leads = self.names[-1] in LEADING
        self.capacity = [pool.capacity_pages for pool in header.pools]
        self.page_size = [pool.page_size for pool in header.pools]
        self.reserves = header.reserves
        shows = set(header.shows)
        self.shows_pages, self.shows_generations = Shown.PAGES in shows, Shown.GENERATIONS in shows
        self.shows_fences, self.shows_lru = Shown.FENCES in shows, Shown.LRU in shows
        self.shows_rows, self.shows_tokens = Shown.ROWS in shows, Shown.TOKENS in shows
        self.shows_copies, self.shows_fifo = Shown.COPIES in shows, Shown.FIFO in shows
        self.shows_hits = Shown.HITS in shows and self.shows_tokens
        self.shows_refusals, self.shows_returns = Shown.REFUSALS in shows, Shown.RETURNS in shows
        self.has_host = header.host is not None
        self.leased = [0 for _ in self.pools]
        self.reserved = [0 for _ in self.pools]
        self.free = list(self.capacity)
        self.yielding = [0 for _ in self.pools]
        self.owners: list[dict[int, Page]] = [{} for _ in self.pools]
        self.generations: list[dict[int, int]] = [{} for _ in self.pools]
        self.holders: dict[int, Holder] = {}
        self.queue: OrderedDict[int, Holder] = OrderedDict()
        self.continuations: OrderedDict[int, Holder] = OrderedDict()
        self.rows: dict[int, int] = {}
        self.actives = 0
        #: The head of the queue that was passed last, how many active ones have passed it, and their entitlements.
        self.passed_head: int | None = None
        self.passers, self.passers_pages = 0, [0 for _ in self.pools]
        #: Entries looked at to judge who may pass.
        self.looked_at = 0
        self.active_sessions: dict[str, int] = {}
        self.kept_sessions: dict[str, int] = {}
        #: Physical pages, as (pool, page): the unit's end for which they wait, or the sequence that is promised them.
        self.retiring: dict[tuple[int, int], int] = {}
        self.promised: dict[tuple[int, int], int] = {}
        self.returners: set[Holder] = set()
        #: Pages that will count as yielding once a unit is done, by the unit's end.
        self.unsettled: dict[int, list[Page]] = {}
        self.retiring_by_end: dict[int, list[tuple[int, int]]] = {}
        #: Ends of units so far, ends that are known to be done, and units begun.
        self.ends = self.done_ends = self.begun = 0
        self.ended: deque[tuple[int, int]] = deque()
        self.outstanding: set[int] = set()
        self.entries = self.most_entries = 0
        self._max_entries = max_entries
        self.index = CheckpointIndex()
        #: Owners of checkpoints, and the engine's numbers for them where the history has told any.
        self.owners_of_marks: dict[int, int] = {}
        self.told_marks: dict[int, int] = {}
        self.next_mark = 0
        self.units: dict[int, Unit] = {}
        self.transfers: dict[int, Transfer] = {}
        self.arena = Arena(header.host) if header.host is not None else None
        #: The highest number given out so far: numbers only rise.
        self.last = {"sequence": -1, "unit": -1, "transfer": -1, "checkpoint": -1}

    def charge(self, entries: int) -> None:
        """Count what is alive; raises ``Undecided`` beyond the cap."""
        self.entries += entries
        if self.entries > self.most_entries:
            self.most_entries = self.entries
            if self.entries > self._max_entries:
                raise Undecided(
                    f"more than {self._max_entries:,} entries are alive at once (pages, runs, checkpoints); "
                    "a higher --max-live takes more memory"
                )

    def number(self, kind: str, name: int | None) -> int:
        """Return a new number that the engine gave out; raises ``Broken`` where it was, or could have been, before."""
        if name is None:
            raise Broken("numbering", f"the line gives no {kind}")
        if name <= self.last[kind]:
            raise Broken(
                "numbering",
                f"{kind} {name} is given out after {self.last[kind]}: numbers rise, none comes twice",
            )
        self.last[kind] = name
        return name

    def needed(self, position: int, pool: int) -> int:
        """Pages of the pool that hold ``position`` positions."""
        return -(-position // self.page_size[pool])

    # -- pages ---------------------------------------------------------------------------------------------------------

    def grant(
        self, holder: Holder, pool: int, due: int, pages: list[list[int]], generations: list[list[int]]
    ) -> None:
        """Give the holder the ``due`` pages that the line names for this pool; out of its reservation, or out of free
        where nothing is reserved.
        """
        named = pages[pool] if pool < len(pages) else ()
        reclaimed = self._check_named(holder, pool, due, named)
        if self.shows_generations and due:
            self.check_generations(pool, named, generations)
        if not due:
            return
        if self.reserves:
            self.reserved[pool] -= due
        else:
            self._take_free(pool, due, f"sequence {holder.id}")
        self.leased[pool] += due
        self.charge(3 * due)
        held, owners, born = holder.pages[pool], self.owners[pool], self.begun
        if not self.shows_pages:
            stamped = [stamp for _, stamp in reclaimed]
            held += [Page(pool, NO_PAGE, born, stamp) for stamp in stamped]
            held += [Page(pool, NO_PAGE, born) for _ in range(due - len(stamped))]
            return
        stamps = dict(reclaimed)
        for name in named:
            owners[name] = page = Page(pool, name, born, stamps.get(name, 0) if stamps else 0)
            held.append(page)

    def _take_free(self, pool: int, pages: int, who: str) -> None:
        if pages > self.free[pool]:
            raise Broken(
                "pool-conservation",
                f"{who} is given {pages} pages of pool {self.names[pool]}, of which {self.free[pool]} are free",
            )
        self.free[pool] -= pages

    def _check_named(
        self, holder: Holder, pool: int, due: int, named: Sequence[int]
    ) -> Sequence[tuple[int, int]]:
        """Check the pages of a grant: so many, and each free, or the holder's own to have again.

        Returns those that it has again, with their stamps: what came back and is not at rest is granted first, the
        latest first (0013).
        """
        found = len(named)
        if found != due and (self.shows_pages or found):
            raise Broken(
                "frontier-bounds" if found < due else "completion-guarantee",
                f"sequence {holder.id} is granted {found} pages of pool {self.names[pool]}, where {due} are due",
            )
        returned = holder.returned[pool]
        reclaimed = returned[-due:] if due and returned else ()
        if reclaimed:
            del returned[-due:]
            for name, _ in reclaimed:
                self.promised.pop((pool, name), None)
        if self.shows_pages and due:
            self.check_free(pool, named, f"sequence {holder.id}")
            for name, _ in reclaimed:
                if name not in named:
                    raise Broken(
                        "recycle-fenced",
                        f"page {name} of pool {self.names[pool]} came back to sequence {holder.id}'s reservation "
                        "and is not at rest: the sequence itself is granted it first",
                    )
        return reclaimed

    def check_free(self, pool: int, named: Sequence[int], who: str) -> None:
        """Raise unless every named page exists, is leased to nobody and waits for no unit, each once."""
        owners, capacity = self.owners[pool], self.capacity[pool]
        for name in named:
            if name >= capacity:
                raise Broken(
                    "lease-unique",
                    f"page {name} granted to {who}: pool {self.names[pool]} has {capacity} pages, from 0",
                )
            if name in owners:
                raise Broken("lease-unique", f"page {name} granted to {who}: {self._whose(pool, name)}")
            if (pool, name) in self.retiring:
                raise Broken(
                    "recycle-fenced",
                    f"page {name} granted to {who}: it is retiring, and no progress has reported its unit",
                )
            if (pool, name) in self.promised:
                raise Broken(
                    "recycle-fenced",
                    f"page {name} granted to {who}: it returned to sequence {self.promised[pool, name]}'s "
                    "reservation and is not at rest",
                )
        if len(named) > 1 and len(set(named)) < len(named):
            raise Broken("lease-unique", f"one page granted twice at once to {who}")

    def _whose(self, pool: int, name: int) -> str:
        """Say who holds a physical page; looks through everyone, for a message."""
        page = self.owners[pool][name]
        for holder in self.holders.values():
            if page in holder.pages[pool]:
                return f"{holder.state.value} {holder.id} holds it"
        return "a transfer holds it"

    def check_generations(self, pool: int, named: Sequence[int], generations: list[list[int]]) -> None:
        """Raise unless there is a generation for each page, higher than the one before."""
        told = generations[pool] if pool < len(generations) else ()
        last = self.generations[pool]
        known = len(last)
        try:
            for name, generation in zip(named, told, strict=True):
                if generation <= last.get(name, 0):
                    raise Broken(
                        "stale-handle-refused",
                        f"page {name} is granted in generation {generation}, after generation {last[name]}"
                        if name in last
                        else f"page {name} is granted in generation {generation}; they count from 1",
                    )
                last[name] = generation
        except ValueError:
            raise Broken(
                "stale-handle-refused", f"{len(told)} generations for the pages of pool {self.names[pool]}"
            ) from None
        self.charge(len(last) - known)

    def leave(self, page: Page, heir: Holder | None = None) -> None:
        """Free the physical page of a page: to ``heir``'s reservation, to free, or to those that retire."""
        pool, loud = page.pool, page.stamp in self.outstanding
        page.leased = False
        self.charge(-2)
        if page.device != NO_PAGE:
            del self.owners[pool][page.device]
        if heir is not None and self.reserves:
            self.leased[pool] -= 1
            self.reserved[pool] += 1
            if loud:
                heir.returned[pool].append((page.device, page.stamp))
                self.returners.add(heir)
                self.promised[pool, page.device] = heir.id
        elif loud:
            self.retire(pool, page.device, page.stamp)
        else:
            self.leased[pool] -= 1
            self.free[pool] += 1
        page.device = NO_PAGE

    def retire(self, pool: int, name: int, end: int) -> None:
        """Let a physical page that counts as leased wait for the unit of this end."""
        self.retiring[pool, name] = end
        self.retiring_by_end.setdefault(end, []).append((pool, name))
        self.charge(2)

    def settle(self, done: Iterable[int]) -> None:
        """Note that units are done, by their ends: what waits for them is at rest."""
        for end in done:
            self.outstanding.discard(end)
            for pool, name in self.retiring_by_end.pop(end, ()):
                self.retiring.pop((pool, name), None)
                self.leased[pool] -= 1
                self.free[pool] += 1
                self.charge(-2)
            waiting = self.unsettled.pop(end, ())
            self.charge(-len(waiting))
            for page in dict.fromkeys(waiting):
                if page.leased and page.stamp == end and not page.firm:
                    self.yielding[page.pool] += 1

        for holder in [one for one in self.returners if not self.rest(one)]:
            self.returners.discard(holder)

    def rest(self, holder: Holder) -> bool:
        """Make what came back to a reservation and is at rest a promise like any other; say whether some is not."""
        left = False
        for pool, returned in enumerate(holder.returned):
            kept = [(name, stamp) for name, stamp in returned if stamp in self.outstanding]
            if len(kept) < len(returned):
                for name in {name for name, _ in returned} - {name for name, _ in kept}:
                    self.promised.pop((pool, name), None)
                holder.returned[pool] = kept
            left = left or bool(kept)
        return left

    def reserve(self, pool: int, pages: int, who: str) -> None:
        """Promise free pages."""
        self._take_free(pool, pages, who)
        self.reserved[pool] += pages

    def adjust_reservation(self, holder: Holder, pool: int, by: int) -> None:
        """Promise ``by`` more free pages, or return as many promises to free where it is below 0."""
        if by > 0:
            self.reserve(pool, by, f"sequence {holder.id}")
        else:
            self.reserved[pool] += by
            self.free[pool] -= by

    def retire_excess(self, holder: Holder, pool: int) -> None:
        """Let what came back to a reservation and is more than it holds retire, the earliest first (0013)."""
        returned = holder.returned[pool]
        promised = self.needed(holder.limit, pool) - len(holder.pages[pool])
        excess = max(0, len(returned) - promised)
        for name, stamp in returned[:excess]:
            self.promised.pop((pool, name), None)
            self.free[pool] -= 1
            self.leased[pool] += 1
            self.retire(pool, name, stamp)
        del returned[:excess]

    def close_reservation(self, holder: Holder) -> None:
        """Free what is promised to an active sequence and not leased; what came back and is not at rest retires."""
        for pool, returned in enumerate(holder.returned):
            if self.reserves:
                unused = self.needed(holder.limit, pool) - len(holder.pages[pool])
                self.reserved[pool] -= unused
                self.free[pool] += unused
            for name, stamp in returned:
                self.promised.pop((pool, name), None)
                self.free[pool] -= 1
                self.leased[pool] += 1
                self.retire(pool, name, stamp)
            holder.returned[pool] = []
        self.returners.discard(holder)

    # -- holding -------------------------------------------------------------------------------------------------------

    def touch(self, holder: Holder) -> None:
        """Bring the stamps of an active sequence's pages up to date, before it lets go of any."""
        if holder.ended not in self.outstanding:
            return
        for held in holder.pages:
            for page in held:
                if page.born < holder.begun and page.stamp < holder.ended:
                    page.stamp = holder.ended

    def soften(self, pages: Iterable[Page]) -> None:
        """Take one firm holder from each page; those with none left could be had by making room."""
        for page in pages:
            page.firm -= 1
            if not page.firm and page.leased:
                self.offer(page)

    def offer(self, page: Page) -> None:
        """Count a leased page without a firm holder as yielding, once it is at rest."""
        if page.stamp in self.outstanding:
            self.unsettled.setdefault(page.stamp, []).append(page)
            self.charge(1)
        else:
            self.yielding[page.pool] += 1

    def harden(self, pages: Iterable[Page]) -> None:
        """Add one firm holder to each page."""
        for page in pages:
            if not page.firm and page.leased and page.stamp not in self.outstanding:
                self.yielding[page.pool] -= 1
            page.firm += 1

    def share(self, pages: list[Page]) -> None:
        """Let one more active sequence hold each page."""
        self.harden(pages)
        for page in pages:
            page.references += 1
            page.active += 1
        self.charge(len(pages))

    def let_go(self, pages: list[Page], heir: Holder | None = None) -> None:
        """Take an active sequence's hold of each page; what nobody else holds goes to ``heir`` or is freed."""
        for page in pages:
            page.active -= 1
            page.firm -= 1
            page.references -= 1
            if not page.references:
                self.finish(page, heir)
            elif not page.firm and page.leased:
                self.offer(page)
        self.charge(-len(pages))

    def forsake(self, keeper: int, pages: list[Page], firm: bool, heir: Holder | None = None) -> None:
        """Take a continuation's hold of each page, all of one pool; what nobody else holds goes to the reservation of
        ``heir``, who takes the continuation over, or is freed.
        """
        freed = 0
        outstanding = self.outstanding
        for page in pages:
            if page.references == 1 and page.leased and page.extent is None and page.stamp not in outstanding:
                # By far the most: a page of its own alone, at rest on Device.
                freed += 1
                page.references = page.firm = 0
                page.leased = False
                if page.device != NO_PAGE:
                    del self.owners[page.pool][page.device]
                    page.device = NO_PAGE
                continue
            if page.keepers is not None:
                page.keepers.discard(keeper)
            page.references -= 1
            page.firm -= firm
            if not page.references:
                if not firm and page.leased and page.stamp not in outstanding:
                    self.yielding[page.pool] -= 1
                self.finish(page, heir)
            elif firm and not page.firm and page.leased:
                self.offer(page)
        if freed:
            pool = pages[0].pool
            self.leased[pool] -= freed
            if heir is not None and self.reserves:
                self.reserved[pool] += freed
            else:
                self.free[pool] += freed
            if not firm:
                self.yielding[pool] -= freed
        self.charge(-len(pages) - 2 * freed)

    def finish(self, page: Page, heir: Holder | None = None) -> None:
        """End a page that nobody holds; a transfer would hold it."""
        if page.leased:
            self.leave(page, heir)
        if page.extent is not None:
            page.extent.drop()
            page.extent = None
