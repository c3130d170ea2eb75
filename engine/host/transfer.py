"""One move of pages between Device and Host (DESIGN 4.4, 4.7, 4.14.13).

Life cycle of a transfer, and who holds what in each phase:

1. *planned*: the pages are checked; nothing is held.
2. *reserved*: the destination's places are held by the transfer, both ends are pinned.
3. *copying*: effects are queued that read the source and write the destination; nothing may move until their
   event is done.  A cancel only marks it (*cancelling*).
4. *copied*: the event is done without a failure; the bytes are those of the epoch noted at the start.
5. *verified*: epoch and coverage are still the page's own.
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
from kvcrucible.engine.host.phases import TABLE, Act, Phase, Trigger
from kvcrucible.engine.host.replicas import Place, Replica, ReplicatedPage, Tier, is_valid
from kvcrucible.engine.streams.interface import Completion, EffectFailed


class TransferPort(Protocol):
    """What a transfer needs of its engine."""

    def reserve(self, tier: Tier, pages: Sequence[ReplicatedPage]) -> Sequence[Place]:
        """Return one place in ``tier`` for each page, all or none; they are the transfer's until freed.

        Raises a ``Refusal`` (``HostGeometry``, ``DeviceCapacity``) and then holds nothing.
        """

    def copy(self, source: Tier, copies: Sequence[tuple[ReplicatedPage, Place, Place]]) -> Completion:
        """Queue the copy of whole pages from the first place to the second; return the event behind all of them.

        The copies wait for every effect queued so far that writes the source or touches the destination.  Raises
        ``EffectFailed`` where nothing was queued.
        """

    def free(self, tier: Tier, places: Sequence[Place]) -> None:
        """Take places back that nobody shows or pins; behind their fence where readers may still be under way."""


@dataclass(slots=True)
class _Copy:
    """One page of a transfer: both ends, and whether the destination is the transfer's own to free."""

    page: ReplicatedPage
    source: Replica
    destination: Replica | None = None
    fresh: bool = True
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class TransferResult:
    """How a transfer ended: where each page that lives on is visible, and which places it gave back, in order."""

    phase: Phase
    visible: dict[int, Tier]
    freed: tuple[tuple[Tier, Place], ...]
    failure: str | None


