"""Who may pass a head of the queue that waits (DESIGN 4.8, decision 0021).

Verifies: that the head can start when those who have passed it, this one included, never end.
Does not verify: that the request itself fits now; trying it out tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcrucible.reference.books import Books


def look_ahead(books: Books) -> list[int]:
    """The requests behind the head at which one ``schedule`` looks, in their order."""
    return list(books.queued)[1:][: books.config.lookahead]


def may_pass(books: Books, request: int) -> bool:
    """Whether ``request`` takes nothing that the head of the queue needs to start, and none of its session comes first.

    Each of them, for ever, counts with all the pages that its limit takes: what is shared today it may have to itself
    tomorrow, after a cut.
    """
    head = next(iter(books.queued))
    if books.queued[request].session in set(_earlier_sessions(books, request)):
        return False
    for_ever = [books.active[name].limit for name in books.passers(head)]
    for_ever += [books.queued[request].limit, books.queued[head].limit]
    if len(for_ever) > books.config.max_concurrency:
        return False
    return all(
        sum([books.pages(limit, pool) for limit in for_ever]) + books.protected(pool) <= books.capacity[pool]
        for pool in books.pools
    )


def _earlier_sessions(books: Books, request: int) -> Iterator[str]:
    """The sessions of those who are queued before ``request``."""
    for name, entry in books.queued.items():
        if name == request:
            return
        if entry.session is not None:
            yield entry.session
