"""Which invariants fire on a snapshot, and on the step between two."""

from __future__ import annotations

from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.invariants.monitor import differences
from kvcrucible.invariants.registry import checkers
from kvcrucible.invariants.shadow import Shadow


def fired_in_full(snapshot: Snapshot, *, local: bool = False) -> set[str]:
    """Ids of the full checks that fire."""
    return {v.invariant for c in checkers() if c.is_local or not local for v in c.check(snapshot)}


def fired_in_step(before: Snapshot, after: Snapshot) -> set[str]:
    """Ids of the step checks that fire between two full snapshots, with the touched entries found by comparison."""
    step = Shadow(before).step(after, differences(before, after))
    local = [c for c in checkers() if c.is_local]
    return {v.invariant for c in local for v in c.check_delta(step.before, step.after, step.scope)}
