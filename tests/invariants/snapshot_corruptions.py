"""One way and another to break a sound snapshot, each with the invariant that it breaks.

A corruption takes a sound snapshot and a source of randomness and returns a broken one, or None where the snapshot has
nothing that could be broken in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from kvcrucible.contract.operations import Identity
from kvcrucible.contract.snapshot import FindableState, PageState, Snapshot
from kvcrucible.contract.tokens import concat, prefix, run

Corruption = Callable[[Snapshot, Random], Snapshot | None]

Catalogue = dict[str, tuple[str, Corruption]]

CORRUPTIONS: Catalogue = {}


def breaks(invariant: str, into: Catalogue = CORRUPTIONS) -> Callable[[Corruption], Corruption]:
    def add(corruption: Corruption) -> Corruption:
        into[corruption.__name__] = (invariant, corruption)
        return corruption

    return add


def put(snapshot: Snapshot, part: str, key: Any, entry: Any) -> Snapshot:
    """Return the snapshot with one entry replaced, or removed where ``entry`` is None."""
    entries = dict(getattr(snapshot, part))
    if entry is None:
        entries.pop(key, None)
    else:
        entries[key] = entry
    return replace(snapshot, **{part: entries})


def _change(
    part: str, where: Callable[[Any, Snapshot], bool], change: Callable[[Any, Snapshot], Any]
) -> Corruption:
    def corrupt(snapshot: Snapshot, random: Random) -> Snapshot | None:
        fitting = [key for key, entry in getattr(snapshot, part).items() if where(entry, snapshot)]
        if not fitting:
            return None
        key = random.choice(fitting)
        return put(snapshot, part, key, change(getattr(snapshot, part)[key], snapshot))

    return corrupt


def _in_flight(space: Any, snapshot: Snapshot) -> bool:
    return space.owner in snapshot.sequences and snapshot.sequences[space.owner].in_flight


def _always(entry: Any, snapshot: Snapshot) -> bool:
    return True


def define(
    name: str,
    invariant: str,
    part: str,
    change: Callable[[Any, Snapshot], Any],
    where: Callable[[Any, Snapshot], bool] = _always,
    into: Catalogue = CORRUPTIONS,
) -> None:
    into[name] = (invariant, _change(part, where, change))


# -- pools -------------------------------------------------------------------------------------------------------------


@breaks("pool-conservation")
def counter_lost(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page that no counter counts."""
    index = random.randrange(len(snapshot.pools))
    pools = list(snapshot.pools)
    pools[index] = replace(pools[index], free=pools[index].free - 1)
    return replace(snapshot, pools=tuple(pools))


