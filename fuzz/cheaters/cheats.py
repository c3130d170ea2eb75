"""Cheating engines: our own behind an adapter that cheats in one way, and what has to tell each.

A cheat is small and plausible: it answers fast, looks busy, or reports what the judge would like to hear.  Each names
the invariants of which one has to be named; a cheater that is rejected for another reason was rejected by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    DEFAULT_IDENTITY,
    AdmissionMode,
    Admitted,
    BeginUnit,
    EndUnit,
    Hit,
    Lookup,
    Operation,
    Outcome,
    Progress,
    Progressed,
    Schedule,
    Scheduled,
    Submit,
    TransferOutcome,
    Truncate,
    WaitingKind,
)
from kvcrucible.contract.snapshot import PageState, Snapshot, Touched
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.fuzz.adapters.registry import ENGINES
from kvcrucible.fuzz.setting import Depth, Setting


class Cheater:
    """Our engine; what a cheat does not override is the engine's own."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.inner: Any = ENGINES["paged"](replace(setting, engine="paged"))
        self.capabilities = self.inner.capabilities

    def __getattr__(self, name: str) -> Any:
        """Show what the engine shows: its effects, and at payload depth its rows."""
        return getattr(self.inner, name)

    def execute(self, operation: Operation) -> Outcome:
        """Carry out one operation."""
        outcome: Outcome = self.inner.execute(operation)
        return outcome

    def snapshot(self) -> Snapshot:
        """Return all visible bookkeeping."""
        found: Snapshot = self.inner.snapshot()
        return found

    def drain(self) -> tuple[Snapshot, Touched] | None:
        """Return what operations touched since the last call."""
        found: tuple[Snapshot, Touched] = self.inner.drain()
        return found


class TellsNoSteps(Cheater):
    """A cheat in what is shown; it cannot tell steps, or the two would disagree."""

    def drain(self) -> None:
        """Nothing."""
        self.inner.drain()


class FrozenDigest(TellsNoSteps):
    """Shows the state of the beginning for ever."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._first = self.inner.snapshot()

    def snapshot(self) -> Snapshot:
        """Return the first snapshot."""
        first: Snapshot = self._first
        return first


class StaleSnapshot(TellsNoSteps):
    """Shows the state before the last operation."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._before = self.inner.snapshot()

    def execute(self, operation: Operation) -> Outcome:
        """Look before the operation."""
        self._before = self.inner.snapshot()
        return super().execute(operation)

    def snapshot(self) -> Snapshot:
        """Return the snapshot of one operation ago."""
        before: Snapshot = self._before
        return before


