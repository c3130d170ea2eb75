"""A device whose time a strategy decides: effects lag, overtake those of other streams, fail, and finish late.

Verifies nothing by itself: it makes what a device may do happen, so that the engine's own order can be found wanting.
What no device does, it does not do either: effects of one stream never change places, none passes a wait, each runs
once, and the host hears of a stream's events in order.  An event has two moments: the device *reaches* it, which lets
waiting streams go on; later the host is *told*, and only then it is ``done``.

Waits name events that were recorded before, so what waits for what has no cycle: something can always happen while
anything is open.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvcrucible.engine.streams.interface import Effect, EffectFailed, Event
from kvcrucible.engine.streams.strategies.in_order import InOrder
from kvcrucible.engine.streams.strategy import EffectOutcome, Step, StepKind, Strategy


class SimulatedEvent:
    """A point in a stream of a :class:`SimulatedDevice`; compared by identity."""

    __slots__ = ("_failure", "device", "done", "reached", "ticket")

    def __init__(self, device: SimulatedDevice, ticket: int) -> None:
        self.device, self.ticket = device, ticket
        self.reached = self.done = False
        self._failure: EffectFailed | None = None

    @property
    def failure(self) -> EffectFailed | None:
        """The first failure since the stream's previous event; None until the event is done."""
        return self._failure if self.done else None


@dataclass(frozen=True, slots=True)
class _Queued:
    """An effect that has not run."""

    ticket: int
    label: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class _Wait:
    """Nothing behind it may run before ``event`` is reached."""

    event: SimulatedEvent


class SimulatedDeviceStream:
    """One stream of a :class:`SimulatedDevice`, made by it alone."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self._device, self._name = device, name
        self._queue: deque[_Queued | _Wait | SimulatedEvent] = deque()
        self._untold: deque[SimulatedEvent] = deque()
        self._failure: EffectFailed | None = None

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._name

    @property
    def pending(self) -> int:
        """Effects that have not run, and events of which the host has not been told."""
        return sum(not isinstance(item, _Wait) for item in self._queue) + len(self._untold)

    def submit(self, effect: Effect, label: str = "") -> None:
        """Queue ``effect``."""
        self._queue.append(_Queued(self._device._ticket(), label, effect))

    def record(self) -> SimulatedEvent:
        """Return an event for everything submitted so far."""
        event = SimulatedEvent(self._device, self._device._ticket())
        self._queue.append(event)
        return event

    def wait(self, event: Event) -> None:
        """Hold back what is submitted later until the device has reached ``event``."""
        assert isinstance(event, SimulatedEvent), "an event of another kind of device"
        assert event.device is self._device, "an event of another device"
        self._queue.append(_Wait(event))

    def synchronize(self) -> None:
        """Let things happen, on other streams too, until nothing of this stream is open."""
        while self.pending:
            self._device.run(1)

    def look(self) -> None:
        """Nothing to note: the strategy decides when the host is told."""

    def _settle(self) -> bool:
        """Pass the events and fulfilled waits at the head; tell whether there were any."""
        moved = False
        while self._queue:
            head = self._queue[0]
            if isinstance(head, SimulatedEvent):
                head.reached = True
                head._failure, self._failure = self._failure, None
                self._untold.append(head)
            elif isinstance(head, _Queued) or not head.event.reached:
                break
            self._queue.popleft()
            moved = True
        return moved

    def _steps(self) -> list[Step]:
        """Return what could happen next on this stream, which has settled."""
        steps = []
        if self._untold:
            steps.append(Step(StepKind.SIGNAL, self._name, self._untold[0].ticket, ""))
        head = self._queue[0] if self._queue else None
        if isinstance(head, _Queued):
            steps.append(Step(StepKind.RUN, self._name, head.ticket, head.label))
        return steps

    def _take(self, step: Step, strategy: Strategy) -> None:
        if step.kind is StepKind.SIGNAL:
            self._untold.popleft().done = True
            return
        outcome = strategy.outcome(step)
        head = self._queue.popleft()
        assert isinstance(head, _Queued)
        if outcome is not EffectOutcome.FAIL_WITHOUT_EFFECT:
            try:
                head.effect()
            except EffectFailed as failure:
                self._failure = self._failure or failure
            except Exception as error:
                # It passes through, and whoever asks the event must not take the effect for done.
                self._failure = self._failure or EffectFailed(f"{step}: {error!r}")
                raise
        if outcome is not EffectOutcome.SUCCEED:
            self._failure = self._failure or EffectFailed(f"{step}: {outcome.value}")


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """Named streams whose open effects and events a strategy takes, one at a time, when the test says so."""

    strategy: Strategy = field(default_factory=InOrder)
    _streams: dict[str, SimulatedDeviceStream] = field(default_factory=dict)
    _tickets: int = 0

    def stream(self, name: str) -> SimulatedDeviceStream:
        """Return the stream called ``name``."""
        if name not in self._streams:
            self._streams[name] = SimulatedDeviceStream(self, name)
        return self._streams[name]

    @property
    def pending(self) -> int:
        """Effects that have not run, and events of which the host has not been told."""
        return sum(stream.pending for stream in self._streams.values())

    def steps(self) -> list[Step]:
        """Return everything that could happen next, by ticket; empty only where nothing is open."""
        while any(stream._settle() for stream in self._streams.values()):
            pass
        found = [step for stream in self._streams.values() for step in stream._steps()]
        assert found or not self.pending, "streams wait for one another in a circle"
        return sorted(found, key=lambda step: step.ticket)

    def run(self, steps: int) -> int:
        """Let up to ``steps`` things happen, as the strategy decides; return how many did.

        What an effect raises, other than ``EffectFailed``, reaches the caller; the effect counts as run, and failed.
        """
        taken = 0
        while taken < steps and (possible := self.steps()):
            step = possible[self.strategy.choose(possible)]
            self._streams[step.stream]._take(step, self.strategy)
            taken += 1
        return taken

    def synchronize(self) -> None:
        """Let everything happen that is open."""
        while self.run(1):
            pass

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets
