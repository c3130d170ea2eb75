"""Who yields first when room is made: pluggable orders over the continuations that may be released (DESIGN 4.9).

A policy chooses among what is legal and nothing else depends on it: the cache asks it for an order, passes over what it
was not offered, and appends what the policy leaves out (decision 0020).  Policies change nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kvcrucible.contract.config import COST_AWARE, LRU, EngineConfig
from kvcrucible.engine.records import Continuation

#: One token a unit of weight, as an integer: values are quotients, rounded down to this fraction.
TOKEN = 1 << 20


class Policy(Protocol):
    """An order of yielding.  The cache tells it of uses and ends, so it may keep a number for each continuation."""

    @property
    def name(self) -> str:
        """What it is called in reports."""

    def order(self, offered: Iterable[Continuation]) -> Iterable[Continuation]:
        """Return ``offered`` in the order in which they are to yield, first to go first.

        They come in order of last use, the least recent first; what is not read of the result is not asked for.
        """

    def used(self, kept: Continuation) -> None:
        """Learn that a continuation was retained, or was the source of a fork."""

    def yields(self, kept: Continuation) -> None:
        """Learn that a continuation is about to be released to make room; its pages are still there."""

    def gone(self, kept: Continuation) -> None:
        """Learn that a continuation has left the cache, whatever the reason."""


class LeastRecentlyUsed:
    """The one whose last use is longest ago goes first."""

    name = LRU

    def order(self, offered: Iterable[Continuation]) -> Iterable[Continuation]:
        """Return them as they come."""
        return offered

    def used(self, kept: Continuation) -> None:
        """Nothing: the cache keeps the order of use."""

    def yields(self, kept: Continuation) -> None:
        """Nothing."""

    def gone(self, kept: Continuation) -> None:
        """Nothing."""


class CostAware:
    """What is cheapest to compute again, for the room that it takes, goes first; what is not used again grows older.

    GreedyDual-Size.  ``weights``: what a page of each pool counts, in bytes or as one.

    - *cost* of a continuation: the tokens that would have to be computed again without it, which are the committed
      columns of those of its pages in Main that nobody else holds;
    - *size*: the weight of the Device pages, over all pools, that nobody else holds: what releasing it really frees;
      of one that has none, of its pages on Host;
    - *value*: ``cost × TOKEN // size``;
    - *age*: a number that starts at 0 and rises to the priority of each continuation that yields;
    - *priority*: the age at its last use, plus its value now.

    The lowest priority goes first, of equal ones the least recently used.  What frees nothing by itself (others hold
    all of it) goes after all that do, least recently used first.  All numbers are integers.
    """

    name = COST_AWARE

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = tuple(weights)
        self._age = 0
        #: The age at the last use of each continuation.
        self._since: dict[int, int] = {}

    def order(self, offered: Iterable[Continuation]) -> Iterator[Continuation]:
        """Return them by priority; linear in the pages that they hold."""
        ranked = [(self._rank(kept), kept) for kept in offered]
        ranked.sort(key=lambda pair: pair[0])  # stable: equal ones stay in order of last use
        return iter([kept for _, kept in ranked])

    def used(self, kept: Continuation) -> None:
        """Note the age."""
        self._since[kept.continuation] = self._age

    def yields(self, kept: Continuation) -> None:
        """Let the age rise to its priority, where it frees something."""
        frees_nothing, priority = self._rank(kept)
        if not frees_nothing:
            self._age = max(self._age, priority)

    def gone(self, kept: Continuation) -> None:
        """Forget it."""
        self._since.pop(kept.continuation, None)

    def _rank(self, kept: Continuation) -> tuple[bool, int]:
        """Return whether it frees nothing by itself, and its priority (0 where it does not)."""
        cost = sum([page.committed for page in kept.spaces[0].pages if page.references == 1])
        size = on_host = 0
        for weight, space in zip(self._weights, kept.spaces, strict=True):
            alone = [page.device >= 0 for page in space.pages if page.references == 1]
            size += weight * sum(alone)
            on_host += weight * len(alone)
        if not size and not kept.on_device:
            size = on_host
        if not size:
            return True, 0
        return False, self._since.get(kept.continuation, 0) + cost * TOKEN // size


def policy_of(config: EngineConfig) -> Policy:
    """Return the policy that a configuration names."""
    if config.policy == COST_AWARE:
        sizes = [pool.page_bytes for pool in config.pools]
        return CostAware(sizes if all(sizes) else [1] * len(sizes))
    return LeastRecentlyUsed()
