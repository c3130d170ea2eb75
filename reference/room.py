"""How the accounting model makes room: literally, on a copy of its books (DESIGN 4.9, decision 0020).

Verifies: whether an operation can be had at all once everyone who may be released is; that each copy which the engine
gave up, each continuation that it let sink or released, was there to be, and that pages were lacking before it.
Does not verify: which of those the engine takes, and whether the Host room that it made for what sinks was needed
(holes are not known here; a history's checker knows them, and a campaign those before the operation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import (
    Outcome,
    Scheduled,
    TransferStarted,
    Value,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.quick import quick
from kvcrucible.contract.snapshot import Tier
from kvcrucible.reference import acts, transfers
from kvcrucible.reference.books import Books
from kvcrucible.reference.judging import Judged, Judging
from kvcrucible.reference.pages import Page

#: Something that changes books and returns the operation's value.
Act: TypeAlias = Callable[[Books], Value]


@quick
@dataclass(frozen=True, slots=True)
class Choice:
    """One way to carry out an operation that takes pages; the ``protected`` continuation is not released for it."""

    act: Act
    protected: int | None = None


@quick
@dataclass(frozen=True, slots=True)
class Plan:
    """How an operation that may lack pages is judged, and its choices, best first; the first that fits is taken."""

    judged: Judged
    choices: list[Choice]


@quick
@dataclass(frozen=True, slots=True)
class Attempt:
    """Books in which some continuations were released and then an act took ``need`` of ``available`` free pages, each
    by pool.
    """

    books: Books
    value: Value
    need: tuple[int, ...]
    available: tuple[int, ...]

    @property
    def slack(self) -> int | None:
        """Pages that are lacking in the pool that lacks most (below 0: pages to spare); None where none are taken."""
        found = [need - there for need, there in zip(self.need, self.available, strict=True) if need]
        return max(found, default=None)


@dataclass(slots=True)
class Told:
    """What an engine says that it did to make room, in order; what is taken is taken off.

    ``sinking``: the request that waits for what it let sink, with the transfers.
    """

    evicted: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    sinking: Waiting | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Return what an outcome says of it."""
        value = outcome.value
        waiting = value.waiting if isinstance(value, Scheduled) else value
        sinks = isinstance(waiting, Waiting) and waiting.kind is WaitingKind.SINKING and waiting.started
        sinking = waiting if sinks and isinstance(waiting, Waiting) else None
        return cls(list(outcome.evicted), list(outcome.given_up), sinking)