class Transfer:
    """Moves ``pages`` from ``source`` to the other tier, all of them or none.

    Nothing has happened before :meth:`start`.  Raises ``BadArgument`` where no page or one page twice is named,
    ``WrongState`` where a page is not visible in ``source``, is in another transfer, or a copy of it is stale.
    ``keep_source`` leaves the source as a clean copy.  The transfer owns the destination until it is published.
    """

    def __init__(
        self,
        port: TransferPort,
        source: Tier,
        pages: Sequence[ReplicatedPage],
        *,
        keep_source: bool = False,
    ) -> None:
        asked = f"move {len(pages)} pages from {source.value} to {source.other.value}"
        if not pages or len({page.page for page in pages}) < len(pages):
            raise BadArgument(asked, "no page, or one page twice", "name each page once")
        for page in pages:
            _require_movable(page, source, asked)
        self.source, self.keep_source, self.phase = source, keep_source, Phase.PLANNED
        self.failure: str | None = None
        self._port = port
        self._event: Completion | None = None
        self._freed: list[tuple[Tier, Place]] = []
        self._copies = [_Copy(page, page.replicas.get(source)) for page in pages]

    @property
    def destination(self) -> Tier:
        """The tier to which the pages move."""
        return self.source.other

    @property
    def pages(self) -> tuple[ReplicatedPage, ...]:
        """The pages that live on."""
        return tuple(copy.page for copy in self._copies if not copy.dropped)

    @property
    def held(self) -> tuple[tuple[int, Replica, Replica | None], ...]:
        """(page, source, destination) of every page, dropped ones too; for snapshots."""
        return tuple((copy.page.page, copy.source, copy.destination) for copy in self._copies)

    @property
    def result(self) -> TransferResult:
        """How it ended; the transfer is over."""
        assert self.phase.is_final, f"the transfer is {self.phase.value}"
        visible = {page.page: page.replicas.visible for page in self.pages}
        return TransferResult(self.phase, visible, tuple(self._freed), self.failure)

    # -- what the engine calls -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Reserve the destination and queue the copies.  Raises the port's refusal; then nothing has changed.

        Where the copies cannot be queued, the transfer is abandoned and says so in ``result``.
        """
        self._require(Phase.PLANNED)
        self.step()
        self.step()

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

    def fail(self, reason: str) -> None:
        """Stop because something of the engine's own failed; while copies are under way, as :meth:`cancel`.

        Raises ``WrongState`` where the transfer is over.
        """
        in_flight = self.phase in (Phase.COPYING, Phase.CANCELLING)
        self._fire(Trigger.CANCEL if in_flight else Trigger.FAILED)
        self.failure = self.failure or reason

    def drop(self, page: int) -> None:
        """Learn that the last reference to ``page`` is gone; both its ends are freed when the transfer is over.

        Where the transfer has not started, they are freed at once.  A transfer without pages is cancelled.  Raises
        ``WrongState`` where it is over or does not have the page.
        """
        found = [copy for copy in self._copies if copy.page.page == page and not copy.dropped]
        if self.phase.is_final or not found:
            raise WrongState(
                f"drop page {page} from a transfer", f"it is {self.phase.value}", "free the page yourself"
            )
        found[0].dropped = True
        if self.phase is Phase.PLANNED:
            self._end_dropped()
            self._copies.remove(found[0])
        if not self.pages:
            self._fire(Trigger.CANCEL)

    # -- transitions ---------------------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        try:
            # Once more, and only now looked at: between planning and starting the engine may have acted.
            for copy in self._copies:
                _require_movable(copy.page, self.source, "start a transfer")
            fresh = [copy for copy in self._copies if copy.page.replicas.hidden is None]
            places = self._port.reserve(self.destination, [copy.page for copy in fresh]) if fresh else ()
        except Refusal as refusal:
            self.failure = str(refusal)
            self._fire(Trigger.REFUSED)
            raise
        for copy in self._copies:
            copy.source, copy.destination = copy.page.replicas.shown, copy.page.replicas.hidden
            copy.fresh = copy.destination is None
        for copy, place in zip(fresh, places, strict=True):
            copy.destination = Replica(place, copy.source.epoch, copy.source.coverage)
        self._fire(Trigger.GRANTED)

    def _submit(self) -> None:
        copies = [
            (copy.page, copy.source.place, copy.destination.place)
            for copy in self._copies
            if copy.fresh and copy.destination is not None
        ]
        try:
            self._event = self._port.copy(self.source, copies) if copies else None
        except EffectFailed as failure:
            self.failure = str(failure)
            self._fire(Trigger.FAILED)
            return
        self._fire(Trigger.SUBMITTED)

    def _await(self) -> bool:
        if self._event is not None and not self._event.done:
            return False
        failure = None if self._event is None else self._event.failure
        if failure is not None:
            self.failure = self.failure or str(failure)
        self._fire(Trigger.COMPLETED if failure is None else Trigger.FAILED)
        return True

    def _is_current(self) -> bool:
        return all(
            copy.destination is not None
            and copy.page.replicas.visible is self.source
            and is_valid(copy.page, copy.destination)
            for copy in self._copies
            if not copy.dropped
        )

    def _fire(self, trigger: Trigger) -> None:
        if (self.phase, trigger) not in TABLE:
            raise WrongState(
                f"{trigger.value} a transfer of {len(self._copies)} pages",
                f"it is {self.phase.value}",
                "ask for its result" if self.phase.is_final else "let it progress",
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
                    [copy.page.replicas.detach(self.source) for copy in self._copies if not copy.dropped],
                )
            case Act.FREE_DESTINATION:
                self._give_back(
                    self.destination,
                    [
                        copy.destination
                        for copy in self._copies
                        if copy.fresh and copy.destination is not None
                    ],
                )
            case Act.FREE_STALE:
                self._free_stale()

    def _pin(self, by: int) -> None:
        for copy in self._copies:
            for end in (copy.source, copy.destination):
                assert end is not None
                end.pins += by
                assert end.pins >= 0

    def _show_destination(self) -> None:
        for copy in self._copies:
            if not copy.dropped:
                assert copy.destination is not None
                if copy.fresh:
                    copy.page.replicas.attach(self.destination, copy.destination)
                copy.page.replicas.visible = self.destination

    def _free_stale(self) -> None:
        for page in self.pages:
            hidden = page.replicas.hidden
            if hidden is not None and not is_valid(page, hidden):
                tier = page.replicas.visible.other
                self._give_back(tier, [page.replicas.detach(tier)])

    def _end_dropped(self) -> None:
        """Free what is left of the pages that ended meanwhile."""
        for copy in self._copies:
            if copy.dropped:
                for tier, replica in copy.page.replicas.end():
                    self._give_back(tier, [replica])
                # Dropped before the others were published: never attached, and not given back with theirs.
                reserved = copy.destination if copy.fresh and self.phase is not Phase.ABANDONED else None
                if reserved is not None and copy.page.replicas.at(self.destination) is not reserved:
                    self._give_back(self.destination, [reserved])

    def _give_back(self, tier: Tier, replicas: Sequence[Replica]) -> None:
        if replicas:
            places = [replica.place for replica in replicas]
            self._port.free(tier, places)
            self._freed.extend((tier, place) for place in places)

    def _require(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise WrongState("start a transfer", f"it is {self.phase.value}", "start it once")


def _require_movable(page: ReplicatedPage, source: Tier, asked: str) -> None:
    held = [page.replicas.at(tier) for tier in Tier]
    if page.replicas.visible is not source:
        found = f"page {page.page} is visible in {page.replicas.visible.value}"
    elif any(replica is not None and replica.pins for replica in held):
        found = f"page {page.page} is in another transfer"
    elif any(replica is not None and not is_valid(page, replica) for replica in held):
        found = f"page {page.page} has a replica that is stale"
    else:
        return
    raise WrongState(asked, found, "leave that page out")
