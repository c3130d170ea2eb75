"""Checkers about block-table rows and the units that freeze them (DESIGN 4.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter

from kvcrucible.contract.snapshot import PageState, RowState, Snapshot, SpaceState, UnitState
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.violation import Violation


def _name(row: RowState) -> str:
    return f"row {row.row}" if row.pool == 0 else f"row {row.row} in pool {row.pool}"


class TableMirror(Checker):
    """Verifies: a leased row of a pool's table maps, in order and without holes, the physical pages of its sequence's
    space in that pool, no more and no fewer; a row without a sequence maps nothing; where the engine also keeps the
    mapping back from physical pages to logical blocks, it holds the row's pages and no other.

    Does not verify: that the device's copy of the table is the same (the payload checks read through it).
    """

    id = "table-mirror"
    statement = "In each pool a leased row lists exactly its sequence's physical pages in order; other rows are empty."
    source = "4.7"
    needs = frozenset({"pages", "spaces", "rows"})
    reads = frozenset({"pages", "spaces", "rows"})
    premise_part = "rows"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every row over its whole length."""
        whole = Scope(starts=dict.fromkeys(snapshot.spaces, 0))
        return self.check_delta(snapshot, snapshot, whole)

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge the length of every row in view and its changed blocks."""
        starts, displaced = scope.starts, scope.displaced
        for row in after.rows.values():
            if row.inverse is not None:
                yield from self._judge_inverse(row, row.inverse)
            if row.sequence is None:
                if row.entries:
                    yield self.mismatch(f"{_name(row)}, not leased", f"entries {row.entries[:8]}", "none")
                continue
            key = (row.sequence, row.pool)
            space = after.spaces.get(key)
            if space is None:
                continue
            if key in starts or key in displaced or len(row.entries) != len(space.pages):
                yield from self._judge(after, scope, row, space)

    def _judge_inverse(self, row: RowState, inverse: tuple[tuple[int, int], ...]) -> Iterator[Violation]:
        due = tuple(sorted((page, block) for block, page in enumerate(row.entries)))
        if inverse != due:
            yield self.mismatch(f"{_name(row)}, mapping back (page, block)", inverse, due)

    def _judge(self, after: Snapshot, scope: Scope, row: RowState, space: SpaceState) -> Iterator[Violation]:
        if len(row.entries) != len(space.pages):
            subject = f"{_name(row)} of sequence {row.sequence}"
            yield self.mismatch(f"{subject}, entries", len(row.entries), f"{len(space.pages)} pages")
            return
        for block in scope.blocks((space.owner, space.pool), len(space.pages)):
            page = after.pages.get(space.pages[block])
            # A page that does not exist is refcount-exact's finding.
            if page is not None and (row.entries[block] != page.device or page.device == -1):
                subject = f"{_name(row)} of sequence {row.sequence}"
                due = (
                    f"{page.device} (page {page.page})"
                    if page.device != -1
                    else f"page {page.page} on Device"
                )
                found = row.entries[block]
                yield self.mismatch(f"{subject}, block {block}", found, due)


class RowUnique(Checker):
    """Verifies: every active sequence leases one row, the same in every pool's table, and that row names it, so no two
    have one row; no two active sequences have one session key, and no two continuations.

    Does not verify: what the rows map (table-mirror).
    """

    id = "row-unique"
    statement = "Each row, and each session key, has at most one active sequence; row and sequence agree in every pool."
    source = "4.7, 4.14.9"
    needs = frozenset({"pools", "sequences", "rows"})
    reads = frozenset({"sequences", "continuations", "rows"})
    premise_part = "sequences"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge rows and session keys, each from both sides."""
        for row in snapshot.rows.values():
            if row.sequence is not None:
                sequence = snapshot.sequences.get(row.sequence)
                if sequence is None or sequence.row != row.row:
                    found = "no active sequence" if sequence is None else f"its row {sequence.row}"
                    yield self.mismatch(
                        f"{_name(row)}, leased to {row.sequence}", found, "a sequence that names this row"
                    )
        for sequence in snapshot.sequences.values():
            for pool in range(len(snapshot.pools)):
                row_there = snapshot.rows.get((pool, sequence.row))
                if row_there is None or row_there.sequence != sequence.sequence:
                    found = "no such row" if row_there is None else f"leased to {row_there.sequence}"
                    subject = f"sequence {sequence.sequence}, row {sequence.row} in pool {pool}"
                    yield self.mismatch(subject, found, "leased to it")
        for kind, named in (
            ("active sequences", [s.session for s in snapshot.sequences.values() if s.session is not None]),
            ("continuations", [c.session for c in snapshot.continuations.values() if c.session is not None]),
        ):
            if len(named) > 1 and len(set(named)) < len(named):
                yield from self._sessions(kind, named)

    def _sessions(self, kind: str, named: list[str]) -> Iterator[Violation]:
        for session, holders in Counter(named).items():
            if holders > 1:
                yield self.mismatch(f"session {session!r}, {kind}", holders, "at most 1")


