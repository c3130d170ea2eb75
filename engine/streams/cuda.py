"""The CUDA device: every stream a CUDA stream of its own, every event a CUDA event (DESIGN 4.7, decision 0024).

An effect is *launched* when it is submitted: it runs on the host at once, with its stream current, and what it launches
runs on the device when that gets there.  What an effect does on the host itself is not in stream order; nothing that
the engine submits relies on it (:mod:`kvcrucible.engine.storage.interface`).

Who keeps what alive: a stream holds every effect, and so what it refers to, until the event behind it is done.  Rows
that a caller has made on its own stream and given up are therefore not handed to others while a kernel reads them.

When the host learns: an event becomes ``done`` only in :meth:`CudaDevice.look`, :meth:`CudaDevice.run` and the
``synchronize`` methods, never between two looks.  So whatever asks within one operation gets one answer.

What goes wrong:

=====================================================  =======================================================
an effect says ``EffectFailed``                        the event behind it answers for it; the stream goes on
a launch fails (no memory, a refused configuration)    the same
an error of the device shows later, at an event        the device is *gone*: this and every later event, of all
or as the host waits                                   streams, is done and failed, and nothing is launched
any other exception as an effect is launched, or       reaches the caller, and the event answers for it too
as its stream is held back for it
=====================================================  =======================================================

CUDA errors of the third kind stay with the process, so a device that is gone does not come back.

A device that is dropped waits first for what it was given: torch hands the memory of what its effects refer to on to
others as soon as nobody refers to it, and knows nothing of the streams on which it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from kvcrucible.engine.streams.cuda_runtime import CudaEvent, CudaQueue, CudaRuntime, TorchCuda
from kvcrucible.engine.streams.interface import Effect, EffectFailed, Event

T = TypeVar("T")


class CudaCompletion:
    """A point in a stream of a :class:`CudaDevice`; compared by identity."""

    __slots__ = ("_failure", "device", "done", "event", "held", "ticket")

    def __init__(
        self,
        device: CudaDevice,
        ticket: int,
        event: CudaEvent | None,
        failure: EffectFailed | None,
        held: list[Effect],
    ) -> None:
        self.device, self.ticket, self.event = device, ticket, event
        self.done = False
        self._failure, self.held = failure, held

    @property
    def failure(self) -> EffectFailed | None:
        """The first failure since the stream's previous event; None until the event is done."""
        return self._failure if self.done else None

    def tell(self, failure: EffectFailed | None = None) -> None:
        """Let the host know that the point has been reached; ``failure``: why it never will be."""
        self._failure = self._failure or failure
        self.done = True
        self.held.clear()


class CudaDeviceStream:
    """One stream of a :class:`CudaDevice`, made by it alone."""

    def __init__(self, device: CudaDevice, name: str) -> None:
        self._device, self._name, self._runtime = device, name, device.runtime
        self._queue: CudaQueue = self._runtime.new_queue()
        self._failure: EffectFailed | None = None
        #: Effects behind the last event.
        self._held: list[Effect] = []
        #: Events that the host does not know to be done, oldest first.
        self.open: deque[CudaCompletion] = deque()
        self._follow_caller()

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._name

    def submit(self, effect: Effect, label: str = "") -> None:
        """Launch ``effect``, behind what the caller has launched on its own stream so far."""
        self._held.append(effect)
        try:
            if self._device.gone is None:
                self._device.attempt(self._follow_caller)
            if self._device.gone is not None:
                self._fail(self._device.gone)
                return
            with self._runtime.using(self._queue):
                effect()
        except EffectFailed as failure:
            self._fail(failure)
        except BaseException as error:
            # An interrupt too: what it has cut short must not count as done.
            self._fail(EffectFailed(f"{label or 'an effect'} on stream {self._name}: {error!r}"))
            if not isinstance(error, Exception) or not self._runtime.is_device_error(error):
                raise

    def record(self) -> CudaCompletion:
        """Return an event for everything submitted so far."""
        device = self._device
        event = device.attempt(lambda: self._runtime.record(self._queue)) if device.gone is None else None
        completion = CudaCompletion(device, device.next_ticket(), event, self._failure, self._held)
        self._failure, self._held = None, []
        if event is None:
            completion.tell(device.gone)
        else:
            self.open.append(completion)
        return completion

    def wait(self, event: Event) -> None:
        """Hold back on the device what is submitted later until ``event`` has been reached."""
        assert isinstance(event, CudaCompletion), "an event of another kind of device"
        assert event.device is self._device, "an event of another device"
        reached = event.event
        if reached is not None and self._device.gone is None:
            self._device.attempt(lambda: self._runtime.wait(self._queue, reached))

    def synchronize(self) -> None:
        """Wait until all that was submitted is over; its events are done afterwards."""
        if self._device.gone is None:
            self._device.attempt(self._queue.synchronize)
        self.tell_reached()

    def look(self) -> EffectFailed | None:
        """Take note of how far the whole device has come; return why it is gone, None while it works."""
        return self._device.look()

    def drain(self) -> None:
        """Wait until all that was submitted is over, and tell nobody; raises what the device then reports."""
        self._queue.synchronize()

    def tell_reached(self) -> None:
        """Let the host know of events that have been reached, in order, without waiting."""
        while self.open and self._device.gone is None:
            event = self.open[0].event
            assert event is not None
            if not self._device.attempt(event.query):
                return
            self.open.popleft().tell()

    def _follow_caller(self) -> None:
        """Wait on the device for what the caller's own stream was given: effects may read what it computes."""
        self._runtime.wait(self._queue, self._runtime.record(self._runtime.current()))

    def _fail(self, failure: EffectFailed) -> None:
        self._failure = self._failure or failure