class ClampedTruncation(Cheater):
    """Cuts at page boundaries alone, as if nobody could tell the columns in between."""

    def execute(self, operation: Operation) -> Outcome:
        """Cut less than was asked for."""
        if isinstance(operation, Truncate):
            size = self.setting.page_size
            record = self.inner.engine.sequences.get(operation.sequence)
            frontier = 0 if record is None else record.frontier
            up = -(-operation.position // size) * size
            if operation.position < frontier:
                operation = replace(operation, position=min(up, frontier))
        return super().execute(operation)


class EarlyPublish(TellsNoSteps):
    """Shows pages at the destination of a transfer as soon as it has begun."""

    def snapshot(self) -> Snapshot:
        """Return the pages of transfers as if their bytes were there."""
        found = super().snapshot()
        moving = {
            move.page: (one, move)
            for one in found.transfers.values()
            for move in one.moves
            if not move.dropped
        }
        pages: dict[int, PageState] = {}
        for key, page in found.pages.items():
            pages[key] = replace(page, visible=moving[key][0].source.other) if key in moving else page
        return replace(found, pages=pages)


class LyingFreeCount(TellsNoSteps):
    """Says that one page more is free than there is, as soon as any is leased."""

    def execute(self, operation: Operation) -> Outcome:
        """Count one page more as free."""
        outcome = super().execute(operation)
        counters = tuple([(leased, kept, free + bool(leased)) for leased, kept, free in outcome.counters])
        return replace(outcome, counters=counters)

    def snapshot(self) -> Snapshot:
        """Count one page more as free."""
        found = super().snapshot()
        pools = tuple([replace(pool, free=pool.free + bool(pool.leased)) for pool in found.pools])
        return replace(found, pools=pools)


class EditedTable(Cheater):
    """Rearranges the rows of a unit in flight, and puts them right before it ends."""

    def execute(self, operation: Operation) -> Outcome:
        """Edit what is frozen."""
        if isinstance(operation, EndUnit):
            self._turn(operation.unit)
        outcome = super().execute(operation)
        if isinstance(operation, BeginUnit) and outcome.refusal is None:
            assert isinstance(outcome.value, int)
            self._turn(outcome.value)
        return outcome

    def _turn(self, unit: int) -> None:
        record = self.inner.engine.units.get(unit)
        for pool, row, _ in () if record is None else record.frozen:
            self.inner.engine.tables[pool].entries[row].reverse()


class RefusesEverything(Cheater):
    """Refuses whatever is asked: it never does anything wrong."""

    def execute(self, operation: Operation) -> Outcome:
        """Refuse for want of pages."""
        nothing = super().execute(Progress())
        return Outcome(None, RefusalKind.DEVICE_CAPACITY, (), nothing.counters)


class SkippedCopies(Cheater):
    """Does the bookkeeping of a tail copy and leaves the copy out."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        for one in self.inner.engine.storages:
            one.copy_columns = lambda pool, source_page, destination_page, columns: None


class WholePageCopies(Cheater):
    """Copies whole pages where a few columns were asked for."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        for one, spec in zip(self.inner.engine.storages, setting.engine_config().pools, strict=True):
            one.copy_columns = _whole_pages(one.copy_columns, spec.page_size)


class ReusedReads(Cheater):
    """Reads each owner's rows once and repeats them, whatever has happened since."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._read: dict[tuple[int, ...], Any] = {}

    def read(self, owner: int, layer: int, stop: int, pool: int = 0) -> Any:
        """Return rows as they were read first; of a longer sequence what is missing is read."""
        key = owner, layer, pool, stop
        if key not in self._read:
            self._read[key] = self.inner.read(owner, layer, stop, pool)
        return self._read[key]


class ForgottenIdentities(Cheater):
    """Takes tokens for all that there is to a prompt: tenant, adapter and weights are left out."""

    def execute(self, operation: Operation) -> Outcome:
        """Look for tokens alone."""
        if isinstance(operation, Submit | Lookup):
            operation = replace(operation, identity=DEFAULT_IDENTITY)
        return super().execute(operation)


class ClaimedHits(Cheater):
    """Claims a hit of all but the last token whenever anything is retained."""

    def execute(self, operation: Operation) -> Outcome:
        """Answer a look-up with the newest checkpoint, whatever it is of."""
        outcome = super().execute(operation)
        newest = max(self.inner.snapshot().checkpoints.values(), key=lambda one: one.checkpoint, default=None)
        if isinstance(operation, Lookup) and outcome.refusal is None and newest is not None:
            return replace(outcome, value=Hit(newest.owner, newest.checkpoint, newest.frontier))
        return outcome


class HiddenFailures(Cheater):
    """Reports every transfer that has failed as one that was merely abandoned."""

    def execute(self, operation: Operation) -> Outcome:
        """Report no failure."""
        outcome = super().execute(operation)
        if not isinstance(outcome.value, Progressed):
            return outcome
        ended = tuple(
            [
                replace(one, failed=False) if one.outcome is TransferOutcome.ABANDONED else one
                for one in outcome.value.transfers
            ]
        )
        return replace(outcome, value=replace(outcome.value, transfers=ended))


class ShiftedGenerations(TellsNoSteps):
    """Shows every lease in its first generation, so that old handles pass for new ones."""

    def snapshot(self) -> Snapshot:
        """Return pages whose leases have no past."""
        found = super().snapshot()
        pages = {key: replace(page, generation=min(page.generation, 1)) for key, page in found.pages.items()}
        return replace(found, pages=pages)


class AdmitsBeyondCapacity(Cheater):
    """Says that a request is admitted for which there is no room."""

    def execute(self, operation: Operation) -> Outcome:
        """Admit who waits for pages."""
        outcome = super().execute(operation)
        value = outcome.value
        if not isinstance(operation, Schedule) or not isinstance(value, Scheduled) or value.waiting is None:
            return outcome
        if value.waiting.kind is not WaitingKind.DEVICE_CAPACITY:
            return outcome
        admitted = Admitted(value.waiting.sequence, AdmissionMode.COLD, None, 0)
        return replace(outcome, value=Scheduled((*value.admitted, admitted), None))


def _whole_pages(copy: Callable[..., None], page_size: int) -> Callable[..., None]:
    def whole(pool: int, source_page: int, destination_page: int, columns: int) -> None:
        copy(pool, source_page, destination_page, page_size)

    return whole


@dataclass(frozen=True, slots=True)
class Cheat:
    """One cheating engine: how it is built, the depth at which it shows, and the invariants that may tell it."""

    name: str
    build: Callable[[Setting], EngineAdapter]
    tells: frozenset[str]
    depth: Depth = Depth.LEDGER


def _cheat(
    name: str, build: Callable[[Setting], Any], tells: Sequence[str], depth: Depth = Depth.LEDGER
) -> Cheat:
    return Cheat(f"cheater-{name}", build, frozenset(tells), depth)


#: Every cheating engine by name.
CHEATS: dict[str, Cheat] = {
    cheat.name: cheat
    for cheat in (
        _cheat("frozen-digest", FrozenDigest, ("pool-conservation", "predicted-outcome")),
        _cheat("stale-snapshot", StaleSnapshot, ("pool-conservation", "predicted-outcome")),
        _cheat("clamped-truncation", ClampedTruncation, ("token-exact-truncation",)),
        _cheat("early-publish", EarlyPublish, ("publish-order", "one-visible-replica")),
        _cheat("lying-free-count", LyingFreeCount, ("pool-conservation",)),
        _cheat("edited-table", EditedTable, ("unit-frozen", "table-mirror")),
        # Refused with the wrong reason, where a handle is stale, is as telling as refused at all.
        _cheat(
            "refuses-everything",
            RefusesEverything,
            ("predicted-outcome", "admission-by-count", "stale-handle-refused"),
        ),
        _cheat("skipped-copies", SkippedCopies, ("cow-isolation",)),
        _cheat("whole-page-copies", WholePageCopies, ("cow-isolation",)),
        _cheat("reused-reads", ReusedReads, ("no-stale-read", "token-exact-truncation"), Depth.PAYLOAD),
        _cheat("forgotten-identities", ForgottenIdentities, ("exact-prefix-identity",)),
        _cheat("claimed-hits", ClaimedHits, ("exact-prefix-identity",)),
        _cheat("hidden-failures", HiddenFailures, ("publish-order",)),
        _cheat(
            "shifted-generations",
            ShiftedGenerations,
            ("lease-unique", "stale-handle-refused", "transfer-pinned"),
        ),
        _cheat("admits-beyond-capacity", AdmitsBeyondCapacity, ("admission-by-count",)),
    )
}
