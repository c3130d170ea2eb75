"""Judgements by device truth: what has run, what has failed, and what is still outstanding (DESIGN 4.4, 4.7).

A snapshot shows what an engine believes of its device.  A harness that watches the device itself, for one by a
simulated stream, calls these where it has both in hand.  Each returns the violations, an empty list where the invariant
holds, and mutates nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from kvcrucible.contract.operations import TransferEnded, TransferOutcome
from kvcrucible.contract.snapshot import Snapshot, TransferState
from kvcrucible.invariants.violation import Violation, mismatch


def transfer_completed(
    transfer: TransferState, reported: TransferEnded, copies_outstanding: int, copies_failed: int
) -> list[Violation]:
    """Judge the report that a transfer is over by what its copies did (``publish-order``, ``recycle-fenced``).

    ``transfer`` is as it was before the ``progress`` that reported it; the two counts are of its copies at that moment:
    those that have not run to their end, and those that did not succeed.  While a copy may still run, nothing may be
    published (``publish-order``) and nothing that it touches may be freed (``recycle-fenced``).  A transfer that was
    cancelled, or of which a copy failed, is abandoned; any other that publishes keeps its source just where it was to.
    """
    subject = f"transfer {transfer.transfer}, reported {reported.outcome.value}"
    abandoned = reported.outcome is TransferOutcome.ABANDONED
    found = []
    if copies_outstanding:
        invariant = "recycle-fenced" if abandoned else "publish-order"
        found.append(mismatch(invariant, subject, f"{copies_outstanding} copies outstanding", "all complete"))
    if reported.failed != (copies_failed > 0):
        due = f"{copies_failed > 0}: {copies_failed} copies failed"
        found.append(mismatch("publish-order", f"{subject}, failed", reported.failed, due))
    if abandoned:
        return found
    if copies_failed or transfer.cancelling:
        why = f"{copies_failed} copies failed" if copies_failed else "it was cancelled"
        found.append(mismatch("publish-order", subject, "published", f"abandoned: {why}"))
    due_outcome = TransferOutcome.KEPT if transfer.keep else TransferOutcome.MOVED
    if reported.outcome is not due_outcome:
        found.append(mismatch("publish-order", subject, reported.outcome.value, due_outcome.value))
    return found


def page_given_out(
    pool: int, device: int, owner: int, last_owners: Collection[int], outstanding: Collection[str]
) -> list[Violation]:
    """Judge the lease of a physical page to ``owner``'s space, or to a transfer of ``owner`` (``recycle-fenced``).

    ``last_owners`` held the page when its last lease ended, none where it had no lease yet; ``outstanding`` names the
    device effects that touch it and have not run to their end.  Only a sequence that gave the page back to its own
    reservation may get it again before they have (decision 0013).
    """
    if not outstanding or owner in last_owners:
        return []
    found = f"given to {owner} while outstanding: {', '.join(sorted(outstanding))}"
    due = "retiring until these have completed"
    return [
        mismatch(
            "recycle-fenced",
            f"device {device} of pool {pool}, last held by {sorted(last_owners)}",
            found,
            due,
        )
    ]


def slot_given_out(extent: int, slot: int, page: int, outstanding: Collection[str]) -> list[Violation]:
    """Judge the use of a Host slot for ``page`` (``recycle-fenced``); ``outstanding`` are the copies that touch it and
    have not run to their end, those of the transfer that takes it left out.
    """
    if not outstanding:
        return []
    found = f"taken for page {page} while outstanding: {', '.join(sorted(outstanding))}"
    return [
        mismatch(
            "recycle-fenced", f"slot {slot} of extent {extent}", found, "live until these have completed"
        )
    ]


def overdue(snapshot: Snapshot, outstanding_units: Collection[int]) -> list[Violation]:
    """Judge what waits for a fence (``recycle-fenced``): a page retires only for a unit that has ended and that
    ``progress`` has not reported yet, ``outstanding_units``; it would be lost otherwise.
    """
    return [
        mismatch(
            "recycle-fenced",
            f"device {device} of pool {pool}",
            f"retiring for unit {retiring.unit}",
            f"free: outstanding units are {sorted(outstanding_units)}",
        )
        for (pool, device), retiring in snapshot.retiring.items()
        if retiring.unit not in outstanding_units
    ]
