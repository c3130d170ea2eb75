"""An engine with a Host tier over torch storages, whose every row is a function of the whole token prefix."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec, pages_for
from kvcrucible.contract.operations import Append, Prefill, Progressed, TransferEnded, TransferOutcome, Work
from kvcrucible.contract.planes import ORDERS, PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Snapshot, Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.host.packing import CopyRun, PackedLayout
from kvcrucible.engine.host.slots import HostSlot
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.streams import Device, SimulatedDevice
from kvcrucible.fuzz.content import Content

GEOMETRY = Geometry(2, 2, 16)
PAGE_SIZES = {"main": 4, "mtp": 8, "draft": 4}


def config(
    *backend: str,
    pages: int = 24,
    host_bytes: int = 1 << 16,
    profile: str = "FP32",
    page_sizes: dict[str, int] | None = None,
    max_context: int = 64,
) -> EngineConfig:
    """Return Main and the backend that is named, with declared planes, and a Host tier of ``host_bytes``."""
    sizes = PAGE_SIZES if page_sizes is None else page_sizes
    pools = [
        PoolSpec(
            name,
            pages,
            sizes[name],
            (PlaneSpec(PROFILES[profile], GEOMETRY, sizes[name], name, order=ORDERS[name]),),
        )
        for name in ("main", *backend)
    ]
    return EngineConfig(tuple(pools), max_context, 6, HostSpec(host_bytes, 64))


@cache
def content(pool: int, profile: str) -> Content:
    """Return the rows of a pool; pure, so that all benches share what has been computed."""
    return Content(GEOMETRY, pool, PROFILES[profile])


class TierBench:
    """Runs units that write what they should, and reads back what is visible, wherever it is."""

    def __init__(self, setting: EngineConfig, device: Device | None = None) -> None:
        from kvcrucible.engine.storage.host_memory import TorchHostMemory
        from kvcrucible.engine.storage.torch_storage import TorchStorage

        assert setting.host is not None
        self.storages = [
            TorchStorage(
                spec.planes[0].profile,
                spec.planes[0].geometry,
                spec.capacity_pages,
                spec.page_size,
                setting.max_concurrency,
                setting.blocks_per_row(pool),
                pool=pool,
                order=spec.order,
            )
            for pool, spec in enumerate(setting.pools)
        ]
        self.scratch = [
            TorchStorage(s.profile, s.geometry, 1, s.page_size, 1, 1, order=s.order) for s in self.storages
        ]
        self.memory = TorchHostMemory(setting.host.capacity_bytes)
        self.engine = Engine(setting, self.storages, device, host_memory=self.memory)
        self.contents = [
            content(pool, spec.planes[0].profile.name) for pool, spec in enumerate(setting.pools)
        ]
        self.fresh = 0
        self.start_free = free_set(self.engine)

    # -- sequences -----------------------------------------------------------------------------------------------------

    def start(self, tokens: int, max_new: int = 0, source: int = 0, **request: Any) -> int:
        """Submit ``tokens`` tokens of ``source``, admit and prefill them."""
        sequence = self.engine.submit(run(source, 0, tokens), max_new, **request)
        assert self.engine.schedule().waiting is None
        self.prefill(sequence)
        return sequence

    def prefill(self, sequence: int) -> None:
        """Write what is left of an admitted prompt."""
        record = self.engine.sequences[sequence]
        if record.prefilling:
            self.unit(Prefill(sequence, record.prompt - record.frontier))

    def append(self, sequence: int, tokens: int) -> None:
        """Append ``tokens`` tokens that nobody has appended before."""
        self.fresh += 1
        self.unit(Append(sequence, run(1000 + self.fresh, 0, tokens)))

    def unit(self, *work: Work, commit: bool = True) -> int:
        """Run a unit whose effects write the content that is due in every pool; return its id."""
        unit = self.engine.begin_unit(work)
        for part in self.engine.units[unit].parts:
            record = self.engine.sequences[part.sequence]
            tokens = (*record.tokens, *part.appended)
            for pool, (start, stop) in enumerate(zip(part.starts, part.stops, strict=True)):
                for layer in range(GEOMETRY.layers if stop > start else 0):
                    self._write(pool, layer, record.row, start, stop, tokens)
        self.engine.end_unit(unit, commit)
        return unit

    def _write(self, pool: int, layer: int, row: int, start: int, stop: int, tokens: Any) -> None:
        import torch

        keys, values = (
            torch.from_numpy(rows).float() for rows in self.contents[pool].rows(tokens, start, stop, layer)
        )
        append = self.storages[pool].append
        self.engine.stream.submit(partial(append, layer, [row], [start], [stop - start], keys, values))

    def settle(self) -> Progressed:
        """Let everything happen that is open, and let the engine take note."""
        self.engine.device.synchronize()
        return self.engine.progress()

    def moved(self) -> TransferEnded:
        """Settle and return the one transfer that is then over."""
        (ended,) = self.settle().transfers
        return ended

    # -- what is there -------------------------------------------------------------------------------------------------

    def check(self, *owners: int) -> None:
        """Every committed row of ``owners``, in every pool, is what it has to be; effects have taken place."""
        import torch

        for owner in owners:
            active = self.engine.sequences.get(owner)
            holder = active if active is not None else self.engine.cache.continuations[owner]
            for pool, space in enumerate(holder.spaces):
                for layer in range(GEOMETRY.layers):
                    rows = self.contents[pool].rows(holder.tokens, 0, space.frontier, layer)
                    found = [torch.cat(side) for side in zip(*self._pages(space.pages, layer), strict=True)]
                    for want, have in zip(rows, found, strict=True):
                        assert torch.equal(torch.from_numpy(want), have.double()), f"{owner} in pool {pool}"

    def _pages(self, pages: list[LogicalPage], layer: int) -> list[tuple[Any, Any]]:
        return [self.read(page, layer) for page in pages]

    def read(self, page: LogicalPage, layer: int) -> tuple[Any, Any]:
        """Return the committed columns of the page's visible replica."""
        if page.visible is Tier.DEVICE:
            return self.storages[page.pool].read_page(layer, page.device, page.committed)
        slot = page.replicas.shown.place
        assert isinstance(slot, HostSlot)
        scratch = self.scratch[page.pool]
        layout = PackedLayout(scratch.profile, scratch.geometry, scratch.page_size, scratch.order, slot.slots)
        self.memory.unpack(layout, slot.extent.offset_bytes, scratch.planes(), [CopyRun(0, slot.slot, 1)])
        return scratch.read_page(layer, 0, page.committed)

    def digest(self) -> object:
        """The whole snapshot and every committed byte of what is visible, but for generations, serials and the order
        of free pages.
        """
        payload = {
            page.page: [
                tensor.numpy().tobytes()
                for layer in range(GEOMETRY.layers)
                for tensor in self.read(page, layer)
            ]
            for page in self.engine.ledger.live.values()
        }
        return anonymous(snapshot(self.engine)), payload

    def drain(self) -> None:
        """End everything; then everything is free again."""
        engine = self.engine
        for unit in list(engine.units):
            engine.end_unit(unit, commit=False)
        for sequence in [*engine.queue, *engine.sequences]:
            engine.cancel(sequence)
        for kept in list(engine.cache.continuations):
            engine.pin(kept, False)
            engine.release(kept)
        self.settle()
        self.settle()
        assert free_set(engine) == self.start_free
        assert not engine.ledger.live


