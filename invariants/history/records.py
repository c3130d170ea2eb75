"""What a checked history holds: pages and their holders, as plain records (DESIGN 3, 4.4, 4.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcrucible.contract.semantics import State

if TYPE_CHECKING:
    from kvcrucible.contract.operations import Identity
    from kvcrucible.contract.tokens import Run
    from kvcrucible.invariants.history.arena import Extent, Transfer

#: Place of a page without a physical page, or of one whose history shows none.
NO_PAGE = -1


class Page:
    """One logical page.

    ``device``: its physical page, ``NO_PAGE`` without one (or where the history shows none: then ``leased`` alone
    tells).  ``stamp``: the latest end of a unit that touched it and was outstanding then.  ``born``: units begun before
    its lease.  ``extent``: where its Host replica lies.  ``on_host``: that one is visible.  ``keepers``: continuations
    that hold it, kept with a Host tier only.
    """

    __slots__ = (
        "active",
        "born",
        "device",
        "extent",
        "firm",
        "keepers",
        "leased",
        "on_host",
        "pool",
        "references",
        "stamp",
        "transfer",
    )

    def __init__(self, pool: int, device: int, born: int, stamp: int = 0) -> None:
        self.pool = pool
        self.device = device
        self.leased = True
        self.references = self.active = self.firm = 1
        self.born = born
        self.stamp = stamp
        self.extent: Extent | None = None
        self.on_host = False
        self.transfer: Transfer | None = None
        self.keepers: set[int] | None = None


class Holder:
    """One sequence id from its request to its end.

    ``passed``: the head of the queue that it was let past.  ``runs``: its prompt, then all that was appended; only the
    first ``frontiers[0]`` tokens are committed.  ``prompt``:
    positions of the prompt.  ``returned``: for each pool (page, stamp) of what came back to its reservation and is not
    at rest, the latest last.  ``marks``: (checkpoint, frontier) in order of frontiers.
    """

    __slots__ = (
        "away",
        "begun",
        "cancelled",
        "consume",
        "ended",
        "frontiers",
        "id",
        "identity",
        "limit",
        "marks",
        "moving",
        "pages",
        "passed",
        "pinned",
        "prompt",
        "returned",
        "row",
        "runs",
        "session",
        "sinks",
        "state",
        "stops",
        "sunk",
        "tried",
        "unit",
    )

    def __init__(
        self,
        name: int,
        runs: list[Run],
        prompt: int,
        limit: int,
        session: str | None,
        identity: Identity,
        pools: int,
        consume: bool = False,
    ) -> None:
        self.id = name
        self.runs, self.prompt, self.limit = runs, prompt, limit
        self.session, self.identity, self.consume = session, identity, consume
        self.state = State.QUEUED
        self.frontiers = [0] * pools
        self.pages: list[list[Page]] = [[] for _ in range(pools)]
        self.returned: list[list[tuple[int, int]]] = [[] for _ in range(pools)]
        self.marks: list[tuple[int, int]] = []
        self.stops: list[int] | None = None
        self.unit: int | None = None
        #: Units begun when its latest outstanding unit began, and that unit's end; 0 where there was none.
        self.begun = self.ended = 0
        self.cancelled = self.pinned = False
        self.row: int | None = None
        self.passed: int | None = None
        #: Transfers that hold one of its pages, and pages that are visible on Host.
        self.moving = self.away = 0
        #: While queued: continuations of which a restore was started for it.
        self.tried: set[int] = set()
        #: While queued: continuations that were sunk for it, and the transfers by which.
        self.sunk: set[int] = set()
        self.sinks: set[int] = set()

    @property
    def active(self) -> bool:
        """Whether it holds a row."""
        return self.state is State.PREFILL or self.state is State.DECODE

    @property
    def firm(self) -> bool:
        """Whether making room may not release it, as a continuation."""
        return self.pinned or self.moving > 0

    @property
    def common(self) -> int:
        """Positions that every pool has."""
        return min(self.frontiers)
