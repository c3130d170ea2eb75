"""Streams, events and devices: what the engine knows of the order of device effects (DESIGN 4.7).

A *stream* runs its effects one after the other, in the order of submission.  Effects of different streams have no
order, unless one stream *waits* for an event of the other.  An *event* marks a point in a stream; it is done once
everything before that point has run and the host has been told, which may be much later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from kvcrucible.contract.errors import CrucibleError

Effect: TypeAlias = Callable[[], None]


class EffectFailed(CrucibleError):
    """A device effect did not take place, or only in part.

    An effect raises it to say so; that reaches whoever asks the event, never whoever submitted the effect.  A stream
    raises it where it cannot even queue an effect, which then never runs.
    """


class Event(Protocol):
    """A point in a stream."""

    @property
    def done(self) -> bool:
        """Whether every effect submitted before this point has run, and the host knows."""


class Completion(Event, Protocol):
    """An event that also says whether its effects succeeded."""

    @property
    def failure(self) -> EffectFailed | None:
        """The first failure since the stream's previous event, None where there is none or the event is not done.

        What the stream runs later is not held up: nobody may use what failed before asking.
        """


class Stream(Protocol):
    """An ordered queue of device effects."""

    def submit(self, effect: Effect) -> None:
        """Queue ``effect``; it runs once, after all effects submitted earlier."""

    def record(self) -> Event:
        """Return an event for everything submitted so far."""

    def synchronize(self) -> None:
        """Run or await everything submitted so far."""


class DeviceStream(Stream, Protocol):
    """One of several streams of a device."""

    @property
    def name(self) -> str:
        """Name of the stream, unique on its device."""

    def submit(self, effect: Effect, label: str = "") -> None:
        """Queue ``effect``; ``label`` says what it is, for schedules and for those who make it fail.

        Raises ``EffectFailed`` where it cannot be queued; then nothing has been.
        """

    def record(self) -> Completion:
        """Return an event for everything submitted so far; it answers for failures since the previous one."""

    def wait(self, event: Event) -> None:
        """Run nothing that is submitted later before the device has reached ``event``, failed or not.

        ``event`` is one that a stream of the same device returned; the host does not block.
        """

    def look(self) -> EffectFailed | None:
        """Take note of how far the device has come, where the host learns of it only by asking; do not wait.

        Returns why nothing more will come of the whole device, None while it works.  A device whose events are done by
        themselves, or as a test decides, has nothing to note.
        """


class Device(Protocol):
    """A set of named streams."""

    def stream(self, name: str) -> DeviceStream:
        """Return the stream called ``name``; the same one each time."""

    def synchronize(self) -> None:
        """Run or await everything submitted so far, on every stream."""
