"""Three ways to give memory to sequences, each as plain as it can be (DESIGN 8).

A *slot* holds one token.  Each class owns a budget of slots, grants a sequence all the slots that it will ever need
when it is admitted, and takes them back when it ends:

    StaticReservation     one region of the longest length that is allowed, whatever the sequence needs
    ContiguousFirstFit    exactly the length, in the first hole that is long enough
    Paged                 whole pages, from anywhere

All three answer alike.  ``admit`` returns a handle or raises a refusal of ``contract.errors`` and changes nothing:
``BadArgument`` for a length below 1, ``LimitExceeded`` for one that no amount of freeing would let in,
``DeviceCapacity`` where there is no room now.  ``free`` raises ``StaleHandle`` for what is not admitted.  Handles are
never reused.  Always ``used_tokens + waste_slots == held_slots``.
"""

from __future__ import annotations

from typing import NewType, Protocol

from kvcrucible.contract.errors import BadArgument, DeviceCapacity, LimitExceeded, StaleHandle
from kvcrucible.contract.profiles import check_page_size

Handle = NewType("Handle", int)


class Strategy(Protocol):
    """What the three have in common."""

    def admit(self, length_tokens: int) -> Handle:
        """Grant slots for ``length_tokens`` tokens; mutates, or raises a refusal."""
        ...

    def free(self, handle: Handle) -> None:
        """Take the slots of ``handle`` back; mutates, or raises ``StaleHandle``."""
        ...

    def waste_of(self, handle: Handle) -> int:
        """Return the slots that ``handle`` holds and does not use; raises ``StaleHandle``."""
        ...

    @property
    def handles(self) -> list[Handle]:
        """What is admitted, oldest first."""
        ...

    @property
    def budget_slots(self) -> int:
        """The slots there are."""
        ...

    @property
    def held_slots(self) -> int:
        """Slots that nobody else can have."""
        ...

    @property
    def used_tokens(self) -> int:
        """Tokens in the held slots."""
        ...

    @property
    def free_slots(self) -> int:
        """Slots that the strategy could still grant, to however many sequences."""
        ...

    @property
    def largest_grant_slots(self) -> int:
        """Length of the longest sequence that would be admitted now."""
        ...


class _Admitted:
    """The lengths of what is admitted, by handle: the part that the three share."""

    def __init__(self, budget_slots: int) -> None:
        if budget_slots < 1:
            raise BadArgument(f"a budget of {budget_slots} slots", "nothing to give", "give 1 or more")
        self.budget_slots = budget_slots
        self.used_tokens = 0
        self._lengths: dict[Handle, int] = {}
        self._next = 0

    @property
    def handles(self) -> list[Handle]:
        return list(self._lengths)

    def _length_of(self, handle: Handle) -> int:
        if handle not in self._lengths:
            raise StaleHandle(f"sequence {handle}", "not admitted", "use a handle that admit returned, once")
        return self._lengths[handle]

    def _add(self, length_tokens: int) -> Handle:
        handle = Handle(self._next)
        self._next += 1
        self._lengths[handle] = length_tokens
        self.used_tokens += length_tokens
        return handle

    def _remove(self, handle: Handle) -> int:
        length_tokens = self._length_of(handle)
        del self._lengths[handle]
        self.used_tokens -= length_tokens
        return length_tokens


class StaticReservation(_Admitted):
    """Regions of ``maximum_tokens`` slots, one a sequence; what is left of the budget after whole regions is lost."""

    def __init__(self, budget_slots: int, maximum_tokens: int) -> None:
        super().__init__(budget_slots)
        if maximum_tokens < 1:
            raise BadArgument(f"a maximum of {maximum_tokens} tokens", "a number below 1", "give 1 or more")
        self.maximum_tokens = maximum_tokens
        self.free_regions = budget_slots // maximum_tokens

    def admit(self, length_tokens: int) -> Handle:
        """Grant one region."""
        whole = self.maximum_tokens if self.budget_slots >= self.maximum_tokens else 0
        _check_length(length_tokens, whole)
        if self.free_regions == 0:
            raise DeviceCapacity("one region", "none free", "free a sequence first")
        self.free_regions -= 1
        return self._add(length_tokens)

    def free(self, handle: Handle) -> None:
        """Take the region back."""
        self._remove(handle)
        self.free_regions += 1

    def waste_of(self, handle: Handle) -> int:
        """Return the slots of the region beyond the sequence's length."""
        return self.maximum_tokens - self._length_of(handle)

    @property
    def held_slots(self) -> int:
        """Slots in regions that are taken."""
        return len(self._lengths) * self.maximum_tokens

    @property
    def free_slots(self) -> int:
        """Slots in regions that are not."""
        return self.free_regions * self.maximum_tokens

    @property
    def largest_grant_slots(self) -> int:
        """One region, if there is one."""
        return self.maximum_tokens if self.free_regions else 0


