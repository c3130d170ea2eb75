"""What the engine remembers of each request: queued, active and retained, and of units in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcrucible.contract.operations import Append, Identity, Submit, Work
from kvcrucible.contract.tokens import Tokens, count, prefix
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.pool import Reservation
from kvcrucible.engine.space import AddressSpace


@dataclass(slots=True)
class Request:
    """A queued request.

    ``tried``: continuations of which it has started a restore, which it does once each; ``sunk``: those that were sunk
    for it, likewise once each, by the transfers ``sinks``.
    """

    sequence: int
    submit: Submit
    prompt: int
    tried: set[int] = field(default_factory=set)
    sunk: set[int] = field(default_factory=set)
    sinks: set[int] = field(default_factory=set)

    @property
    def limit(self) -> int:
        """Position after the last one that it may reach."""
        return self.prompt + self.submit.max_new


@dataclass(slots=True)
class Mark:
    """A checkpoint: its frontier, and per pool the page that holds its last token, that page's epoch at the time, and
    the columns of it that are protected.
    """

    checkpoint: int
    frontier: int
    pages: tuple[int, ...]
    epochs: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(slots=True)
class Sequence:
    """An active sequence: its bundle of spaces and reservations, its row and its tokens.

    ``tokens`` holds the committed tokens and, while the prompt is incomplete, the rest of the prompt.  ``passed``: the
    head of the queue that it was let past, None for one that was admitted in its turn or forked.
    """

    sequence: int
    tokens: Tokens
    identity: Identity
    session: str | None
    prompt: int
    limit: int
    row: int
    spaces: list[AddressSpace]
    reservations: list[Reservation]
    entitlement: tuple[int, ...]
    marks: list[Mark] = field(default_factory=list)
    unit: int | None = None
    cancel_recorded: bool = False
    passed: int | None = None

    @property
    def frontier(self) -> int:
        """Committed positions in Main."""
        return self.spaces[0].frontier

    @property
    def smallest_frontier(self) -> int:
        """Positions that every pool has committed: what can be found."""
        return smallest_frontier(self.spaces)

    @property
    def prefilling(self) -> bool:
        """Whether part of the prompt is still to come."""
        return self.frontier < self.prompt

    @property
    def committed_tokens(self) -> Tokens:
        """The tokens below the frontier."""
        return prefix(self.tokens, self.frontier)


@dataclass(slots=True)
class Continuation:
    """A retained bundle: spaces without a reservation, row or unit."""

    continuation: int
    tokens: Tokens
    identity: Identity
    session: str | None
    spaces: list[AddressSpace]
    marks: list[Mark]
    last_use: int
    pinned: bool = False

    @property
    def frontier(self) -> int:
        """Committed positions in Main."""
        return self.spaces[0].frontier

    def pages(self) -> Iterator[LogicalPage]:
        """Yield its pages, pool by pool in logical order."""
        for space in self.spaces:
            yield from space.pages

    @property
    def on_device(self) -> bool:
        """Whether one of its pages has a Device replica, visible or not; linear in its pages."""
        return any(page.device >= 0 for page in self.pages())


@dataclass(frozen=True, slots=True)
class UnitPart:
    """One selected row of a unit: the positions ``[start, stop)`` that it writes, one of each per pool."""

    sequence: int
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    work: Work

    @property
    def appended(self) -> Tokens:
        """Tokens that a commit adds beyond the prompt."""
        return self.work.tokens if isinstance(self.work, Append) else ()


@dataclass(slots=True)
class Unit:
    """A unit in flight: its parts, and the rows that it froze as (pool, row, the entries that it had)."""

    unit: int
    parts: tuple[UnitPart, ...]
    frozen: tuple[tuple[int, int, tuple[int, ...]], ...]


def smallest_frontier(spaces: list[AddressSpace]) -> int:
    """Return how many positions every pool has committed."""
    return min([space.frontier for space in spaces])


def request_of(sequence: int, submit: Submit) -> Request:
    """Return the queue entry for ``submit``."""
    return Request(sequence, submit, count(submit.prompt))
