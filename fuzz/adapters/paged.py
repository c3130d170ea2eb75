"""Our own engine under test: the control plane alone, or with a small torch storage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import Operation, Outcome
from kvcrucible.contract.snapshot import Snapshot, Touched
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.engine.storage.interface import HOLE, Storage
from kvcrucible.engine.streams import ImmediateStream, SimulatedStream
from kvcrucible.fuzz.setting import Setting, token_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvcrucible.engine.storage.torch_storage import TorchStorage
    from kvcrucible.fuzz.content import Rows


class PagedAdapter:
    """The paged engine at ledger depth."""

    def __init__(self, setting: Setting, storages: Sequence[Storage] | None = None) -> None:
        self.capabilities = Capabilities("paged", payload=False, raw_write=False)
        self.stream: ImmediateStream | SimulatedStream = (
            SimulatedStream() if setting.lagging else ImmediateStream()
        )
        self.engine = Engine(setting.engine_config(), storages, self.stream, token_hash(setting.hash_bits))

    def execute(self, operation: Operation) -> Outcome:
        """Carry out one operation."""
        return execute(self.engine, operation)

    def snapshot(self) -> Snapshot:
        """Return all visible bookkeeping."""
        return snapshot(self.engine)

    def drain(self) -> tuple[Snapshot, Touched]:
        """Return what operations touched since the last call."""
        return drain(self.engine)

    def effects(self) -> tuple[int, int]:
        """Return (effects that have run, effects submitted)."""
        pending = self.stream.pending if isinstance(self.stream, SimulatedStream) else 0
        return self.stream.completed, self.stream.completed + pending

    def copied_columns(self) -> int:
        """Return how many token columns page copies have moved."""
        return self.engine.work.columns_copied

    def run_effects(self, count: int) -> int:
        """Let up to ``count`` queued device effects take place; return how many did."""
        return self.stream.run(count) if isinstance(self.stream, SimulatedStream) else 0

    def settle(self) -> None:
        """Let all device effects take place."""
        self.stream.synchronize()


class PagedPayloadAdapter(PagedAdapter):
    """The paged engine over one torch storage for each pool, at payload depth."""

    def __init__(self, setting: Setting, storages: Sequence[TorchStorage]) -> None:
        super().__init__(setting, storages)
        self.capabilities = Capabilities("paged")
        self.storages = storages
        self.layers = storages[0].geometry.layers

    def write(self, sequence: int, start: int, layer: int, keys: Rows, values: Rows, pool: int = 0) -> None:
        """Queue the write of rows through the block table, as a model's forward pass would."""
        import torch

        row = self.engine.sequences[sequence].row
        k, v = (torch.from_numpy(rows).to(torch.float32) for rows in (keys, values))
        self.stream.submit(partial(self.storages[pool].append, layer, [row], [start], [len(keys)], k, v))

    def read(self, owner: int, layer: int, stop: int, pool: int = 0) -> tuple[Rows, Rows]:
        """Return rows: of an active sequence through the device's block table, of a continuation by its pages."""
        active = self.engine.sequences.get(owner)
        if active is not None:
            k, v = self.storages[pool].read_row(layer, active.row, 0, stop)
        else:
            pages = self.engine.cache.continuations[owner].spaces[pool].devices()
            k, v = self.storages[pool].read_pages(layer, pages, 0, stop)
        return k.double().numpy(), v.double().numpy()

    def attend(
        self, owners: Sequence[int], layer: int, queries: Rows, pool: int = 0
    ) -> tuple[Rows, NDArray[np.float64]] | None:
        """Return paged decode attention over the device's block tables: one query at each owner's last position."""
        import torch

        from kvcrucible.engine.kernels.api import paged_attention

        records = [self.engine.sequences[owner] for owner in owners]
        lengths = [record.spaces[pool].frontier for record in records]
        rows = [record.row for record in records]
        q = torch.from_numpy(queries).to(torch.float32)
        view = self.storages[pool].layer_view(layer)
        out, lse = paged_attention(q, view, rows, [1] * len(rows), lengths)
        return out.double().numpy(), lse.double().numpy()

    def device_row(self, sequence: int, pool: int = 0) -> tuple[int, ...]:
        """Return the device's row; the caller has let all effects take place."""
        entries = self.storages[pool].table_row(self.engine.sequences[sequence].row)
        while entries and entries[-1] == HOLE:
            entries.pop()
        return tuple(entries)

    def poison(self, page: int, first: int, stop: int, value: float, pool: int = 0) -> None:
        """Queue a raw write, in stream order like any other effect (DESIGN 4.14.14)."""
        self.stream.submit(partial(self.storages[pool].raw_write, page, first, stop, value))
