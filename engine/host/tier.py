"""The Host tier of one engine: its arena, its transfers, and what they need of pools, streams and storages.

Implements the port of :mod:`kvcrucible.engine.host.transfer`.  Copies run on streams of their own, one for each
direction, so that neither holds up the other.  Before a copy its stream waits for what the compute stream was given so
far, so that it reads what was written; nothing that it touches changes hands before it is over, so copies of one
direction need no order against those of the other (DESIGN 4.4, 4.7, decisions 0013 and 0024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvcrucible.contract.config import HostSpec
from kvcrucible.contract.errors import Refusal
from kvcrucible.contract.snapshot import Tier, Touched
from kvcrucible.engine.host.arena import Extent, HostArena
from kvcrucible.engine.host.packing import PackedLayout, coalesce
from kvcrucible.engine.host.phases import Phase
from kvcrucible.engine.host.replicas import Place, ReplicatedPage
from kvcrucible.engine.host.slots import HostSlot, HostSlots
from kvcrucible.engine.host.transfer import Transfer, copy_label
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.pool import Lease, PagePool, page_of
from kvcrucible.engine.residency import Residency
from kvcrucible.engine.storage.interface import HostMemory, Storage
from kvcrucible.engine.streams import AnsweredStream, Completion, DeviceStream, EffectFailed
from kvcrucible.engine.work import WorkCounters

#: Names of the streams on which pages leave a tier.
COPY_STREAMS = {Tier.DEVICE: "to-host", Tier.HOST: "to-device"}


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A transfer that is not over, and the continuation for whose sake it was started."""

    continuation: int
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class _PartlyQueued:
    """Some copies could not be queued; done once the others are over."""

    event: Completion
    failure: EffectFailed

    @property
    def done(self) -> bool:
        """Whether what was queued is over."""
        return self.event.done


@dataclass(slots=True)
class _Group:
    """Pages of one transfer that lie in one extent: its pool, its number of slots, and (device page, slot) of each."""

    extent: Extent
    pool: int
    slots: int
    placed: list[tuple[int, int]] = field(default_factory=list)


