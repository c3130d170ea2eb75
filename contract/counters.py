"""What operations do to a pool's counters (DESIGN 4.3, 4.14): the semantics table's other half, as formulas.

Verifies: the exact change of (leased, reserved, free) by an operation that is not refused.
Does not verify: which page is chosen; who is refused (:mod:`kvcrucible.contract.semantics`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Change:
    """Change of one pool's counters, in pages; the three add up to 0 (DESIGN 4.3)."""

    leased: int = 0
    reserved: int = 0
    free: int = 0

    def __add__(self, other: Change) -> Change:
        return Change(self.leased + other.leased, self.reserved + other.reserved, self.free + other.free)


def reserve(pages: int) -> Change:
    """Promise ``pages`` that were free."""
    return Change(reserved=pages, free=-pages)


def unreserve(pages: int) -> Change:
    """Give promised pages back to free."""
    return Change(reserved=-pages, free=pages)


def materialise(pages: int) -> Change:
    """Turn promised pages into leases."""
    return Change(leased=pages, reserved=-pages)


def dematerialise(pages: int) -> Change:
    """Turn leases back into the same reservation."""
    return Change(leased=-pages, reserved=pages)


def trim_change(written: int, committed: int, page_size: int) -> Change:
    """Counter change where a unit that wrote up to position ``written`` leaves a pool at ``committed``: the pages
    wholly beyond return to the reservation (DESIGN 4.14.11; decision 0023).
    """
    return dematerialise(pages_for(written, page_size) - pages_for(committed, page_size))


def release(pages: int) -> Change:
    """Give leased pages back to free."""
    return Change(leased=-pages, free=pages)


def admit_change(entitlement_pages: int, shared_full_pages: int, tail_copied: bool) -> Change:
    """Counter change of a cold start or a fork: reserve the private worst case, lease the copied tail (DESIGN
    4.14.4).
    """
    return reserve(entitlement_pages - shared_full_pages) + materialise(int(tail_copied))


def truncate_change(dropped_private: int, dropped_shared: int, tail_copied: bool) -> Change:
    """Counter change of a cut: private pages return to the reservation, shared ones are reserved anew (DESIGN 4.6)."""
    return (
        dematerialise(dropped_private)
        + reserve(dropped_shared + int(tail_copied))
        + materialise(int(tail_copied))
    )


def restore_change(fresh_pages: int) -> Change:
    """Counter change of the start of a restore: each page without a Device copy is leased to the transfer (0013)."""
    return reserve(fresh_pages) + materialise(fresh_pages)


def end_change(exclusive_pages: int, unused_reservation: int, retained: bool) -> Change:
    """Counter change of an end: the unused reservation is freed, and the exclusive pages unless retained (4.14.5)."""
    return unreserve(unused_reservation) + (Change() if retained else release(exclusive_pages))


def retire_change(fenced_pages: int) -> Change:
    """Counter change on top of one that frees pages: those not at rest stay leased until they are (0013)."""
    return Change(leased=fenced_pages, free=-fenced_pages)


def transfer_change(sources: int, destinations: int, ended: int) -> Change:
    """Counter change of the end of a transfer (0013): the Device pages that it frees.

    ``sources``: of a demotion that moved and keeps nothing.  ``destinations``: fresh ones of a restore that was
    abandoned.  ``ended``: of pages that have ended meanwhile, at either end.
    """
    return release(sources + destinations + ended)
