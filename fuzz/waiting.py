"""Judges whom a schedule leaves waiting, what makes way on Host, and whom it lets pass, by the snapshot alone.

Three oracles that stand by themselves and ask no prediction of the reference, whatever the order of candidates is said
to be:

``cache-yields``          a request waits for pages only if its cold start would not fit in the same state with all
                          unprotected continuations released, the source of its own hit among them (DESIGN 4.9).  So a
                          prefix hit never makes an admissible request inadmissible.
``cache-yields``          copies and continuations on Host make way for what sinks only where its extents do not fit
                          without (decision 0020).
``completion-guarantee``  whoever is let past a waiting head leaves it all that its cold start takes (DESIGN 4.8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kvcrucible.contract.facts import extents_fit
from kvcrucible.contract.operations import Outcome, Scheduled, Waiting, WaitingKind
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.contract.tokens import common_prefix, count
from kvcrucible.fuzz.goals import Observation, admissions
from kvcrucible.invariants.backfill import head_can_start
from kvcrucible.invariants.behaviour import cache_yielded
from kvcrucible.invariants.violation import Violation, mismatch


def waiting_of(outcome: Outcome) -> Waiting | None:
    """Return who an operation leaves waiting, and why; None where nobody waits."""
    value = outcome.value
    waiting = value.waiting if isinstance(value, Scheduled) else value
    return waiting if isinstance(waiting, Waiting) else None


def judge_waiting(
    outcome: Outcome, observation: Observation, after: Snapshot, fenced: Collection[tuple[int, int]]
) -> list[Violation]:
    """Judge a wait for pages by the state that it leaves; ``fenced``: physical pages that effects may still touch.

    Whoever is let past only takes pages: behind them a wrong wait may go unseen, and none is invented.
    """
    waiting = waiting_of(outcome)
    if waiting is None or waiting.kind is not WaitingKind.DEVICE_CAPACITY:
        return []
    cold = observation.queued[waiting.sequence].cold_pages
    return cache_yielded(cold, True, after, f"request {waiting.sequence}", fenced)


def judge_passing(
    outcome: Outcome, observation: Observation, after: Snapshot, rows: int
) -> list[Violation] | None:
    """Judge the state after a schedule that let somebody pass; None where nobody was.  ``rows``: of the block table."""
    value, waiting = outcome.value, waiting_of(outcome)
    if not isinstance(value, Scheduled) or waiting is None:
        return None
    ahead = observation.before.queue.index(waiting.sequence)
    in_turn = observation.before.queue[:ahead]
    passed = [one.sequence for one in value.admitted if one.sequence not in in_turn]
    if not passed:
        return None
    # Whoever has passed an earlier head is one of those who end.
    before = [one for one in observation.passers if not ahead and one in after.sequences]
    cold = observation.queued[waiting.sequence].cold_pages
    return head_can_start(after, waiting.sequence, cold, [*before, *passed], rows)


def judge_host_room(outcome: Outcome, before: Snapshot, after: Snapshot) -> list[Violation]:
    """Judge whether the Host room was lacking that was made for the first of those who sink, as ``outcome`` tells.

    Before it an operation takes nothing on Host and may free some; so what would have fitted at the beginning would
    have fitted then.  Of those who sink after the first nothing is judged here: which extent took which hole is not
    told.
    """
    waiting = waiting_of(outcome)
    if waiting is None or waiting.kind is not WaitingKind.SINKING or before.host is None:
        return []
    first = next((one for one in waiting.started[:1] if one.transfer in after.transfers), None)
    if first is None or not (first.given_up or first.evicted):
        return []
    fresh = {move.extent for move in after.transfers[first.transfer].moves if move.fresh}
    if not fresh <= after.extents.keys():
        # One that is not there is the business of host-conservation; without its size nothing can be said here.
        return []
    sizes = tuple([after.extents[extent].size for extent in fresh])
    if not extents_fit(sizes, _holes(before)):
        return []
    return [
        mismatch(
            "cache-yields",
            f"Host room for transfer {first.transfer}, extents of {list(sizes)} bytes",
            f"copies of {list(first.given_up)} given up and {list(first.evicted)} released",
            "nothing, for they fit",
        )
    ]


def _holes(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the sizes of the arena's holes, in bytes: what lies between its extents and around them."""
    assert snapshot.host is not None
    extents = sorted(snapshot.extents.values(), key=lambda extent: extent.offset)
    ends = [0, *[extent.offset + extent.size for extent in extents]]
    starts = [*[extent.offset for extent in extents], snapshot.host.capacity]
    return tuple([start - end for start, end in zip(starts, ends, strict=True) if start > end])


def hits(outcome: Outcome, observation: Observation) -> Iterator[str]:
    """Yield what became of each request that some checkpoint shared its first token with, whether or not its owner can
    be a source: the mode of its admission, or ``waits`` where it waits for pages.
    """
    for one in admissions(outcome.value):
        if _has_hit(observation, one.sequence):
            yield one.mode.value
    waiting = waiting_of(outcome)
    short = waiting is not None and waiting.kind is WaitingKind.DEVICE_CAPACITY
    if waiting is not None and short and _has_hit(observation, waiting.sequence):
        yield "waits"


def _has_hit(observation: Observation, sequence: int) -> bool:
    prompt, identity = observation.prompts[sequence], observation.queued[sequence].identity
    return count(prompt) > 1 and any(
        entry.identity == identity and common_prefix(entry.tokens, prompt) > 0
        for entry in observation.before.findable.values()
    )
