"""A small engine around transfers: real pool, arena and streams, bytes as text, and the checks that always hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host.arena import HostArena
from kvcrucible.engine.host.replicas import (
    Place,
    Replica,
    Replicas,
    ReplicatedPage,
    is_valid,
    note_change,
)
from kvcrucible.engine.host.slots import HostSlot, HostSlots
from kvcrucible.engine.host.transfer import Transfer
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.streams import Completion, Event, SimulatedDevice
from kvcrucible.engine.streams.strategy import Strategy

PAGE_SIZE = 4


@dataclass
class BenchPage:
    """A logical page; ``text`` is what its content has to be: one mark for each committed column.

    ``taken_up``: an active sequence holds it.
    """

    page: int
    replicas: Replicas
    epoch: int = 0
    committed: int = 0
    text: tuple[str, ...] = ()
    alive: bool = True
    taken_up: bool = False


@dataclass
class Bench:
    """Owns pages, moves them, and checks after every call what must hold at every moment."""

    strategy: Strategy
    device_pages: int = 6
    host_slots: int = 6
    pages: list[BenchPage] = field(default_factory=list)
    writes: int = 0

    def __post_init__(self) -> None:
        self.device = SimulatedDevice(self.strategy)
        self.compute, self.copies = self.device.stream("compute"), self.device.stream("copy")
        self.pool = PagePool(PoolSpec("main", self.device_pages, PAGE_SIZE))
        self.slots = HostSlots(HostArena(self.host_slots * 8, 1), (8,))
        self.memory: dict[Place, tuple[str, ...]] = {}
        #: Places that go back once what compute was given before has run; it may touch them.
        self.retiring: list[tuple[Event, Tier, Place]] = []
        self.under_way: list[Place] = []

    # -- pages ---------------------------------------------------------------------------------------------------------

    def add(self, columns: int) -> BenchPage:
        reservation = self.pool.reserve(1)
        (lease,) = self.pool.materialise(reservation, 1)
        page = BenchPage(len(self.pages), Replicas(Tier.DEVICE, Replica(lease, 0, 0)))
        self.pages.append(page)
        self.write(page, columns)
        return page

    def write(self, page: BenchPage, columns: int) -> None:
        """Commit ``columns`` more columns, or cut one column and write it anew where the page is full."""
        self.writes += 1
        if page.committed + columns > PAGE_SIZE:
            page.epoch += 1
            page.text = page.text[: PAGE_SIZE - columns]
        page.text += tuple(f"{page.page}.{self.writes}.{column}" for column in range(columns))
        page.committed = len(page.text)
        place, text = page.replicas.shown.place, page.text
        self.compute.submit(lambda: self.memory.__setitem__(place, text))
        stale = note_change(page)
        if stale is not None:
            self.free(page.replicas.visible.other, [(page, stale.place)])

    def drop(self, page: BenchPage, transfer: Transfer) -> None:
        page.alive = False
        transfer.drop(page.page)

    # -- the port ------------------------------------------------------------------------------------------------------

    def reserve(self, tier: Tier, pages: Sequence[ReplicatedPage]) -> Sequence[Place]:
        if tier is Tier.HOST:
            return self.slots.reserve([len(pages)])[0]
        return self.pool.materialise(self.pool.reserve(len(pages)), len(pages))

    def in_use(self, pages: Sequence[ReplicatedPage]) -> bool:
        return any(isinstance(page, BenchPage) and page.taken_up for page in pages)

    def copy(
        self, number: int, source: Tier, copies: Sequence[tuple[ReplicatedPage, Place, Place]]
    ) -> Completion:
        self.copies.wait(self.compute.record())
        for _, start, end in copies:
            self.under_way += (start, end)

            def effect(start: Place = start, end: Place = end) -> None:
                self.memory[end] = self.memory[start]

            self.copies.submit(effect, "copy")
        return self.copies.record()

    def free(self, tier: Tier, ends: Sequence[tuple[ReplicatedPage, Place]]) -> None:
        event = self.compute.record()
        self.retiring += [(event, tier, place) for _, place in ends]
        self.collect()

    def collect(self) -> None:
        passed = [entry for entry in self.retiring if entry[0].done]
        self.retiring = [entry for entry in self.retiring if not entry[0].done]
        for _, tier, place in passed:
            self.memory.pop(place, None)
            if tier is Tier.HOST:
                assert isinstance(place, HostSlot)
                self.slots.free([place])
            else:
                assert isinstance(place, int)
                self.pool.release([place])

    # -- checks --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        self.device.synchronize()
        self.collect()

    def check_moment(self, *transfers: Transfer) -> None:
        """What holds at every moment, in the middle of a transfer too."""
        for page in self.pages:
            if page.alive:
                assert is_valid(page, page.replicas.shown), "the visible replica is stale"
        held = [t for t in transfers if not t.phase.is_final]
        for transfer in held:
            for move in transfer.moves:
                if move.destination is not None:
                    assert move.source.pins == move.destination.pins == 1, "an end is not pinned"
        owned = [
            (tier, replica.place)
            for page in self.pages
            for tier in Tier
            if (replica := page.replicas.at(tier)) is not None
            and (page.alive or any(page in transfer_pages(t) for t in held))
        ]
        for transfer in held:
            for move in transfer.moves:
                end = move.destination
                if end is not None and (transfer.destination, end.place) not in owned:
                    owned.append((transfer.destination, end.place))
        owned += [(tier, place) for _, tier, place in self.retiring]
        assert len(owned) == len(set(owned)), "one place has two owners"
        assert self.pool.leased == sum(tier is Tier.DEVICE for tier, _ in owned)
        assert {place for tier, place in owned if tier is Tier.HOST} == set(self.slots.live())

    def check_end(self) -> None:
        """What holds when transfers are over and all effects have taken place."""
        self.settle()
        self.check_moment()
        assert not self.retiring
        for page in self.pages:
            for tier in Tier:
                replica = page.replicas.at(tier)
                if page.alive and replica is not None:
                    assert replica.pins == 0
                    assert is_valid(page, replica), "a hidden copy that is no clean one"
                    assert self.memory[replica.place][: page.committed] == page.text

    def digest(self) -> object:
        """Everything visible but for the generations that a grant and a release leave behind."""
        return (
            [
                (p.page, p.epoch, p.committed, p.replicas.visible, [p.replicas.at(t) for t in Tier])
                for p in self.pages
            ],
            (self.pool.leased, self.pool.reserved, sorted(self.pool.unleased_pages())),
            (self.slots.arena.extents(), self.slots.arena.holes(), self.slots.live()),
            dict(self.memory),
        )


def transfer_pages(transfer: Transfer) -> list[ReplicatedPage]:
    return [move.page for move in transfer.moves]
