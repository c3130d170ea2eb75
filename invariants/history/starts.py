"""Transfers that an admission starts for the sake of a request that then waits (DESIGN 4.9; decision 0020)."""

from __future__ import annotations

from kvcrucible.contract import history
from kvcrucible.contract.snapshot import Tier
from kvcrucible.invariants.history import transfers
from kvcrucible.invariants.history.candidates import Candidate, missing_below
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder


def start_all(
    ledger: Ledger,
    request: Holder,
    started: list[history.Started],
    evicted: list[int],
    chosen: Candidate | None,
) -> None:
    """Judge and carry out what was started for ``request``; ``chosen``: what it waits for, None where not known."""
    restores = [one for one in started if one.source is Tier.HOST]
    if chosen is not None and chosen.source is not None:
        due = [(chosen.source.id, chosen.hit)] if chosen.restores else []
        told = [(one.continuation, one.positions) for one in restores]
        if told != due:
            raise Broken(
                "exact-prefix-identity",
                f"sequence {request.id} waits for restores of {told} (continuation, positions); due: {due}",
            )
    for one in restores:
        _restore(ledger, request, one, evicted)


def _restore(ledger: Ledger, request: Holder, told: history.Started, evicted: list[int]) -> None:
    kept = ledger.continuations.get(told.continuation)
    pages = [] if kept is None else missing_below(ledger, kept, told.positions)
    if kept is None or not pages or any(page.transfer for page in pages):
        raise Broken(
            "outcome",
            f"a restore of {told.continuation} up to {told.positions} is started for sequence {request.id}: that is no "
            "continuation of which as much is on Host and in no transfer",
        )
    transfers.restore_hit(ledger, told, pages, evicted)
    request.tried.add(kept.id)
