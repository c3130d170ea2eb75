"""Operations and their outcomes: the language in which a harness speaks to any engine (DESIGN 4.8, 4.14).

Operations are frozen values whose ``repr`` is valid Python, so a failing sequence prints as a test.  Handles are plain
integers: a sequence keeps one id while it is queued, active and retained, and ids are never reused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.quick import quick
from kvcrucible.contract.tiers import Tier
from kvcrucible.contract.tokens import Tokens, count


@quick
@dataclass(frozen=True, slots=True)
class Identity:
    """Everything beside the tokens, with their types and media, that must be equal for two prefixes to be one (DESIGN
    4.9).
    """

    adapter: str = ""
    tenant_salt: str = ""
    weights_epoch: int = 0
    position_mode: str = "absolute"


DEFAULT_IDENTITY = Identity()


@quick
@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request.  ``max_new`` counts positions after the prompt; ``consume`` lets it take a continuation by Move.

    ``spans``: which tokens of the prompt stand for media, in order (decision 0022).  Value: the new sequence id.
    """

    prompt: Tokens
    max_new: int
    session: str | None = None
    consume: bool = False
    identity: Identity = DEFAULT_IDENTITY
    spans: tuple[TokenSpan, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class TryAdmit:
    """Admit one queued request if it heads the queue and fits.  Value: ``Admitted`` or ``Waiting``."""

    sequence: int


@quick
@dataclass(frozen=True, slots=True)
class Schedule:
    """Admit from the head of the queue until one has to wait, then those behind it that may pass (decision 0021).

    Value: ``Scheduled``.
    """


@quick
@dataclass(frozen=True, slots=True)
class Prefill:
    """Unit work: the next ``count`` tokens of a prompt that is not yet complete.

    ``backend``: positions that the unit writes in the speculative backend, None for all up to where Main will stand
    (decision 0011).
    """

    sequence: int
    count: int
    backend: int | None = None


@quick
@dataclass(frozen=True, slots=True)
class Append:
    """Unit work: ``tokens`` after a complete prompt; decode is one token, a run of n stands for n rounds.

    ``backend`` as for :class:`Prefill`; in a pool that may run ahead (``planes.LEADING``) it may also lie beyond where
    Main will stand, up to the sequence's limit: the lead of a round, which the unit's end cuts (decision 0023).
    """

    sequence: int
    tokens: Tokens
    backend: int | None = None

    @property
    def count(self) -> int:
        """Positions that this work writes in Main."""
        return count(self.tokens)


Work: TypeAlias = Prefill | Append


@quick
@dataclass(frozen=True, slots=True)
class BeginUnit:
    """Materialise what ``work`` writes, publish the mappings and freeze the rows.  Value: the new unit id."""

    work: tuple[Work, ...]


#: (sequence, tokens): of what a unit appends to the sequence, so many first tokens are kept.
Accepted: TypeAlias = tuple[int, int]


@quick
@dataclass(frozen=True, slots=True)
class EndUnit:
    """Commit or abort a unit; rows whose cancel was recorded are aborted and ended either way.  Value:
    ``UnitEnded``.

    ``accepted``: of an ``Append`` that is named here only the first tokens are committed, at least one; of any other
    work all.  The backend is committed as far as the unit wrote it, and never beyond where Main then stands.  What
    lies beyond is trimmed as an abort does it (decision 0023).
    """

    unit: int
    commit: bool = True
    accepted: tuple[Accepted, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Fork:
    """Start a child that shares the source's first ``position`` tokens; it may grow by ``max_new``.  Value: the
    child.
    """

    source: int
    position: int
    max_new: int
    session: str | None = None


@quick
@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut an active sequence back to ``position`` tokens, exactly.  Value: None."""

    sequence: int
    position: int


@quick
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Make the smallest committed frontier over pools findable.  Value: the checkpoint id (the old one where it exists
    already).
    """

    sequence: int


@quick
@dataclass(frozen=True, slots=True)
class Finish:
    """End an active sequence, keeping it as a continuation or not.  Value: whether it was retained."""

    sequence: int
    retain: bool = True


@quick
@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a queued or active sequence.  Value: True when done, False when recorded for the end of its unit."""

    sequence: int


@quick
@dataclass(frozen=True, slots=True)
class Release:
    """Drop an unpinned continuation.  Value: None."""

    continuation: int


@quick
@dataclass(frozen=True, slots=True)
class Pin:
    """Protect a continuation from release (``pinned=False`` lifts it).  Value: None."""

    continuation: int
    pinned: bool = True


@quick
@dataclass(frozen=True, slots=True)
class Lookup:
    """Ask what a prompt, with ``spans`` as for :class:`Submit`, would hit; changes nothing.  Value: ``Hit`` or None."""

    prompt: Tokens
    identity: Identity = DEFAULT_IDENTITY
    spans: tuple[TokenSpan, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Demote:
    """Start moving a continuation's pages to Host (decision 0013); ``keep`` leaves the Device pages as clean copies.

    Value: the new transfer id.
    """

    continuation: int
    keep: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Restore:
    """Start moving a continuation's pages back to Device; ``keep`` leaves the Host slots as clean copies.

    Value: the new transfer id.
    """

    continuation: int
    keep: bool = False


@quick
@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Mark a transfer, so that it ends with its source visible as before.  Value: None."""

    transfer: int


@quick
@dataclass(frozen=True, slots=True)
class Progress:
    """Take note of finished device effects, end transfers and give back pages at rest.  Value: ``Progressed``."""


Operation: TypeAlias = (
    Submit
    | TryAdmit
    | Schedule
    | BeginUnit
    | EndUnit
    | Fork
    | Truncate
    | Checkpoint
    | Finish
    | Cancel
    | Release
    | Pin
    | Lookup
    | Demote
    | Restore
    | CancelTransfer
    | Progress
)

OPERATIONS: tuple[type, ...] = (
    Submit,
    TryAdmit,
    Schedule,
    BeginUnit,
    EndUnit,
    Fork,
    Truncate,
    Checkpoint,
    Finish,
    Cancel,
    Release,
    Pin,
    Lookup,
    Demote,
    Restore,
    CancelTransfer,
    Progress,
)


class AdmissionMode(StrEnum):
    """How an admitted sequence got its first positions (DESIGN 4.5, 4.9)."""

    COLD = "cold"
    FORK = "fork"
    MOVE = "move"
    MOVE_TRUNCATED = "move-truncated"


class WaitingKind(StrEnum):
    """Why a queued request is not admitted now.

    ``RESTORING``: what it would start from is on its way back from Host; ``SINKING``: what is in its way is on its way
    to Host (decision 0020).
    """

    BEHIND_HEAD = "behind-head"
    SESSION_BUSY = "session-busy"
    NO_ROW = "no-row"
    DEVICE_CAPACITY = "device-capacity"
    RESTORING = "restoring"
    SINKING = "sinking"


@quick
@dataclass(frozen=True, slots=True)
class Admitted:
    """A request became active.  ``hit`` is the number of positions that it did not have to prefill."""

    sequence: int
    mode: AdmissionMode
    source: int | None = None
    hit: int = 0


@quick
@dataclass(frozen=True, slots=True)
class TransferStarted:
    """A transfer that an admission has started: out of ``source``, with so many pages of each pool.

    To Device: it covers the continuation's first ``positions``.  To Host: it covers what nobody holds but this
    continuation and those ``beside`` it; Host room was made beforehand: ``given_up`` names the continuations whose Host
    copies were given up, ``evicted`` those on Host that were released.
    """

    transfer: int
    continuation: int
    source: Tier
    pages: tuple[int, ...]
    positions: int = 0
    beside: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Waiting:
    """A request stays queued; ``started``: the transfers that were started now, for which it waits."""

    sequence: int
    kind: WaitingKind
    started: tuple[TransferStarted, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Scheduled:
    """What one ``schedule`` did: who was admitted, in order, and why the head waits (None: the queue is empty).

    Those who passed the head come last in ``admitted``; ``waiting`` says why it waited when it was tried, before them.
    """

    admitted: tuple[Admitted, ...] = ()
    waiting: Waiting | None = None


@quick
@dataclass(frozen=True, slots=True)
class UnitEnded:
    """Main's frontiers after a unit, in the order of its work, and the sequences that a recorded cancel ended."""

    frontiers: tuple[tuple[int, int], ...]
    cancelled: tuple[int, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Hit:
    """The best checkpoint for a prompt: its owner, its id and the number of tokens in common."""

    source: int
    checkpoint: int
    length: int


class TransferOutcome(StrEnum):
    """How a transfer ended (DESIGN 4.4): the pages are visible at the destination, or where they were (abandoned)."""

    MOVED = "moved"
    KEPT = "kept"
    ABANDONED = "abandoned"


@quick
@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A transfer is over.  ``failed``: one of its copies did not succeed."""

    transfer: int
    outcome: TransferOutcome
    failed: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Progressed:
    """What one ``progress`` took note of: units whose effects are complete, in order of their ends, and transfers that
    are over, in order of their ids.
    """

    units: tuple[int, ...] = ()
    transfers: tuple[TransferEnded, ...] = ()


Value: TypeAlias = int | bool | Admitted | Waiting | Scheduled | UnitEnded | Hit | Progressed | None


@quick
@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation came to: a value or a refusal's kind, and the continuations that were released on the way.

    ``counters`` are (leased, reserved, free) per pool afterwards.  ``given_up``: the continuations whose hidden Device
    copies an admission has given up, in order (decision 0020).
    """

    value: Value = None
    refusal: RefusalKind | None = None
    evicted: tuple[int, ...] = ()
    counters: tuple[tuple[int, int, int], ...] = field(default=())
    given_up: tuple[int, ...] = ()
