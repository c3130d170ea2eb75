"""Whether an operation of a history was due, by the rows of ``contract.semantics`` (DESIGN 4.14).

The facts come from the ledger, before the line is carried out on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.semantics import ROWS, Facts, Row, State
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder

_BY_OPERATION: dict[type, list[Row]] = {}
for _row in sorted(ROWS, key=lambda row: row.kind.precedence):
    for _kind in _row.operations:
        _BY_OPERATION.setdefault(_kind, []).append(_row)


def about(ledger: Ledger, name: int) -> Facts:
    """Return what is known of the sequence that an operation addresses."""
    holder = ledger.holders.get(name)
    if holder is None:
        return Facts(
            max_context=ledger.header.max_context,
            capacity_pages=tuple(ledger.capacity),
            free_rows=ledger.header.max_concurrency - ledger.actives,
            host=ledger.has_host,
        )
    return Facts(
        state=holder.state,
        in_flight=holder.unit is not None,
        pinned=holder.pinned,
        frontier=holder.frontiers[0],
        backend_frontier=holder.frontiers[1] if len(holder.frontiers) > 1 else None,
        prompt=holder.prompt,
        limit=holder.limit,
        max_context=ledger.header.max_context,
        capacity_pages=tuple(ledger.capacity),
        free_rows=ledger.header.max_concurrency - ledger.actives,
        host=ledger.has_host,
        resident=not holder.away,
    )


def new(ledger: Ledger, facts: Facts, limit: int, max_new: int) -> Facts:
    """Add what is known of a sequence that is to grow to ``limit``."""
    pages = tuple(ledger.needed(limit, pool) for pool in ledger.pools)
    return replace(facts, limit=limit, max_new=max_new, entitlement_pages=pages)


def lacking(facts: Facts, need: Sequence[int], available: Sequence[int]) -> Facts:
    """Add the pages that an operation takes, and those that can be had."""
    return replace(facts, need_pages=tuple(need), available_pages=tuple(available))


def due_row(judged: Iterable[tuple[type, Facts]]) -> Row | None:
    """Return the row that refuses an operation: of all its works, the one of highest precedence."""
    found = [row for kind, facts in judged for row in _BY_OPERATION[kind] if row.applies(facts)]
    return min(found, key=lambda row: row.kind.precedence, default=None)


def require(
    ledger: Ledger, what: str, judged: Sequence[tuple[type, Facts]], refused: RefusalKind | None
) -> bool:
    """Judge whether an operation was refused as is due; return whether it is carried out.

    Where the history does not show the contract's refusals, any refusal is legal, and none has to be.
    """
    if refused is not None and not ledger.shows_refusals:
        return False
    row = due_row(judged)
    if row is None:
        if refused is None:
            return True
        active = any(facts.state in (State.PREFILL, State.DECODE) for _, facts in judged)
        raise Broken(
            "completion-guarantee" if active else "refusal-due",
            f"{what} was refused, {refused.value}; no row of the semantics table refuses it",
        )
    if refused is None:
        raise Broken(row.name, f"{what} was carried out; due: refused, {row.kind.value}: {row.statement}")
    if refused is not row.kind:
        raise Broken(
            row.name, f"{what} was refused, {refused.value}; due: refused, {row.kind.value}: {row.statement}"
        )
    return False


def protected_pages(ledger: Ledger, holder: Holder | None) -> list[int]:
    """Return, for each pool, the pages that would yield if the holder were not protected for the moment."""
    found = [0 for _ in ledger.pools]
    if holder is not None and holder.state is State.CONTINUATION and not holder.firm:
        for pool, held in enumerate(holder.pages):
            found[pool] = sum(
                [not page.firm and page.leased and page.stamp not in ledger.outstanding for page in held]
            )
    return found


def available(ledger: Ledger, need: Sequence[int], protected: Holder | None = None) -> list[int]:
    """Return the pages that can be had in each pool: free, and after releasing all that may be released.

    Where ``need`` is free already, what is free: more would make no difference.
    """
    if all(map(int.__le__, need, ledger.free)):
        return ledger.free
    kept = protected_pages(ledger, protected)
    return [
        free + yielding - own for free, yielding, own in zip(ledger.free, ledger.yielding, kept, strict=True)
    ]
