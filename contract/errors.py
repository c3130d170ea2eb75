"""Refusals and exit statuses: the one table of each.

A *refusal* is the engine's answer to a caller who asked for something that cannot be had.  It says what was asked, what
was there and what to do, and it leaves the engine exactly as it was (DESIGN 4.13).  A broken assumption of our own is
not a refusal: that is an ``AssertionError``.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ExitStatus(IntEnum):
    """What the command line's exit status means (DESIGN 4.13).

    ``OUTPUT_CLOSED``: whoever read the output went away before its end (``… | head``); quiet, and the status that a
    shell shows for a program that a closed pipe stops.  Not 0, since a verdict that nobody has read is no "held".
    """

    HELD = 0
    VIOLATION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INTERNAL = 4
    NOT_RUN = 5
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


class RefusalKind(StrEnum):
    """Why an operation was refused, in order of precedence: the first that applies is reported (DESIGN 4.14.1)."""

    STALE_HANDLE = "stale-handle"
    WRONG_STATE = "wrong-state"
    ROW_IN_FLIGHT = "row-in-flight"
    BAD_ARGUMENT = "bad-argument"
    LIMIT_EXCEEDED = "limit-exceeded"
    SESSION_BUSY = "session-busy"
    NO_ROW = "no-row"
    DEVICE_CAPACITY = "device-capacity"
    HOST_GEOMETRY = "host-geometry"

    @property
    def precedence(self) -> int:
        """Rank of this kind; the lowest rank that applies wins."""
        return _PRECEDENCE[self]


_PRECEDENCE = {kind: rank for rank, kind in enumerate(RefusalKind)}


class CrucibleError(Exception):
    """Root of everything that this project raises on purpose."""


class Refusal(CrucibleError):
    """An operation that was not carried out; nothing has changed.

    ``asked`` is what the caller wanted, ``found`` what was there, ``remedy`` what would help.
    """

    kind: RefusalKind

    def __init__(self, asked: str, found: str, remedy: str) -> None:
        self.asked, self.found, self.remedy = asked, found, remedy
        super().__init__(f"{self.kind.value}: asked: {asked}; found: {found}; remedy: {remedy}")

    def __reduce__(self) -> tuple[type[Refusal], tuple[str, str, str]]:
        """Rebuild from the three parts, so that a refusal survives a process boundary."""
        return type(self), (self.asked, self.found, self.remedy)


class StaleHandle(Refusal):
    """The handle names nothing, or something whose generation has passed."""

    kind = RefusalKind.STALE_HANDLE


class WrongState(Refusal):
    """The sequence exists, but not in a state in which this operation means anything."""

    kind = RefusalKind.WRONG_STATE


class RowInFlight(Refusal):
    """The sequence is selected by an execution unit, whose mappings are frozen (DESIGN 4.7)."""

    kind = RefusalKind.ROW_IN_FLIGHT


class BadArgument(Refusal):
    """An argument outside its domain."""

    kind = RefusalKind.BAD_ARGUMENT


class LimitExceeded(Refusal):
    """More than the context length, the entitlement or the whole pool: it can never be granted."""

    kind = RefusalKind.LIMIT_EXCEEDED


class SessionBusy(Refusal):
    """Another active sequence holds this session key."""

    kind = RefusalKind.SESSION_BUSY


class NoRow(Refusal):
    """Every row of the block-table matrix is leased."""

    kind = RefusalKind.NO_ROW


class DeviceCapacity(Refusal):
    """The pool lacks free pages, even after every continuation that may be released is counted as released."""

    kind = RefusalKind.DEVICE_CAPACITY


class HostGeometry(Refusal):
    """No free extent of the host arena is large enough, whatever the total of free bytes."""

    kind = RefusalKind.HOST_GEOMETRY


REFUSALS: dict[RefusalKind, type[Refusal]] = {cls.kind: cls for cls in Refusal.__subclasses__()}


class EngineLost(CrucibleError):
    """The device has not written what the engine's bookkeeping says is there, or the bookkeeping is half done; nothing
    that it holds may be read.

    No refusal: something has changed, and no later operation is carried out.  The message names the unit, or what else
    was queued last before the failure became known, or the operation that stopped half done (decision 0030).
    """


class InputError(CrucibleError):
    """A file or an option that cannot be used; the message names the file, the line and the remedy."""


class NotRunError(CrucibleError):
    """Something optional is absent, so that the work was not done: the message says what and how to get it."""


class OutputFailed(SystemExit):
    """The command ends, since its output cannot be written; ``code`` is the status, ``reason`` None for a closed pipe.

    A ``SystemExit``, so that nothing that handles the errors of engines or libraries stops it on its way; what handles
    the exits of a foreign engine lets it pass (decision 0016).
    """

    def __init__(self, error: OSError) -> None:
        closed = isinstance(error, BrokenPipeError)
        self.reason = None if closed else error.strerror or str(error)
        super().__init__(ExitStatus.OUTPUT_CLOSED if closed else ExitStatus.USAGE)
