"""The semantics table (DESIGN 4.14) as executable rows: operation and facts to refusal kind.

Engine, reference model, history checker and adapters are judged by these rows.  A row is a predicate over
:class:`Facts`, plain observations about the addressed sequence and the pool *before* the operation.
:func:`first_refusal` returns the kind of the first row that applies, in the order of precedence of DESIGN 4.14.1.  What
an operation that is not refused does to the counters, :mod:`kvcrucible.contract.counters` says.

Verifies: which refusal is due.
Does not verify: which page or row is chosen, nor what is written into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.facts import ACTIVE, Facts, State, extents_fit
from kvcrucible.contract.media import MAX_MEDIA, MAX_TOKEN_TYPE, spans_in_place, spans_named
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Lookup,
    Pin,
    Prefill,
    Release,
    Restore,
    Submit,
    Truncate,
    TryAdmit,
)

__all__ = ["ACTIVE", "ROWS", "Facts", "Row", "State", "extents_fit", "first_refusal", "refusals"]


def _more(asked: tuple[int, ...], there: tuple[int, ...]) -> bool:
    """Say whether some pool is asked for more than is there; an empty vector asks for nothing."""
    return bool(asked) and any(a > b for a, b in zip(asked, there, strict=True))


@dataclass(frozen=True, slots=True)
class Row:
    """One refusal rule: ``operations`` to which it applies, its kind, when it applies, in words, and its source."""

    name: str
    operations: frozenset[type]
    kind: RefusalKind
    applies: Callable[[Facts], bool]
    statement: str
    source: str


def _row(
    name: str,
    operations: set[type],
    kind: RefusalKind,
    applies: Callable[[Facts], bool],
    statement: str,
    source: str,
) -> Row:
    return Row(name, frozenset(operations), kind, applies, statement, source)


_ON_ACTIVE: set[type] = {Prefill, Append, Truncate, Checkpoint, Finish}
_ON_CONTINUATION: set[type] = {Release, Pin, Demote, Restore}
_MOVES: set[type] = {Demote, Restore}
_STARTS: set[type] = {Submit, Fork}

ROWS: tuple[Row, ...] = (
    _row(
        "unknown-sequence",
        _ON_ACTIVE | _ON_CONTINUATION | {TryAdmit, Fork, Cancel},
        RefusalKind.STALE_HANDLE,
        lambda f: f.state is State.GONE,
        "The id names no queued, active or retained sequence.",
        "4.3, 4.14.1",
    ),
    _row(
        "unknown-unit",
        {EndUnit},
        RefusalKind.STALE_HANDLE,
        lambda f: not f.unit_known,
        "The id names no unit in flight.",
        "4.3, 4.7",
    ),
    _row(
        "unknown-transfer",
        {CancelTransfer},
        RefusalKind.STALE_HANDLE,
        lambda f: not f.transfer_known,
        "The id names no transfer that is under way.",
        "4.3, 4.4",
    ),
    _row(
        "not-active",
        _ON_ACTIVE,
        RefusalKind.WRONG_STATE,
        lambda f: f.state not in ACTIVE,
        "Only an active sequence can be written, cut, marked or finished; a continuation is forked instead.",
        "4.8, 4.14.10",
    ),
    _row(
        "prompt-complete",
        {Prefill},
        RefusalKind.WRONG_STATE,
        lambda f: f.state is State.DECODE,
        "The prompt is complete, nothing is left to prefill.",
        "4.8",
    ),
    _row(
        "prompt-incomplete",
        {Append},
        RefusalKind.WRONG_STATE,
        lambda f: f.state is State.PREFILL,
        "The prompt has to be complete before anything is appended.",
        "4.8",
    ),
    _row(
        "not-queued",
        {TryAdmit},
        RefusalKind.WRONG_STATE,
        lambda f: f.state is not State.QUEUED,
        "Only a queued request can be admitted.",
        "4.8",
    ),
    _row(
        "fork-of-queued",
        {Fork},
        RefusalKind.WRONG_STATE,
        lambda f: f.state is State.QUEUED,
        "A queued request has no positions to fork.",
        "4.14.4",
    ),
    _row(
        "not-continuation",
        _ON_CONTINUATION,
        RefusalKind.WRONG_STATE,
        lambda f: f.state is not State.CONTINUATION,
        "Only a continuation can be released, pinned or moved between Device and Host.",
        "4.8",
    ),
    _row(
        "release-of-pinned",
        {Release},
        RefusalKind.WRONG_STATE,
        lambda f: f.pinned,
        "A pinned continuation is protected until it is unpinned.",
        "4.14.8",
    ),
    _row(
        "nothing-to-move",
        _MOVES,
        RefusalKind.WRONG_STATE,
        lambda f: f.state is State.CONTINUATION and f.movable_pages == 0,
        "No page of it is at the source, held by no active sequence and in no other transfer.",
        "4.14.13",
    ),
    _row(
        "fork-of-demoted",
        {Fork},
        RefusalKind.WRONG_STATE,
        lambda f: not f.resident,
        "What is not visible on Device cannot be mapped; it is restored first.",
        "4.4",
    ),
    _row(
        "cancel-of-continuation",
        {Cancel},
        RefusalKind.WRONG_STATE,
        lambda f: f.state is State.CONTINUATION,
        "A continuation has ended already; it is released, not cancelled.",
        "4.8",
    ),
    _row(
        "checkpoint-of-nothing",
        {Checkpoint},
        RefusalKind.WRONG_STATE,
        lambda f: f.smallest_frontier == 0,
        "A sequence that lacks a committed token in some pool has no frontier to keep.",
        "4.14.6",
    ),
    _row(
        "row-in-flight",
        _ON_ACTIVE | {Fork},
        RefusalKind.ROW_IN_FLIGHT,
        lambda f: f.in_flight,
        "A row that a unit has selected is frozen until the unit ends.",
        "4.7, 4.14.4, 4.14.10",
    ),
    _row(
        "host-absent",
        _MOVES,
        RefusalKind.BAD_ARGUMENT,
        lambda f: not f.host,
        "An engine without a Host tier moves nothing.",
        "4.4",
    ),
    _row(
        "empty-unit",
        {BeginUnit},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.empty,
        "A unit has work for at least one row.",
        "4.7",
    ),
    _row(
        "repeated-sequence",
        {Prefill, Append},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.repeated,
        "A unit selects a sequence once.",
        "4.7",
    ),
    _row(
        "empty-work",
        {Prefill, Append},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.count < 1,
        "Work writes at least one position.",
        "4.7",
    ),
    _row(
        "prefill-beyond-prompt",
        {Prefill},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.frontier + f.count > f.prompt,
        "A prefill chunk ends at or before the end of the prompt.",
        "4.8",
    ),
    _row(
        "backend-absent",
        {Prefill, Append},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.backend is not None and f.backend_frontier is None,
        "An engine without a speculative backend writes nothing there.",
        "4.1",
    ),
    _row(
        "backend-negative",
        {Prefill, Append},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.backend is not None and f.backend < 0,
        "Work writes at least no position in the backend.",
        "4.8",
    ),
    _row(
        "backend-ahead",
        {Prefill, Append},
        RefusalKind.BAD_ARGUMENT,
        lambda f: not f.leads and f.backend_stop > f.frontier + f.count,
        "A backend that may not run ahead is written at most up to where Main will stand.",
        "4.8",
    ),
    _row(
        "accepted-unselected",
        {EndUnit},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.accepts and f.written is None,
        "Tokens are accepted of a sequence that the unit has selected.",
        "4.8",
    ),
    _row(
        "accepted-repeated",
        {EndUnit},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.accepts and f.repeated,
        "It is said once how many tokens of a sequence are accepted.",
        "4.8",
    ),
    _row(
        "accepted-of-a-prompt",
        {EndUnit},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.accepts and f.state is State.PREFILL,
        "A prompt is given, not drafted: of a prefill everything is committed.",
        "4.8",
    ),
    _row(
        "accepted-out-of-range",
        {EndUnit},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.accepts and f.written is not None and not 1 <= f.count <= f.written,
        "A round accepts at least the first of the tokens that it wrote, and at most all of them.",
        "4.8",
    ),
    _row(
        "accepted-by-an-abort",
        {EndUnit},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.accepts and f.aborts,
        "An abort accepts nothing.",
        "4.8, 4.14.11",
    ),
    _row(
        "empty-prompt",
        {Submit, Lookup},
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.prompt == 0,
        "A prompt has at least one token.",
        "4.14.2",
    ),
    _row(
        "span-places",
        {Submit, Lookup},
        RefusalKind.BAD_ARGUMENT,
        lambda f: not spans_in_place(f.spans, f.prompt),
        "Spans are in order, do not overlap, have a token each and lie within the prompt.",
        "4.9",
    ),
    _row(
        "span-names",
        {Submit, Lookup},
        RefusalKind.BAD_ARGUMENT,
        lambda f: not spans_named(f.spans),
        f"A span has a token type of at most {MAX_TOKEN_TYPE} characters or a media digest of at most {MAX_MEDIA}.",
        "4.9",
    ),
    _row(
        "negative-growth",
        _STARTS,
        RefusalKind.BAD_ARGUMENT,
        lambda f: f.max_new < 0,
        "max_new counts positions and is at least 0.",
        "4.14.3",
    ),
    _row(
        "fork-position",
        {Fork},
        RefusalKind.BAD_ARGUMENT,
        lambda f: not 1 <= f.position <= f.frontier,
        "A fork starts at a committed position of at least 1.",
        "4.14.4",
    ),
    _row(
        "truncate-position",
        {Truncate},
        RefusalKind.BAD_ARGUMENT,
        lambda f: not 0 <= f.position <= f.frontier,
        "A cut lies at or below the committed frontier.",
        "4.14.10",
    ),
    _row(
        "beyond-limit",
        {Append},
        RefusalKind.LIMIT_EXCEEDED,
        lambda f: f.frontier + f.count > f.limit,
        "A sequence never passes the position that it was admitted for.",
        "4.14.3",
    ),
    _row(
        "lead-beyond-limit",
        {Append},
        RefusalKind.LIMIT_EXCEEDED,
        lambda f: f.leads and f.backend_stop > min(f.limit, f.max_context),
        "A backend that runs ahead stays within what the sequence may still write, as Main does.",
        "4.14.3",
    ),
    _row(
        "beyond-context",
        _STARTS,
        RefusalKind.LIMIT_EXCEEDED,
        lambda f: f.limit > f.max_context,
        "The last position lies within max_context.",
        "4.14.2",
    ),
    _row(
        "beyond-pool",
        _STARTS,
        RefusalKind.LIMIT_EXCEEDED,
        lambda f: _more(f.entitlement_pages, f.capacity_pages),
        "The worst case fits every pool as a whole.",
        "4.14.2",
    ),
    _row(
        "session-busy",
        {Fork, TryAdmit},
        RefusalKind.SESSION_BUSY,
        lambda f: f.session_busy,
        "One session key has at most one active sequence.",
        "4.14.9",
    ),
    _row(
        "no-row",
        {Fork, TryAdmit},
        RefusalKind.NO_ROW,
        lambda f: f.free_rows < 1,
        "An active sequence needs a row of the block-table matrix.",
        "4.7",
    ),
    _row(
        "no-pages",
        {Fork, TryAdmit, Truncate, Prefill, Append, Restore},
        RefusalKind.DEVICE_CAPACITY,
        lambda f: _more(f.need_pages, f.available_pages),
        "The pages fit in every pool once every releasable continuation is counted as released.",
        "4.8, 4.9, 4.14.1",
    ),
    _row(
        "no-extent",
        {Demote},
        RefusalKind.HOST_GEOMETRY,
        lambda f: not extents_fit(f.extent_bytes, f.hole_bytes),
        "The extents fit into the holes of the host arena; free bytes alone do not prove it.",
        "4.4, 4.14.1",
    ),
)


def refusals(operation: type, facts: Facts) -> tuple[Row, ...]:
    """Return every row that refuses ``operation`` under ``facts``, in order of precedence."""
    return tuple([row for row in _rows_of(operation) if row.applies(facts)])


def first_refusing(operation: type, facts: Facts) -> Row | None:
    """Return the row of highest precedence that refuses ``operation`` under ``facts``, None where none does."""
    for row in _rows_of(operation):
        if row.applies(facts):
            return row
    return None


@cache
def _rows_of(operation: type) -> tuple[Row, ...]:
    rows = [row for row in ROWS if operation in row.operations]
    return tuple(sorted(rows, key=lambda row: row.kind.precedence))


def first_refusal(operation: type, facts: Facts) -> RefusalKind | None:
    """Return the kind that is due for ``operation`` under ``facts``; None means that it is carried out.

    For ``TryAdmit`` the kinds from ``session-busy`` on are not refusals but reasons to wait (DESIGN 4.14.2).
    """
    row = first_refusing(operation, facts)
    return None if row is None else row.kind
