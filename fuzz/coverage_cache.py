"""Coverage goals about the context cache under pressure: hits on Host, what comes back, what sinks (decision 0020)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcrucible.contract.operations import (
    Schedule,
    Scheduled,
    TransferStarted,
    TryAdmit,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.fuzz.goals import HOST, Seen, admissions, goal


def waiting_of(seen: Seen) -> Waiting | None:
    """Return the waiting request that an admission tells, None where none waits."""
    value = seen.outcome.value
    told = value.waiting if isinstance(value, Scheduled) else value
    return told if isinstance(told, Waiting) else None


def started(seen: Seen, source: Tier) -> Iterator[TransferStarted]:
    """Yield the transfers out of ``source`` that an admission has started."""
    waiting = waiting_of(seen)
    yield from (one for one in (waiting.started if waiting else ()) if one.source is source)


@goal(
    "restore-in-part",
    "a hit is restored up to its end, and the continuation goes on behind it on Host",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _part(seen: Seen) -> bool:
    for one in started(seen, Tier.HOST):
        held = seen.before.spaces[one.continuation, 0].pages
        away = sum(seen.before.pages[page].visible is Tier.HOST for page in held)
        if one.pages[0] < away:
            return True
    return False


@goal(
    "restore-releases-others",
    "others are released so that a hit can come back from Host",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _releases(seen: Seen) -> bool:
    return any(started(seen, Tier.HOST)) and bool(seen.outcome.evicted) and not admissions(seen.outcome.value)


@goal(
    "wait-for-anothers-restore",
    "a request waits for a restore that it has not started",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _anothers(seen: Seen) -> bool:
    waiting = waiting_of(seen)
    if waiting is None or waiting.kind is not WaitingKind.RESTORING or waiting.started:
        return False
    return not seen.tried.get(waiting.sequence)


@goal(
    "admitted-from-what-came-back",
    "a request starts from the hit for whose restore it waited",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _came_back(seen: Seen) -> bool:
    return any(one.source in seen.tried.get(one.sequence, ()) for one in admissions(seen.outcome.value))


@goal(
    "fallback-after-failed-restore",
    "a request starts from less, or cold, because the restore of its hit came to nothing",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _fallback(seen: Seen) -> bool:
    for one in admissions(seen.outcome.value):
        tried = seen.tried.get(one.sequence, frozenset()) & seen.before.continuations.keys()
        if tried and one.source not in tried:
            return True
    return False
