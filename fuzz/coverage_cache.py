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


# -- sinking -----------------------------------------------------------------------------------------------------------


@goal(
    "admitted-after-sinking",
    "a request starts once what was in its way has sunk to Host, without releasing anybody",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _after_sinking(seen: Seen) -> bool:
    return not seen.outcome.evicted and any(
        seen.sunk.get(one.sequence) for one in admissions(seen.outcome.value)
    )


@goal(
    "failed-to-sink-yields",
    "what did not sink for a request is released for it",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _failed_yields(seen: Seen) -> bool:
    return any(sunk.intersection(seen.outcome.evicted) for sunk in seen.sunk.values())


@goal(
    "sinks-with-shared-pages",
    "what two continuations share sinks with the second of them",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _beside(seen: Seen) -> bool:
    return any(
        seen.before.pages[move.page].references > 1
        for one in started(seen, Tier.DEVICE)
        for move in seen.after.transfers[one.transfer].moves
        if one.beside
    )


@goal(
    "device-copies-given-up",
    "copies on Device of pages that are visible on Host are given up for a request",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _device_copies(seen: Seen) -> bool:
    return bool(seen.outcome.given_up)


@goal(
    "host-copies-given-up",
    "copies on Host of pages that are visible on Device are given up for what sinks",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _host_copies(seen: Seen) -> bool:
    return any(one.given_up for one in started(seen, Tier.DEVICE))


@goal(
    "released-on-host-for-a-sink",
    "a continuation on Host is released so that a better one can sink",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _host_released(seen: Seen) -> bool:
    return any(one.evicted for one in started(seen, Tier.DEVICE))


@goal("two-sink-at-once", "two transfers to Host start for one request", Schedule, TryAdmit, needs=HOST)
def _two(seen: Seen) -> bool:
    return len(list(started(seen, Tier.DEVICE))) > 1
