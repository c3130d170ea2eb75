"""The CPU's device: every effect is over before ``submit`` returns."""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.engine.streams.interface import Effect, EffectFailed, Event


@dataclass(frozen=True, slots=True)
class ImmediateCompletion:
    """An event that was done when it was recorded."""

    failure: EffectFailed | None

    @property
    def done(self) -> bool:
        """Always True."""
        return True


class ImmediateDeviceStream:
    """Runs every effect at once.  An ``EffectFailed`` goes to the next event; other exceptions reach the caller."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failure: EffectFailed | None = None

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._name

    def submit(self, effect: Effect, label: str = "") -> None:
        """Run ``effect`` now."""
        try:
            effect()
        except EffectFailed as failure:
            self._failure = self._failure or failure

    def record(self) -> ImmediateCompletion:
        """Return an event that is done, with the first failure since the last one."""
        failure, self._failure = self._failure, None
        return ImmediateCompletion(failure)

    def wait(self, event: Event) -> None:
        """Nothing to wait for: an event of this device is done."""
        assert event.done, "an event of another device"

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def look(self) -> None:
        """Nothing to note: an event is done when it is recorded."""


class ImmediateDevice:
    """Streams that are all in the order in which the host calls them."""

    def __init__(self) -> None:
        self._streams: dict[str, ImmediateDeviceStream] = {}

    def stream(self, name: str) -> ImmediateDeviceStream:
        """Return the stream called ``name``."""
        return self._streams.setdefault(name, ImmediateDeviceStream(name))

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""
