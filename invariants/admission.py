"""Checkers about what an admitted sequence was promised (DESIGN 4.3, 4.8)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.invariants.checker import Checker
from kvcrucible.invariants.violation import Violation


class CompletionGuarantee(Checker):
    """Verifies: per pool, an active sequence's entitlement is what its last position needs, and the pages that it holds
    plus those that are reserved for it are exactly its entitlement.

    Does not verify: that it then does finish (the campaigns run sequences to their limit); that a head of the queue can
    still start after others have passed it (:mod:`kvcrucible.invariants.backfill`, by the harness).
    """

    id = "completion-guarantee"
    statement = (
        "An admitted sequence can always finish: held + reserved = entitlement = ceil(limit / P), by pool; and the "
        "head of the queue can always start, whoever has passed it."
    )
    source = "4.8, 4.14.3, 4.14.4"
    needs = frozenset({"pools", "spaces", "sequences"})
    reads = frozenset({"spaces", "sequences"})
    premise_part = "sequences"
    needs_reservations = True

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every active sequence in every pool."""
        for key, sequence in snapshot.sequences.items():
            for index, (pool, entitlement, reserved) in enumerate(
                zip(snapshot.pools, sequence.entitlement, sequence.reserved, strict=False)
            ):
                worst_case = pages_for(sequence.limit, pool.page_size)
                space = snapshot.spaces.get((key, index))
                held = None if space is None else len(space.pages)
                if (
                    entitlement == worst_case
                    and (held is None or held + reserved == entitlement)
                    and reserved >= 0
                ):
                    continue
                subject = f"sequence {key}, pool {pool.name}"
                if entitlement != worst_case:
                    yield self.mismatch(
                        f"{subject}, entitlement", entitlement, f"{worst_case} for limit {sequence.limit}"
                    )
                if held is not None and held + reserved != entitlement:
                    yield self.mismatch(f"{subject}, held + reserved", f"{held} + {reserved}", entitlement)
                if reserved < 0:
                    yield self.mismatch(f"{subject}, reserved", reserved, "at least 0")


class BundleAtomic(Checker):
    """Verifies: every sequence and continuation has a space in every pool and vectors over every pool; every space has
    an owner, which is active or retained and not both.

    Does not verify: that a refused reservation left all pools alone (refusal-atomic compares the snapshots).
    """

    id = "bundle-atomic"
    statement = "A bundle exists in all pools or in none: each owner has one space per pool, and each space one owner."
    source = "4.3, 4.8"
    needs = frozenset({"pools", "spaces", "sequences", "continuations"})
    reads = frozenset({"spaces", "sequences", "continuations"})
    premise_part = "spaces"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge owners against spaces, and spaces against owners."""
        pools, spaces = len(snapshot.pools), snapshot.spaces
        owners = snapshot.sequences.keys() | snapshot.continuations.keys()
        for owner in owners:
            missing = [index for index in range(pools) if (owner, index) not in spaces]
            if missing:
                yield self.mismatch(f"owner {owner}", f"no space in pools {missing}", "one in each pool")
        for owner, pool in spaces:
            if owner not in owners:
                yield self.mismatch(
                    f"space of {owner} in pool {pool}", "no owner", "a sequence or a continuation"
                )
        for owner in snapshot.sequences.keys() & snapshot.continuations.keys():
            yield self.mismatch(f"owner {owner}", "active and retained", "one of both")
        for key, sequence in snapshot.sequences.items():
            for name, vector in (("entitlement", sequence.entitlement), ("reserved", sequence.reserved)):
                if len(vector) != pools:
                    yield self.mismatch(f"sequence {key}, {name}", f"{len(vector)} pools", pools)
