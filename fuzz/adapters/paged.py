"""Our own engine under test: the control plane alone, or with a small torch storage."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import Operation, Outcome
from kvcrucible.contract.snapshot import PageState, Snapshot, Tier, Touched
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.host.packing import CopyRun, PackedLayout
from kvcrucible.engine.host.tier import COPY_STREAMS
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.engine.pool import PagePool, PoolFactory
from kvcrucible.engine.storage.interface import HOLE, Storage
from kvcrucible.engine.storage.null import per_pool
from kvcrucible.engine.streams import Device, ImmediateDevice, SimulatedDevice
from kvcrucible.fuzz.adapters.counted import CountedStorage
from kvcrucible.fuzz.adapters.policies import policy_of
from kvcrucible.fuzz.adapters.schedules import strategy_of
from kvcrucible.fuzz.adapters.watched import WatchedDevice
from kvcrucible.fuzz.setting import Setting, token_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.torch_storage import TorchStorage
    from kvcrucible.fuzz.content import Rows

#: Name of the engine's stream for everything but copies between the tiers, which have their own.
COMPUTE_STREAM = "compute"

#: What ended host extents are filled with: as NaN patterns in every format, or as large finite numbers.
HOST_POISON = {"nan": 0xFF, "huge": 0x7B}


class LaggingDevice(Device, Protocol):
    """A device that is behind the host, and of which the host learns step by step."""

    def run(self, steps: int) -> int:
        """Let up to ``steps`` things happen, or become known; return how many did."""


def lagging_device(setting: Setting) -> LaggingDevice:
    """Return the device of a setting whose effects lag: simulated in main memory, CUDA's own streams on CUDA.

    On CUDA the order of what happens is the device's, and what the host knows of it the example's: an event is done
    once a step of the example has waited for it, however fast the device is.  Raises ``NotRunError`` without one.
    """
    if setting.device == "cuda":
        from kvcrucible.engine.streams.cuda import CudaDevice

        return CudaDevice(polls=False)
    copies = COPY_STREAMS.values()
    return SimulatedDevice(strategy_of(setting.schedule, setting.schedule_seed, COMPUTE_STREAM, copies))


class PagedAdapter:
    """The paged engine at ledger depth.

    ``pool`` builds its page pools; ``lagging``: the device behind it, None for the setting's own.
    """

    def __init__(
        self,
        setting: Setting,
        storages: Sequence[Storage] | None = None,
        host_memory: TorchHostMemory | None = None,
        pool: PoolFactory = PagePool,
        lagging: LaggingDevice | None = None,
    ) -> None:
        self.capabilities = Capabilities("paged", payload=False, raw_write=False)
        if lagging is None and setting.lagging:
            lagging = lagging_device(setting)
        self._lagging = lagging
        self.device = WatchedDevice(lagging or ImmediateDevice(), setting.fail_every)
        config, hashing = setting.engine_config(), token_hash(setting.hash_bits)
        self._counted = [CountedStorage(one) for one in per_pool(config, storages)]
        policy = policy_of(setting)
        self.engine = Engine(config, self._counted, self.device, hashing, host_memory, policy, pool)
        if setting.page_order_seed:
            use_every_page_once(self.engine, Random(setting.page_order_seed))
        self.stream = self.device.stream(COMPUTE_STREAM)

    def execute(self, operation: Operation) -> Outcome:
        """Carry out one operation."""
        return execute(self.engine, operation)

    def snapshot(self) -> Snapshot:
        """Return all visible bookkeeping."""
        return snapshot(self.engine)

    def drain(self) -> tuple[Snapshot, Touched]:
        """Return what operations touched since the last call."""
        return drain(self.engine)

    def recorded(self) -> int:
        """Return how many events the compute stream has recorded."""
        return len(self.stream.recorded)

    def done(self, event: int) -> bool:
        """Say whether the host knows event number ``event`` of the compute stream to be done."""
        return event < len(self.stream.recorded) and self.stream.recorded[event].event.done

    def copied_columns(self) -> tuple[int, ...]:
        """Return, per pool, how many token columns its storage has been asked to copy."""
        return tuple([one.columns_copied for one in self._counted])

    def all_ran(self) -> bool:
        """Say whether every effect on the compute stream has run."""
        return self.stream.ran == self.stream.submitted

    def copies(self, transfer: int) -> tuple[int, int]:
        """Return how many copies of ``transfer`` have not run, and how many have failed."""
        return self.device.copies(transfer)

    def copies_known(self, transfer: int) -> bool:
        """Say whether the host knows all copies of ``transfer`` to be over."""
        return self.device.copies_known(transfer)

    def run_effects(self, count: int) -> int:
        """Let up to ``count`` queued device effects take place; return how many did."""
        return 0 if self._lagging is None else self._lagging.run(count)

    def settle(self) -> None:
        """Let all device effects take place."""
        self.device.synchronize()


def use_every_page_once(engine: Engine, random: Random) -> None:
    """Lease every page and give them back in a random order: that in which they are handed out from then on."""
    for pool in engine.pools:
        reservation = pool.reserve(pool.capacity)
        leases = pool.materialise(reservation, pool.capacity)
        random.shuffle(leases)
        pool.release(leases)
        pool.close(reservation)


class PagedPayloadAdapter(PagedAdapter):
    """The paged engine over one torch storage for each pool, at payload depth.

    ``host_memory``: bytes of the Host tier, None on an engine without one.  ``scratch``: for each pool a storage of one
    page of its kind, into which a page on Host is unpacked to be read.
    """

    def __init__(
        self,
        setting: Setting,
        storages: Sequence[TorchStorage],
        host_memory: TorchHostMemory | None = None,
        scratch: Sequence[TorchStorage] = (),
        lagging: LaggingDevice | None = None,
    ) -> None:
        super().__init__(setting, storages, host_memory, lagging=lagging)
        self.capabilities = Capabilities("paged")
        self.storages, self._scratch, self._memory = storages, scratch, host_memory
        self.layers = storages[0].geometry.layers
        self._device = storages[0].block_tables.device
        self._seen = Snapshot(())
        if host_memory is not None:
            assert self.engine.host is not None
            value = HOST_POISON[setting.poison]
            host_memory.fill(0, len(host_memory.buffer), value)
            self.engine.host.arena.on_release = partial(self._poison_extent, host_memory, value)

    def snapshot(self) -> Snapshot:
        """Return all visible bookkeeping; rows are read by the last one."""
        self._seen = super().snapshot()
        return self._seen

    def write(self, sequence: int, start: int, layer: int, keys: Rows, values: Rows, pool: int = 0) -> None:
        """Queue the write of rows through the block table, as a model's forward pass would."""
        import torch

        row = self.engine.sequences[sequence].row
        k, v = (torch.from_numpy(rows).to(self._device, torch.float32) for rows in (keys, values))
        self.stream.submit(partial(self.storages[pool].append, layer, [row], [start], [len(keys)], k, v))

    def read(self, owner: int, layer: int, stop: int, pool: int = 0) -> tuple[Rows, Rows]:
        """Return rows: of an active sequence through the device's block table, of a continuation by its pages."""
        active = self.engine.sequences.get(owner)
        if active is not None:
            k, v = self.storages[pool].read_row(layer, active.row, 0, stop)
            return on_host(k), on_host(v)
        pages = [self._seen.pages[page] for page in self._seen.spaces[owner, pool].pages]
        if all(page.visible is Tier.DEVICE for page in pages):
            k, v = self.storages[pool].read_pages(layer, [page.device for page in pages], 0, stop)
            return on_host(k), on_host(v)
        return self._joined(pages, layer, stop)

    def read_copy(self, page: PageState, layer: int, columns: int) -> tuple[Rows, Rows]:
        """Return the first rows of a page's hidden replica."""
        k, v = self._read_replica(page, page.visible.other, layer, columns)
        return on_host(k), on_host(v)

    def _joined(self, pages: Sequence[PageState], layer: int, stop: int) -> tuple[Rows, Rows]:
        """Return the rows of pages that are visible in different tiers."""
        import torch

        size = self.storages[pages[0].pool].page_size
        parts = [
            self._read_replica(page, page.visible, layer, min(size, stop - block * size))
            for block, page in enumerate(pages)
            if block * size < stop
        ]
        k, v = (torch.cat(side) for side in zip(*parts, strict=True))
        return on_host(k), on_host(v)

    def _read_replica(self, page: PageState, tier: Tier, layer: int, columns: int) -> tuple[Tensor, Tensor]:
        if tier is Tier.DEVICE:
            return self.storages[page.pool].read_page(layer, page.device, columns)
        assert self._memory is not None
        assert page.on_host is not None
        extent, scratch = self._seen.extents[page.on_host.extent], self._scratch[page.pool]
        layout = PackedLayout(
            scratch.profile, scratch.geometry, scratch.page_size, scratch.order, extent.slots
        )
        run = CopyRun(0, page.on_host.slot, 1)
        self._memory.unpack(layout, extent.offset, scratch.planes(), [run])
        return scratch.read_page(layer, 0, columns)

    def attend(
        self, owners: Sequence[int], layer: int, queries: Rows, pool: int = 0
    ) -> tuple[Rows, NDArray[np.float64]] | None:
        """Return paged decode attention over the device's block tables: one query at each owner's last position."""
        import torch

        from kvcrucible.engine.kernels.api import paged_attention

        records = [self.engine.sequences[owner] for owner in owners]
        lengths = [record.spaces[pool].frontier for record in records]
        rows = [record.row for record in records]
        q = torch.from_numpy(queries).to(self._device, torch.float32)
        view = self.storages[pool].layer_view(layer)
        out, lse = paged_attention(q, view, rows, [1] * len(rows), lengths)
        return on_host(out), on_host(lse)

    def device_row(self, sequence: int, pool: int = 0) -> tuple[int, ...]:
        """Return the device's row; the caller has let all effects take place."""
        entries = self.storages[pool].table_row(self.engine.sequences[sequence].row)
        while entries and entries[-1] == HOLE:
            entries.pop()
        return tuple(entries)

    def poison(self, page: int, first: int, stop: int, value: float, pool: int = 0) -> None:
        """Queue a raw write, in stream order like any other effect (DESIGN 4.14.14)."""
        self.stream.submit(partial(self.storages[pool].raw_write, page, first, stop, value))

    def _poison_extent(self, memory: TorchHostMemory, value: int, offset: int, size: int) -> None:
        """Queue a fill of an extent that has ended, before whatever is demoted to its bytes next.

        No copy of them is under way: an extent ends only once the host knows those of its transfers to be over.
        """
        self.device.stream(COPY_STREAMS[Tier.DEVICE]).submit(partial(memory.fill, offset, size, value))


def on_host(rows: Tensor) -> NDArray[np.float64]:
    """Return a tensor's numbers in main memory; waits for the stream that computes them."""
    numbers: NDArray[np.float64] = rows.double().cpu().numpy()
    return numbers
