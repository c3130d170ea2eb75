"""The paged engine as a cache for the decoder: sequences are the engine's own, rows are read through the block table.

Nothing here keeps bookkeeping of its own but the peak; pages, frontiers and rows are the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from kvcrucible.contract.config import EngineConfig, PoolSpec, pages_for
from kvcrucible.contract.operations import Append, Prefill, Work
from kvcrucible.contract.profiles import Geometry, storage_profile
from kvcrucible.contract.tokens import literal
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.kernels.api import paged_attention
from kvcrucible.engine.model.config import LlamaConfig
from kvcrucible.engine.storage.torch_storage import TorchStorage


class PagedCache:
    """A ``SequenceCache`` over an :class:`Engine` with float32 pages in main memory.

    ``max_positions`` bounds one sequence, ``sequences`` how many may be active at once; the pool has room for all of
    them at full length, and for one tail copy each.  Owns its engine and storage.
    """

    def __init__(self, config: LlamaConfig, *, page_size: int, max_positions: int, sequences: int) -> None:
        blocks = pages_for(max_positions, page_size)
        capacity_pages = (blocks + 1) * sequences
        self._storage = TorchStorage(
            storage_profile("FP32"),
            Geometry(config.layers, config.kv_heads, config.head_dim),
            capacity_pages,
            page_size,
            sequences,
            blocks,
        )
        pool = PoolSpec("main", capacity_pages, page_size)
        self.engine = Engine(EngineConfig((pool,), max_positions, sequences), self._storage)
        self._peak_pages = 0

    def fill_free_pages(self, value: float) -> None:
        """Overwrite every page that nobody leases, NaN so that a read of what was never written cannot go unnoticed."""
        for page in self.engine.pools[0].unleased_pages():
            write = partial(self._storage.raw_write, page, 0, self._storage.page_size, value)
            self.engine.stream.submit(write)

    @property
    def peak_pages(self) -> int:
        """Most pages leased at once so far."""
        return self._peak_pages

    @property
    def leased_pages(self) -> int:
        """Pages leased now."""
        return self.engine.pools[0].leased

    def start(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        """Submit and admit a request; its prompt is then to be fed, in any chunks.

        Raises the engine's refusals.
        """
        sequence = self.engine.submit(literal(prompt), max_new_tokens)
        scheduled = self.engine.schedule()
        assert scheduled.waiting is None, f"the pool was sized for this: {scheduled.waiting}"
        return sequence

    @contextmanager
    def step(self, feeds: Sequence[tuple[int, Sequence[int]]]) -> Iterator[_PagedStep]:
        """Run one execution unit: begin, let the caller append and attend, commit (or abort, if that raises).

        A feed is either part of a prompt or follows it, never both.
        """
        records = [self.engine.sequences[sequence] for sequence, _ in feeds]
        work: list[Work] = [
            Prefill(sequence, len(tokens)) if record.prefilling else Append(sequence, literal(tokens))
            for record, (sequence, tokens) in zip(records, feeds, strict=True)
        ]
        rows = [record.row for record in records]
        starts = [record.frontier for record in records]
        unit = self.engine.begin_unit(work)
        self._note_peak()
        committed = False
        try:
            yield _PagedStep(self.engine, self._storage, rows, starts, [len(tokens) for _, tokens in feeds])
            committed = True
        finally:
            self.engine.end_unit(unit, commit=committed)
            self.engine.progress()

    def fork(self, sequence: int, position: int, max_new_tokens: int) -> int:
        """Share the full pages below ``position`` and copy the partial tail.  Raises the engine's refusals."""
        child = self.engine.fork(sequence, position, max_new_tokens)
        self._note_peak()
        return child

    def truncate(self, sequence: int, position: int) -> None:
        """Cut the sequence, in the middle of a page too.  Raises the engine's refusals."""
        self.engine.truncate(sequence, position)
        self._note_peak()

    def finish(self, sequence: int) -> None:
        """End the sequence without keeping it; the pages that it alone holds become free."""
        self.engine.finish(sequence, retain=False)

    def length(self, sequence: int) -> int:
        """Return the committed frontier."""
        return self.engine.sequences[sequence].frontier

    def _note_peak(self) -> None:
        self._peak_pages = max(self._peak_pages, self.leased_pages)


@dataclass(frozen=True, slots=True)
class _PagedStep:
    """The unit in flight as the decoder sees it.  ``rows``, ``starts`` and ``lengths`` have one entry a sequence."""

    engine: Engine
    storage: TorchStorage
    rows: list[int]
    starts: list[int]
    lengths: list[int]

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Queue the write on the engine's stream, behind the table uploads and copies that it relies on."""
        write = partial(self.storage.append, layer, self.rows, self.starts, self.lengths, keys, values)
        self.engine.stream.submit(write)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Await what is queued, and read the pages in place."""
        self.engine.stream.synchronize()
        contexts = [start + length for start, length in zip(self.starts, self.lengths, strict=True)]
        view = self.storage.layer_view(layer)
        output, _ = paged_attention(queries, view, self.rows, self.lengths, contexts)
        return output
