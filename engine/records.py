"""What the engine remembers of each request: queued, active and retained, and of units in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcrucible.contract.operations import Append, Identity, Submit, Work
from kvcrucible.contract.tokens import Tokens, count, prefix
from kvcrucible.engine.pool import Reservation
from kvcrucible.engine.space import AddressSpace
from kvcrucible.engine.streams import Event


@dataclass(slots=True)
class Request:
    """A queued request."""

    sequence: int
    submit: Submit
    prompt: int

    @property
    def limit(self) -> int:
        """Position after the last one that it may reach."""
        return self.prompt + self.submit.max_new


@dataclass(slots=True)
class Mark:
    """A checkpoint: its frontier and, in Main, the page that holds its last token with the epoch at that time."""

    checkpoint: int
    frontier: int
    page: int
    epoch: int
    columns: int


@dataclass(slots=True)
class Sequence:
    """An active sequence: its bundle of spaces and reservations, its row and its tokens.

    ``tokens`` holds the committed tokens and, while the prompt is incomplete, the rest of the prompt.
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

    @property
    def frontier(self) -> int:
        """Committed positions in every pool (Main's frontier)."""
        return self.spaces[0].frontier

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
        """Committed positions."""
        return self.spaces[0].frontier


@dataclass(frozen=True, slots=True)
class UnitPart:
    """One selected row of a unit: the positions ``[start, stop)`` that it writes."""

    sequence: int
    start: int
    stop: int
    work: Work

    @property
    def appended(self) -> Tokens:
        """Tokens that a commit adds beyond the prompt."""
        return self.work.tokens if isinstance(self.work, Append) else ()


@dataclass(slots=True)
class Unit:
    """A unit in flight: its parts and the rows that it froze, with the entries that they had."""

    unit: int
    parts: tuple[UnitPart, ...]
    frozen: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class EndedUnit:
    """A unit whose host side has ended and whose device effects may still be outstanding."""

    unit: int
    event: Event


def request_of(sequence: int, submit: Submit) -> Request:
    """Return the queue entry for ``submit``."""
    return Request(sequence, submit, count(submit.prompt))
