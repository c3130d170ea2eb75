"""What is known before an operation: the observations by which the semantics table judges it (DESIGN 4.14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.quick import quick


class State(StrEnum):
    """Where a sequence id is in its life (DESIGN 4.8).  GONE covers ended, evicted and never issued."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    CONTINUATION = "continuation"
    GONE = "gone"


ACTIVE = frozenset({State.PREFILL, State.DECODE})


@quick
@dataclass(frozen=True, slots=True)
class Facts:
    """What is known before an operation.  Counts are tokens unless named ``_pages``.

    ``spans``: what the operation says of its prompt.  ``position``: where it cuts or forks.  ``count``: positions that
    it writes in Main, ``backend`` those that it says it writes in the speculative backend.  ``frontier``: Main's;
    ``backend_frontier``: the backend's, None on an engine without one.  ``limit``: the last position that the sequence
    may reach, or that a new one would reach.  ``repeated``: the same sequence is named twice in one unit.  ``leads``:
    the work may run ahead in the backend.

    Of one entry of ``EndUnit.accepted``: ``accepts``: there is one; ``count``: tokens that it accepts; ``written``:
    tokens that the unit wrote for the sequence, None where it has not selected it; ``aborts``: the unit is not
    committed.

    Page counts are vectors in pool order, empty where they do not matter: ``entitlement_pages``: ceil(limit / P) of a
    new one.  ``need_pages``: pages that it takes from free.  ``available_pages``: free now, plus what releasing every
    releasable continuation would free.

    Of the Host tier (decision 0013): ``host``: the engine has one.  ``transfer_known``: the id names a transfer that is
    not over.  ``resident``: every page of the holder is visible on Device.  ``movable_pages``: pages that the operation
    would move.  ``extent_bytes``: sizes of the extents that it takes, ``hole_bytes`` those of the arena's holes.
    """

    state: State = State.GONE
    unit_known: bool = False
    in_flight: bool = False
    pinned: bool = False
    repeated: bool = False
    empty: bool = False
    frontier: int = 0
    backend_frontier: int | None = None
    prompt: int = 0
    spans: tuple[TokenSpan, ...] = ()
    position: int = 0
    count: int = 0
    backend: int | None = None
    leads: bool = False
    accepts: bool = False
    written: int | None = None
    aborts: bool = False
    max_new: int = 0
    limit: int = 0
    max_context: int = 0
    entitlement_pages: tuple[int, ...] = ()
    capacity_pages: tuple[int, ...] = ()
    session_busy: bool = False
    free_rows: int = 0
    need_pages: tuple[int, ...] = ()
    available_pages: tuple[int, ...] = ()
    host: bool = False
    transfer_known: bool = False
    resident: bool = True
    movable_pages: int = 0
    extent_bytes: tuple[int, ...] = ()
    hole_bytes: tuple[int, ...] = ()

    def with_pages(self, need: tuple[int, ...], available: tuple[int, ...]) -> Facts:
        """Return these facts with the ``need_pages`` and ``available_pages`` of an operation that was tried out."""
        # What dataclasses.replace does at several times the cost.
        values: list[Any] = [*_before_pages(self), need, available, *_behind_pages(self)]
        return Facts(*values)

    @property
    def backend_stop(self) -> int:
        """Where a work that says how much it writes in the backend will bring that; 0 for any other."""
        if self.backend is None or self.backend_frontier is None:
            return 0
        return self.backend_frontier + self.backend

    @property
    def smallest_frontier(self) -> int:
        """Positions that every pool has: where a checkpoint would stand."""
        return self.frontier if self.backend_frontier is None else min(self.frontier, self.backend_frontier)


_NAMES = tuple(one.name for one in fields(Facts))
_AT = _NAMES.index("need_pages")
assert _NAMES[_AT + 1] == "available_pages", "with_pages puts the two where they stand side by side"
_before_pages: Callable[[Facts], tuple[Any, ...]] = attrgetter(*_NAMES[:_AT])
_behind_pages: Callable[[Facts], tuple[Any, ...]] = attrgetter(*_NAMES[_AT + 2 :])


def extents_fit(sizes: tuple[int, ...], holes: tuple[int, ...]) -> bool:
    """Say whether extents of ``sizes`` bytes fit into holes of ``holes`` bytes, the largest placed first.

    For up to two extents, one a pool, it makes no difference into which hole large enough the first one goes (decision
    0013), so no policy can do better or worse.
    """
    left = sorted(holes)
    for size in sorted(sizes, reverse=True):
        index = next((index for index, hole in enumerate(left) if hole >= size), None)
        if index is None:
            return False
        left[index] -= size
        left.sort()
    return True
