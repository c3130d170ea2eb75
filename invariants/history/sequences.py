"""Requests, their ends and what is kept of them, in a history (DESIGN 4.8, 4.9)."""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.contract import history, operations
from kvcrucible.contract.semantics import Facts, State
from kvcrucible.invariants.history import facts as judge
from kvcrucible.invariants.history.checkpoints import asked_for, identity_of, known_as, mark, unmark
from kvcrucible.invariants.history.index import head
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder
from kvcrucible.invariants.history.room import drop_continuation
from kvcrucible.invariants.history.rows import deactivate


def submit(ledger: Ledger, line: history.Submit) -> None:
    """Queue a request."""
    runs, prompt, spans = asked_for(line)
    facts = Facts(
        prompt=prompt,
        spans=spans,
        max_context=ledger.header.max_context,
        capacity_pages=tuple(ledger.capacity),
    )
    facts = judge.new(ledger, facts, prompt + line.max_new, line.max_new)
    if not judge.require(ledger, "submit", [(operations.Submit, facts)], line.refused):
        return
    name = ledger.number("sequence", line.sequence)
    holder = Holder(
        name,
        known_as(runs, spans),
        prompt,
        prompt + line.max_new,
        line.session,
        identity_of(line.identity),
        len(ledger.pools),
        line.consume,
    )
    ledger.holders[name] = ledger.queue[name] = holder
    ledger.charge(len(holder.runs) + 1)


def finish(ledger: Ledger, line: history.Finish) -> None:
    """End an active sequence, kept as a continuation or not."""
    what = f"finish of {line.sequence}"
    facts = judge.about(ledger, line.sequence)
    if not judge.require(ledger, what, [(operations.Finish, facts)], line.refused):
        return
    holder = ledger.holders[line.sequence]
    kept = line.retain and holder.common > 0
    if line.kept is not None and line.kept != kept:
        raise Broken(
            "outcome", f"{what}: kept is {line.kept}, with retain {line.retain} and {holder.common} positions"
        )
    if not kept:
        end(ledger, holder)
        return
    deactivate(ledger, holder)
    before = len(holder.runs)
    holder.runs = head(holder.runs, holder.frontiers[0])
    ledger.charge(len(holder.runs) - before)
    holder.state = State.CONTINUATION
    transfers = set()
    for held in holder.pages:
        for page in held:
            page.active -= 1
            if ledger.has_host:
                if page.keepers is None:
                    page.keepers = set()
                page.keepers.add(holder.id)
                if page.transfer is not None:
                    transfers.add(page.transfer.id)
    holder.moving = len(transfers)
    if not holder.moving:
        for held in holder.pages:
            ledger.soften(held)
    ledger.continuations[holder.id] = holder
    mark(ledger, holder)
    if holder.session is not None:
        replaced = ledger.kept_sessions.get(holder.session)
        ledger.kept_sessions[holder.session] = holder.id
        if replaced is not None:
            drop_continuation(ledger, ledger.continuations[replaced])


def end(ledger: Ledger, holder: Holder) -> None:
    """Drop a queued or active sequence with all that it alone holds."""
    if holder.state is State.QUEUED:
        del ledger.queue[holder.id]
    else:
        deactivate(ledger, holder)
        unmark(ledger, holder, -1)
        for pool, held in enumerate(holder.pages):
            ledger.let_go(held)
            holder.pages[pool] = []
    del ledger.holders[holder.id]
    ledger.charge(-len(holder.runs) - 1)
    holder.state = State.GONE


def cancel(ledger: Ledger, line: history.Cancel) -> None:
    """Drop a queued or active sequence, or record that its unit's end is to do so."""
    what = f"cancel of {line.sequence}"
    facts = judge.about(ledger, line.sequence)
    if not judge.require(ledger, what, [(operations.Cancel, facts)], line.refused):
        return
    holder = ledger.holders[line.sequence]
    done = holder.unit is None
    if line.done is not None and line.done != done:
        raise Broken(
            "unit-frozen" if line.done else "outcome",
            f"{what}: done is {line.done}, while it is {'not ' if done else ''}in flight",
        )
    if done:
        end(ledger, holder)
    else:
        holder.cancelled = True


def release(ledger: Ledger, line: history.Release) -> None:
    """Drop a continuation."""
    facts = judge.about(ledger, line.continuation)
    if judge.require(ledger, f"release of {line.continuation}", [(operations.Release, facts)], line.refused):
        drop_continuation(ledger, ledger.continuations[line.continuation])


def pin(ledger: Ledger, line: history.Pin) -> None:
    """Protect a continuation, or stop doing so."""
    facts = judge.about(ledger, line.continuation)
    if not judge.require(ledger, f"pin of {line.continuation}", [(operations.Pin, facts)], line.refused):
        return
    kept = ledger.continuations[line.continuation]
    with_change(ledger, kept, lambda: setattr(kept, "pinned", line.pinned))


def with_change(ledger: Ledger, kept: Holder, change: Callable[[], None]) -> None:
    """Change what protects a continuation, and bring what its pages are worth to others up to date."""
    before = kept.firm
    change()
    if kept.firm != before:
        for held in kept.pages:
            (ledger.harden if kept.firm else ledger.soften)(held)
