"""Checkers about frontiers and the identity of what lies below them (DESIGN 4.6, 4.9, 4.14)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.planes import LEADING
from kvcrucible.contract.snapshot import ContinuationState, SequenceState, Snapshot, SpaceState
from kvcrucible.contract.tokens import common_prefix, count, prefix
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.violation import Violation


def owner_of(snapshot: Snapshot, owner: int) -> SequenceState | ContinuationState | None:
    """Return the sequence or continuation with this id."""
    return snapshot.sequences.get(owner) or snapshot.continuations.get(owner)


class FrontierBounds(Checker):
    """Verifies: 0 ≤ frontier ≤ provisional ≤ limit; provisional positions exist in units alone; a space holds exactly
    the pages that its provisional frontier needs; each page has exactly the committed columns that lie below the
    frontier; in Main the frontier equals the number of the owner's tokens.

    Does not verify: the tokens themselves (exact-prefix-identity, payload), nor who sees which frontier
    (frontier-visibility).
    """

    id = "frontier-bounds"
    statement = (
        "Frontier ≤ provisional ≤ limit; pages, committed columns and tokens are exactly what these need."
    )
    source = "4.6, 4.7, 4.14.3"
    needs = frozenset({"pools", "pages", "spaces", "sequences", "continuations"})
    reads = frozenset({"pages", "spaces", "sequences", "continuations"})
    premise_part = "spaces"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every space and all of its pages."""
        whole = Scope(spaces=set(snapshot.spaces), starts=dict.fromkeys(snapshot.spaces, 0))
        return self.check_delta(snapshot, snapshot, whole)

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge spaces that were touched or whose owner was, and the columns of changed blocks."""
        owners = scope.sequences | scope.continuations
        sizes, looked_at = [pool.page_size for pool in after.pools], (scope.starts, scope.displaced)
        for key, space in after.spaces.items():
            if not 0 <= space.pool < len(sizes):
                continue
            size = sizes[space.pool]
            if key in scope.spaces or space.owner in owners:
                yield from self._bounds(after, space, size)
            if key not in looked_at[0] and key not in looked_at[1]:
                continue
            for block in scope.blocks(key, len(space.pages)):
                page = after.pages.get(space.pages[block])
                due = min(max(space.frontier - block * size, 0), size)
                if page is not None and page.committed != due:
                    subject = (
                        f"space of {space.owner}, frontier {space.frontier}, block {block}, page {page.page}"
                    )
                    yield self.mismatch(subject, f"{page.committed} committed columns", due)

    def _bounds(self, snapshot: Snapshot, space: SpaceState, size: int) -> list[Violation]:
        found: list[tuple[str, object, str]] = []
        frontier, provisional = space.frontier, space.provisional
        if not 0 <= frontier <= provisional:
            found.append(("", f"frontier {frontier}, provisional {provisional}", "0 ≤ first ≤ second"))
        if len(space.pages) != pages_for(provisional, size):
            due = f"{pages_for(provisional, size)} for {provisional} positions"
            found.append((", pages held", len(space.pages), due))
        sequence = snapshot.sequences.get(space.owner)
        if sequence is not None and provisional > sequence.limit:
            found.append((", provisional", provisional, f"at most the limit {sequence.limit}"))
        if provisional != frontier and not (sequence is not None and sequence.in_flight):
            found.append((", not in a unit, provisional", provisional, f"the frontier {frontier}"))
        if space.pool == 0:
            owner = owner_of(snapshot, space.owner)
            if owner is not None and count(owner.tokens) != frontier:
                found.append((", tokens", count(owner.tokens), f"as many as the frontier {frontier}"))
        subject = f"space of {space.owner} in pool {space.pool}" if found else ""
        return [self.mismatch(f"{subject}{what}", seen, due) for what, seen, due in found]


class FrontierVisibility(Checker):
    """Verifies: while a unit is in flight, in every pool the frontier of each selected sequence is the one before the
    unit, and its provisional frontier the one up to which the unit writes.

    Does not verify: what reads and hits return meanwhile; the harness compares those with the reference.
    """

    id = "frontier-visibility"
    statement = (
        "During a unit everybody sees the frontier before it; what it writes shows only once it is committed."
    )
    source = "4.7, 4.14.11"
    needs = frozenset({"spaces", "units"})
    reads = frozenset({"spaces", "units"})
    premise_part = "units"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Compare the work of every unit with the frontiers of its sequences."""
        for unit in snapshot.units.values():
            for owner, pool, first, last in unit.work:
                space = snapshot.spaces.get((owner, pool))
                if space is not None and (space.frontier, space.provisional) != (first, last):
                    subject = f"unit {unit.unit}, sequence {owner}, pool {pool}, frontier and provisional"
                    yield self.mismatch(subject, (space.frontier, space.provisional), (first, last))


