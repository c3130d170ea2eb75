"""Room that an operation makes, and gives back where it comes to nothing (DESIGN 4.9, 4.13; decision 0028)."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import Refusal
from kvcrucible.engine import admission, guards
from kvcrucible.engine.giving_up import CopiesGivenUp, GivenUp
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.records import Continuation

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


def make_room(
    engine: Engine,
    asked: str,
    need: Sequence[int],
    dropped: Sequence[LogicalPage] = (),
    protected: int | None = None,
) -> Room:
    """Give up continuations until ``need`` pages are free in every pool, as for :func:`admission.fits`.

    What the room is made for happens within the context that it returns.  Raises ``DeviceCapacity``, and then has given
    up none.
    """
    victims = admission.fits(engine.cache, engine.pools, need, dropped, protected)
    if victims is None:
        raise guards.no_pages(asked, need, engine.pools, len(engine.cache.continuations))
    room = Room(engine)
    try:
        room.release(victims)
    except Exception as error:  # a policy of the caller's may raise anything as it hears of a yielding
        if room.can_be_taken_back(error):
            room.take_back()
        raise
    return room


class Room:
    """What one operation gives up to make room.  A context: left by an exception it takes everything back, if that can
    be; else what was given up is gone, and reported by the engine.

    Policies hear of a yielding at once and cannot unhear it; what they say decides nothing else (decision 0020).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parts: list[GivenUp | CopiesGivenUp] = []
        self._victims: list[Continuation] = []
        self._copies_of: list[int] = []
        self._copied: list[LogicalPage] = []

    def give_up_copies(self, kept: Continuation, pages: Sequence[LogicalPage]) -> None:
        """Give up hidden Device copies of a continuation's pages."""
        self._parts.append(CopiesGivenUp(self._engine.ledger, pages))
        self._engine.cache.changed(pages)
        self._copies_of.append(kept.continuation)
        self._copied += pages

    def release(self, victims: Sequence[Continuation]) -> None:
        """Give up continuations; they stay in the cache until the operation has come to its end."""
        for kept in victims:
            self._engine.cache.policy.yields(kept)
            self._engine.cache.set_aside(kept)
            self._victims.append(kept)
            for space in kept.spaces:
                self._parts.append(GivenUp(self._engine.ledger, space.pool, space.pages, None, space.fence))

    def take_back(self) -> None:
        """Put everything back that was given up, last first, for which nobody may hold any of it.  Mutates."""
        for part in reversed(self._parts):
            part.take_back()
        for kept in self._victims:
            self._engine.cache.put_back(kept)
        self._engine.cache.changed(self._copied)

    def can_be_taken_back(self, error: BaseException) -> bool:
        """Tell whether the operation that ``error`` ends is to leave everything as it was.

        Not where it has acted, other than by a refusal, which then is one candidate's or one request's of several: what
        was given up may be somebody else's by now, and the engine is lost (decision 0030).
        """
        if not isinstance(error, Exception) or self._engine.stream.lost:
            return False
        return isinstance(error, Refusal) or not self._engine.acted

    def __enter__(self) -> Room:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine
        if error is not None:
            # What cannot be taken back stays as it is: nobody asks a lost engine any more.
            if self.can_be_taken_back(error):
                self.take_back()
            return
        engine.acted = engine.acted or bool(self._parts)
        engine.given_up += self._copies_of
        for kept in self._victims:
            engine.cache.forget(kept)
            engine.evicted.append(kept.continuation)
            engine.work.continuations_evicted += 1
        for part in self._parts:
            part.commit()
