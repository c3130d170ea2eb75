"""What every checker is, and the view of one step that step checks are given (DESIGN 5).

A *full* check judges one whole snapshot.  A *step* check (``check_delta``) judges what one operation changed, at a cost
that depends on the entries touched and not on what is alive.  It is given two *closed partial* snapshots: the touched
entries, and of the untouched ones those that a rule relates to them (:mod:`kvcrucible.invariants.shadow` lists which).
Given a sound state before, a step check of a rule about states fires exactly where the full check would.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from kvcrucible.contract.snapshot import PageState, Snapshot, Touched
from kvcrucible.invariants.violation import Violation, mismatch

SpaceKey = tuple[int, int]


@dataclass(slots=True)
class Scope(Touched):
    """The touched ids, and what follows from them for the pages of spaces; computed once for all checkers.

    ``starts``: per space, the first logical block that the step may have changed; every page from there on, before
    and after, is in the partial snapshots.  ``displaced``: blocks below the start whose page changed its columns, lease
    or pool although its space did not move.  ``gained``, ``lost``: pages that spaces took up and gave up, repeated.
    ``created`` and ``removed``: touched pages that exist on one side only; ``kept``: those on both, before and after.
    ``replicas``: pages that are touched or whose part in a transfer changed; their transfers are in view.  ``arena``:
    extents of which a slot, or who holds one, may have changed; all that names a slot of them is in view.
    """

    starts: dict[SpaceKey, int] = field(default_factory=dict)
    displaced: dict[SpaceKey, list[int]] = field(default_factory=dict)
    gained: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    created: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)
    kept: list[tuple[PageState, PageState]] = field(default_factory=list)
    replicas: set[int] = field(default_factory=set)
    arena: set[int] = field(default_factory=set)

    def blocks(self, key: SpaceKey, length: int) -> list[int]:
        """Return the blocks of a space of ``length`` pages that have to be looked at again."""
        return [*self.displaced.get(key, ()), *range(self.starts.get(key, length), length)]


class Checker(ABC):
    """One invariant over snapshots.

    Subclasses open their docstring with "Verifies:", followed by "Does not verify:".  ``needs`` names the snapshot
    parts without which the check means nothing; ``premise_part`` the one that must hold an entry for the rule to say
    anything.  ``reads`` names all that a step check reads: the fields of :class:`Touched` of which it reads entries
    (``findable`` goes with ``checkpoints``), ``counters`` for those of pools and ``arena`` for the Host tier's totals;
    a step that changes none of them leaves the verdict as it was, so it is not asked for.  ``is_local`` is False where
    no step check exists.  ``is_temporal`` is True where the step check has rules that no single snapshot can show
    broken.  ``needs_reservations`` limits the rule to engines that reserve the worst case, ``needs_backend`` to those
    that can have a speculative backend, ``needs_host`` to those that can have a Host tier.  No method mutates its
    arguments; a temporal checker may remember, so a run takes fresh instances.
    """

    id: ClassVar[str]
    statement: ClassVar[str]
    source: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    reads: ClassVar[frozenset[str]] = frozenset()
    premise_part: ClassVar[str] = "pages"
    is_local: ClassVar[bool] = True
    is_temporal: ClassVar[bool] = False
    needs_reservations: ClassVar[bool] = False
    needs_backend: ClassVar[bool] = False
    needs_host: ClassVar[bool] = False

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge one full snapshot; rules that are about steps alone have nothing to say here."""
        return iter(())

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge one step by closed partial snapshots; a rule about single entries judges those after the step."""
        return self.check(after)

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether the rule has anything to bite on here, so that reports can tell vacuous checks apart."""
        return bool(getattr(snapshot, self.premise_part))

    def mismatch(self, subject: str, found: object, expected: object) -> Violation:
        """Return a violation of this invariant."""
        return mismatch(self.id, subject, found, expected)