class UnitFrozen(Checker):
    """Verifies: in every pool the rows of a unit in flight map what they mapped when it froze them; its sequences are
    active, marked in flight and in no other unit; a sequence marked in flight is in one; a cancel is recorded only for
    such a sequence.  Between its begin and its end, no step changes the unit, a selected row or space, or a page of a
    selected space.

    Does not verify: the payload under the unit (no-stale-read), nor the frontier seen meanwhile (frontier-visibility).
    """

    id = "unit-frozen"
    statement = "While a unit is in flight, no selected row, page or frontier changes, and no sequence is in two units."
    source = "4.7, 4.14.11"
    needs = frozenset({"sequences", "spaces", "rows", "units"})
    reads = frozenset({"pages", "sequences", "spaces", "rows", "units"})
    premise_part = "units"
    is_temporal = True

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every unit, and every flag of a sequence that speaks of one."""
        works = [(owner, pool) for unit in snapshot.units.values() for owner, pool, _, _ in unit.work]
        if len(set(works)) < len(works):
            for (owner, pool), times in Counter(works).items():
                if times > 1:
                    what = f"sequence {owner}, works in flight in pool {pool}"
                    yield self.mismatch(what, times, "at most 1")
        selected = dict.fromkeys([owner for owner, _ in works])
        for owner in selected:
            sequence = snapshot.sequences.get(owner)
            if sequence is None or not sequence.in_flight:
                yield self.mismatch(
                    f"sequence {owner}, in a unit", sequence and "not in flight", "active and in flight"
                )
        for unit in snapshot.units.values():
            yield from self._rows(snapshot, unit)
        for sequence in snapshot.sequences.values():
            if sequence.in_flight and sequence.sequence not in selected:
                yield self.mismatch(
                    f"sequence {sequence.sequence}, in flight", "no unit", "a unit that selects it"
                )
            if sequence.cancel_recorded and not sequence.in_flight:
                yield self.mismatch(
                    f"sequence {sequence.sequence}, cancel recorded", "not in flight", "in flight"
                )

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge the state after the step, and that the step left alone what goes on being frozen."""
        yield from self.check(after)
        for key, unit in before.units.items():
            now = after.units.get(key)
            if now is None:
                continue
            if now is not unit and now != unit:
                yield self.mismatch(f"unit {key}", "changed in flight", "unchanged until its end")
            yield from self._untouched(before, after, scope, unit)

    def _rows(self, snapshot: Snapshot, unit: UnitState) -> Iterator[Violation]:
        frozen = []
        for pool, row, entries in unit.frozen:
            now = snapshot.rows.get((pool, row))
            frozen.append((now.sequence if now else None, pool))
            if now is None or now.entries != entries:
                found = now and now.entries[:8]
                yield self.mismatch(
                    f"unit {unit.unit}, row {row} in pool {pool}",
                    f"entries {found}",
                    f"{entries[:8]} as frozen",
                )
        work = [(owner, pool) for owner, pool, _, _ in unit.work]
        # Mostly they are in the same order; where they are not, that is no fault.
        if work != frozen and sorted(work, key=str) != sorted(frozen, key=str):
            yield self.mismatch(f"unit {unit.unit}, frozen rows belong to", frozen, f"the selected {work}")

    def _untouched(
        self, before: Snapshot, after: Snapshot, scope: Scope, unit: UnitState
    ) -> Iterator[Violation]:
        selected = {owner for owner, _, _, _ in unit.work}
        for key in scope.spaces:
            if key[0] in selected and before.spaces.get(key) != after.spaces.get(key):
                yield self.mismatch(f"unit {unit.unit}, space of {key[0]}", "changed in flight", "unchanged")
        for key, space in before.spaces.items():
            if key[0] not in selected:
                continue
            for page in scope.pages.intersection(space.pages):
                old, now = before.pages.get(page), after.pages.get(page)
                if old is now is not None:
                    continue
                if old is None or now is None or _content(old) != _content(now):
                    yield self.mismatch(
                        f"unit {unit.unit}, page {page} of sequence {key[0]}",
                        "changed in flight",
                        "unchanged",
                    )


#: References may fall meanwhile: another holder of a shared page may end.
_content: Callable[[PageState], tuple[int, ...]] = attrgetter("epoch", "committed", "device", "generation")
