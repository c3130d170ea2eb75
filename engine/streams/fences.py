"""Fences: what has to be over before pages may be used for something else (DESIGN 4.3, 4.7).

A page that is discarded while a queued effect may still touch it is *retiring*: counted as leased, given to nobody.
:class:`TouchLog` knows the last events behind which each page is quiet, :class:`RetireQueue` keeps what waits for them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvcrucible.engine.streams.interface import Event

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fence:
    """A set of events; passed when all of them are done.  The empty fence is passed."""

    events: frozenset[Event] = frozenset()

    @property
    def passed(self) -> bool:
        """Whether every event is done."""
        return all(event.done for event in self.events)

    def __or__(self, other: Fence) -> Fence:
        """Return the fence of both."""
        return Fence(self.events | other.events)


class TouchLog:
    """The last event on each stream behind which an id (a page, an extent) is touched no more.

    Events of one stream are done in order, so that only the last of each counts.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, dict[str, Event]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, ids: Iterable[Hashable], stream: str, event: Event) -> None:
        """Note that effects before ``event``, the newest of ``stream``, touch ``ids``."""
        for one in ids:
            self._last.setdefault(one, {})[stream] = event

    def fence(self, ids: Iterable[Hashable]) -> Fence:
        """Return the fence behind which nothing noted so far touches any of ``ids``; done events are forgotten."""
        events: set[Event] = set()
        for one in ids:
            outstanding = {
                stream: event for stream, event in self._last.get(one, {}).items() if not event.done
            }
            if outstanding:
                self._last[one] = outstanding
                events.update(outstanding.values())
            else:
                self._last.pop(one, None)
        return Fence(frozenset(events))

    def prune(self) -> None:
        """Forget every event that is done; linear in the ids noted."""
        self.fence(list(self._last))


class RetireQueue(Generic[T]):
    """Things that are given back once their fence has passed, and not before."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Fence, T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> tuple[T, ...]:
        """Return what is retiring, in the order in which it came."""
        return tuple(item for _, item in self._waiting)

    def retire(self, item: T, fence: Fence) -> None:
        """Keep ``item`` until ``fence`` has passed; even where it has already, only ``collect`` gives back."""
        self._waiting.append((fence, item))

    def collect(self) -> list[T]:
        """Return and forget what may be used again, in the order in which it was retired; the rest stays."""
        ready = [fence.passed for fence, _ in self._waiting]
        passed = [item for (_, item), is_ready in zip(self._waiting, ready, strict=True) if is_ready]
        self._waiting = [entry for entry, is_ready in zip(self._waiting, ready, strict=True) if not is_ready]
        return passed
