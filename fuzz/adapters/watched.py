"""A device that knows what is on its streams: the judge's own account of effects, events and failing copies.

It stands between the engine and an immediate or a simulated device, passes everything on in the same order, counts, and
makes every so many copies fail.  What it says of transfers comes from the labels of their effects and from events that
the device has told, never from the engine's books.

Does not verify: that an effect is labelled with the transfer that it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kvcrucible.engine.host.transfer import COPY_LABEL, copy_label
from kvcrucible.engine.streams.interface import Completion, Device, DeviceStream, Effect, EffectFailed, Event


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An event, and how many effects of its stream had been submitted before it."""

    submitted: int
    event: Completion


class WatchedStream:
    """One stream of a :class:`WatchedDevice`, made by it alone."""

    def __init__(
        self, inner: DeviceStream, note: Callable[[str], None], perform: Callable[[Effect, str], None]
    ) -> None:
        self._inner, self._note, self._perform = inner, note, perform
        self.submitted = self.ran = 0
        self.recorded: list[_Recorded] = []
        #: Of each label, the effects that its last one has before it and itself.
        self.last: dict[str, int] = {}

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._inner.name

    def submit(self, effect: Effect, label: str = "") -> None:
        """Queue ``effect``."""
        self.submitted += 1
        if label:
            self.last[label] = self.submitted
            self._note(label)
        self._inner.submit(lambda: self._run(effect, label), label)

    def record(self) -> Completion:
        """Return an event for everything submitted so far."""
        event = self._inner.record()
        self.recorded.append(_Recorded(self.submitted, event))
        return event

    def wait(self, event: Event) -> None:
        """Run nothing that is submitted later before the device has reached ``event``."""
        self._inner.wait(event)

    def synchronize(self) -> None:
        """Run or await everything submitted so far."""
        self._inner.synchronize()

    def look(self) -> EffectFailed | None:
        """Take note of how far the device has come; return why nothing more will come of it, None while it works."""
        return self._inner.look()

    def _run(self, effect: Effect, label: str) -> None:
        self.ran += 1
        self._perform(effect, label)

    def told(self, submitted: int) -> bool:
        """Say whether the host knows that the first ``submitted`` effects are over."""
        behind = next((one for one in self.recorded if one.submitted >= submitted), None)
        return behind is not None and behind.event.done


class WatchedDevice:
    """``inner``, watched; every ``fail_every``-th labelled effect fails, in turn without and with its effect."""

    def __init__(self, inner: Device, fail_every: int = 0) -> None:
        self._inner, self._fail_every = inner, fail_every
        self._streams: dict[str, WatchedStream] = {}
        self._copies = 0
        self._submitted: Counter[str] = Counter()
        self._ran: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def stream(self, name: str) -> WatchedStream:
        """Return the stream called ``name``."""
        if name not in self._streams:
            self._streams[name] = WatchedStream(self._inner.stream(name), self._note, self._perform)
        return self._streams[name]

    def synchronize(self) -> None:
        """Run or await everything submitted so far, on every stream."""
        self._inner.synchronize()

    def copies(self, transfer: int) -> tuple[int, int]:
        """Return how many copies of ``transfer`` have not run, and how many have failed."""
        label = copy_label(transfer)
        return self._submitted[label] - self._ran[label], self._failed[label]

    def copies_known(self, transfer: int) -> bool:
        """Say whether the host knows all copies of ``transfer`` to be over: an event behind the last is done."""
        label = copy_label(transfer)
        return all(
            stream.told(stream.last[label]) for stream in self._streams.values() if label in stream.last
        )

    def _note(self, label: str) -> None:
        self._submitted[label] += 1

    def _perform(self, effect: Effect, label: str) -> None:
        if not label.startswith(COPY_LABEL):
            effect()
            return
        self._copies += 1
        self._ran[label] += 1
        if not self._fail_every or self._copies % self._fail_every:
            effect()
            return
        if self._copies // self._fail_every % 2 == 0:
            effect()
        self._failed[label] += 1
        raise EffectFailed(f"{label}: copy {self._copies} of this device fails")
