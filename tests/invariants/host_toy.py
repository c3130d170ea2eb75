"""A toy with a Host tier: sound snapshots by decision 0013, from books that are too simple to be an engine's.

Counters, free lists, rows and holes are derived from the entries each time, so nothing here can disagree with itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.operations import DEFAULT_IDENTITY
from kvcrucible.contract.snapshot import (
    ContinuationState,
    ExtentState,
    HostState,
    MoveState,
    PageState,
    PoolState,
    ReplicaState,
    RetiringState,
    RowState,
    SequenceState,
    Snapshot,
    SpaceState,
    Tier,
    TransferState,
    UnitState,
)
from kvcrucible.contract.tokens import concat, prefix, run

#: (name, page size, capacity in pages, bytes of a page group) of each pool.
POOLS = (("main", 4, 28, 100), ("mtp", 8, 18, 60))
ROWS, ALIGNMENT, ARENA = 4, 64, 64 * 40


class Toy:
    """Operations are methods without a refusal: each does nothing where it does not apply."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.parts = Snapshot(())
        self.next_id = 0
        self.generation = 0
        #: Physical pages that each ended unit touched, until progress reports it.
        self.outstanding: dict[int, set[tuple[int, int]]] = {}

    def steps(self, count: int) -> Iterator[tuple[Snapshot, Snapshot]]:
        """Yield full snapshots before and after each of ``count`` operations that changed something."""
        acts = [self.start, self.fork, self.take_up, self.begin, self.end, self.begin, self.end, self.finish]
        acts += [self.finish, self.release, self.demote, self.demote, self.restore, self.restore, self.cancel]
        acts += [self.progress, self.progress, self.progress]
        before, left = self.snapshot(), count
        while left:
            self.random.choice(acts)()
            after = self.snapshot()
            if after != before:
                yield before, after
                before, left = after, left - 1

    # -- what follows from the entries ---------------------------------------------------------------------------------

    def held(self, pool: int) -> set[int]:
        parts = self.parts
        held = {page.device for page in parts.pages.values() if page.pool == pool and page.device >= 0}
        held |= {device for at, device in parts.retiring if at == pool}
        for transfer in parts.transfers.values():
            held |= {m.device for m in transfer.moves if m.pool == pool}
        return held

    def free(self, pool: int) -> list[int]:
        return sorted(set(range(POOLS[pool][2])) - self.held(pool))

    def room(self, pool: int) -> int:
        return len(self.free(pool)) - sum(q.reserved[pool] for q in self.parts.sequences.values())

    def holes(self) -> list[tuple[int, int]]:
        holes, end = [], 0
        for extent in sorted(self.parts.extents.values(), key=lambda e: e.offset):
            if extent.offset > end:
                holes.append((end, extent.offset - end))
            end = extent.offset + extent.size
        return [*holes, (end, ARENA - end)] if end < ARENA else holes

    def row(self, pool: int, row: int) -> RowState:
        owner = next((q.sequence for q in self.parts.sequences.values() if q.row == row), None)
        held = self.parts.spaces[owner, pool].pages if owner is not None else ()
        return RowState(pool, row, owner, tuple(self.parts.pages[page].device for page in held))

    def snapshot(self) -> Snapshot:
        parts, free = self.parts, [self.room(pool) for pool in range(2)]
        used = sum(extent.size for extent in parts.extents.values())
        pools = []
        for index, (name, size, capacity, _) in enumerate(POOLS):
            leased = len(self.held(index))
            pools.append(
                PoolState(name, size, capacity, leased, capacity - leased - free[index], free[index])
            )
        return Snapshot(
            tuple(pools),
            dict(parts.pages),
            dict(parts.spaces),
            dict(parts.sequences),
            dict(parts.continuations),
            rows={(pool, row): self.row(pool, row) for pool in range(2) for row in range(ROWS)},
            units=dict(parts.units),
            transfers=dict(parts.transfers),
            retiring=dict(parts.retiring),
            extents=dict(parts.extents),
            host=HostState(ARENA, ALIGNMENT, used, ARENA - used),
            free_pages=tuple(tuple(self.free(pool)) for pool in range(2)),
            host_holes=tuple(self.holes()),
        )

    # -- sequences -----------------------------------------------------------------------------------------------------

    def new(self) -> int:
        self.next_id += 1
        return self.next_id

    def lease(self, pool: int) -> tuple[int, int]:
        self.generation += 1
        return self.random.choice(self.free(pool)), self.generation

    def page(self, pool: int, committed: int) -> int:
        key, (device, generation) = self.new(), self.lease(pool)
        copy = ReplicaState(0, committed, 0)
        self.parts.pages[key] = PageState(
            key, pool, 0, committed, 1, device, generation, Tier.DEVICE, copy, None
        )
        return key

    def admit(self, tokens, more: int, shared: tuple[tuple[int, ...], ...]) -> bool:
        """Start a sequence over ``shared`` pages per pool, of which a partial last one is already its own."""
        length, limit = sum(one[-1] for one in tokens), sum(one[-1] for one in tokens) + more
        due = [pages_for(limit, size) for _, size, _, _ in POOLS]
        rows = set(range(ROWS)) - {q.row for q in self.parts.sequences.values()}
        short = any(due[pool] - len(shared[pool]) > self.room(pool) for pool in range(2))
        if not rows or short:
            return False
        owner = self.new()
        for pool, (_, size, _, _) in enumerate(POOLS):
            pages = list(shared[pool])
            for block in range(len(pages), pages_for(length, size)):
                pages.append(self.page(pool, min(size, length - block * size)))
            self.parts.spaces[owner, pool] = SpaceState(owner, pool, tuple(pages), length, length)
        reserved = tuple(due[pool] - len(self.parts.spaces[owner, pool].pages) for pool in range(2))
        self.parts.sequences[owner] = SequenceState(
            owner,
            min(rows),
            length,
            limit,
            None,
            tuple(due),
            reserved,
            False,
            False,
            tokens,
            DEFAULT_IDENTITY,
        )
        return True

    def start(self) -> None:
        length = self.random.randint(1, 18)
        self.admit(run(self.new(), 0, length), self.random.randint(0, 8), ((), ()))

    def resident(self, owner: int) -> bool:
        return all(page.visible is Tier.DEVICE for page in self.pages_of(owner))

    def pages_of(self, owner: int) -> list[PageState]:
        return [self.parts.pages[page] for pool in range(2) for page in self.parts.spaces[owner, pool].pages]

    def pick(self, among) -> int | None:
        return self.random.choice(sorted(among)) if among else None

    def fork(self) -> None:
        parts = self.parts
        idle = [key for key, q in parts.sequences.items() if not q.in_flight]
        source = self.pick([*idle, *filter(self.resident, parts.continuations)])
        if source is None:
            return
        owner = parts.sequences.get(source) or parts.continuations[source]
        position = self.random.randint(1, parts.spaces[source, 0].frontier)
        shared = tuple(
            parts.spaces[source, pool].pages[: position // size] for pool, (_, size, _, _) in enumerate(POOLS)
        )
        if self.admit(prefix(owner.tokens, position), self.random.randint(0, 6), shared):
            for key in (*shared[0], *shared[1]):
                parts.pages[key] = replace(parts.pages[key], references=parts.pages[key].references + 1)

    def take_up(self) -> None:
        """Move: a continuation becomes active again, with all its pages."""
        parts = self.parts
        fit = [key for key in parts.continuations if self.resident(key) and not self.moving(key)]
        source = self.pick(fit)
        if source is None:
            return
        pages = tuple(parts.spaces[source, pool].pages for pool in range(2))
        if self.admit(parts.continuations[source].tokens, self.random.randint(0, 8), pages):
            del parts.continuations[source], parts.spaces[source, 0], parts.spaces[source, 1]

    def moving(self, owner: int) -> bool:
        return any(page.in_transfer for page in self.pages_of(owner))

    def begin(self) -> None:
        parts = self.parts
        key = self.pick([k for k, q in parts.sequences.items() if not q.in_flight and self.left(k)])
        if key is None:
            return
        sequence, count, work = parts.sequences[key], self.random.randint(1, self.left(key)), []
        reserved = list(sequence.reserved)
        for pool, (_, size, _, _) in enumerate(POOLS):
            space = parts.spaces[key, pool]
            new = pages_for(space.frontier + count, size) - len(space.pages)
            reserved[pool] -= new
            pages = space.pages + tuple(self.page(pool, 0) for _ in range(new))
            work.append((key, pool, space.frontier, space.frontier + count))
            parts.spaces[key, pool] = replace(space, pages=pages, provisional=space.frontier + count)
        parts.sequences[key] = replace(sequence, in_flight=True, reserved=tuple(reserved))
        frozen = tuple((pool, sequence.row, self.row(pool, sequence.row).entries) for pool in range(2))
        unit = self.new()
        parts.units[unit] = UnitState(unit, tuple(work), frozen)

    def left(self, key: int) -> int:
        return self.parts.sequences[key].limit - self.parts.spaces[key, 0].frontier

    def end(self) -> None:
        parts, unit = self.parts, self.pick(self.parts.units)
        if unit is None:
            return
        state, commit = parts.units.pop(unit), self.random.random() < 0.8
        self.outstanding[unit] = {(pool, device) for pool, _, row in state.frozen for device in row}
        key = state.work[0][0]
        sequence = replace(parts.sequences[key], in_flight=False)
        if commit:
            count = state.work[0][3] - state.work[0][2]
            sequence = replace(sequence, tokens=concat(sequence.tokens, run(self.new(), 0, count)))
        parts.sequences[key] = sequence
        for pool, (_, size, _, _) in enumerate(POOLS):
            space = parts.spaces[key, pool]
            stop = space.provisional if commit else space.frontier
            keep = pages_for(stop, size)
            for page in space.pages[keep:]:
                del parts.pages[page]
            reserved = tuple(
                have + (len(space.pages) - keep if at == pool else 0)
                for at, have in enumerate(parts.sequences[key].reserved)
            )
            parts.sequences[key] = replace(parts.sequences[key], reserved=reserved)
            parts.spaces[key, pool] = replace(
                space, pages=space.pages[:keep], frontier=stop, provisional=stop
            )
            for block in range(space.frontier // size, keep):
                self.commit(space.pages[block], min(size, stop - block * size))

    def commit(self, key: int, columns: int) -> None:
        page = self.parts.pages[key]
        if columns == page.committed:
            return
        if page.on_host is not None:
            self.end_slot(page.on_host.extent, page.on_host.slot)
        self.parts.pages[key] = replace(
            page, committed=columns, on_device=ReplicaState(page.epoch, columns, 0), on_host=None
        )

    def finish(self) -> None:
        parts = self.parts
        key = self.pick([k for k, q in parts.sequences.items() if not q.in_flight])
        if key is None:
            return
        sequence = parts.sequences.pop(key)
        if self.random.random() < 0.8:
            kept = ContinuationState(key, None, False, self.new(), sequence.tokens, sequence.identity)
            parts.continuations[key] = kept
        else:
            self.drop(key)

    def release(self) -> None:
        key = self.pick(self.parts.continuations)
        if key is not None and len(self.parts.continuations) > 3:
            del self.parts.continuations[key]
            self.drop(key)

    def drop(self, owner: int) -> None:
        for page in self.pages_of(owner):
            if page.references > 1:
                self.parts.pages[page.page] = replace(page, references=page.references - 1)
            else:
                self.end_page(page)
        del self.parts.spaces[owner, 0], self.parts.spaces[owner, 1]

    def end_page(self, page: PageState) -> None:
        del self.parts.pages[page.page]
        for key, transfer in self.parts.transfers.items():
            if any(move.page == page.page for move in transfer.moves):
                moves = tuple(replace(m, dropped=m.dropped or m.page == page.page) for m in transfer.moves)
                over = transfer.cancelling or all(move.dropped for move in moves)
                self.parts.transfers[key] = replace(transfer, moves=moves, cancelling=over)
                return
        if page.device >= 0:
            self.retire(page.pool, page.device, page.generation)
        if page.on_host is not None:
            self.end_slot(page.on_host.extent, page.on_host.slot)

    # -- the Host tier -------------------------------------------------------------------------------------------------

    def retire(self, pool: int, device: int, generation: int) -> None:
        units = [unit for unit, touched in self.outstanding.items() if (pool, device) in touched]
        if units:
            self.parts.retiring[pool, device] = RetiringState(pool, device, generation, max(units))

    def end_slot(self, key: int, slot: int) -> None:
        extent = self.parts.extents[key]
        live = tuple(one for one in extent.live if one != slot)
        if live:
            self.parts.extents[key] = replace(extent, live=live)
        else:
            del self.parts.extents[key]

    def extent(self, pool: int, slots: int) -> int | None:
        size = pages_for(slots * POOLS[pool][3], ALIGNMENT) * ALIGNMENT
        fit = [offset for offset, length in self.holes() if length >= size]
        if not fit:
            return None
        key = self.new()
        self.parts.extents[key] = ExtentState(key, fit[0], size, pool, slots, tuple(range(slots)))
        return key

    def active(self) -> set[int]:
        return {page.page for key in self.parts.sequences for page in self.pages_of(key)}

    def demote(self) -> None:
        owner = self.pick(self.parts.continuations)
        if owner is None:
            return
        active, moves, taken = self.active(), [], []
        for pool in range(2):
            pages = [p for p in self.pages_of(owner) if p.pool == pool and p.visible is Tier.DEVICE]
            pages = [p for p in pages if not p.in_transfer and p.page not in active]
            fresh = [p for p in pages if p.on_host is None]
            extent = self.extent(pool, len(fresh)) if fresh else None
            if fresh and extent is None:
                for key in taken:
                    del self.parts.extents[key]
                return
            taken += [extent] if extent is not None else []
            for p in pages:
                place = (extent, fresh.index(p)) if p.on_host is None else (p.on_host.extent, p.on_host.slot)
                moves.append(self.move(p, p.device, p.generation, *place, fresh=p.on_host is None))
        self.begin_transfer(owner, Tier.DEVICE, moves)

    def restore(self) -> None:
        owner = self.pick(self.parts.continuations)
        if owner is None:
            return
        pages = [p for p in self.pages_of(owner) if p.visible is Tier.HOST and not p.in_transfer]
        need = [sum(p.pool == pool and p.device < 0 for p in pages) for pool in range(2)]
        if any(need[pool] > self.room(pool) for pool in range(2)):
            return
        moves: list[MoveState] = []
        given: set[tuple[int, int]] = set()
        for p in pages:
            device, generation = p.device, p.generation
            if device < 0:
                self.generation += 1
                free = [one for one in self.free(p.pool) if (p.pool, one) not in given]
                device, generation = self.random.choice(free), self.generation
                given.add((p.pool, device))
            moves.append(
                self.move(p, device, generation, p.on_host.extent, p.on_host.slot, fresh=p.device < 0)
            )
        self.begin_transfer(owner, Tier.HOST, moves)

    def move(self, p, device, generation, extent, slot, *, fresh) -> MoveState:
        return MoveState(p.page, p.pool, device, generation, extent, slot, p.epoch, p.committed, fresh, False)

    def begin_transfer(self, owner: int, source: Tier, moves: list[MoveState]) -> None:
        if not moves:
            return
        key, keep = self.new(), self.random.random() < 0.4
        self.parts.transfers[key] = TransferState(key, owner, source, keep, False, tuple(moves))
        for move in moves:
            self.pins(move.page, 1)

    def pins(self, key: int, pins: int) -> None:
        page = self.parts.pages[key]
        self.parts.pages[key] = replace(
            page,
            on_device=page.on_device and replace(page.on_device, pins=pins),
            on_host=page.on_host and replace(page.on_host, pins=pins),
        )

    def cancel(self) -> None:
        key = self.pick(self.parts.transfers)
        if key is not None and self.random.random() < 0.5:
            self.parts.transfers[key] = replace(self.parts.transfers[key], cancelling=True)

    def progress(self) -> None:
        done = sorted(self.outstanding)[: self.random.randint(0, 2)]
        for unit in done:
            del self.outstanding[unit]
        for place in [p for p, state in self.parts.retiring.items() if state.unit in done]:
            del self.parts.retiring[place]
        for key in sorted(self.parts.transfers):
            if self.random.random() < 0.3:
                self.end_transfer(self.parts.transfers.pop(key))

    def end_transfer(self, transfer: TransferState) -> None:
        living = [m for m in transfer.moves if not m.dropped]
        busy = self.active().intersection(m.page for m in living)
        published = not (transfer.cancelling or busy or self.random.random() < 0.2)
        for m in transfer.moves:
            if m.dropped:
                self.retire(m.pool, m.device, m.generation)
                self.end_slot(m.extent, m.slot)
                continue
            self.pins(m.page, 0)
            page = self.parts.pages[m.page]
            to_host = transfer.source is Tier.DEVICE
            if not published:
                if m.fresh and to_host:
                    self.end_slot(m.extent, m.slot)
                continue
            copy = ReplicaState(m.epoch, m.coverage, 0)
            if to_host:
                page = replace(page, visible=Tier.HOST, on_host=replace(copy, extent=m.extent, slot=m.slot))
                if not transfer.keep:
                    self.retire(page.pool, page.device, page.generation)
                    page = replace(page, device=-1, generation=-1, on_device=None)
            else:
                page = replace(
                    page, visible=Tier.DEVICE, device=m.device, generation=m.generation, on_device=copy
                )
                if not transfer.keep:
                    self.end_slot(m.extent, m.slot)
                    page = replace(page, on_host=None)
            self.parts.pages[m.page] = page
