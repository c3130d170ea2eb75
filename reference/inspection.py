"""What a harness may look at in the accounting model; nothing here changes anything."""

from __future__ import annotations

from kvcrucible.contract.media import TokenSpan, labelled
from kvcrucible.contract.operations import Identity
from kvcrucible.contract.semantics import State
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import Tokens, count
from kvcrucible.reference.books import Books
from kvcrucible.reference.holdings import Entry


class Inspection:
    """Questions about :attr:`books`.

    An id has to name a queued, active or retained sequence, else ``KeyError``; :meth:`state` takes any.
    """

    books: Books

    @property
    def queue(self) -> list[int]:
        """Queued requests, the head first."""
        return list(self.books.queued)

    def passers(self) -> list[int]:
        """Active sequences that were let past the head of the queue (0021)."""
        return self.books.passers(self.queue[0]) if self.queue else []

    def consuming(self) -> frozenset[int]:
        """Queued requests that may take a continuation whatever its session."""
        return frozenset([name for name, entry in self.books.queued.items() if entry.consume])

    def sequences(self) -> list[int]:
        """Active sequences."""
        return sorted(self.books.active)

    def continuations(self) -> list[int]:
        """Retained sequences."""
        return sorted(self.books.continuations)

    @property
    def units(self) -> list[int]:
        """Units in flight."""
        return sorted(self.books.units)

    @property
    def checkpoints(self) -> list[tuple[int, int, int, Tokens, Identity]]:
        """(id, owner, frontier, tokens with their labels, identity) of every checkpoint, by id."""
        return [
            (mark_id, mark.owner, count(mark.tokens), labelled(mark.tokens, mark.spans), mark.identity)
            for mark_id, mark in sorted(self.books.marks.items())
        ]

    @property
    def rows_free(self) -> int:
        """Rows of the block-table matrix that nobody leases."""
        return self.books.config.max_concurrency - len(self.books.active)

    def appended(self, unit: int) -> dict[int, int]:
        """How many tokens a unit in flight appends to each of its sequences, those left out that it prefills;
        ``KeyError`` for any other id.
        """
        works = self.books.units[unit]
        return {
            work.sequence: count(work.tokens)
            for work in works
            if self.books.state(work.sequence) is State.DECODE
        }

    def state(self, sequence: int) -> State:
        """Where the id is in its life; GONE for one that was never given out."""
        return self.books.state(sequence)

    def tokens(self, sequence: int) -> Tokens:
        """Committed tokens, plain; :meth:`spans` say which of them stand for media."""
        return self._entry(sequence).tokens

    def spans(self, sequence: int) -> tuple[TokenSpan, ...]:
        """What the request's spans say of the sequence's tokens."""
        return self._entry(sequence).spans

    def known_as(self, sequence: int) -> Tokens:
        """Committed tokens with what their spans say of them, as an engine shows them (0022)."""
        entry = self._entry(sequence)
        return labelled(entry.tokens, entry.spans)

    def frontier(self, sequence: int) -> int:
        """Number of tokens committed in Main."""
        return self._entry(sequence).frontier

    def reach(self, sequence: int) -> tuple[int, ...]:
        """Number of positions committed in each pool."""
        return self.books.reach(self._entry(sequence))

    def prompt(self, sequence: int) -> int:
        """Prompt length, in tokens."""
        return count(self._entry(sequence).prompt)

    def prompt_left(self, sequence: int) -> int:
        """Tokens of the prompt that are still to be prefilled."""
        return max(0, self.prompt(sequence) - self.frontier(sequence))

    def limit(self, sequence: int) -> int:
        """The last position that the sequence may reach, plus 1."""
        return self._entry(sequence).limit

    def session(self, sequence: int) -> str | None:
        """The session key."""
        return self._entry(sequence).session

    def identity(self, sequence: int) -> Identity:
        """What beside the tokens has to be equal for a hit."""
        return self._entry(sequence).identity

    def pinned(self, sequence: int) -> bool:
        """Whether a continuation is protected from release."""
        return self._entry(sequence).pinned

    def cancel_recorded(self, sequence: int) -> bool:
        """Whether the end of its unit will drop the sequence."""
        return self._entry(sequence).cancelled

    def continuations_by_use(self) -> list[int]:
        """Retained sequences, the least recently used first."""
        kept = self.books.continuations
        return sorted(kept, key=lambda name: kept[name].last_use)

    def in_flight(self, sequence: int) -> bool:
        """Whether a unit has selected the sequence."""
        return self._entry(sequence).unit is not None

    def reserved(self, sequence: int, pool: int = 0) -> int:
        """Pages promised to an active sequence and not yet leased."""
        return self.books.reservation(self.books.active[sequence], pool)

    def pages_of(self, sequence: int, pool: int = 0) -> tuple[int, int]:
        """(private, shared) pages that the sequence holds; one in a transfer is shared."""
        shared = self.shared_pages(sequence, pool)
        return len(self._entry(sequence).pages[pool]) - shared, shared

    def shared_pages(self, sequence: int, pool: int = 0) -> int:
        """Pages that the sequence holds and somebody else too, a transfer counted (0013).

        But for transfers they are its first ones.
        """
        return sum([self.books.is_shared(page, pool) for page in self._entry(sequence).pages[pool]])

    # -- replicas, transfers and fences (decision 0013) ----------------------------------------------------------------

    def transfers(self) -> list[int]:
        """Transfers under way."""
        return sorted(self.books.transfers)

    def transfer_pages(self, transfer: int) -> tuple[int, ...]:
        """Pages of a transfer under way, by pool, those counted that have ended; ``KeyError`` for any other id."""
        moves = self.books.transfers[transfer].moves
        return tuple(len([move for move in moves if move.pool == pool]) for pool in self.books.pools)

    def cancelling(self, transfer: int) -> bool:
        """Whether a transfer under way was cancelled or has no page left that lives; ``KeyError`` for any other id."""
        return self.books.is_cancelled(self.books.transfers[transfer])

    def in_transfer(self, owner: int) -> bool:
        """Whether a transfer has one of the owner's pages."""
        return self.books.any_in_transfer(self._entry(owner))

    def resident(self, owner: int) -> bool:
        """Whether all of the owner's pages are visible on Device."""
        return self.books.resident(self._entry(owner))

    def movable(self, owner: int) -> int:
        """Pages, over all pools, that a demotion of the owner would move; 0 for one that is active."""
        entry = self._entry(owner)
        return sum([len(self.books.movable(entry, Tier.DEVICE, pool)) for pool in self.books.pools])

    def restorable(self, owner: int) -> int:
        """Pages, over all pools, that a restore of the owner would move."""
        entry = self._entry(owner)
        return sum([len(self.books.movable(entry, Tier.HOST, pool)) for pool in self.books.pools])

    def tiers(self, owner: int, pool: int = 0) -> tuple[Tier, ...]:
        """Where each of the owner's pages is visible, by logical block."""
        return tuple(page.visible for page in self._entry(owner).pages[pool])

    def clean_copies(self, owner: int, pool: int = 0) -> tuple[bool, ...]:
        """Whether each of the owner's pages has a valid copy that is not the visible one, by logical block."""
        return tuple(page.has(page.visible.other) for page in self._entry(owner).pages[pool])

    @property
    def host_used_bytes(self) -> int:
        """Bytes of the host arena that extents take, those counted that transfers under way fill."""
        return self.books.host_used

    def retiring(self, pool: int = 0) -> int:
        """Pages that nobody holds and that are counted as leased until the units that touched them are complete."""
        return len(self.books.retiring[pool])

    @property
    def outstanding_units(self) -> tuple[int, ...]:
        """Units that have ended and are not known to be complete, in the order of their ends."""
        return () if self.books.immediate else tuple(self.books.ended)

    def _entry(self, sequence: int) -> Entry:
        entry = self.books.entry(sequence)
        if entry is None:
            raise KeyError(sequence)
        return entry
