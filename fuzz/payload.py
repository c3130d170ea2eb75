"""The payload twin: writes the same content into the engine and the contiguous reference, and compares what is read
back.

Verifies: every committed row of every sequence and continuation, bit for bit, through the device's own block table
where there is one; that table against the snapshot; paged attention over it against the float64 oracle; that
nothing is read from free or stale columns, which are poisoned. Does not verify: rows that nobody may read
(provisional, stale, free).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    Checkpoint,
    EndUnit,
    Fork,
    Operation,
    Outcome,
    Scheduled,
    Submit,
    Truncate,
    UnitEnded,
)
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.contract.tokens import Tokens, concat
from kvcrucible.fuzz.adapters.protocol import PayloadAdapter
from kvcrucible.fuzz.content import Content, Rows
from kvcrucible.fuzz.setting import Setting
from kvcrucible.invariants.behaviour import rows_equal
from kvcrucible.invariants.violation import Violation, mismatch
from kvcrucible.reference.attention import error_budget
from kvcrucible.reference.contiguous import ContiguousCache

#: Large enough to wreck any sum that it enters, finite in every storage profile.
HUGE = 1e30

#: Query heads for each KV head, so that the grouping can be got wrong.
QUERY_GROUP = 2


@dataclass(slots=True)
class _Write:
    """Rows that a unit has written and not yet committed."""

    sequence: int
    stop: int
    rows: list[tuple[Rows, Rows]]


class PayloadTwin:
    """Keeps the reference's rows beside the engine's; owned by one lock step."""

    def __init__(self, setting: Setting, adapter: PayloadAdapter, content: Content) -> None:
        self._adapter, self._content, self._page_size = adapter, content, setting.page_size
        self._cache = ContiguousCache(content.geometry)
        self._poison = math.nan if setting.poison == "nan" else HUGE
        self._prompts: dict[int, Tokens] = {}
        self._writes: dict[int, list[_Write]] = {}
        self._poisoned_pages: set[int] = set()
        self._poisoned_tails: dict[int, tuple[int, int]] = {}
        self._known: set[int] = set()

    def follow(
        self, operation: Operation, outcome: Outcome, tokens: dict[int, Tokens], after: Snapshot
    ) -> None:
        """Do to the reference what the operation did, and write what a unit is to write.

        ``tokens``: committed tokens of every living sequence and continuation *before* the operation.
        """
        match operation, outcome.value:
            case Submit(prompt=prompt), int(sequence):
                self._prompts[sequence] = prompt
            case Fork(source=source, position=position), int(child):
                self._fork(source, child, position)
            case Truncate(sequence=sequence, position=position), _:
                self._cache.truncate(sequence, position)
            case BeginUnit(work=work), int(unit):
                self._writes[unit] = [self._write(item, tokens[item.sequence]) for item in work]
            case EndUnit(unit=unit, commit=commit), UnitEnded(frontiers=frontiers):
                self._end(unit, dict(frontiers) if commit else {})
            case Checkpoint(), _:
                pass
            case _, Scheduled(admitted=admitted):
                for one in admitted:
                    self._admit(one)
            case _, Admitted() as one:
                self._admit(one)
        self._forget(after)
        if self._adapter.capabilities.raw_write:
            self._poison_stale(after)

    def compare(self, snapshot: Snapshot, before_cut: str) -> list[Violation]:
        """Read every committed row back and compare; device effects have taken place."""
        violations: list[Violation] = []
        for owner in sorted(self._known):
            stop = self._cache.length(owner)
            violations += self._compare_rows(owner, stop, before_cut)
            if owner in snapshot.sequences:
                violations += self._compare_device_row(owner, snapshot)
        return violations

    def compare_attention(self, snapshot: Snapshot) -> list[Violation] | None:
        """Compare the engine's decode attention over all active sequences at once with the float64 oracle, within the
        budget that the oracle derives; returns the violations, at most one for each sequence.
        None where there is nobody to attend for or the engine has no attention of its own.
        """
        owners = [
            owner for owner in sorted(self._known & snapshot.sequences.keys()) if self._cache.length(owner)
        ]
        if not owners:
            return None
        geometry = self._content.geometry
        shape = (len(owners), geometry.kv_heads * QUERY_GROUP, geometry.head_dim)
        found: dict[int, Violation] = {}
        for layer in range(self._adapter.layers):
            drawn = np.random.default_rng([layer, *map(self._cache.length, owners)]).standard_normal(shape)
            # Rounded to float32 first: kernel and oracle must be asked about the same numbers.
            queries = drawn.astype(np.float32).astype(np.float64)
            answer = self._adapter.attend(owners, layer, queries)
            if answer is None:
                return None
            for owner, violation in self._judge_attention(owners, layer, queries, *answer):
                found.setdefault(owner, violation)
        return list(found.values())

    def _judge_attention(
        self, owners: list[int], layer: int, queries: Rows, out: Rows, lse: NDArray[np.float64]
    ) -> Iterator[tuple[int, Violation]]:
        for index, owner in enumerate(owners):
            last = np.array([self._cache.length(owner) - 1])
            oracle = self._cache.attend(owner, layer, queries[index : index + 1], last)
            budget = error_budget(oracle, self._page_size)
            if not budget.admits(oracle, out[index : index + 1], lse[index : index + 1]):
                where = f"decode attention of sequence {owner} at {last[0]}, layer {layer}"
                found = f"{out[index].tolist()}, lse {lse[index].tolist()}"
                due = f"{oracle.out[0].tolist()}, lse {oracle.lse[0].tolist()} within the oracle's budget"
                yield owner, mismatch("kernel-oracle", where, found, due)

    def _compare_rows(self, owner: int, stop: int, name: str) -> list[Violation]:
        for layer in range(self._adapter.layers):
            for side, expected, actual in zip(
                "KV", self._cache.rows(owner, layer), self._adapter.read(owner, layer, stop), strict=True
            ):
                if np.array_equal(expected, actual):
                    continue
                where = f"sequence {owner}, layer {layer}, {side}"
                return rows_equal(
                    name, expected.reshape(stop, -1).tolist(), actual.reshape(stop, -1).tolist(), where
                )
        return []

    def _compare_device_row(self, owner: int, snapshot: Snapshot) -> list[Violation]:
        found = self._adapter.device_row(owner)
        due = snapshot.rows[snapshot.sequences[owner].row].entries if snapshot.rows else None
        if found is None or due is None or found == due:
            return []
        return [mismatch("table-mirror", f"device row of sequence {owner}", found, due)]

    def _admit(self, admitted: Admitted) -> None:
        sequence = admitted.sequence
        if admitted.mode is AdmissionMode.COLD or admitted.source is None:
            self._cache.open(sequence)
            self._known.add(sequence)
            return
        self._fork(admitted.source, sequence, admitted.hit)

    def _fork(self, source: int, child: int, position: int) -> None:
        self._cache.fork(source, child, position)
        self._known.add(child)

    def _write(self, item: object, committed: Tokens) -> _Write:
        if isinstance(item, Append):
            tokens, sequence, length = concat(committed, item.tokens), item.sequence, item.count
        else:
            assert hasattr(item, "sequence")
            assert hasattr(item, "count")
            sequence, length = item.sequence, item.count
            tokens = self._prompts[sequence]
        start = self._cache.length(sequence)
        rows = []
        for layer in range(self._adapter.layers):
            keys, values = self._content.rows(tokens, start, start + length, layer)
            self._adapter.write(sequence, start, layer, keys, values)
            rows.append((keys, values))
        return _Write(sequence, start + length, rows)

    def _end(self, unit: int, frontiers: dict[int, int]) -> None:
        for write in self._writes.pop(unit):
            if frontiers.get(write.sequence) == write.stop:
                for layer, (keys, values) in enumerate(write.rows):
                    self._cache.append(write.sequence, layer, keys, values)

    def _forget(self, after: Snapshot) -> None:
        alive = after.sequences.keys() | after.continuations.keys()
        for gone in self._known - alive:
            self._cache.drop(gone)
        self._known &= alive

    def _poison_stale(self, after: Snapshot) -> None:
        """Fill free pages, and the columns beyond the frontier of idle tails, with poison, once for each change."""
        leased = {page.device for page in after.pages.values()}
        free: Iterable[int] = () if after.free_pages is None else after.free_pages[0]
        for page in free:
            if page not in self._poisoned_pages and page not in leased:
                self._adapter.poison(page, 0, self._page_size, self._poison)
                self._poisoned_pages.add(page)
        self._poisoned_pages -= leased
        for space in after.spaces.values():
            column = space.frontier % self._page_size
            if column == 0 or space.provisional != space.frontier:
                continue
            tail = after.pages[space.pages[space.frontier // self._page_size]]
            state = (tail.generation, column)
            if self._poisoned_tails.get(tail.device) != state:
                self._adapter.poison(tail.device, column, self._page_size, self._poison)
                self._poisoned_tails[tail.device] = state
