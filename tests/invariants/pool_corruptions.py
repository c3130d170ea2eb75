"""Ways to break a sound snapshot of two pools in the second one alone, or between the two."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from snapshot_corruptions import CORRUPTIONS, breaks, define, put

from kvcrucible.contract.snapshot import Snapshot

__all__ = ["CORRUPTIONS"]

define(
    "checkpoint_forgets_the_backend",
    "protected-prefix",
    "checkpoints",
    lambda c, _: replace(c, pages=c.pages[:1], epochs=c.epochs[:1], columns=c.columns[:1]),
)
define(
    "backend_checkpoint_of_old_epoch",
    "protected-prefix",
    "checkpoints",
    lambda c, _: replace(c, epochs=(c.epochs[0], c.epochs[1] + 1)),
)
define(
    "backend_checkpoint_of_wrong_columns",
    "protected-prefix",
    "checkpoints",
    lambda c, _: replace(c, columns=(c.columns[0], c.columns[1] - 1)),
)
define(
    "checkpoint_swaps_pools",
    "pool-isolation",
    "checkpoints",
    lambda c, _: replace(c, pages=c.pages[::-1]),
)
define(
    "backend_of_unit_seen_early",
    "frontier-visibility",
    "units",
    lambda u, _: replace(u, work=(u.work[0], (*u.work[1][:2], u.work[1][2], u.work[1][3] + 1), *u.work[2:])),
)
define(
    "backend_ahead",
    "backend-not-ahead",
    "spaces",
    lambda space, s: replace(space, frontier=s.spaces[space.owner, 0].frontier + 1),
    lambda space, _: space.pool == 1,
)
define(
    "main_cut_below_the_backend",
    "backend-not-ahead",
    "spaces",
    lambda space, s: replace(space, frontier=s.spaces[space.owner, 1].frontier - 1),
    lambda space, s: space.pool == 0 and s.spaces[space.owner, 1].frontier > 0,
)
define(
    "backend_row_empty",
    "table-mirror",
    "rows",
    lambda r, _: replace(r, entries=()),
    lambda r, _: r.pool == 1 and bool(r.entries),
)
define("row_of_no_pool", "pool-isolation", "rows", lambda r, _: replace(r, pool=7))
define(
    "row_leased_in_one_pool",
    "row-unique",
    "rows",
    lambda r, _: replace(r, sequence=None),
    lambda r, _: r.pool == 1 and r.sequence is not None,
)
define(
    "frozen_backend_row_rewritten",
    "unit-frozen",
    "units",
    lambda u, _: replace(u, frozen=(u.frozen[0], (*u.frozen[1][:2], (99,)), *u.frozen[2:])),
)
define(
    "backend_not_frozen",
    "unit-frozen",
    "units",
    lambda u, _: replace(u, frozen=tuple(frozen for frozen in u.frozen if frozen[0] == 0)),
)
define(
    "backend_entitlement_too_small",
    "completion-guarantee",
    "sequences",
    lambda q, _: replace(q, entitlement=(q.entitlement[0], q.entitlement[1] - 1)),
)
define(
    "backend_pages_given_away",
    "completion-guarantee",
    "sequences",
    lambda q, _: replace(q, reserved=(q.reserved[0], q.reserved[1] - 1)),
)
define("backend_space_missing", "bundle-atomic", "spaces", lambda s, _: None, lambda s, _: s.pool == 1)


@breaks("backend-not-ahead")
def backend_will_be_ahead(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A backend of the kind that may not run ahead, written beyond Main in a unit."""
    draft = replace(snapshot, pools=(snapshot.pools[0], replace(snapshot.pools[1], name="draft")))
    for (owner, pool), space in snapshot.spaces.items():
        main = snapshot.spaces[owner, 0]
        if pool == 1 and main.provisional > main.frontier:
            ahead = replace(space, provisional=main.provisional + 1)
            return put(draft, "spaces", (owner, pool), ahead)
    return None


@breaks("table-mirror")
def row_of_other_pool(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A backend's row that repeats what Main's row maps, as if the ids meant the same."""
    for (pool, row), mapped in snapshot.rows.items():
        main = snapshot.rows[0, row]
        if pool == 1 and main.entries != mapped.entries:
            return put(snapshot, "rows", (pool, row), replace(mapped, entries=main.entries))
    return None
