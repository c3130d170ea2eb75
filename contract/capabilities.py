"""What an engine under test can do, so that a campaign asks for nothing else and says what it could not check."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcrucible.contract.operations import OPERATIONS
from kvcrucible.contract.planes import BACKENDS
from kvcrucible.contract.profiles import PROFILES


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one engine offers to the harness.

    ``operations``: names of the operations that it carries out.  ``reserves``: admission reserves the worst case, so an
    admitted sequence always finishes; without it pages are granted on demand and an append may be refused.
    ``aborts``: a unit can be aborted; without it every unit commits.  ``speculates``: a unit can commit fewer tokens
    than it wrote, and a backend that may run ahead does so inside one (decision 0023).  ``works_per_unit``: most works
    in one unit (None: any number), for engines that cannot grant the pages of several sequences together or not at all.
    ``backends``: the speculative backends' pools that it can have beside Main (decision 0011).
    ``profiles``: storage profiles that it can hold rows in.  ``host``: it can have a Host tier (decision 0013).
    ``backfills``: ``schedule`` lets requests pass a waiting head as its look-ahead says (decision 0021).
    ``payload``: rows can be written and read back.  ``raw_write``: free and stale bytes can be poisoned.
    ``snapshot_parts``: names of the snapshot's parts that the engine can fill; checkers of others are not run, and a
    full snapshot without ``free_pages`` or ``host_holes`` (where there is a Host tier) that are among these is the
    engine's fault.
    ``unchecked``: what cannot be checked on this engine, in words, one reason each.
    """

    engine: str
    operations: frozenset[str] = frozenset(kind.__name__ for kind in OPERATIONS)
    reserves: bool = True
    aborts: bool = True
    speculates: bool = True
    works_per_unit: int | None = None
    backends: frozenset[str] = frozenset(BACKENDS)
    profiles: tuple[str, ...] = tuple(PROFILES)
    host: bool = True
    backfills: bool = True
    payload: bool = True
    raw_write: bool = True
    snapshot_parts: frozenset[str] = field(default_factory=lambda: ALL_PARTS)
    unchecked: tuple[str, ...] = ()


#: Every part of a snapshot, by the names of ``contract.snapshot.Snapshot``'s fields.
ALL_PARTS: frozenset[str] = frozenset(
    {
        "pools",
        "pages",
        "spaces",
        "sequences",
        "continuations",
        "checkpoints",
        "findable",
        "rows",
        "units",
        "transfers",
        "retiring",
        "extents",
        "queue",
        "host",
        "free_pages",
        "host_holes",
    }
)