class CudaDevice:
    """Named CUDA streams of one device; ``runtime`` None opens torch's for the current device.

    A stream follows what the caller's own stream, torch's current one, was given before its first use (storages are
    zeroed there) and before each effect.  Who reads what an effect has written waits for the stream (``synchronize``).

    ``polls`` False: looking does not ask the device, and an event is done only once somebody has waited for it.  What
    the host knows then does not hang on how fast the device is, so that the same steps give the same answers: campaigns
    need that.

    ``gone``: why nothing more will come of the device, None while it works.  Raises ``NotRunError`` where there is no
    device.
    """

    def __init__(self, runtime: CudaRuntime | None = None, *, polls: bool = True) -> None:
        # First what __del__ looks at: there may be no device.
        self._streams: dict[str, CudaDeviceStream] = {}
        self.gone: EffectFailed | None = None
        self.runtime: CudaRuntime = TorchCuda() if runtime is None else runtime
        self._polls = polls
        self._tickets = 0

    def stream(self, name: str) -> CudaDeviceStream:
        """Return the stream called ``name``."""
        if name not in self._streams:
            self._streams[name] = CudaDeviceStream(self, name)
        return self._streams[name]

    @property
    def pending(self) -> int:
        """Events that the host does not know to be done."""
        return sum(len(stream.open) for stream in self._streams.values())

    def look(self) -> EffectFailed | None:
        """Let the host know of what has been reached, without waiting; return why the device is gone, None if not."""
        if self._polls:
            for stream in self._streams.values():
                stream.tell_reached()
        return self.gone

    def run(self, events: int) -> int:
        """Wait for up to ``events`` events, those recorded first of all streams; return how many are done by that."""
        told = 0
        while told < events and (waiting := [stream for stream in self._streams.values() if stream.open]):
            stream = min(waiting, key=lambda one: one.open[0].ticket)
            event = stream.open[0].event
            assert event is not None
            self.attempt(event.synchronize)
            if self.gone is None:
                stream.open.popleft().tell()
            told += 1
        return told

    def synchronize(self) -> None:
        """Wait until all that was submitted is over, on every stream."""
        for stream in self._streams.values():
            stream.synchronize()

    def attempt(self, call: Callable[[], T]) -> T | None:
        """Return what ``call`` returns; None where the device fails at it, and then the device is gone."""
        try:
            return call()
        except Exception as error:
            if not self.runtime.is_device_error(error):
                raise
            self._go(EffectFailed(f"the device fails: {error!r}"))
            return None

    def __del__(self) -> None:
        """Wait for what is under way.  Called before anything that the streams hold is given up, in a cycle too."""
        if self.gone is None:
            for stream in self._streams.values():
                # The device has failed, or the interpreter is ending: there is nobody to be told.
                with suppress(Exception):
                    stream.drain()

    def next_ticket(self) -> int:
        """Return a number that grows from event to event, over all streams."""
        self._tickets += 1
        return self._tickets

    def _go(self, failure: EffectFailed) -> None:
        """Note that nothing more will come: whoever waits is told so."""
        self.gone = self.gone or failure
        for stream in self._streams.values():
            while stream.open:
                stream.open.popleft().tell(self.gone)
