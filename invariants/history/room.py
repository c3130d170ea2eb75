"""Making room in a history: who is released, in which order, and no more than needed (DESIGN 4.9; decision 0003)."""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.contract.semantics import State
from kvcrucible.invariants.history.checkpoints import unmark
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder


def make_room(
    ledger: Ledger, evicted: list[int], lacks: Callable[[], bool], protected: Holder | None, what: str
) -> None:
    """Release the next of ``evicted`` for as long as pages are lacking, and take them off the list (decision 0003)."""
    while lacks():
        if not evicted:
            raise Broken(
                "making-room", f"{what} takes more pages than are free, {ledger.free}, and releases nobody"
            )
        name = evicted.pop(0)
        victim = ledger.continuations.get(name)
        if victim is None or victim is protected or not may_release(victim):
            state = "no continuation" if victim is None else "protected, or without a Device page"
            raise Broken("making-room", f"{what} releases {name}, which is {state}")
        if ledger.shows_lru:
            first = next(
                kept for kept in ledger.continuations.values() if kept is not protected and may_release(kept)
            )
            if first is not victim:
                raise Broken(
                    "making-room", f"{what} releases {name} before {first.id}, which was used less recently"
                )
        drop_continuation(ledger, victim)


def require_all_used(evicted: list[int], what: str) -> None:
    """Raise where continuations were released though enough pages were free without them."""
    if evicted:
        raise Broken("making-room", f"{what} releases {evicted[0]} although enough pages are free")


def short(ledger: Ledger, need: list[int]) -> bool:
    """Whether some pool has fewer free pages than ``need``."""
    return not all(map(int.__le__, need, ledger.free))


def may_release(kept: Holder) -> bool:
    """Whether making room may release a continuation."""
    return not kept.firm and any(page.leased for held in kept.pages for page in held)


def drop_continuation(ledger: Ledger, kept: Holder) -> None:
    """Drop a continuation with its checkpoints and all that it alone holds."""
    take_continuation(ledger, kept)
    unmark(ledger, kept, -1)
    for pool, held in enumerate(kept.pages):
        ledger.forsake(kept.id, held, kept.firm)
        kept.pages[pool] = []
    del ledger.holders[kept.id]
    ledger.charge(-len(kept.runs) - 1)
    kept.state = State.GONE


def take_continuation(ledger: Ledger, kept: Holder) -> None:
    """Take a continuation out of the cache; its pages and checkpoints are the caller's."""
    del ledger.continuations[kept.id]
    if kept.session is not None and ledger.kept_sessions.get(kept.session) == kept.id:
        del ledger.kept_sessions[kept.session]
