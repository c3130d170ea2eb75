"""One stream by itself, in the order of submission: immediate, or held back until a test lets it run.

The immediate one runs an effect inside ``submit``; the simulated one queues it.  With several streams, waits and
failures, :mod:`kvcrucible.engine.streams.simulated` takes their place.
"""

from __future__ import annotations

from collections import deque

from kvcrucible.engine.streams.interface import Effect, Event


class _StreamEvent:
    """An event of a stream that counts what it has submitted and run."""

    __slots__ = ("_mark", "_stream")

    def __init__(self, stream: ImmediateStream | SimulatedStream, mark: int) -> None:
        self._stream, self._mark = stream, mark

    @property
    def done(self) -> bool:
        return self._stream.completed >= self._mark


class ImmediateStream:
    """Runs every effect at once: the CPU's stream."""

    def __init__(self) -> None:
        self.completed = 0

    def submit(self, effect: Effect) -> None:
        """Run ``effect`` now; its exceptions reach the caller."""
        effect()
        self.completed += 1

    def record(self) -> Event:
        """Return an event that is done already."""
        return _StreamEvent(self, self.completed)

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""


class SimulatedStream:
    """Holds effects back until the test runs them, in order; with it, code that skips the stream shows itself."""

    def __init__(self) -> None:
        self.completed = 0
        self._queue: deque[Effect] = deque()

    @property
    def pending(self) -> int:
        """Effects submitted and not yet run."""
        return len(self._queue)

    def submit(self, effect: Effect) -> None:
        """Queue ``effect``."""
        self._queue.append(effect)

    def record(self) -> Event:
        """Return an event that is done once everything queued now has run."""
        return _StreamEvent(self, self.completed + len(self._queue))

    def run(self, effects: int) -> int:
        """Run up to ``effects`` queued effects, oldest first; return how many ran."""
        ran = 0
        while ran < effects and self._queue:
            self._queue.popleft()()
            self.completed += 1
            ran += 1
        return ran

    def synchronize(self) -> None:
        """Run everything that is queued."""
        self.run(len(self._queue))
