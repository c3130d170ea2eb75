"""One move of pages between Device and Host (DESIGN 4.4, 4.7, 4.14.13).

Life cycle of a transfer, and who holds what in each phase:

1. *planned*: the pages are checked; nothing is held.
2. *reserved*: the destination's places are held by the transfer, both ends are pinned.
3. *copying*: effects are queued that read the source and write the destination; nothing may move until their
   event is done.  A cancel only marks it (*cancelling*).
4. *copied*: the event is done without a failure; the bytes are those of the epoch noted at the start.
5. *verified*: epoch and coverage are still the page's own, and no active sequence has taken it up.
6. *published*: the destination is visible, the source is a hidden clean copy; both are still pinned.
7. *moved*: the source has been freed.  Or *kept*: it stays as a clean copy.
8. *abandoned*: the source is visible as before, the destination is free.  From any phase before *published*.

At every moment each page has exactly one visible replica.  ``phases.TABLE`` is the whole machine: what is not in it is
refused.  A page that ends while its transfer runs is *dropped*: the transfer goes on with the others, and both of its
ends are freed when the transfer is over, never while an effect may touch them.  A page that has a valid hidden copy at
the destination already is not copied again: it is only published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcrucible.contract.errors import BadArgument, Refusal, WrongState
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host.phases import TABLE, Act, Phase, Trigger
from kvcrucible.engine.host.replicas import Place, Replica, ReplicatedPage, is_valid
from kvcrucible.engine.streams.interface import Completion

#: What labels of copies between the tiers begin with; the transfer's number follows.
COPY_LABEL = "transfer "


def copy_label(number: int) -> str:
    """Return the label that every copy of transfer ``number`` carries in its stream."""
    return f"{COPY_LABEL}{number}"


class TransferPort(Protocol):
    """What a transfer needs of its engine."""

    def reserve(self, tier: Tier, pages: Sequence[ReplicatedPage]) -> Sequence[Place]:
        """Return one place in ``tier`` for each page, all or none; they are the transfer's until freed.

        Raises a ``Refusal`` (``HostGeometry``, ``DeviceCapacity``) and then holds nothing.
        """

    def copy(
        self, number: int, source: Tier, copies: Sequence[tuple[ReplicatedPage, Place, Place]]
    ) -> Completion:
        """Queue transfer ``number``'s copy of whole pages from the first place to the second; return what tells that
        all of them are over.

        The copies wait for every effect queued so far that writes the source or touches the destination.  What cannot
        be queued is a failure of the completion, which is done once whatever was queued is over.  Any other exception
        passes through; nothing that was queued can then run any more.
        """

    def in_use(self, pages: Sequence[ReplicatedPage]) -> bool:
        """Tell whether an active sequence holds one of the pages."""

    def free(self, tier: Tier, ends: Sequence[tuple[ReplicatedPage, Place]]) -> None:
        """Take back ``ends``, perhaps none: places of pages that nobody shows or pins; behind their fence where units
        may still touch them.
        """


@dataclass(slots=True)
class Move:
    """One page of a transfer: both ends, whether the destination is the transfer's own to free, and whether the page
    has ended meanwhile.
    """

    page: ReplicatedPage
    source: Replica
    destination: Replica | None = None
    fresh: bool = True
    dropped: bool = False


class Transfer:
    """Transfer ``number``: moves ``pages`` from ``source`` to the other tier, all of them or none.

    Nothing has happened before :meth:`start`.  Raises ``BadArgument`` where no page or one page twice is named,
    ``WrongState`` where a page is not visible in ``source``, is in another transfer, or a copy of it is stale.
    ``keep_source`` leaves the source as a clean copy.  The transfer owns the destination until it is published.
    ``failure`` says why a copy did not succeed, None where none failed.
    """

    def __init__(
        self,
        port: TransferPort,
        number: int,
        source: Tier,
        pages: Sequence[ReplicatedPage],
        *,
        keep_source: bool,
    ) -> None:
        asked = f"move {len(pages)} pages from {source.value} to {source.other.value}"
        if not pages or len({page.page for page in pages}) < len(pages):
            raise BadArgument(asked, "no page, or one page twice", "name each page once")
        for page in pages:
            _require_movable(page, source, asked)
        self.number, self.source, self.keep_source = number, source, keep_source
        self.phase = Phase.PLANNED
        self.failure: str | None = None
        self._port = port
        self._event: Completion | None = None
        self.moves = [Move(page, page.replicas.get(source)) for page in pages]

    @property
    def destination(self) -> Tier:
        """The tier to which the pages move."""
        return self.source.other

    @property
    def pages(self) -> tuple[ReplicatedPage, ...]:
        """The pages that live on."""
        return tuple(move.page for move in self.moves if not move.dropped)

    # -- what the engine calls -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Reserve the destination and queue the copies.  Raises the port's refusal, or what else queueing them raises;
        then nothing has changed.
        """
        self._require(Phase.PLANNED)
        self.step()
        try:
            self.step()
        except Exception:
            self.cancel()
            raise

    def progress(self) -> bool:
        """Verify, publish and release as far as the copies allow; return whether the transfer is over."""
        while not self.phase.is_final and self.step():
            pass
        return self.phase.is_final

    def step(self) -> bool:
        """Make the one transition that is due; False where the copies are not done or the transfer is over."""
        match self.phase:
            case Phase.PLANNED:
                self._reserve()
            case Phase.RESERVED:
                self._submit()
            case Phase.COPYING | Phase.CANCELLING:
                return self._await()
            case Phase.COPIED:
                self._fire(Trigger.FOUND_CURRENT if self._is_current() else Trigger.FOUND_STALE)
            case Phase.VERIFIED:
                # Looked at again, since the engine may have acted between the two steps.
                self._fire(Trigger.PUBLISH if self._is_current() else Trigger.FOUND_STALE)
            case Phase.PUBLISHED:
                self._fire(Trigger.KEEP if self.keep_source else Trigger.RELEASE)
            case _:
                return False
        return True

    def cancel(self) -> None:
        """Stop; while copies are under way this only marks it.  After publishing it is too late and changes nothing.

        Raises ``WrongState`` where the transfer is over.
        """
        self._fire(Trigger.CANCEL)

    def drop(self, page: int) -> None:
        """Learn that the last reference to ``page`` is gone; both its ends are freed when the transfer is over.

        Where the transfer has not started, they are freed at once.  A transfer without pages is cancelled.  Raises
        ``WrongState`` where it is over or does not have the page.
        """
        found = [move for move in self.moves if move.page.page == page and not move.dropped]
        if self.phase.is_final or not found:
            raise WrongState(
                f"drop page {page} from a transfer", f"it is {self.phase.value}", "free the page yourself"
            )
        found[0].dropped = True
        if self.phase is Phase.PLANNED:
            self._end_dropped()
            self.moves.remove(found[0])
        if not self.pages:
            self._fire(Trigger.CANCEL)

    # -- transitions ---------------------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        try:
            # Once more, and only now looked at: between planning and starting the engine may have acted.
            for move in self.moves:
                _require_movable(move.page, self.source, "start a transfer")
            fresh = [move for move in self.moves if move.page.replicas.hidden is None]
            places = self._port.reserve(self.destination, [move.page for move in fresh]) if fresh else ()
        except Refusal:
            self._fire(Trigger.REFUSED)
            raise
        for move in self.moves:
            move.source, move.destination = move.page.replicas.shown, move.page.replicas.hidden
            move.fresh = move.destination is None
        for move, place in zip(fresh, places, strict=True):
            move.destination = Replica(place, move.source.epoch, move.source.coverage)
        self._fire(Trigger.GRANTED)

    def _submit(self) -> None:
        copies = [
            (move.page, move.source.place, move.destination.place)
            for move in self.moves
            if move.fresh and move.destination is not None
        ]
        self._event = self._port.copy(self.number, self.source, copies) if copies else None
        self._fire(Trigger.SUBMITTED)

    def _await(self) -> bool:
        if self._event is not None and not self._event.done:
            return False
        failure = None if self._event is None else self._event.failure
        if failure is not None:
            self.failure = str(failure)
        self._fire(Trigger.COMPLETED if failure is None else Trigger.FAILED)
        return True

    def _is_current(self) -> bool:
        return not self._port.in_use(self.pages) and all(
            move.destination is not None
            and move.page.replicas.visible is self.source
            and is_valid(move.page, move.destination)
            for move in self.moves
            if not move.dropped
        )

    def _fire(self, trigger: Trigger) -> None:
        if (self.phase, trigger) not in TABLE:
            raise WrongState(
                f"{trigger.value} transfer {self.number}, of {len(self.moves)} pages",
                f"it is {self.phase.value}",
                "drop the handle" if self.phase.is_final else "let it progress",
            )
        self.phase, acts = TABLE[self.phase, trigger]
        for act in acts:
            self._act(act)
        if self.phase.is_final:
            self._end_dropped()

    def _act(self, act: Act) -> None:
        match act:
            case Act.PIN:
                self._pin(1)
            case Act.UNPIN:
                self._pin(-1)
            case Act.SHOW_DESTINATION:
                self._show_destination()
            case Act.FREE_SOURCE:
                self._give_back(
                    self.source,
                    [
                        (move.page, move.page.replicas.detach(self.source))
                        for move in self.moves
                        if not move.dropped
                    ],
                )
            case Act.FREE_DESTINATION:
                self._give_back(
                    self.destination,
                    [
                        (move.page, move.destination)
                        for move in self.moves
                        if move.fresh and move.destination is not None
                    ],
                )
            case Act.FREE_STALE:
                self._free_stale()

    def _pin(self, by: int) -> None:
        for move in self.moves:
            for end in (move.source, move.destination):
                assert end is not None
                end.pins += by
                assert end.pins >= 0

    def _show_destination(self) -> None:
        for move in self.moves:
            if not move.dropped:
                assert move.destination is not None
                if move.fresh:
                    move.page.replicas.attach(self.destination, move.destination)
                move.page.replicas.visible = self.destination

    def _free_stale(self) -> None:
        for page in self.pages:
            hidden = page.replicas.hidden
            if hidden is not None and not is_valid(page, hidden):
                tier = page.replicas.visible.other
                self._give_back(tier, [(page, page.replicas.detach(tier))])

    def _end_dropped(self) -> None:
        """Free what is left of the pages that ended meanwhile."""
        for move in self.moves:
            if move.dropped:
                for tier, replica in move.page.replicas.end():
                    self._give_back(tier, [(move.page, replica)])
                # Dropped before the others were published: never attached, and not given back with theirs.
                reserved = move.destination if move.fresh and self.phase is not Phase.ABANDONED else None
                if reserved is not None and move.page.replicas.at(self.destination) is not reserved:
                    self._give_back(self.destination, [(move.page, reserved)])

    def _give_back(self, tier: Tier, ends: Sequence[tuple[ReplicatedPage, Replica]]) -> None:
        self._port.free(tier, [(page, replica.place) for page, replica in ends])

    def _require(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise WrongState("start a transfer", f"it is {self.phase.value}", "start it once")


def _require_movable(page: ReplicatedPage, source: Tier, asked: str) -> None:
    replicas = page.replicas
    shown, hidden = replicas.shown, replicas.hidden
    if replicas.visible is not source:
        found = f"page {page.page} is visible in {replicas.visible.value}"
    elif shown.pins or (hidden is not None and hidden.pins):
        found = f"page {page.page} is in another transfer"
    elif not is_valid(page, shown) or (hidden is not None and not is_valid(page, hidden)):
        found = f"page {page.page} has a replica that is stale"
    else:
        return
    raise WrongState(asked, found, "leave that page out")
