"""Who is let past a head of the queue that waits, in a history (DESIGN 4.8, decision 0021).

Verifies: the head waits for a reason that is due; whoever passes it is within the look-ahead, in order, no earlier
request of its session is queued, and the head's cold start still fits when all who have passed it stay for ever.
Does not verify: that somebody who might have passed was let past; the contract leaves that open.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken, Undecided
from kvcrucible.invariants.history.records import Holder, Page

#: Entries that may be looked at in all to count what is protected: some ten seconds.  Legal histories of real engines
#: stay far below; one that is made to be slow ends as *unknown*.
MAX_LOOKED_AT = 50_000_000


class Passing:
    """One ``schedule`` behind a ``head`` that waits."""

    def __init__(self, ledger: Ledger, head: Holder) -> None:
        self.head = head
        self._ledger = ledger
        self._window = [*islice(ledger.queue.values(), 1, 1 + ledger.header.lookahead)]
        self._sessions = {head.session} - {None}

    def require(self, holder: Holder) -> None:
        """Raise ``Broken`` unless ``holder`` may pass now; it is admitted next."""
        what = f"admission of {holder.id}, past {self.head.id}, which heads the queue and waits"
        while self._window and self._window[0] is not holder:
            left = self._window.pop(0)
            self._sessions |= {left.session} - {None}
        if not self._window:
            raise Broken(
                "admission-order",
                f"{what}: it is not among the next {self._ledger.header.lookahead}, in order",
            )
        self._window.pop(0)
        if holder.session in self._sessions:
            raise Broken("admission-order", f"{what}: an earlier request of its session is queued")
        self._require_safe(holder, what)
        self._note(holder)

    def _require_safe(self, holder: Holder, what: str) -> None:
        ledger = self._ledger
        if ledger.passed_head != self.head.id:
            ledger.passed_head, ledger.passers = self.head.id, 0
            ledger.passers_pages = [0 for _ in ledger.pools]
        if ledger.passers + 1 >= ledger.header.max_concurrency:
            raise Broken("completion-guarantee", f"{what}: those who pass may hold every row")
        for pool, (earlier, held) in enumerate(zip(ledger.passers_pages, _protected(ledger), strict=True)):
            own, cold = ledger.needed(holder.limit, pool), ledger.needed(self.head.limit, pool)
            if earlier + own + held + cold > ledger.capacity[pool]:
                raise Broken(
                    "completion-guarantee",
                    f"{what}: of {ledger.capacity[pool]} pages of pool {ledger.names[pool]} the head takes {cold}, "
                    f"this one {own}, those who have passed before {earlier}, and {held} are protected",
                )

    def _note(self, holder: Holder) -> None:
        ledger = self._ledger
        holder.passed = self.head.id
        ledger.passers += 1
        for pool in ledger.pools:
            ledger.passers_pages[pool] += ledger.needed(holder.limit, pool)


def _protected(ledger: Ledger) -> list[int]:
    """Count the Device pages of each pool that protected continuations and transfers hold."""
    held: list[set[Page]] = [set() for _ in ledger.pools]
    looked_at = len(ledger.continuations)
    for page in _pages(ledger):
        looked_at += 1
        if page.leased or page.transfer is not None:
            held[page.pool].add(page)
    ledger.looked_at += looked_at
    if ledger.looked_at > MAX_LOOKED_AT:
        raise Undecided(f"more than {MAX_LOOKED_AT:,} entries were looked at to count what is protected")
    return [len(pages) for pages in held]


def _pages(ledger: Ledger) -> Iterator[Page]:
    for kept in ledger.continuations.values():
        if kept.firm:
            for pages in kept.pages:
                yield from pages
    for transfer in ledger.transfers.values():
        yield from [move.page for move in transfer.moves]