class HostTier:
    """Extents of ``spec``'s arena for pages of ``pools``, and transfers between both tiers, by number.

    ``copies``: on which stream pages leave each tier.  ``residency`` knows who retains which page; the tier tells it
    whenever pages have moved or change hands with a transfer.  The tier frees what transfers leave behind; slots of
    clean copies are freed by the page ledger.
    """

    def __init__(
        self,
        spec: HostSpec,
        pools: Sequence[PagePool],
        storages: Sequence[Storage],
        memory: HostMemory,
        compute: AnsweredStream,
        copies: Mapping[Tier, DeviceStream],
        residency: Residency,
        touched: Touched,
        work: WorkCounters,
    ) -> None:
        self.arena = HostArena(spec.capacity_bytes, spec.alignment_bytes)
        self.slots = HostSlots(self.arena, [pool.spec.page_bytes for pool in pools])
        self.memory = memory
        self.under_way: dict[int, UnderWay] = {}
        self._pools, self._storages = pools, storages
        self._compute, self._copies = compute, copies
        self._residency = residency
        self._touched, self._work = touched, work
        self._next = 0
        self._make_room: Callable[[], None] | None = None

    # -- transfers -----------------------------------------------------------------------------------------------------

    def start(
        self,
        source: Tier,
        pages: Sequence[LogicalPage],
        continuation: int,
        keep: bool,
        make_room: Callable[[], None] | None = None,
    ) -> int:
        """Start moving ``pages`` out of ``source``; return the transfer's number.

        ``make_room`` is called once extents are not refused, right before they are taken: then they fit.
        Raises ``HostGeometry`` or ``DeviceCapacity``, or what a copy raises, other than ``EffectFailed``, as it is
        queued; then has changed nothing.
        """
        number = self._next
        transfer = Transfer(self, number, source, pages, keep_source=keep)
        self._make_room = make_room
        try:
            transfer.start()
        except Exception:
            for page in pages:
                page.settle()
            raise
        finally:
            self._make_room = None
        self._next += 1
        self.under_way[number] = UnderWay(continuation, transfer)
        for page in pages:
            page.transfer = number
            self._touched.pages.add(page.page)
        self._residency.changed(pages)
        self._touched.transfers.add(number)
        return number

    def give_up_copies(self, pages: Sequence[LogicalPage]) -> None:
        """Free the hidden Host copies of pages that are in no transfer.  Those on Device a ``Room`` gives up."""
        ends: list[tuple[ReplicatedPage, Place]] = [
            (page, page.replicas.detach(Tier.HOST).place) for page in pages
        ]
        self.free(Tier.HOST, ends)
        for page in pages:
            page.settle()
            self._touched.pages.add(page.page)
        self._residency.changed(pages)

    def cancel(self, number: int) -> None:
        """Mark a transfer that is under way; it will be abandoned."""
        self.under_way[number].transfer.cancel()
        self._touched.transfers.add(number)

    def page_ended(self, page: LogicalPage) -> None:
        """Learn that the last reference to a page in a transfer is gone."""
        assert page.transfer is not None
        self.under_way[page.transfer].transfer.drop(page.page)
        self._touched.transfers.add(page.transfer)

    def moving(self) -> Iterator[LogicalPage]:
        """Yield the pages of transfers under way, those included that have ended: one end of each is a Device page."""
        return (_logical(move.page) for one in self.under_way.values() for move in one.transfer.moves)

    def progress(self) -> list[tuple[int, Transfer]]:
        """End the transfers whose copies are over as far as the host knows; return them in order of their numbers."""
        over = [(n, one.transfer) for n, one in self.under_way.items() if one.transfer.progress()]
        for number, transfer in over:
            del self.under_way[number]
            self._touched.transfers.add(number)
            self._count(transfer)
            for move in transfer.moves:
                page = move.page
                assert isinstance(page, LogicalPage)
                page.transfer = None
                self._touched.pages.add(page.page)
                if not move.dropped:
                    page.settle()
            self._residency.changed([_logical(move.page) for move in transfer.moves])
        return over

    def _count(self, transfer: Transfer) -> None:
        if transfer.phase is Phase.ABANDONED:
            self._work.transfers_abandoned += 1
        elif transfer.source is Tier.DEVICE:
            self._work.pages_demoted += len(transfer.pages)
        else:
            self._work.pages_restored += len(transfer.pages)

    # -- the transfers' port -------------------------------------------------------------------------------------------

    def reserve(self, tier: Tier, pages: Sequence[ReplicatedPage]) -> Sequence[Place]:
        """Return one place in ``tier`` for each page, all or none: on Host from one extent a pool."""
        wanted = [0] * len(self._pools)
        for page in pages:
            wanted[_logical(page).pool] += 1
        given: Sequence[Sequence[Place]]
        given = self.slots.reserve(wanted, self._make_room) if tier is Tier.HOST else self._lease(wanted)
        places: list[Iterator[Place]] = [iter(of_pool) for of_pool in given]
        taken: list[Place] = [next(places[_logical(page).pool]) for page in pages]
        return taken

    def copy(
        self, number: int, source: Tier, copies: Sequence[tuple[ReplicatedPage, Place, Place]]
    ) -> Completion:
        """Queue one effect for each run of pages that follow one another on both sides."""
        copying = self._copies[source]
        copying.wait(self._compute.record())
        failure: EffectFailed | None = None
        groups: dict[int, _Group] = {}
        for page, *ends in copies:
            lease, slot = ends if source is Tier.DEVICE else reversed(ends)
            assert isinstance(lease, int)
            assert isinstance(slot, HostSlot)
            group = groups.get(slot.extent.serial)
            if group is None:
                group = groups[slot.extent.serial] = _Group(slot.extent, _logical(page).pool, slot.slots)
            group.placed.append((page_of(lease), slot.slot))
        try:
            try:
                for group in groups.values():
                    self._queue(copying, number, source, group)
            except EffectFailed as failed:
                failure = failed
            event = copying.record()
        except Exception as error:
            self._await_what_was_queued(copying, number)
            if isinstance(error, Refusal):
                # Of whoever copies, for a mistake of the engine's own: no answer to what the engine was asked.
                raise AssertionError(f"{copy_label(number)}: {error}") from error
            raise
        return event if failure is None else _PartlyQueued(event, failure)

    def _await_what_was_queued(self, copying: DeviceStream, number: int) -> None:
        """Let nothing run any more that transfer ``number`` has queued: its places are given back as the error passes
        through.
        """
        try:
            copying.synchronize()
            copying.record()  # The failures of what was queued are nobody's.
        except Exception as error:
            self._compute.lose(f"copies of transfer {number} may still be under way: {error!r}")

    def in_use(self, pages: Sequence[ReplicatedPage]) -> bool:
        """Tell whether an active sequence holds one of the pages."""
        in_use = self._residency.in_use
        return any(in_use(_logical(page)) for page in pages)

    def free(self, tier: Tier, ends: Sequence[tuple[ReplicatedPage, Place]]) -> None:
        """Take places back; a device page that an outstanding unit has touched retires."""
        if tier is Tier.HOST:
            self.slots.free([place for _, place in ends if isinstance(place, HostSlot)])
            return
        for page, place in ends:
            assert isinstance(place, int)
            held = _logical(page)
            self._pools[held.pool].release([place], [held.fence])

    def _lease(self, wanted: Sequence[int]) -> list[Sequence[Lease]]:
        """Return leases of ``wanted[pool]`` fresh pages of each pool; room has been made."""
        given: list[Sequence[Lease]] = []
        try:
            for pool, pages in zip(self._pools, wanted, strict=True):
                assert pages <= pool.free, "room was not made"
                reservation = pool.reserve(pages)
                try:
                    # By address, so that pages that follow one another in their slots do so on the device where they
                    # can.
                    given.append(sorted(pool.materialise(reservation, pages), key=page_of))
                finally:
                    pool.close(reservation)
        except Exception:
            for pool, leases in zip(self._pools, given, strict=False):
                pool.release(leases)
            raise
        return given

    def _queue(self, copying: DeviceStream, number: int, source: Tier, group: _Group) -> None:
        spec, work = self._pools[group.pool].spec, self._work
        # A storage holds planes of one kind; where a pool declares more, no storage is behind it and nothing moves.
        planes = spec.planes[0]
        layout = PackedLayout(planes.profile, planes.geometry, planes.page_size, planes.order, group.slots)
        stored = self._storages[group.pool].planes()
        act = self.memory.pack if source is Tier.DEVICE else self.memory.unpack
        for run in coalesce(group.placed):
            effect = partial(act, layout, group.extent.offset_bytes, stored, (run,))
            copying.submit(effect, copy_label(number))
            work.transfer_copies += 1
            if source is Tier.DEVICE:
                work.bytes_demoted += run.pages * spec.page_bytes
            else:
                work.bytes_restored += run.pages * spec.page_bytes


def _logical(page: ReplicatedPage) -> LogicalPage:
    assert isinstance(page, LogicalPage)
    return page
