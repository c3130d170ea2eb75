"""The catalogue: every invariant id, in the order of DESIGN 5, with what judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.invariants.admission import BundleAtomic, CompletionGuarantee
from kvcrucible.invariants.arena import HostConservation
from kvcrucible.invariants.backfill import head_can_start
from kvcrucible.invariants.behaviour import JUDGED, Depth, Judged, rows_equal, stale_refused
from kvcrucible.invariants.checker import Checker
from kvcrucible.invariants.effects import page_given_out, transfer_completed
from kvcrucible.invariants.fences import RecycleFenced
from kvcrucible.invariants.frontiers import (
    BackendNotAhead,
    ExactPrefixIdentity,
    FrontierBounds,
    FrontierVisibility,
)
from kvcrucible.invariants.pools import (
    LeaseGenerations,
    LeaseUnique,
    NoLeakAtQuiescence,
    PoolConservation,
    PoolIsolation,
    RefcountExact,
)
from kvcrucible.invariants.replicas import OneVisibleReplica, ReplicaValid
from kvcrucible.invariants.sharing import ProtectedPrefix, SharedImmutable, SingleWriter
from kvcrucible.invariants.tables import RowUnique, TableMirror, UnitFrozen
from kvcrucible.invariants.transfers import PublishOrder, TransferPinned
from kvcrucible.invariants.violation import Violation

#: Every public id, in the order of DESIGN 5.
IDS: tuple[str, ...] = (
    "pool-conservation",
    "lease-unique",
    "stale-handle-refused",
    "refcount-exact",
    "host-conservation",
    "no-leak-at-quiescence",
    "recycle-fenced",
    "one-visible-replica",
    "replica-valid",
    "transfer-pinned",
    "publish-order",
    "single-writer",
    "shared-immutable",
    "cow-isolation",
    "protected-prefix",
    "frontier-bounds",
    "frontier-visibility",
    "token-exact-truncation",
    "exact-prefix-identity",
    "backend-not-ahead",
    "table-mirror",
    "row-unique",
    "unit-frozen",
    "completion-guarantee",
    "admission-by-count",
    "bundle-atomic",
    "refusal-atomic",
    "cache-yields",
    "pool-isolation",
    "kernel-oracle",
    "mapping-invariance",
    "no-stale-read",
    "codec-exact",
)

CHECKERS: tuple[type[Checker], ...] = (
    PoolConservation,
    LeaseUnique,
    LeaseGenerations,
    RefcountExact,
    HostConservation,
    NoLeakAtQuiescence,
    RecycleFenced,
    OneVisibleReplica,
    ReplicaValid,
    TransferPinned,
    PublishOrder,
    SingleWriter,
    SharedImmutable,
    ProtectedPrefix,
    FrontierBounds,
    FrontierVisibility,
    ExactPrefixIdentity,
    BackendNotAhead,
    TableMirror,
    RowUnique,
    UnitFrozen,
    CompletionGuarantee,
    BundleAtomic,
    PoolIsolation,
)

#: What the harness judges beside the checker of the same id.
_ALSO_JUDGED: dict[str, Callable[..., list[Violation]]] = {
    LeaseGenerations.id: stale_refused,
    FrontierVisibility.id: rows_equal,
    PoolIsolation.id: rows_equal,
    ReplicaValid.id: rows_equal,
    PublishOrder.id: transfer_completed,
    RecycleFenced.id: page_given_out,
    CompletionGuarantee.id: head_can_start,
}


@dataclass(frozen=True, slots=True)
class Invariant:
    """One entry of the catalogue.

    ``checker`` judges snapshots, ``judge`` is what a harness calls where behaviour or payload shows it; each entry has
    one or both.
    """

    id: str
    source: str
    depth: Depth
    statement: str
    checker: type[Checker] | None = None
    judge: Callable[..., list[Violation]] | None = None

    @property
    def documentation(self) -> str:
        """What the judging code verifies, and what it does not."""
        return getdoc(self.checker or self.judge) or ""


def _entry(found: type[Checker] | Judged) -> Invariant:
    if isinstance(found, Judged):
        return Invariant(found.id, found.source, found.depth, found.statement, judge=found.judge)
    depth = Depth.SNAPSHOT if found.check is not Checker.check else Depth.STEP
    return Invariant(found.id, found.source, depth, found.statement, found, judge=_ALSO_JUDGED.get(found.id))


_SOURCES: tuple[type[Checker] | Judged, ...] = (*CHECKERS, *JUDGED)
_FOUND: dict[str, Invariant] = {found.id: _entry(found) for found in _SOURCES}

#: The catalogue by id, in the order of DESIGN 5.
INVARIANTS: dict[str, Invariant] = {name: _FOUND[name] for name in IDS}


def inapplicable(capabilities: Capabilities) -> dict[str, str]:
    """Return the ids of snapshot checkers that mean nothing on an engine, each with the reason."""
    reasons: dict[str, str] = {}
    for checker in CHECKERS:
        if missing := checker.needs - capabilities.snapshot_parts:
            reasons[checker.id] = f"{capabilities.engine} cannot show: {', '.join(sorted(missing))}"
        elif checker.needs_reservations and not capabilities.reserves:
            reasons[checker.id] = (
                f"{capabilities.engine} grants pages on demand and promises nothing at admission"
            )
        elif checker.needs_backend and not capabilities.backends:
            reasons[checker.id] = f"{capabilities.engine} has no speculative backend"
        elif checker.needs_host and not capabilities.host:
            reasons[checker.id] = f"{capabilities.engine} has no Host tier"
    return reasons


def checkers(capabilities: Capabilities | None = None) -> list[Checker]:
    """Return fresh checkers for one run: all, or those that apply to an engine with these capabilities."""
    left_out = inapplicable(capabilities) if capabilities is not None else {}
    return [checker() for checker in CHECKERS if checker.id not in left_out]