class ContiguousFirstFit(_Admitted):
    """One run of slots a sequence, as long as the sequence, in the lowest hole that takes it; nothing is ever moved."""

    def __init__(self, budget_slots: int) -> None:
        super().__init__(budget_slots)
        #: Holes as (start, length), ascending, no two of them adjacent.
        self._holes: list[tuple[int, int]] = [(0, budget_slots)]
        self._starts: dict[Handle, int] = {}

    def admit(self, length_tokens: int) -> Handle:
        """Grant the first ``length_tokens`` slots of the first hole that has so many."""
        _check_length(length_tokens, self.budget_slots)
        for index, (start, length) in enumerate(self._holes):
            if length >= length_tokens:
                rest = (start + length_tokens, length - length_tokens)
                self._holes[index : index + 1] = [rest] if rest[1] else []
                handle = self._add(length_tokens)
                self._starts[handle] = start
                return handle
        raise DeviceCapacity(
            f"{length_tokens} adjacent slots",
            f"{self.free_slots} free, the largest hole has {self.largest_grant_slots}",
            "free a neighbour of a hole",
        )

    def free(self, handle: Handle) -> None:
        """Turn the run into a hole and join it with the holes beside it."""
        length = self._remove(handle)
        start = self._starts.pop(handle)
        index = len(self._holes)
        while index and self._holes[index - 1][0] > start:
            index -= 1
        first = last = index
        if index < len(self._holes) and self._holes[index][0] == start + length:
            length += self._holes[index][1]
            last = index + 1
        if index and sum(self._holes[index - 1]) == start:
            start, before = self._holes[index - 1]
            length += before
            first = index - 1
        self._holes[first:last] = [(start, length)]

    def waste_of(self, handle: Handle) -> int:
        """Return 0: a run is exactly as long as its sequence.  What this strategy loses lies in the holes."""
        self._length_of(handle)
        return 0

    @property
    def holes(self) -> list[tuple[int, int]]:
        """The holes as (start, length), ascending; no two of them adjacent."""
        return list(self._holes)

    @property
    def held_slots(self) -> int:
        """Slots in runs."""
        return self.used_tokens

    @property
    def free_slots(self) -> int:
        """Slots in holes."""
        return sum(length for _, length in self._holes)

    @property
    def largest_grant_slots(self) -> int:
        """Length of the largest hole."""
        return max((length for _, length in self._holes), default=0)


class Paged(_Admitted):
    """Whole pages of ``page_size`` slots (a power of two).

    Pages are only counted: since any free page serves, which one it is never matters to admission.  What is left of
    the budget after whole pages is lost.
    """

    def __init__(self, budget_slots: int, page_size: int) -> None:
        super().__init__(budget_slots)
        check_page_size(page_size)
        self.page_size = page_size
        self.capacity_pages = budget_slots // page_size
        self.free_pages = self.capacity_pages

    def admit(self, length_tokens: int) -> Handle:
        """Grant as many pages as the length fills or begins."""
        _check_length(length_tokens, self.capacity_pages * self.page_size)
        pages = self.pages_for(length_tokens)
        if pages > self.free_pages:
            raise DeviceCapacity(f"{pages} pages", f"{self.free_pages} free", "free a sequence first")
        self.free_pages -= pages
        return self._add(length_tokens)

    def free(self, handle: Handle) -> None:
        """Take the pages back."""
        self.free_pages += self.pages_for(self._remove(handle))

    def pages_for(self, length_tokens: int) -> int:
        """Return the pages that ``length_tokens`` tokens fill or begin."""
        return -(-length_tokens // self.page_size)

    def waste_of(self, handle: Handle) -> int:
        """Return the empty slots of the last page: at most ``page_size`` − 1."""
        length_tokens = self._length_of(handle)
        return self.pages_for(length_tokens) * self.page_size - length_tokens

    @property
    def held_slots(self) -> int:
        """Slots in pages that are taken."""
        return (self.capacity_pages - self.free_pages) * self.page_size

    @property
    def free_slots(self) -> int:
        """Slots in pages that are not."""
        return self.free_pages * self.page_size

    @property
    def largest_grant_slots(self) -> int:
        """Every free slot: one sequence can have all the pages."""
        return self.free_slots


def _check_length(length_tokens: int, most_tokens: int) -> None:
    if length_tokens < 1:
        raise BadArgument(f"{length_tokens} tokens", "a length below 1", "give 1 or more")
    if length_tokens > most_tokens:
        raise LimitExceeded(
            f"{length_tokens} tokens", f"one sequence can have {most_tokens}", "shorten it, or plan for more"
        )