class Room(Judging):
    """Making room in :attr:`books`."""

    capabilities: Capabilities
    _told: Told

    def _releasable(self, protected: int | None) -> list[int]:
        """Continuations that may be released under pressure, the least recently used first.

        Neither pinned nor in a transfer; and one without any Device page would free nothing (0013).
        """
        if "Release" not in self.capabilities.operations:
            return []
        kept = self.books.continuations
        may_go = [
            name
            for name, entry in kept.items()
            if not entry.pinned
            and name != protected
            and not self.books.any_in_transfer(entry)
            and any(page.device for held in entry.pages for page in held)
        ]
        return sorted(may_go, key=lambda name: kept[name].last_use)

    def _attempt(self, released: list[int], act: Act) -> Attempt:
        """Release, then act, on a copy."""
        books = self.books.copy()
        for continuation in released:
            acts.end(books, continuation)
        available = books.free
        value = act(books)
        need = tuple([there - left for there, left in zip(available, books.free, strict=True)])
        return Attempt(books, value, need, available)

    def _after_all_releases(self, choice: Choice) -> Attempt:
        return self._attempt(self._releasable(choice.protected), choice.act)

    def _carry_out(self, choice: Choice, ready: Attempt | None = None, request: int | None = None) -> Outcome:
        """Make room until the choice fits, and take it; or let something sink for the ``request`` that it is about.

        ``ready``: an attempt on these books that released nobody and fits, so that there is no room to be made.
        """
        if ready is not None:
            assert min(ready.books.free) >= 0, "what was chosen fits"
            self.books = ready.books
            return Outcome(ready.value)
        given_up: tuple[int, ...] = ()
        if request is not None:
            given_up = self._give_up_copies(choice)
            sinking = self._sink(choice, request)
            if sinking is not None:
                return replace(sinking, given_up=given_up)
        left = self._releasable(choice.protected)
        victims: list[int] = []
        while True:
            attempt = self._attempt(victims, choice.act)
            if min(attempt.books.free) >= 0:
                self.books = attempt.books
                return Outcome(attempt.value, evicted=tuple(victims), given_up=given_up)
            assert left, "what fits after all releases fits after some number of them"
            victims.append(self._next_victim(left))
            left.remove(victims[-1])

    def _next_victim(self, left: list[int]) -> int:
        """The one of ``left`` that the engine says to have released next; else the least recently used (0020)."""
        if self._told.evicted:
            told = self._told.evicted.pop(0)
            if told in left:
                return told
            self._told.evicted.clear()
        return left[0]

    def _short(self, choice: Choice) -> list[int]:
        """Pages that the choice lacks in each pool as things stand; below 0: pages to spare."""
        return [-free for free in self._attempt([], choice.act).books.free]

    def _give_up_copies(self, choice: Choice) -> tuple[int, ...]:
        """Give up the hidden Device copies that the engine says to have given up, while pages are lacking."""
        taken: list[int] = []
        while self._told.given_up and max(self._short(choice)) > 0:
            name = self._told.given_up[0]
            kept = self.books.continuations.get(name)
            copies = [] if kept is None else self.books.copies(kept, Tier.DEVICE)
            if name not in self._releasable(choice.protected) or not any(copies):
                break
            transfers.give_up(self.books, copies, Tier.DEVICE)
            taken.append(self._told.given_up.pop(0))
        return tuple(taken)

    def _sink(self, choice: Choice, request: int) -> Outcome | None:
        """Start what the engine says to have started for the request, as far as it is legal; None where nothing is."""
        told = self._told.sinking
        if told is None or told.sequence != request or self.config.host is None:
            return None
        may_yield, short = set(self._releasable(choice.protected)), self._short(choice)
        books = self.books.copy()
        started: list[TransferStarted] = []
        evicted: list[int] = []
        for one in told.started:
            again = one.continuation in books.queued[request].sunk
            if max(short) <= 0 or again or not {one.continuation, *one.beside} <= may_yield:
                break
            pages = books.sinkable(one.continuation, one.beside)
            if not any(pages) or not self._make_host_room(books, one, choice.protected):
                break
            started.append(transfers.sink(books, request, one, pages))
            evicted += one.evicted
            short = [lacking - len(of_pool) for lacking, of_pool in zip(short, pages, strict=True)]
        if not started or books.host_used > self.config.host.capacity_bytes:
            return None
        self.books = books
        # The engine names them among all that it released; a request let past after this one may release others.
        for name in evicted:
            if name in self._told.evicted:
                self._told.evicted.remove(name)
        waiting = Waiting(request, WaitingKind.SINKING, tuple(started))
        return Outcome(waiting, evicted=tuple(evicted))

    def _make_host_room(self, books: Books, told: TransferStarted, protected: int | None) -> bool:
        """Give up Host copies and release continuations on Host as told; say whether all of it was legal."""
        out_of_reach = (protected, told.continuation)
        own = books.continuations[told.continuation].pages
        # As they are before any is given up: what two of them hold goes with the first, and is given up by both.
        copies: dict[int, list[list[Page]]] = {}
        for name in told.given_up:
            kept = books.continuations.get(name)
            if kept is None or name in (*out_of_reach, *copies):
                return False
            found = zip(books.copies(kept, Tier.HOST), own, strict=True)
            copies[name] = [[page for page in there if page not in held] for there, held in found]
            if not any(copies[name]):
                return False
        for pages in copies.values():
            transfers.give_up(books, pages, Tier.HOST)
        for name in told.evicted:
            kept = books.continuations.get(name)
            if kept is None or name in out_of_reach or kept.pinned or books.any_in_transfer(kept):
                return False
            if any(page.device for held in kept.pages for page in held):
                return False
            acts.end(books, name)
        return True
