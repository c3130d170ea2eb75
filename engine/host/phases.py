"""The state machine of a transfer as a table; :mod:`kvcrucible.engine.host.transfer` tells what the phases mean."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a transfer stands; the last three are final."""

    PLANNED = "planned"
    RESERVED = "reserved"
    COPYING = "copying"
    CANCELLING = "cancelling"
    COPIED = "copied"
    VERIFIED = "verified"
    PUBLISHED = "published"
    MOVED = "moved"
    KEPT = "kept"
    ABANDONED = "abandoned"

    @property
    def is_final(self) -> bool:
        """Whether nothing can happen any more."""
        return self in (Phase.MOVED, Phase.KEPT, Phase.ABANDONED)


class Trigger(StrEnum):
    """What can happen to a transfer."""

    GRANTED = "granted"
    REFUSED = "refused"
    SUBMITTED = "submitted"
    COMPLETED = "completed"
    FOUND_CURRENT = "found-current"
    FOUND_STALE = "found-stale"
    PUBLISH = "publish"
    RELEASE = "release"
    KEEP = "keep"
    FAILED = "failed"
    CANCEL = "cancel"


class Act(StrEnum):
    """What a transition does to the pages, in the order given."""

    PIN = "pin"
    UNPIN = "unpin"
    SHOW_DESTINATION = "show-destination"
    FREE_SOURCE = "free-source"
    FREE_DESTINATION = "free-destination"
    #: Hidden copies that a write during the transfer has made invalid, at either end.
    FREE_STALE = "free-stale"


_BACK = (Phase.ABANDONED, (Act.UNPIN, Act.FREE_DESTINATION, Act.FREE_STALE))
_NOTHING_HELD = (Phase.ABANDONED, ())

#: (phase, trigger) -> the phase that follows and what is done on the way.
TABLE: dict[tuple[Phase, Trigger], tuple[Phase, tuple[Act, ...]]] = {
    (Phase.PLANNED, Trigger.GRANTED): (Phase.RESERVED, (Act.PIN,)),
    (Phase.PLANNED, Trigger.REFUSED): _NOTHING_HELD,
    (Phase.PLANNED, Trigger.CANCEL): _NOTHING_HELD,
    (Phase.RESERVED, Trigger.SUBMITTED): (Phase.COPYING, ()),
    (Phase.RESERVED, Trigger.CANCEL): _BACK,
    (Phase.COPYING, Trigger.COMPLETED): (Phase.COPIED, ()),
    (Phase.COPYING, Trigger.FAILED): _BACK,
    (Phase.COPYING, Trigger.CANCEL): (Phase.CANCELLING, ()),
    (Phase.CANCELLING, Trigger.COMPLETED): _BACK,
    (Phase.CANCELLING, Trigger.FAILED): _BACK,
    (Phase.CANCELLING, Trigger.CANCEL): (Phase.CANCELLING, ()),
    (Phase.COPIED, Trigger.FOUND_CURRENT): (Phase.VERIFIED, ()),
    (Phase.COPIED, Trigger.FOUND_STALE): _BACK,
    (Phase.COPIED, Trigger.CANCEL): _BACK,
    (Phase.VERIFIED, Trigger.PUBLISH): (Phase.PUBLISHED, (Act.SHOW_DESTINATION,)),
    (Phase.VERIFIED, Trigger.FOUND_STALE): _BACK,
    (Phase.VERIFIED, Trigger.CANCEL): _BACK,
    (Phase.PUBLISHED, Trigger.RELEASE): (Phase.MOVED, (Act.UNPIN, Act.FREE_SOURCE)),
    (Phase.PUBLISHED, Trigger.KEEP): (Phase.KEPT, (Act.UNPIN, Act.FREE_STALE)),
    # Visibility has moved, so a cancel comes too late to take it back.
    (Phase.PUBLISHED, Trigger.CANCEL): (Phase.PUBLISHED, ()),
}
