"""The compute stream as the engine has it: somebody asks every event whether what came before it succeeded.

Table uploads, tail copies and the writes of units carry no outcome of their own (DESIGN 4.7).  One that fails leaves
pages without the content that the bookkeeping says is there, and nothing in the engine can make it good; so it ends the
engine, not the operation (decision 0013).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvcrucible.contract.errors import EngineLost, Refusal
from kvcrucible.engine.streams.interface import Completion, DeviceStream, Effect, EffectFailed, Event

#: What a lost engine is no good for any more: what its device was to write, or what it says of itself.
_LACKING = "pages may lack the content that they are said to have: drop the engine and compute it again"
_HALF_DONE = "its books may be half done: drop the engine"


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An event that nobody has asked yet, and what stands right before it."""

    event: Completion
    what: str


class AnsweredStream:
    """``inner``, every event of which is remembered until it is done.  Passes everything on in the same order."""

    __slots__ = ("_inner", "_lost", "_open", "_unmarked")

    def __init__(self, inner: DeviceStream) -> None:
        self._inner = inner
        self._open: deque[_Recorded] = deque()
        self._unmarked = False
        self._lost: str | None = None

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._inner.name

    def submit(self, effect: Effect, label: str = "") -> None:
        """Queue ``effect``.  What cannot be queued is as if it failed: raises ``EngineLost``, from now on.

        An error that nobody has foreseen passes through, and the engine is lost with it all the same.  A refusal of
        whoever carries the effect out counts as a failure, so that nobody takes it for the operation's own.
        """
        self._unmarked = True
        try:
            self._inner.submit(effect, label)
        except (EffectFailed, Refusal) as failure:
            self._lose(label, failure)
            self.require_sound()
        except BaseException as error:
            self._lose(label, error)
            raise

    @property
    def lost(self) -> bool:
        """Whether the engine is lost, so that nothing can be taken back any more."""
        return self._lost is not None

    def lose(self, why: str, *, half_done: bool = False) -> None:
        """Note that the engine is lost, and why; the first reason stays.

        ``half_done``: an operation was cut short, which says nothing of the content of pages.
        """
        if self._lost is None:
            self._lost = f"{why}; {_HALF_DONE if half_done else _LACKING}"

    def _lose(self, where: str, error: BaseException) -> None:
        what = f"at {where or 'an effect'} that could not be queued: {error}"
        self.lose(f"an effect on stream {self.name} failed, {what}")

    def record(self, what: str = "what was queued last") -> Completion:
        """Return an event for everything submitted so far; ``what`` says in words what that ends with."""
        event = self._inner.record()
        self._unmarked = False
        self._open.append(_Recorded(event, what))
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

    def ask(self) -> None:
        """Take note of failures that the host knows of by now.  Raises ``EngineLost`` from the first one on, always.

        Records an event where the last effect has none behind it, so that its failure is known one call later at most.
        A device of which nothing more will come, whichever stream found out, is a failure of this one: no page of it
        can be read again.
        """
        if self._unmarked:
            self.record()
        gone = self.look()
        while self._open and self._open[0].event.done:
            one = self._open.popleft()
            if one.event.failure is not None:
                self.lose(f"an effect on stream {self.name} failed, up to {one.what}: {one.event.failure}")
        if gone is not None:
            self.lose(f"an effect on stream {self.name} failed, with its device: {gone}")
        self.require_sound()

    def require_sound(self) -> None:
        """Raise ``EngineLost`` where :meth:`ask` has found a failure, or the engine was told to be lost."""
        if self._lost is not None:
            raise EngineLost(self._lost)
