"""Rows and session keys of active sequences in a history (DESIGN 4.7, 4.14.9)."""

from __future__ import annotations

from kvcrucible.contract.semantics import State
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder


def activate(ledger: Ledger, holder: Holder, row: int | None) -> None:
    """Give an admitted or forked sequence its row and its session key; its state follows from its frontier."""
    holder.state = State.PREFILL if holder.frontiers[0] < holder.prompt else State.DECODE
    if ledger.shows_rows:
        if row is None or row >= ledger.header.max_concurrency:
            raise Broken(
                "row-unique", f"sequence {holder.id} gets row {row} of {ledger.header.max_concurrency}"
            )
        if row in ledger.rows:
            raise Broken(
                "row-unique", f"sequence {holder.id} gets row {row}, which sequence {ledger.rows[row]} has"
            )
        ledger.rows[row] = holder.id
        holder.row = row
    ledger.actives += 1
    if holder.session is not None:
        ledger.active_sessions[holder.session] = holder.id


def deactivate(ledger: Ledger, holder: Holder) -> None:
    """Take back row, session key and unused reservation of an active sequence."""
    ledger.touch(holder)
    ledger.close_reservation(holder)
    if holder.row is not None:
        del ledger.rows[holder.row]
        holder.row = None
    ledger.actives -= 1
    if holder.passed is not None and holder.passed == ledger.passed_head:
        ledger.passers -= 1
        for pool in ledger.pools:
            ledger.passers_pages[pool] -= ledger.needed(holder.limit, pool)
    if holder.session is not None:
        del ledger.active_sessions[holder.session]
