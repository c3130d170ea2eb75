"""What the accounting model knows before an operation: the facts by which the semantics table judges it (DESIGN 4.14).

Facts about pages that an operation would take are not here: they come from trying it out
(:mod:`kvcrucible.reference.accounting`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.operations import (
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Lookup,
    Operation,
    Pin,
    Release,
    Restore,
    Submit,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.semantics import Facts, Row, first_refusing
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import count
from kvcrucible.reference.inspection import Inspection

#: Operations and works with the facts by which the table judges them.
Judged: TypeAlias = list[tuple[type, Facts]]


def first_row(judged: Judged) -> Row | None:
    """The row of highest precedence that refuses any of them (a unit of several works is judged by all, 0003)."""
    rows = [row for kind, facts in judged if (row := first_refusing(kind, facts)) is not None]
    return min(rows, key=lambda row: row.kind.precedence) if rows else None


class Judging(Inspection):
    """Facts about operations that :attr:`books` are asked for; nothing here changes anything."""

    config: EngineConfig
    holes: tuple[int, ...] | None

    def _about(self, sequence: int, **more: Any) -> Facts:
        """What is known of the sequence that an operation addresses, and ``more`` that is known of the operation."""
        books, config = self.books, self.config
        more["state"] = books.state(sequence)
        more["max_context"], more["capacity_pages"] = config.max_context, books.capacity
        more["free_rows"], more["host"] = self.rows_free, config.host is not None
        entry = books.entry(sequence)
        if entry is None:
            return Facts(**more)
        # A fork names the limit of what it starts, which is not that of its source.
        more.setdefault("limit", entry.limit)
        return Facts(
            in_flight=entry.unit is not None,
            pinned=entry.pinned,
            frontier=entry.frontier,
            backend_frontier=entry.backend if len(books.pools) > 1 else None,
            prompt=count(entry.prompt),
            resident=books.resident(entry),
            **more,
        )

    def _new(self, limit: int, max_new: int) -> dict[str, Any]:
        """What is known of a sequence that is to grow to ``limit``."""
        entitlement = tuple([self.books.pages(limit, pool) for pool in self.books.pools])
        return {"limit": limit, "max_new": max_new, "entitlement_pages": entitlement}

    def _with_movable(self, continuation: int, source: Tier) -> Facts:
        """What is known of a continuation whose pages are to leave ``source``."""
        kept = self.books.continuations.get(continuation)
        if kept is None:
            return self._about(continuation)
        pages = [len(self.books.movable(kept, source, pool)) for pool in self.books.pools]
        return self._about(continuation, movable_pages=sum(pages))

    def _with_extents(self, facts: Facts, continuation: int) -> Facts:
        """Add what a demotion takes of the host arena, and what there is."""
        kept, host = self.books.continuations.get(continuation), self.config.host
        if kept is None or host is None:
            return facts
        pages = self.books.all_movable(kept, Tier.DEVICE)
        sizes = tuple(extent.size_bytes for extent in self.books.extents(pages) if extent is not None)
        holes = (host.capacity_bytes - self.books.host_used,) if self.holes is None else self.holes
        return replace(facts, extent_bytes=sizes, hole_bytes=holes)

    def _session_busy(self, session: str | None) -> bool:
        return session is not None and any(entry.session == session for entry in self.books.active.values())

    def _judged(self, operation: Operation) -> Judged:
        """What the table judges an operation that takes no pages by: of an end of a unit, each entry of what is
        accepted.
        """
        if not isinstance(operation, EndUnit):
            return [(type(operation), self._facts(operation))]
        known = Facts(unit_known=operation.unit in self.books.units, aborts=not operation.commit)
        written = {work.sequence: count(work.tokens) for work in self.books.units.get(operation.unit, ())}
        named = [sequence for sequence, _ in operation.accepted]
        entries = [
            replace(
                known,
                state=self.books.state(sequence),
                accepts=True,
                count=tokens,
                written=written.get(sequence),
                repeated=named.count(sequence) > 1,
            )
            for sequence, tokens in operation.accepted
        ]
        return [(EndUnit, facts) for facts in entries or [known]]

    def _facts(self, operation: Operation) -> Facts:
        match operation:
            case Submit(prompt, max_new, spans=spans):
                return Facts(
                    prompt=count(prompt),
                    spans=spans,
                    max_context=self.config.max_context,
                    capacity_pages=self.books.capacity,
                    **self._new(count(prompt) + max_new, max_new),
                )
            case Lookup(prompt, spans=spans):
                return Facts(prompt=count(prompt), spans=spans)
            case TryAdmit(sequence):
                entry = self.books.entry(sequence)
                busy = entry is not None and self._session_busy(entry.session)
                return self._about(sequence, session_busy=busy)
            case Fork(source, position, max_new, session):
                return self._about(
                    source,
                    position=position,
                    session_busy=self._session_busy(session),
                    **self._new(position + max_new, max_new),
                )
            case Truncate(sequence, position):
                return self._about(sequence, position=position)
            case Demote(continuation):
                return self._with_extents(self._with_movable(continuation, Tier.DEVICE), continuation)
            case Restore(continuation):
                return self._with_movable(continuation, Tier.HOST)
            case CancelTransfer(transfer):
                return Facts(transfer_known=transfer in self.books.transfers)
            case (
                Checkpoint(sequence) | Finish(sequence) | Cancel(sequence) | Release(sequence) | Pin(sequence)
            ):
                return self._about(sequence)
        raise AssertionError(operation)
