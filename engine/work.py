"""Exact counts of what the engine did: figures that do not depend on the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkCounters:
    """Totals since the engine was built.

    ``allocator_calls``: calls that granted at least one page.  ``columns_copied``: token columns moved by page copies,
    each over all planes of its pool.  ``table_entries``: block-table entries written or cleared, ``table_uploads`` the
    batches.  All these count every pool.  ``tokens_written`` and ``tokens_hit`` are Main's positions,
    ``backend_tokens_written`` the backend's; written means committed.  ``tokens_rejected``: Main's positions that a
    committed round wrote and did not keep; ``pages_trimmed``: pages that units gave back to their reservations, aborted
    ones too, in every pool.

    ``backfilled``: requests admitted past a waiting head of the queue.

    ``transfer_copies``: copies queued between Device and Host, one for each run of pages that follow one another on
    both sides; ``bytes_demoted`` and ``bytes_restored`` are what they carry, whatever becomes of the transfer.
    ``pages_demoted`` and ``pages_restored`` became visible at the other end, copied just now or before.
    ``transfers_abandoned`` left their pages where they were.  ``continuations_sunk``: demotions that admissions started
    for want of Device pages.
    """

    allocator_calls: int = 0
    pages_granted: int = 0
    page_copies: int = 0
    columns_copied: int = 0
    table_uploads: int = 0
    table_entries: int = 0
    continuations_evicted: int = 0
    tokens_written: int = 0
    tokens_hit: int = 0
    backend_tokens_written: int = 0
    tokens_rejected: int = 0
    pages_trimmed: int = 0
    backfilled: int = 0
    pages_demoted: int = 0
    pages_restored: int = 0
    transfer_copies: int = 0
    bytes_demoted: int = 0
    bytes_restored: int = 0
    transfers_abandoned: int = 0
    continuations_sunk: int = 0
