"""torch's own ``PagedAttention`` (``torch.nn.attention.experimental._paged_attention``) under test.

That class keeps a page table, the mapping back, a capacity for each batch index and a list of empty pages; it grants
pages on demand (``reserve``), takes back all pages of a batch index at once (``erase``), writes rows (``assign``) and
rewrites flex-attention masks and score functions from logical to physical positions.  It has no queue, no limits, no
frontiers, no units and no way to give back a part.

Verifies, through the harness: that part.  Does not verify: the queue, ids, frontiers, tokens and every refusal but the
one for want of pages, which are this adapter's own (``UNCHECKED``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from kvcrucible.contract.capabilities import ALL_PARTS, Capabilities
from kvcrucible.contract.config import pages_for
from kvcrucible.contract.errors import REFUSALS, DeviceCapacity, InputError, Refusal
from kvcrucible.contract.operations import (
    DEFAULT_IDENTITY,
    AdmissionMode,
    Admitted,
    BeginUnit,
    Cancel,
    EndUnit,
    Finish,
    Operation,
    Outcome,
    Prefill,
    Schedule,
    Scheduled,
    Submit,
    TryAdmit,
    UnitEnded,
    Value,
    Waiting,
    WaitingKind,
    Work,
)
from kvcrucible.contract.profiles import Geometry
from kvcrucible.contract.semantics import Facts, State, first_refusal
from kvcrucible.contract.snapshot import (
    PageState,
    PoolState,
    RowState,
    SequenceState,
    Snapshot,
    SpaceState,
    Touched,
    UnitState,
)
from kvcrucible.contract.tokens import EMPTY, Tokens, concat, count, prefix
from kvcrucible.fuzz.content import Rows
from kvcrucible.fuzz.setting import Setting

#: The name under which a campaign asks for this engine.
ENGINE = "torch-paged-attention"

#: What the class can be asked for; everything else of the contract it has no notion of.
SUPPORTED = frozenset({"Submit", "TryAdmit", "Schedule", "BeginUnit", "EndUnit", "Finish", "Cancel"})

#: Parts of a snapshot that are the class's own tables, or that follow from it having nothing of the kind; the last
#: three are the adapter's own and are shown because other checks are related to them.
PARTS = ALL_PARTS - {"checkpoints", "findable"}

UNCHECKED = (
    "queue, sequence ids, frontiers, tokens and units are the adapter's own: the class knows batch indices alone",
    "refusals other than for want of pages are the adapter's own, by the semantics table: the class has none",
    "aborted units: the class cannot give back a part of a batch index's pages",
    "units of several sequences: the class grants the pages of one batch index at a time, not all or nothing",
    "fork, truncate, checkpoint, retain, release, pin, lookup: the class has nothing of the kind",
    "lease generations: pages carry none; progress: there are no queued effects",
    "attention with NaN in free columns: eager flex attention multiplies them by weight 0, so it is asked only where "
    "the poison is finite; rows are read back under both",
)

_DTYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}

#: The campaign's tensors are tiny; a device would only add copies.
_CPU = "cpu"


@dataclass(slots=True)
class _Record:
    """One queued or active request; ``provisional`` lies beyond the frontier while ``unit`` is in flight."""

    prompt: Tokens
    limit: int
    row: int | None = None
    tokens: Tokens = EMPTY
    provisional: int = 0
    unit: int | None = None
    cancelled: bool = False

    @property
    def frontier(self) -> int:
        """Number of committed tokens."""
        return count(self.tokens)

    @property
    def state(self) -> State:
        """Where the request is in its life."""
        if self.row is None:
            return State.QUEUED
        return State.PREFILL if self.frontier < count(self.prompt) else State.DECODE


@dataclass(frozen=True, slots=True)
class _Unit:
    """One unit in flight: its work, the tokens that it will commit, and the table rows that it froze."""

    sequence: int
    start: int
    tokens: Tokens
    row: int
    entries: tuple[int, ...]


@dataclass(slots=True)
class _Book:
    """What the class has no notion of: which request has which batch index, in what order, and how far it is."""

    queue: list[int] = field(default_factory=list)
    records: dict[int, _Record] = field(default_factory=dict)
    units: dict[int, _Unit] = field(default_factory=dict)
    next_sequence: int = 0
    next_unit: int = 0


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
            works_per_unit=1,
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
        self._setting, self._book = setting, _Book()

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
        match operation:
            case Submit():
                return self._submit(operation)
            case TryAdmit(sequence=sequence):
                return self._try_admit(sequence)
            case Schedule():
                return self._schedule()
            case BeginUnit(work=work):
                return self._begin(work)
            case EndUnit(unit=unit, commit=True):
                return self._end(unit)
            case Finish(sequence=sequence):
                self._refuse(Finish, self._facts(sequence))
                self._erase(sequence)
                return False
            case Cancel(sequence=sequence):
                return self._cancel(sequence)
        raise InputError(f"{ENGINE} cannot carry out {operation!r}")

    def _submit(self, operation: Submit) -> int:
        prompt = count(operation.prompt)
        limit = prompt + operation.max_new
        facts = Facts(
            prompt=prompt,
            max_new=operation.max_new,
            limit=limit,
            max_context=self._setting.max_context,
            entitlement_pages=pages_for(limit, self.paged.page_size),
            capacity_pages=self.paged.n_pages,
        )
        self._refuse(Submit, facts)
        book = self._book
        sequence, book.next_sequence = book.next_sequence, book.next_sequence + 1
        book.records[sequence] = _Record(operation.prompt, limit)
        book.queue.append(sequence)
        return sequence

    def _try_admit(self, sequence: int) -> Admitted | Waiting:
        record = self._book.records.get(sequence)
        # A free row is a reason to wait, not a refusal.
        self._refuse(TryAdmit, Facts(state=State.GONE if record is None else record.state, free_rows=1))
        if self._book.queue[0] != sequence:
            return Waiting(sequence, WaitingKind.BEHIND_HEAD)
        free = self._free_rows()
        if not free:
            return Waiting(sequence, WaitingKind.NO_ROW)
        self._book.queue.pop(0)
        self._book.records[sequence].row = free[0]
        return Admitted(sequence, AdmissionMode.COLD)

    def _schedule(self) -> Scheduled:
        admitted: list[Admitted] = []
        while self._book.queue:
            answer = self._try_admit(self._book.queue[0])
            if isinstance(answer, Waiting):
                return Scheduled(tuple(admitted), answer)
            admitted.append(answer)
        return Scheduled(tuple(admitted))

    def _begin(self, work: tuple[Work, ...]) -> int:
        self._refuse(BeginUnit, Facts(empty=not work))
        if len(work) > 1:
            raise InputError(f"{ENGINE} takes one work in a unit, found {len(work)}")
        (item,) = work
        self._refuse(type(item), self._facts(item.sequence, item.count))
        record = self._book.records[item.sequence]
        assert record.row is not None, "an active sequence has a row"
        start, stop = record.frontier, record.frontier + item.count
        self._reserve(record.row, stop)
        tokens = (
            prefix(record.prompt, stop) if isinstance(item, Prefill) else concat(record.tokens, item.tokens)
        )
        unit, self._book.next_unit = self._book.next_unit, self._book.next_unit + 1
        self._book.units[unit] = _Unit(item.sequence, start, tokens, record.row, self._entries()[record.row])
        record.unit, record.provisional = unit, stop
        return unit

    def _end(self, unit: int) -> UnitEnded:
        self._refuse(EndUnit, Facts(unit_known=unit in self._book.units))
        ended = self._book.units.pop(unit)
        record = self._book.records[ended.sequence]
        if record.cancelled:
            self._erase(ended.sequence)
            return UnitEnded((), (ended.sequence,))
        record.tokens, record.unit = ended.tokens, None
        return UnitEnded(((ended.sequence, record.frontier),))

    def _cancel(self, sequence: int) -> bool:
        self._refuse(Cancel, self._facts(sequence))
        record = self._book.records[sequence]
        if record.unit is not None:
            record.cancelled = True
            return False
        if record.row is None:
            self._book.queue.remove(sequence)
            del self._book.records[sequence]
        else:
            self._erase(sequence)
        return True

    # -- the class under test ------------------------------------------------------------------------------------------

    def _reserve(self, row: int, stop: int) -> None:
        try:
            self.paged.reserve(torch.tensor([row]), torch.tensor([stop]))
        except AssertionError as error:
            # The class's one refusal is an assertion; any other assertion is a fault.
            if not str(error).startswith("requested ") or "empty pages" not in str(error):
                raise
            raise DeviceCapacity(f"{stop} positions in row {row}", str(error), "end a sequence") from error

    def _erase(self, sequence: int) -> None:
        record = self._book.records.pop(sequence)
        self.paged.erase(torch.tensor([record.row]))

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

    # -- facts ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def _refuse(operation: type, facts: Facts) -> None:
        kind = first_refusal(operation, facts)
        if kind is not None:
            raise REFUSALS[kind](operation.__name__, repr(facts), "see the semantics table")

    def _facts(self, sequence: int, count_tokens: int = 0) -> Facts:
        record = self._book.records.get(sequence)
        if record is None:
            return Facts(count=count_tokens)
        return Facts(
            state=record.state,
            in_flight=record.unit is not None,
            frontier=record.frontier,
            prompt=count(record.prompt),
            count=count_tokens,
            limit=record.limit,
        )

    def _free_rows(self) -> list[int]:
        taken = {record.row for record in self._book.records.values()}
        return [row for row in range(self._setting.max_concurrency) if row not in taken]

    # -- observation ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the class's tables, related to the sequences by the adapter's book.

        A logical page is a (batch index, logical block) of the class, numbered row by row.
        """
        paged, book = self.paged, self._book
        entries, leased = self._entries(), self._counters()
        owners = {
            record.row: (sequence, record)
            for sequence, record in book.records.items()
            if record.row is not None
        }
        size = paged.page_size
        pages = {}
        for row, mapped in enumerate(entries):
            frontier = owners[row][1].frontier if row in owners else 0
            for block, device in enumerate(mapped):
                if device != -1:
                    page = row * paged.n_pages + block
                    columns = min(max(frontier - block * size, 0), size)
                    pages[page] = PageState(page, 0, 0, columns, int(row in owners), device, -1)
        return Snapshot(
            pools=(PoolState("main", size, paged.n_pages, *leased),),
            pages=pages,
            spaces={
                (sequence, 0): self._space(sequence, record, entries[row])
                for row, (sequence, record) in owners.items()
            },
            sequences={sequence: self._sequence(sequence, record) for sequence, record in owners.values()},
            rows={
                row: RowState(row, owners[row][0] if row in owners else None, mapped, self._inverse(row))
                for row, mapped in enumerate(entries)
            },
            units={
                number: UnitState(
                    number, ((unit.sequence, unit.start, count(unit.tokens)),), ((unit.row, unit.entries),)
                )
                for number, unit in book.units.items()
            },
            queue=tuple(book.queue),
            free_pages=(tuple(paged.empty_pages),),
        )

    def _space(self, sequence: int, record: _Record, mapped: tuple[int, ...]) -> SpaceState:
        assert record.row is not None, "a space belongs to an active sequence"
        first = record.row * self.paged.n_pages
        pages = tuple(first + block for block, device in enumerate(mapped) if device != -1)
        provisional = record.frontier if record.unit is None else record.provisional
        return SpaceState(sequence, 0, pages, record.frontier, provisional)

    def _sequence(self, sequence: int, record: _Record) -> SequenceState:
        assert record.row is not None, "an active sequence has a row"
        return SequenceState(
            sequence,
            record.row,
            count(record.prompt),
            record.limit,
            None,
            (pages_for(record.limit, self.paged.page_size),),
            (0,),
            record.unit is not None,
            record.cancelled,
            record.tokens,
            DEFAULT_IDENTITY,
        )

    def _inverse(self, row: int) -> tuple[tuple[int, int], ...]:
        blocks = self.paged.physical_to_logical[row].tolist()
        return tuple((page, block) for page, block in enumerate(blocks) if block != -1)

    def drain(self) -> tuple[Snapshot, Touched] | None:
        """Return None: the class does not tell what it touched."""
        return None

    # -- payload -------------------------------------------------------------------------------------------------------

    def write(self, sequence: int, start: int, layer: int, keys: Rows, values: Rows) -> None:
        """Write rows by ``assign``."""
        keys_cache, values_cache = self._caches[layer]
        k, v = (torch.from_numpy(rows).to(keys_cache.dtype).transpose(0, 1)[None] for rows in (keys, values))
        positions = torch.arange(start, start + len(keys))[None]
        self.paged.assign(self._index(sequence), positions, k, v, keys_cache, values_cache)

    def read(self, owner: int, layer: int, stop: int) -> tuple[Rows, Rows]:
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
        self, owners: Sequence[int], layer: int, queries: Rows
    ) -> tuple[Rows, NDArray[np.float64]] | None:
        """Return eager flex attention over the whole cache: even layers through the converted block mask, odd layers
        through the converted score function.

        The batch holds every batch index of the table, as the class's own mapping back requires; idle ones are empty.
        """
        if self._setting.poison == "nan":
            return None
        rows = [int(self._index(owner)) for owner in owners]
        lengths = torch.zeros(self._setting.max_concurrency, dtype=torch.int64)
        lengths[rows] = torch.tensor([self._book.records[owner].frontier for owner in owners])
        q = torch.zeros(len(lengths), queries.shape[1], 1, queries.shape[2])
        q[rows] = torch.from_numpy(queries).float()[:, :, None]
        k, v = (cache.float() for cache in self._caches[layer])
        how: dict[str, Any]
        if layer % 2 == 0:
            how = {"block_mask": self._converted(torch.arange(len(lengths)), lengths)}
        else:
            how = {"score_mod": self.paged.get_score_mod(None, lengths)}
            k, v = (cache.expand(len(lengths), -1, -1, -1) for cache in (k, v))
        out, aux = flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True), **how)
        return out[rows, :, 0].double().numpy(), aux.lse[rows, :, 0].double().numpy()

    def device_row(self, sequence: int) -> tuple[int, ...]:
        """Return the physical pages of a sequence as ``convert_logical_block_mask`` gives them to the kernel."""
        record = self._book.records[sequence]
        positions = record.frontier if record.unit is None else record.provisional
        mask = self._converted(self._index(sequence), torch.tensor([positions]))
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
        return torch.tensor([self._book.records[sequence].row])

    def poison(self, page: int, first: int, stop: int, value: float) -> None:
        """Fill columns of a physical page in every cache."""
        begin = page * self.paged.page_size
        for cache in (cache for pair in self._caches for cache in pair):
            cache[:, :, begin + first : begin + stop] = value

    def run_effects(self, count: int) -> int:
        """Return 0: everything takes place at once."""
        return 0

    def settle(self) -> None:
        """Do nothing: everything has taken place."""
