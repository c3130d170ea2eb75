"""Safe backfill: who may pass a head of the queue that has to wait (DESIGN 4.8, decision 0021).

The head H is promised that it starts in the end, whatever passes it.  In every pool, at every passing::

    entitlement(H) + entitlement of all who have passed H and are active + what is protected  <=  capacity

An entitlement is all that its sequence will ever hold there at once, shared pages included, whatever it cuts and grows
again; protected is what pinned continuations and transfers hold.  All else ends or can be released, so H's cold start
fits then without anybody here giving back a page.  A row is kept for it, too, and its session key.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from kvcrucible.contract.operations import Admitted
from kvcrucible.engine import admission, starting
from kvcrucible.engine.records import Request

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


def admit_behind(engine: Engine, head: Request) -> list[Admitted]:
    """Admit those within the look-ahead behind the waiting ``head`` that may pass it and fit now, in their order."""
    if not engine.rows.free_rows:
        return []
    admitted: list[Admitted] = []
    # A session's requests keep their order among themselves; so nobody takes the head's key either.
    sessions = {head.submit.session} - {None}
    for request in list(islice(engine.queue.values(), 1, 1 + engine.config.lookahead)):
        session = request.submit.session
        if session not in sessions and may_pass(engine, head, request):
            outcome = starting.admit_at_once(engine, request)
            if outcome is not None:
                engine.sequences[request.sequence].passed = head.sequence
                engine.work.backfilled += 1
                admitted.append(outcome)
                continue
        if session is not None:
            sessions.add(session)
    return admitted


def may_pass(engine: Engine, head: Request, request: Request) -> bool:
    """Tell whether the head's cold start still fits when ``request``, and all who have passed the head before it and
    are active, hold what they are entitled to for ever, and all else that can go has gone.
    """
    passers = [record for record in engine.sequences.values() if record.passed == head.sequence]
    if len(passers) + 1 >= engine.config.max_concurrency:
        return False
    taken = protected_pages(engine)
    for entitlement in (
        *[record.entitlement for record in passers],
        admission.entitlement(engine.pools, request.limit),
        admission.entitlement(engine.pools, head.limit),
    ):
        taken = [pages + more for pages, more in zip(taken, entitlement, strict=True)]
    return all(pages <= pool.capacity for pages, pool in zip(taken, engine.pools, strict=True))


def protected_pages(engine: Engine) -> list[int]:
    """Count, for each pool, the Device pages that no release gives back now: of pinned continuations, and of those in a
    transfer with what the transfer itself holds.  Linear in them.
    """
    held: list[set[int]] = [set() for _ in engine.pools]
    for kept in engine.cache.continuations.values():
        if kept.pinned or engine.cache.in_transfer(kept):
            for space in kept.spaces:
                held[space.pool].update([page.page for page in space.pages if page.device >= 0])
    for page in engine.host.moving() if engine.host is not None else ():
        held[page.pool].add(page.page)
    return [len(pages) for pages in held]