@breaks("pool-conservation")
def leased_counted_as_reserved(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """The sum holds, the parts do not."""
    pool = snapshot.pools[0]
    wrong = replace(pool, leased=pool.leased - 1, reserved=pool.reserved + 1)
    return replace(snapshot, pools=(wrong, *snapshot.pools[1:]))


define(
    "reservation_lost",
    "pool-conservation",
    "sequences",
    lambda s, _: replace(s, reserved=(s.reserved[0] - 1, *s.reserved[1:])),
)


@breaks("lease-unique")
def leased_twice(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Two logical pages on one physical page."""
    mine = [page for page in snapshot.pages.values() if page.pool == 0]
    if len(mine) < 2:
        return None
    thief, victim = random.sample(mine, 2)
    return put(snapshot, "pages", thief.page, replace(thief, device=victim.device))


define(
    "lease_beyond_pool",
    "lease-unique",
    "pages",
    lambda p, s: replace(p, device=s.pools[p.pool].capacity),
)
define("references_too_many", "refcount-exact", "pages", lambda p, _: replace(p, references=p.references + 1))
define("references_too_few", "refcount-exact", "pages", lambda p, _: replace(p, references=p.references - 1))
define("page_dropped", "refcount-exact", "pages", lambda p, _: None)


@breaks("refcount-exact")
def orphan_page(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page that nobody holds."""
    free = set(range(snapshot.pools[0].capacity)) - {p.device for p in snapshot.pages.values() if p.pool == 0}
    return put(snapshot, "pages", 10_000, PageState(10_000, 0, 0, 0, 0, min(free), 10_000)) if free else None


define(
    "page_held_twice",
    "refcount-exact",
    "spaces",
    lambda s, _: replace(s, pages=(*s.pages, s.pages[0])),
    lambda s, _: len(s.pages) > 0,
)
define(
    "page_of_other_pool",
    "pool-isolation",
    "pages",
    lambda p, _: replace(p, pool=1 - p.pool),
)
define("page_of_no_pool", "pool-isolation", "pages", lambda p, _: replace(p, pool=7))


@breaks("no-leak-at-quiescence")
def leak_at_quiescence(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Everything has ended, and what was held is still there."""
    if not snapshot.pages:
        return None
    return replace(snapshot, sequences={}, continuations={}, units={})


# -- sharing -----------------------------------------------------------------------------------------------------------

define(
    "partial_page_shared",
    "single-writer",
    "pages",
    lambda p, _: replace(p, references=2),
    lambda p, s: p.committed < s.pools[p.pool].page_size,
)
define(
    "frontier_inside_shared_page",
    "single-writer",
    "spaces",
    lambda space, s: replace(space, frontier=space.frontier - 1, provisional=space.frontier - 1),
    lambda space, s: (
        bool(space.pages) and space.frontier == space.provisional and s.pages[space.pages[-1]].references > 1
    ),
)
define(
    "shared_page_rewritten",
    "shared-immutable",
    "pages",
    lambda p, _: replace(p, epoch=p.epoch + 1),
    lambda p, _: p.references > 1,
)
define(
    "checkpoint_beyond_owner",
    "protected-prefix",
    "checkpoints",
    lambda c, _: replace(c, frontier=c.frontier + 99),
)
define("checkpoint_of_nobody", "protected-prefix", "checkpoints", lambda c, _: replace(c, owner=9_999))
define(
    "checkpoint_on_other_page",
    "protected-prefix",
    "checkpoints",
    lambda c, _: replace(c, pages=tuple(page + 9_999 for page in c.pages)),
)
define(
    "checkpoint_of_old_epoch",
    "protected-prefix",
    "checkpoints",
    lambda c, _: replace(c, epochs=tuple(epoch + 1 for epoch in c.epochs)),
)
define(
    "checkpoint_of_wrong_columns",
    "protected-prefix",
    "checkpoints",
    lambda c, _: replace(c, columns=(c.columns[0] + 1, *c.columns[1:])),
)
define(
    "protected_page_rewritten",
    "protected-prefix",
    "pages",
    lambda p, _: replace(p, epoch=p.epoch + 1),
    lambda p, s: any(p.page in c.pages for c in s.checkpoints.values()),
)

# -- frontiers ---------------------------------------------------------------------------------------------------------

define(
    "frontier_beyond_provisional",
    "frontier-bounds",
    "spaces",
    lambda s, _: replace(s, frontier=s.provisional + 1),
)
define(
    "provisional_without_unit",
    "frontier-bounds",
    "spaces",
    lambda s, _: replace(s, provisional=s.provisional + 1),
    lambda s, state: not _in_flight(s, state),
)
define(
    "limit_passed",
    "frontier-bounds",
    "sequences",
    lambda q, s: replace(q, limit=s.spaces[q.sequence, 0].provisional - 1),
)
define("columns_short", "frontier-bounds", "pages", lambda p, _: replace(p, committed=p.committed - 1))
define("columns_beyond", "frontier-bounds", "pages", lambda p, _: replace(p, committed=p.committed + 1))
define(
    "token_forgotten",
    "frontier-bounds",
    "sequences",
    lambda q, s: replace(q, tokens=prefix(q.tokens, s.spaces[q.sequence, 0].frontier - 1)),
    lambda q, s: s.spaces[q.sequence, 0].frontier > 0,
)
define(
    "unit_seen_early",
    "frontier-visibility",
    "units",
    lambda u, _: replace(u, work=((*u.work[0][:2], u.work[0][2] - 1, u.work[0][3]), *u.work[1:])),
)


@breaks("frontier-visibility")
def frontier_moved_in_flight(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A unit in flight whose provisional frontier is visible as the committed one."""
    for unit in snapshot.units.values():
        owner, _, _, last = unit.work[0]
        space = snapshot.spaces[owner, 0]
        return put(snapshot, "spaces", (owner, 0), replace(space, frontier=last))
    return None


define(
    "stale_identity",
    "exact-prefix-identity",
    "findable",
    lambda f, _: replace(f, tokens=concat(f.tokens, run(77, 0, 3))),
)
define(
    "identity_of_other_tenant",
    "exact-prefix-identity",
    "findable",
    lambda f, _: replace(f, identity=Identity("x")),
)
define("identity_lost", "exact-prefix-identity", "findable", lambda f, _: None)
define("identity_outlives_checkpoint", "exact-prefix-identity", "checkpoints", lambda c, _: None)


@breaks("exact-prefix-identity")
def identity_from_nowhere(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """An index entry that no checkpoint made."""
    return put(snapshot, "findable", 9_999, FindableState(9_999, run(5, 0, 4), Identity()))


# -- tables ------------------------------------------------------------------------------------------------------------

define(
    "row_short",
    "table-mirror",
    "rows",
    lambda r, _: replace(r, entries=r.entries[:-1]),
    lambda r, _: bool(r.entries),
)


define(
    "row_with_hole",
    "table-mirror",
    "rows",
    lambda r, _: replace(r, entries=(-1, *r.entries[1:])),
    lambda r, _: bool(r.entries),
)
define(
    "row_in_wrong_order",
    "table-mirror",
    "rows",
    lambda r, _: replace(r, entries=r.entries[::-1]),
    lambda r, _: len(r.entries) > 1,
)
define(
    "mapping_back_stale",
    "table-mirror",
    "rows",
    lambda r, _: replace(r, inverse=((3, 0), *((page, block) for block, page in enumerate(r.entries)))),
)
define(
    "row_not_cleared",
    "table-mirror",
    "rows",
    lambda r, _: replace(r, entries=(3, 4)),
    lambda r, _: r.sequence is None,
)


@breaks("table-mirror")
def lease_moved_behind_the_table(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A page of an active sequence on another physical page, and no row rewritten."""
    used = {page.device for page in snapshot.pages.values() if page.pool == 0}
    free = set(range(snapshot.pools[0].capacity)) - used
    held = [page for q in snapshot.sequences for page in snapshot.spaces[q, 0].pages]
    if not free or not held:
        return None
    page = snapshot.pages[random.choice(held)]
    return put(snapshot, "pages", page.page, replace(page, device=min(free)))


@breaks("row-unique")
def row_of_two(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Two sequences that name one row."""
    if len(snapshot.sequences) < 2:
        return None
    first, second = random.sample(list(snapshot.sequences.values()), 2)
    return put(snapshot, "sequences", first.sequence, replace(first, row=second.row))


@breaks("row-unique")
def session_of_two(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """Two active sequences under one session key."""
    named = [entry for entry in snapshot.sequences.values() if entry.session is not None]
    others = [entry for entry in snapshot.sequences.values() if named and entry.sequence != named[0].sequence]
    if not others:
        return None
    return put(snapshot, "sequences", others[0].sequence, replace(others[0], session=named[0].session))


define(
    "row_of_nobody",
    "row-unique",
    "rows",
    lambda r, _: replace(r, sequence=9_999),
    lambda r, _: r.sequence is None,
)
define("row_taken_away", "row-unique", "rows", lambda r, _: None, lambda r, _: r.sequence is not None)
define(
    "frozen_row_rewritten",
    "unit-frozen",
    "units",
    lambda u, _: replace(u, frozen=((*u.frozen[0][:2], (99,)), *u.frozen[1:])),
)
define(
    "flag_lost",
    "unit-frozen",
    "sequences",
    lambda q, _: replace(q, in_flight=False),
    lambda q, _: q.in_flight,
)
define(
    "flag_without_unit",
    "unit-frozen",
    "sequences",
    lambda q, _: replace(q, in_flight=True),
    lambda q, _: not q.in_flight,
)
define(
    "cancel_recorded_for_nothing",
    "unit-frozen",
    "sequences",
    lambda q, _: replace(q, cancel_recorded=True),
    lambda q, _: not q.in_flight,
)


@breaks("unit-frozen")
def selected_twice(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """One sequence in two units."""
    for unit in snapshot.units.values():
        return put(snapshot, "units", 9_999, replace(unit, unit=9_999))
    return None


# -- admission ---------------------------------------------------------------------------------------------------------

define(
    "entitlement_too_small",
    "completion-guarantee",
    "sequences",
    lambda q, _: replace(q, entitlement=(q.entitlement[0] - 1, *q.entitlement[1:])),
)
define(
    "truncated_pages_given_away",
    "completion-guarantee",
    "sequences",
    lambda q, _: replace(q, reserved=(q.reserved[0] - 1, *q.reserved[1:])),
)
define("space_missing", "bundle-atomic", "spaces", lambda s, _: None)
define("owner_missing", "bundle-atomic", "sequences", lambda q, _: None)
define("vector_short", "bundle-atomic", "sequences", lambda q, _: replace(q, reserved=q.reserved[:1]))


@breaks("bundle-atomic")
def active_and_retained(snapshot: Snapshot, random: Random) -> Snapshot | None:
    """A continuation that is active too."""
    if not snapshot.sequences or not snapshot.continuations:
        return None
    sequence = random.choice(list(snapshot.sequences.values()))
    kept = random.choice(list(snapshot.continuations.values()))
    return put(
        snapshot,
        "continuations",
        sequence.sequence,
        replace(kept, continuation=sequence.sequence, session=None),
    )
