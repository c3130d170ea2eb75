"""torch's own ``PagedAttention`` (``torch.nn.attention.experimental._paged_attention``) under test.

That class keeps a page table, the mapping back, a capacity for each batch index and a list of empty pages; it grants
pages on demand (``reserve``), takes back all pages of a batch index at once (``erase``), writes rows (``assign``) and
rewrites flex-attention masks and score functions from logical to physical positions.  It has no queue, no limits, no
frontiers, no units and no way to give back a part.

Verifies, through the harness: that part.  Does not verify: the queue, ids, frontiers, tokens and every refusal but the
one for want of pages, which are this adapter's own (:mod:`kvcrucible.fuzz.adapters.book`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from kvcrucible.contract.capabilities import ALL_PARTS, Capabilities
from kvcrucible.contract.errors import DeviceCapacity, InputError, Refusal
from kvcrucible.contract.operations import (
    BeginUnit,
    Cancel,
    EndUnit,
    Finish,
    Operation,
    Outcome,
    Schedule,
    Submit,
    TryAdmit,
    Value,
)
from kvcrucible.contract.profiles import Geometry
from kvcrucible.contract.snapshot import PageState, PoolState, RowState, Snapshot, SpaceState, Touched
from kvcrucible.fuzz.adapters.book import Book
from kvcrucible.fuzz.content import Rows
from kvcrucible.fuzz.setting import Setting

#: The name under which a campaign asks for this engine.
ENGINE = "torch-paged-attention"

#: What the class can be asked for; everything else of the contract it has no notion of.
SUPPORTED = frozenset({"Submit", "TryAdmit", "Schedule", "BeginUnit", "EndUnit", "Finish", "Cancel"})

#: Pools, pages, rows and free pages are the class's own; spaces, sequences, units and queue relate them to the
#: adapter's book; continuations are empty because the class retains nothing.
PARTS = ALL_PARTS - {"checkpoints", "findable"}

UNCHECKED = (
    "queue, sequence ids, frontiers, tokens and units are the adapter's own: the class knows batch indices alone",
    "refusals other than for want of pages are the adapter's own, by the semantics table: the class has none",
    "aborted units: the class cannot give back a part of a batch index's pages",
    "units of several sequences: the class grants the pages of one batch index at a time, not all or nothing",
    "fork, truncate, checkpoint, retain, release, pin, lookup: the class has nothing of the kind",
    "demote, restore, transfers: there is one tier",
    "lease generations: pages carry none; progress: there are no queued effects",
    "attention with NaN in free columns: eager flex attention multiplies them by weight 0, so it is asked only where "
    "the poison is finite; rows are read back under both",
)

_DTYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}

#: The campaign's tensors are tiny; a device would only add copies.
_CPU = "cpu"


class TorchPagedAdapter:
    """One ``PagedAttention`` and its caches, one K and one V ``[1, Hkv, n_pages * P, D]`` a layer."""

    def __init__(
        self, setting: Setting, geometry: Geometry, paged_class: type[PagedAttention] = PagedAttention
    ) -> None:
        self.capabilities = Capabilities(
            ENGINE,
            operations=SUPPORTED,
            reserves=False,
            aborts=False,
            speculates=False,
            works_per_unit=1,
            backends=frozenset(),
            host=False,
            backfills=False,
            profiles=tuple(_DTYPES),
            snapshot_parts=PARTS,
            unchecked=UNCHECKED,
        )
        self.layers = geometry.layers
        self.paged = paged_class(
            setting.capacity_pages, setting.page_size, setting.max_concurrency, device=_CPU
        )
        shape = (1, geometry.kv_heads, setting.capacity_pages * setting.page_size, geometry.head_dim)
        dtype = _DTYPES.get(setting.profile)
        if dtype is None:
            raise InputError(f"profile {setting.profile!r}: {ENGINE} holds {', '.join(_DTYPES)}")
        self._caches = [
            (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(self.layers)
        ]
        if setting.host_bytes is not None:
            raise InputError(f"{ENGINE} has no Host tier")
        if setting.backend is not None:
            raise InputError(f"{ENGINE} has one pool, not a {setting.backend} pool beside it")
        self._setting, self._book = setting, Book(setting.engine_config())

    # -- operations ----------------------------------------------------------------------------------------------------

    def execute(self, operation: Operation) -> Outcome:
        """Carry out one operation; raises what the class raises for any other reason than want of pages."""
        value: Value = None
        refusal = None
        try:
            value = self._carry_out(operation)
        except Refusal as refused:
            refusal = refused.kind
        return Outcome(value, refusal, (), (self._counters(),))

    def _carry_out(self, operation: Operation) -> Value:
        book = self._book
        ended: int | None = None
        value: Value
        match operation:
            case Submit():
                return book.submit(operation)
            case TryAdmit(sequence=sequence):
                return book.try_admit(sequence)
            case Schedule():
                return book.schedule()
            case BeginUnit(work=work) if len(work) <= 1:
                unit = book.plan(work)
                self._reserve(unit.row, unit.stop)
                return book.begin(unit, self._entries()[unit.row])
            case EndUnit(unit=number, commit=True, accepted=()):
                value, ended = book.end(number)
            case Finish(sequence=sequence):
                # Nothing can be retained, so what was to be is discarded and says so (DESIGN 4.14.5).
                value, ended = False, book.finish(sequence)
            case Cancel(sequence=sequence):
                value, ended = book.cancel(sequence)
            case _:
                raise InputError(f"{ENGINE} cannot carry out {operation!r}")
        if ended is not None:
            self.paged.erase(torch.tensor([ended]))
        return value

    def _reserve(self, row: int, stop: int) -> None:
        try:
            self.paged.reserve(torch.tensor([row]), torch.tensor([stop]))
        except AssertionError as error:
            # The class's one refusal is an assertion; any other assertion is a fault.
            if not str(error).startswith("requested ") or "empty pages" not in str(error):
                raise
            raise DeviceCapacity(f"{stop} positions in row {row}", str(error), "end a sequence") from error

    # -- observation ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the class's tables, related to the sequences by the adapter's book.

        A logical page is a (batch index, logical block) of the class, numbered row by row.
        """
        paged, book = self.paged, self._book
        entries, owners = self._entries(), book.owners()
        pages = {}
        for row, mapped in enumerate(entries):
            frontier = book.reach(owners[row])[0] if row in owners else 0
            for block, device in enumerate(mapped):
                if device != -1:
                    page = row * paged.n_pages + block
                    columns = min(max(frontier - block * paged.page_size, 0), paged.page_size)
                    pages[page] = PageState(page, 0, 0, columns, int(row in owners), device, -1)
        return Snapshot(
            pools=(PoolState("main", paged.page_size, paged.n_pages, *self._counters()),),
            pages=pages,
            spaces={
                (sequence, 0): self._space(sequence, row, entries[row]) for row, sequence in owners.items()
            },
            sequences={sequence: book.sequence_state(sequence) for sequence in owners.values()},
            rows={
                (0, row): RowState(0, row, owners.get(row), mapped, self._inverse(row))
                for row, mapped in enumerate(entries)
            },
            units=book.unit_states(),
            queue=book.queue,
            free_pages=(tuple(paged.empty_pages),),
        )

    def _counters(self) -> tuple[int, int, int]:
        leased = int(self.paged.capacity.sum()) // self.paged.page_size
        return leased, 0, len(self.paged.empty_pages)

    def _entries(self) -> list[tuple[int, ...]]:
        """The page table's rows with trailing holes cut off."""
        rows = []
        for entries in self.paged.page_table.tolist():
            while entries and entries[-1] == -1:
                entries.pop()
            rows.append(tuple(entries))
        return rows

    def _inverse(self, row: int) -> tuple[tuple[int, int], ...]:
        blocks = self.paged.physical_to_logical[row].tolist()
        return tuple((page, block) for page, block in enumerate(blocks) if block != -1)

    def _space(self, sequence: int, row: int, mapped: tuple[int, ...]) -> SpaceState:
        first = row * self.paged.n_pages
        pages = tuple(first + block for block, device in enumerate(mapped) if device != -1)
        return SpaceState(sequence, 0, pages, *self._book.reach(sequence))

    def drain(self) -> tuple[Snapshot, Touched] | None:
        """Return None: the class does not tell what it touched."""
        return None

    # -- payload -------------------------------------------------------------------------------------------------------

    def write(self, sequence: int, start: int, layer: int, keys: Rows, values: Rows, pool: int = 0) -> None:
        """Write rows by ``assign``."""
        keys_cache, values_cache = self._caches[layer]
        k, v = (torch.from_numpy(rows).to(keys_cache.dtype).transpose(0, 1)[None] for rows in (keys, values))
        positions = torch.arange(start, start + len(keys))[None]
        self.paged.assign(self._index(sequence), positions, k, v, keys_cache, values_cache)

    def read(self, owner: int, layer: int, stop: int, pool: int = 0) -> tuple[Rows, Rows]:
        """Return rows gathered through the page table, the class having no read of its own."""
        positions = torch.arange(stop)
        mapped = self.paged.page_table[self._index(owner)[0]]
        pages = mapped[positions // self.paged.page_size]
        if bool((pages < 0).any()):
            raise LookupError(f"sequence {owner} maps {mapped.tolist()}, too few pages for {stop} positions")
        at = pages * self.paged.page_size + positions % self.paged.page_size
        k, v = (cache[0, :, at].transpose(0, 1).double().numpy() for cache in self._caches[layer])
        return k, v

    def attend(
        self, owners: Sequence[int], layer: int, queries: Rows, pool: int = 0
    ) -> tuple[Rows, NDArray[np.float64]] | None:
        """Return eager flex attention over the whole cache: even layers through the converted block mask, odd layers
        through the converted score function.

        The batch holds every batch index of the table, as the class's own mapping back requires; idle ones are empty.
        """
        if self._setting.poison == "nan":
            return None
        rows = [int(self._index(owner)) for owner in owners]
        lengths = torch.zeros(self._setting.max_concurrency, dtype=torch.int64)
        lengths[rows] = torch.tensor([self._book.reach(owner)[0] for owner in owners])
        q = torch.zeros(len(lengths), queries.shape[1], 1, queries.shape[2])
        q[rows] = torch.from_numpy(queries).float()[:, :, None]
        k, v = (cache.float() for cache in self._caches[layer])
        how: dict[str, Any]
        if layer % 2 == 0:
            how = {"block_mask": self._converted(torch.arange(len(lengths)), lengths)}
        else:
            how = {"score_mod": self.paged.get_score_mod(None, lengths)}
            k, v = (cache.expand(len(lengths), -1, -1, -1) for cache in (k, v))
        with warnings.catch_warnings():
            # Asked on purpose: the eager form evaluates the converted functions at every physical position.
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            out, aux = flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True), **how)
        return out[rows, :, 0].double().numpy(), aux.lse[rows, :, 0].double().numpy()

    def device_row(self, sequence: int, pool: int = 0) -> tuple[int, ...]:
        """Return the physical pages of a sequence as ``convert_logical_block_mask`` gives them to the kernel."""
        mask = self._converted(self._index(sequence), torch.tensor([self._book.reach(sequence)[1]]))
        visited = int(mask.kv_num_blocks[0, 0, 0])
        return tuple(mask.kv_indices[0, 0, 0, :visited].tolist())

    def _converted(self, rows: torch.Tensor, lengths: torch.Tensor) -> BlockMask:
        """Return the mask of one query a row over its first ``lengths`` positions, in physical blocks."""
        size, blocks = self.paged.page_size, self.paged.n_pages
        visited = (lengths + size - 1) // size
        logical = BlockMask.from_kv_blocks(
            visited.to(torch.int32)[:, None, None],
            torch.arange(blocks, dtype=torch.int32).repeat(len(rows), 1, 1, 1),
            BLOCK_SIZE=(size, size),
            seq_lengths=(1, blocks * size),
        )
        return self.paged.convert_logical_block_mask(logical, rows, lengths)

    def _index(self, sequence: int) -> torch.Tensor:
        return torch.tensor([self._book.row(sequence)])

    def poison(self, page: int, first: int, stop: int, value: float, pool: int = 0) -> None:
        """Fill columns of a physical page in every cache."""
        begin = page * self.paged.page_size
        for cache in (cache for pair in self._caches for cache in pair):
            cache[:, :, begin + first : begin + stop] = value

    def run_effects(self, count: int) -> int:
        """Return 0: everything takes place at once."""
        return 0

    def settle(self) -> None:
        """Do nothing: everything has taken place."""