def free_set(engine: Engine) -> object:
    """Return what is free: pages by pool, rows, and the holes of the arena."""
    assert engine.host is not None
    now = snapshot(engine)
    assert now.free_pages is not None
    return (
        [sorted(pages) for pages in now.free_pages],
        now.counters,
        now.host_holes,
        now.retiring,
        now.extents,
    )


def anonymous(now: Snapshot) -> Snapshot:
    """Return the snapshot without generations, serials of extents, and the order of free pages."""
    assert now.free_pages is not None
    place = {serial: extent.offset for serial, extent in now.extents.items()}
    return replace(
        now,
        pages={
            number: replace(
                page,
                generation=0,
                on_host=page.on_host and replace(page.on_host, extent=place.get(page.on_host.extent, -1)),
            )
            for number, page in now.pages.items()
        },
        retiring={key: replace(page, generation=0) for key, page in now.retiring.items()},
        extents={extent.offset: replace(extent, extent=0) for extent in now.extents.values()},
        free_pages=tuple(tuple(sorted(pages)) for pages in now.free_pages),
    )


def scattered(bench: TierBench, tokens: int, **request: Any) -> int:
    """Return an active sequence of ``tokens`` tokens whose device pages do not follow one another."""
    size = max(spec.page_size for spec in bench.engine.config.pools)
    sequence = bench.start(1, tokens, **request)
    between = bench.start(1, tokens, source=99)
    for chunk in range(pages_for(tokens, size)):
        for one in (between, sequence):
            bench.append(one, min(size, tokens - chunk * size) if chunk else min(size, tokens) - 1)
    bench.engine.finish(between, retain=False)
    return sequence


def bench(*backend: str, lagging: bool = True, pages: int = 24, host_bytes: int = 1 << 16) -> TierBench:
    """Return a bench over a simulated device, or over the immediate one."""
    device = SimulatedDevice() if lagging else None
    return TierBench(config(*backend, pages=pages, host_bytes=host_bytes), device)


def kept(b: TierBench, tokens: int = 10, **request: Any) -> int:
    """Return a continuation whose units are complete."""
    sequence = b.start(tokens, **request)
    b.engine.finish(sequence)
    b.settle()
    return sequence


def away(b: TierBench, tokens: int = 10, **request: Any) -> int:
    """Return a continuation that lies on Host."""
    sequence = kept(b, tokens, **request)
    b.engine.demote(sequence)
    assert b.moved().outcome is TransferOutcome.MOVED
    return sequence
