"""Address spaces: ordered logical pages and a committed frontier (DESIGN 4.5, 4.6).

Who owns what along the positions of one space, half-open intervals, P the page size::

    [0, shared)              full pages that other spaces reference too: immutable, freed by whoever drops them last
    [shared, frontier)       committed positions in pages of this space's own: freed when this space ends
    [frontier, held * P)     stale or provisional columns of the last page(s): written by the unit in flight, if any
    [held * P, limit)        nothing yet: promised by the sequence's reservation, returned when the sequence ends

A partial last page always belongs to this space alone (decision 0003).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kvcrucible.contract.config import pages_for
from kvcrucible.engine.giving_up import GivenUp
from kvcrucible.engine.pages import LogicalPage, PageLedger
from kvcrucible.engine.pool import Reservation

#: Label of a page copy within the device, by which it is known on its stream.
TAIL_COPY_LABEL = "tail copy"

#: Copies the first ``columns`` of one physical page of a pool to another: (pool, source, destination, columns).
CopyColumns: TypeAlias = Callable[[int, int, int, int], None]


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut to ``position`` that has begun: what lies beyond, and the page for a copy of the cut page, None without
    one.
    """

    position: int
    beyond: GivenUp
    own: LogicalPage | None


@dataclass(slots=True)
class AddressSpace:
    """One sequence's pages in one pool.  Methods mutate this space and, where they share, the source's references.

    ``fence`` is the last unit, by ordinal, that selected the sequence; it goes with the pages that the space drops.
    """

    pool: int
    page_size: int
    pages: list[LogicalPage] = field(default_factory=list)
    frontier: int = 0
    fence: int = 0

    def missing_pages(self, position: int) -> int:
        """Pages that have to be granted before ``position`` positions can be written."""
        return max(0, pages_for(position, self.page_size) - len(self.pages))

    def extend(self, ledger: PageLedger, reservation: Reservation, position: int) -> list[LogicalPage]:
        """Grant what is missing up to ``position`` out of ``reservation``; the frontier stays.  Returns the new
        pages.
        """
        missing = self.missing_pages(position)
        if not missing:
            return []
        granted = ledger.grant(self.pool, reservation, missing)
        self.pages.extend(granted)
        return granted

    def commit(self, ledger: PageLedger, position: int) -> None:
        """Move the frontier up to ``position``; the pages that this crosses are committed as far as it reaches."""
        assert self.frontier <= position <= len(self.pages) * self.page_size
        if position == self.frontier:
            return
        first, last = self.frontier // self.page_size, pages_for(position, self.page_size) - 1
        for page in self.pages[first:last]:
            page.committed = self.page_size
        self.pages[last].committed = position - last * self.page_size
        # The others are new: only the page in which the frontier stood can have left the device before.
        ledger.changed(self.pages[first])
        ledger.touched.pages.update(page.page for page in self.pages[first : last + 1])
        self.frontier = position

    def retract(self, ledger: PageLedger, reservation: Reservation) -> int:
        """Give pages beyond the frontier back to ``reservation``; return how many."""
        keep = pages_for(self.frontier, self.page_size)
        extra = self.pages[keep:]
        del self.pages[keep:]
        ledger.drop(self.pool, extra, reservation, self.fence)
        return len(extra)

    def give_back(self, ledger: PageLedger, reservation: Reservation, pages: int) -> None:
        """Undo :meth:`extend`: the last ``pages``, into which nobody has written, return to ``reservation``."""
        granted = self.pages[len(self.pages) - pages :]
        del self.pages[len(self.pages) - pages :]
        ledger.drop(self.pool, granted[::-1], reservation)

    def fork(
        self, ledger: PageLedger, tail: LogicalPage | None, position: int, copy: CopyColumns
    ) -> AddressSpace:
        """Return a new space of the first ``position`` tokens: full pages shared, a partial tail copied at once into
        ``tail``, which has been granted where there is one to copy.
        """
        assert 0 <= position <= self.frontier
        full, columns = divmod(position, self.page_size)
        child = AddressSpace(self.pool, self.page_size, self.pages[:full], position)
        ledger.share(child.pages)
        if columns:
            assert tail is not None
            copy(self.pool, self.pages[full].device, tail.device, columns)
            tail.committed = columns
            child.pages.append(tail)
        return child

    def cut_drops(self, position: int) -> list[LogicalPage]:
        """Return the pages that lose this space's reference when it is cut to ``position``: those beyond the cut,
        and the cut page itself where it is shared and has to be copied.  No page where it stands at or below.
        """
        if position >= self.frontier:
            return []
        keep, columns = pages_for(position, self.page_size), position % self.page_size
        dropped = self.pages[keep:]
        if columns and self.pages[keep - 1].shared:
            dropped.append(self.pages[keep - 1])
        return dropped

    def begin_cut(self, ledger: PageLedger, reservation: Reservation, position: int) -> Cut:
        """Take the first step of a cut back to ``position`` below the frontier: all that may fail.

        Pages that nobody else holds, a transfer neither, return to ``reservation``.  A shared cut page is going to be
        replaced by a private copy of its remaining columns, for which ``reservation`` must hold a page once the others
        have returned.  Raises what a failing grant raises, and then nothing has changed.  :meth:`end_cut` or
        :meth:`undo_cut` follows.
        """
        assert 0 <= position < self.frontier
        keep, columns = pages_for(position, self.page_size), position % self.page_size
        beyond = GivenUp(ledger, self.pool, self.pages[keep:], reservation, self.fence)
        if not columns or not self.pages[keep - 1].shared:
            return Cut(position, beyond, None)
        try:
            (own,) = ledger.grant(self.pool, reservation, 1)
        except Exception:
            beyond.take_back()
            raise
        return Cut(position, beyond, own)

    def undo_cut(self, ledger: PageLedger, reservation: Reservation, begun: Cut) -> None:
        """Put everything back as it was before :meth:`begin_cut`."""
        if begun.own is not None:
            ledger.drop(self.pool, [begun.own], reservation)
        begun.beyond.take_back()

    def end_cut(self, ledger: PageLedger, reservation: Reservation, begun: Cut, copy: CopyColumns) -> None:
        """Carry out a cut that has begun: exactly its position stays."""
        position = begun.position
        keep, columns = pages_for(position, self.page_size), position % self.page_size
        begun.beyond.commit()
        del self.pages[keep:]
        if columns:
            cut, own = self.pages[-1], begun.own
            if own is not None:
                copy(self.pool, cut.device, own.device, columns)
                self.pages[-1] = own
                ledger.drop(self.pool, [cut], reservation, self.fence)
                cut = own
            else:
                cut.epoch += 1
                ledger.touched.pages.add(cut.page)
            cut.committed = columns
            ledger.changed(cut)
        self.frontier = position

    def devices(self, first: int = 0) -> list[int]:
        """Return the physical page ids from logical block ``first`` on."""
        return [page.device for page in self.pages[first:]]


def close_spaces(ledger: PageLedger, spaces: Sequence[AddressSpace]) -> None:
    """Drop every page of ``spaces``, which nobody uses again; those that nobody else holds become free, behind their
    fence.
    """
    for space in spaces:
        ledger.drop(space.pool, space.pages, None, space.fence)
