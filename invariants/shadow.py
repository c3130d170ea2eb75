"""The last known state of an engine, and the closed partial snapshots of each step (DESIGN 5).

A step reports the ids that it touched.  Rules relate them to entries that it did not touch, so the shadow adds those,
unchanged, to both sides:

    touched page       → the checkpoints on it; another holder of the same physical page; spaces that hold it,
                         where it changed although none of them moved; its transfer
    touched transfer   → the pages whose moves changed; other holders of their physical pages
    touched fence      → whoever holds the same physical page
    touched extent     → its neighbours by address; pages and transfers that name its slots, as wherever a slot has
                         changed hands
    touched space, row → its owner; the pages from the first changed block on
    touched owner      → its sequence or continuation, spaces, row and checkpoints, and whoever has its session or row
    checkpoint in view → its owner, its page, its entry in the prefix index
    unit in flight     → every sequence and row that it selects

So "absent from a partial snapshot" means "does not exist" wherever a rule looks.  Nothing here walks over untouched
pages in Python: whole tuples are compared at once, and only what follows their first difference is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from kvcrucible.contract.quick import quick
from kvcrucible.contract.snapshot import (
    KEYED_PARTS,
    CheckpointState,
    HostState,
    PageState,
    PoolState,
    Snapshot,
    Touched,
)
from kvcrucible.invariants.checker import Scope
from kvcrucible.invariants.places import Index, Places, view

_Name: TypeAlias = tuple[str, Hashable]

#: Each keyed part with the ids that name its touched entries; the prefix index has none of its own.
_TOUCHED_BY: tuple[tuple[str, str], ...] = tuple(
    (part, "checkpoints" if part == "findable" else part) for part in KEYED_PARTS
)

#: All ids of a touched set, in the order of its fields.
_ids_of: Callable[[Touched], tuple[Any, ...]] = attrgetter(*Touched.__slots__)


@quick
@dataclass(frozen=True, slots=True)
class Step:
    """One step as closed partial snapshots, and what it touched."""

    before: Snapshot
    after: Snapshot
    scope: Scope


def shared_length(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Length of the common prefix, found by comparing slices: logarithmically many comparisons at C speed."""
    high = min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Shadow:
    """Last known entries of one engine with the indexes that closing a step needs; owned by one monitor."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.state = Snapshot(snapshot.pools, queue=snapshot.queue, host=snapshot.host)
        for part in KEYED_PARTS:
            getattr(self.state, part).update(getattr(snapshot, part))
        self._holders: dict[tuple[int, int], int] = {}
        self._checkpoints_by_owner, self._checkpoints_by_page = Index(), Index()
        self._names = Index()
        self._places = Places(snapshot)
        for page in snapshot.pages.values():
            if page.device >= 0:
                self._holders[page.pool, page.device] = page.page
        for checkpoint in snapshot.checkpoints.values():
            self._index_checkpoint(checkpoint)
        for owner in (*snapshot.sequences, *snapshot.continuations):
            for name in _names_of(snapshot, owner):
                self._names.add(name, owner)

    # -- reading a step ------------------------------------------------------------------------------------------------

    def step(self, partial: Snapshot, touched: Touched) -> Step:
        """Return ``partial`` as a closed step from the last known state; entries that are not touched are not read.

        Mutates nothing; :meth:`advance` takes the step over.
        """
        state = self.state
        before = Snapshot(state.pools, queue=state.queue, host=state.host)
        after = Snapshot(partial.pools, queue=partial.queue, host=partial.host)
        scope = Scope(*_ids_of(touched))
        for part, named in _TOUCHED_BY:
            ids = getattr(touched, named)
            if ids:
                _select(getattr(state, part), ids, getattr(before, part))
                _select(getattr(partial, part), ids, getattr(after, part))
        if scope.pages:
            old, new = before.pages, after.pages
            scope.created, scope.removed = new.keys() - old.keys(), old.keys() - new.keys()
            scope.kept = [(old[key], page) for key, page in new.items() if key in old]
        region = self._changed_blocks(before, after, scope)
        view(self.state, "pages", region - scope.pages, before, after)
        if scope.kept:
            self._displaced_blocks(before, after, scope, region)
        self._related(before, after, scope)
        self._places.close(state, before, after, scope, self._holders)
        return Step(before, after, scope)

    def _changed_blocks(self, before: Snapshot, after: Snapshot, scope: Scope) -> set[int]:
        """Fill ``scope.starts``, ``gained`` and ``lost``; return the pages of all changed blocks, before and after."""
        region: set[int] = set()
        for key in scope.spaces:
            old, new = before.spaces.get(key), after.spaces.get(key)
            held, holds = old.pages if old else (), new.pages if new else ()
            common = shared_length(held, holds)
            scope.lost += held[common:]
            scope.gained += holds[common:]
            start = common
            if old and new and new.pool < len(after.pools):
                start = min(common, min(old.frontier, new.frontier) // after.pools[new.pool].page_size)
            scope.starts[key] = max(start, 0)
        self._changed_rows(before, after, scope)
        for key, start in scope.starts.items():
            if key not in scope.spaces:
                # Not touched, so not in view yet: it is the same on both sides.
                known = self.state.spaces.get(key)
                region.update(() if known is None else known.pages[start:])
                continue
            for space in (before.spaces.get(key), after.spaces.get(key)):
                if space is not None:
                    region.update(space.pages[start:])
        return region

    def _changed_rows(self, before: Snapshot, after: Snapshot, scope: Scope) -> None:
        starts = scope.starts
        for row in scope.rows:
            old, new = before.rows.get(row), after.rows.get(row)
            if new is None or new.sequence is None:
                continue
            start = (
                0 if old is None or old.sequence != new.sequence else shared_length(old.entries, new.entries)
            )
            key = (new.sequence, new.pool)
            starts[key] = min(start, starts.get(key, start))
        for sequence in scope.sequences:
            past, now = before.sequences.get(sequence), after.sequences.get(sequence)
            if now is not None and (past is None or past.row != now.row):
                starts.update([((sequence, pool), 0) for pool in range(len(after.pools))])

    def _displaced_blocks(self, before: Snapshot, after: Snapshot, scope: Scope, region: set[int]) -> None:
        """Find blocks of changed pages whose space did not move there: a broken engine has some, or a moved lease."""
        outside = [
            page.page
            for was, page in scope.kept
            if _relied_on(was, page) and (max(was.references, page.references) > 1 or page.page not in region)
        ]
        if not outside:
            return
        sought = set(outside)
        for key, space in {**self.state.spaces, **after.spaces}.items():
            if key in scope.spaces and key not in after.spaces:
                continue
            if not sought.isdisjoint(space.pages):
                scope.displaced[key] = [block for block, page in enumerate(space.pages) if page in sought]

    def _related(self, before: Snapshot, after: Snapshot, scope: Scope) -> None:
        """Add owners and all that hangs on them."""
        state, marked = self.state, self._checkpoints_by_owner.ids
        checkpoints = set(scope.checkpoints)
        if marked:
            for page in scope.pages & self._checkpoints_by_page.ids.keys():
                checkpoints.update(self._checkpoints_by_page.get(page))
            view(self.state, "checkpoints", checkpoints - scope.checkpoints, before, after)
        if state.units:
            view(self.state, "units", state.units.keys() - scope.units, before, after)
        owners = scope.sequences | scope.continuations
        owners.update([owner for owner, _ in (*scope.spaces, *scope.starts, *scope.displaced)])
        rows: set[tuple[int, int]] = set()
        pools = range(len(after.pools))
        for side in (before, after):
            if checkpoints:
                owners.update([checkpoint.owner for checkpoint in side.checkpoints.values()])
            owners.update([row.sequence for row in side.rows.values() if row.sequence is not None])
            for unit in side.units.values():
                owners.update([owner for owner, _, _, _ in unit.work])
                rows.update([(pool, row) for pool, row, _ in unit.frozen])
        for names in self._changed_names(before, after, scope).values():
            for name in names:
                owners.update(self._names.get(name))
        sequences, continuations, known = state.sequences, state.continuations, state.spaces
        for owner in owners:
            if owner in sequences and owner not in scope.sequences:
                before.sequences[owner] = after.sequences[owner] = sequences[owner]
            if owner in continuations and owner not in scope.continuations:
                before.continuations[owner] = after.continuations[owner] = continuations[owner]
            for pool in pools:
                key = (owner, pool)
                if key in known and key not in scope.spaces:
                    before.spaces[key] = after.spaces[key] = known[key]
        for pool in pools:
            rows.update([(pool, sequence.row) for sequence in before.sequences.values()])
            rows.update([(pool, sequence.row) for sequence in after.sequences.values()])
        view(self.state, "rows", rows - scope.rows, before, after)
        for owner in owners & marked.keys() if marked else ():
            checkpoints.update(marked[owner])
        if checkpoints:
            view(self.state, "checkpoints", checkpoints - scope.checkpoints, before, after)
            # The prefix index has no ids of its own among the touched: its entries go with the checkpoints'.
            view(self.state, "findable", checkpoints - scope.checkpoints, before, after)
            pages = {
                page
                for side in (before, after)
                for checkpoint in side.checkpoints.values()
                for page in checkpoint.pages
            }
            view(self.state, "pages", pages - scope.pages, before, after)

    def _changed_names(self, before: Snapshot, after: Snapshot, scope: Scope) -> dict[int, set[_Name]]:
        """Return what touched owners are called now, of those that are called otherwise than before."""
        changed = {}
        for key in scope.sequences | scope.continuations:
            was, now = before.sequences.get(key), after.sequences.get(key)
            kept, keeps = before.continuations.get(key), after.continuations.get(key)
            if (was is None) is (now is None) and (kept is None) is (keeps is None):
                # Most that are touched are called as before, which is told without making up their names.
                same = was is None or now is None or (was.row, was.session) == (now.row, now.session)
                if same and (kept is None or keeps is None or kept.session == keeps.session):
                    continue
            names = _names_of(after, key)
            if names != _names_of(before, key):
                changed[key] = names
        return changed

    # -- taking it over ------------------------------------------------------------------------------------------------

    def advance(self, step: Step) -> None:
        """Take over the touched entries of a step."""
        state, after, scope = self.state, step.after, step.scope
        self._reindex(step)
        # Untouched entries in view are the shadow's own.
        for part, named in _TOUCHED_BY:
            ids = getattr(scope, named)
            if ids:
                known, now = getattr(state, part), getattr(after, part)
                for key in ids:
                    if key in now:
                        known[key] = now[key]
                    else:
                        known.pop(key, None)
        if not (state.pools is after.pools and state.queue == after.queue and state.host is after.host):
            self._renew(after.pools, after.queue, after.host)

    def requeue(self, queue: tuple[int, ...]) -> None:
        """Take over a step that has changed nothing but the queue."""
        self._renew(self.state.pools, queue, self.state.host)

    def _renew(self, pools: tuple[PoolState, ...], queue: tuple[int, ...], host: HostState | None) -> None:
        state = self.state
        # Written out: dataclasses.replace costs as much as the rest of a small step.
        self.state = Snapshot(
            pools,
            state.pages,
            state.spaces,
            state.sequences,
            state.continuations,
            state.checkpoints,
            state.findable,
            state.rows,
            state.units,
            state.transfers,
            state.retiring,
            state.extents,
            queue,
            host,
        )

    def _reindex(self, step: Step) -> None:
        before, after, scope = step.before, step.after, step.scope
        holders = self._holders
        moved = _moved(scope) if scope.kept else []
        if moved or scope.removed or scope.created:
            for page in [before.pages[key] for key in scope.removed] + [was for was, _ in moved]:
                if holders.get((page.pool, page.device)) == page.page:
                    del holders[page.pool, page.device]
            for page in [after.pages[key] for key in scope.created] + [now for _, now in moved]:
                if page.device >= 0:
                    holders[page.pool, page.device] = page.page
        self._places.reindex(before, after, scope)
        for key in scope.checkpoints:
            if (old := before.checkpoints.get(key)) is not None:
                self._checkpoints_by_owner.remove(old.owner, key)
                for named in set(old.pages):
                    self._checkpoints_by_page.remove(named, key)
            if (new := after.checkpoints.get(key)) is not None:
                self._index_checkpoint(new)
        for key, names in self._changed_names(before, after, scope).items():
            for name in _names_of(before, key):
                self._names.remove(name, key)
            for name in names:
                self._names.add(name, key)

    def _index_checkpoint(self, checkpoint: CheckpointState) -> None:
        self._checkpoints_by_owner.add(checkpoint.owner, checkpoint.checkpoint)
        for page in checkpoint.pages:
            self._checkpoints_by_page.add(page, checkpoint.checkpoint)


def _select(entries: dict[Any, Any], ids: Any, into: dict[Any, Any]) -> None:
    if len(entries) <= len(ids) and entries.keys() <= ids:
        into.update(entries)
    else:
        into.update([(key, entries[key]) for key in ids if key in entries])


def _relied_on(was: PageState, now: PageState) -> bool:
    """Say whether something changed that a space or a row relies on of a page that it holds."""
    if was.committed != now.committed or was.device != now.device or was.pool != now.pool:
        return True
    if was.on_device is now.on_device and was.on_host is now.on_host:
        return was.visible is not now.visible
    return was.visible is not now.visible or was.in_transfer != now.in_transfer


def _moved(scope: Scope) -> list[tuple[PageState, PageState]]:
    """Pages that live on with another physical page."""
    return [(was, now) for was, now in scope.kept if was.device != now.device or was.pool != now.pool]


def _names_of(snapshot: Snapshot, owner: int) -> set[_Name]:
    """What no two owners of one kind may have in common: a session key, and for sequences a row."""
    names: set[_Name] = set()
    sequence, continuation = snapshot.sequences.get(owner), snapshot.continuations.get(owner)
    if sequence is not None:
        names.add(("row", sequence.row))
        if sequence.session is not None:
            names.add(("active session", sequence.session))
    if continuation is not None and continuation.session is not None:
        names.add(("retained session", continuation.session))
    return names