class BackendNotAhead(Checker):
    """Verifies: in no sequence or continuation has the speculative backend more committed positions than Main, and no
    unit in flight writes more there than in Main where the backend may not run ahead (decision 0023).

    Does not verify: how far one that may runs ahead inside a unit; frontier-bounds holds it to the sequence's limit.
    """

    id = "backend-not-ahead"
    statement = "A speculative backend's committed frontier never lies beyond Main's."
    source = "4.8, 4.14.6"
    needs = frozenset({"pools", "spaces"})
    reads = frozenset({"spaces"})
    needs_backend = True

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether there is a backend that anything is written in."""
        return len(snapshot.pools) > 1 and any(
            pool > 0 and space.frontier > 0 for (_, pool), space in snapshot.spaces.items()
        )

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Compare every backend space with the Main space of its owner."""
        if len(snapshot.pools) < 2:
            return
        for (owner, pool), space in snapshot.spaces.items():
            main = snapshot.spaces.get((owner, 0)) if pool > 0 else None
            if main is None:
                continue
            if space.frontier <= main.frontier and space.provisional <= main.provisional:
                continue
            judged = [("frontier", space.frontier, main.frontier)]
            if pool < len(snapshot.pools) and snapshot.pools[pool].name not in LEADING:
                judged.append(("provisional", space.provisional, main.provisional))
            for what, mine, limit in judged:
                if mine > limit:
                    yield self.mismatch(
                        f"space of {owner} in pool {pool}, {what}", mine, f"at most Main's {limit}"
                    )


class ExactPrefixIdentity(Checker):
    """Verifies: the prefix index holds exactly the checkpoints, each with its owner's first tokens up to the checkpoint
    and with its owner's identity.

    Does not verify: what a lookup answers; the harness compares each answer with the reference.
    """

    id = "exact-prefix-identity"
    statement = (
        "What can be found for a checkpoint is exactly its owner's tokens and identity up to the checkpoint."
    )
    source = "4.9, 4.14.6"
    needs = frozenset({"checkpoints", "findable", "sequences", "continuations"})
    reads = frozenset({"checkpoints", "sequences", "continuations"})
    premise_part = "findable"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Compare every entry of the index with its checkpoint and owner, and every checkpoint with the index."""
        for key, found in snapshot.findable.items():
            checkpoint = snapshot.checkpoints.get(key)
            if checkpoint is None:
                yield self.mismatch(
                    f"prefix index, checkpoint {key}", f"{count(found.tokens)} tokens findable", "no entry"
                )
                continue
            owner = owner_of(snapshot, checkpoint.owner)
            due = () if owner is None else prefix(owner.tokens, checkpoint.frontier)
            as_its_owner = owner is not None and found.tokens == due and found.identity == owner.identity
            if as_its_owner and count(due) == checkpoint.frontier:
                continue
            subject = f"prefix index, checkpoint {key} of {checkpoint.owner} at {checkpoint.frontier}"
            if owner is None:
                yield self.mismatch(subject, "no such owner", "an owner that lives")
                continue
            if found.tokens != due:
                agreed = common_prefix(found.tokens, due)
                yield self.mismatch(
                    subject, f"{count(found.tokens)} tokens, {agreed} as the owner's", f"{count(due)} tokens"
                )
            elif count(due) != checkpoint.frontier:
                yield self.mismatch(subject, f"{count(due)} tokens of the owner", f"{checkpoint.frontier}")
            if found.identity != owner.identity:
                yield self.mismatch(f"{subject}, identity", found.identity, owner.identity)
        for key in snapshot.checkpoints.keys() - snapshot.findable.keys():
            yield self.mismatch(f"checkpoint {key}", "not in the prefix index", "to be findable")
