"""The payload twin: writes the same content into the engine and the contiguous reference, and compares what is read
back.

Verifies: every committed row of every sequence and continuation in every pool, bit for bit, through the device's own
block table where there is one; that table against the snapshot; paged attention over it against the float64 oracle;
rows of pages that are visible on Host; the hidden copies of pages; that nothing is read from free or stale columns,
which are poisoned. Does not verify: rows that nobody may read (provisional, stale, free).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.media import labelled
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
    Work,
)
from kvcrucible.contract.profiles import Side
from kvcrucible.contract.snapshot import PageState, Snapshot, SpaceState, Tier
from kvcrucible.contract.tokens import Tokens, concat, run
from kvcrucible.fuzz.adapters.protocol import PayloadAdapter
from kvcrucible.fuzz.content import Content, Rows
from kvcrucible.fuzz.setting import Setting
from kvcrucible.invariants.behaviour import rows_equal
from kvcrucible.invariants.violation import Violation, mismatch
from kvcrucible.reference.attention import error_budget
from kvcrucible.reference.codecs import storing
from kvcrucible.reference.contiguous import ContiguousCache

#: Large enough to wreck any sum that it enters, finite in every storage profile; codecs clip it to their largest.
HUGE = 1e30

#: Source of the tokens that a backend drafts ahead of Main; no rule draws it.
AHEAD = 9

#: Query heads for each KV head, so that the grouping can be got wrong.
QUERY_GROUP = 2


@dataclass(slots=True)
class _Write:
    """Rows that a unit has written into one pool from ``start`` on and not yet committed; ``main_start``: where Main
    stood.
    """

    sequence: int
    pool: int
    start: int
    main_start: int
    rows: list[tuple[Rows, Rows]]


class PayloadTwin:
    """Keeps the reference's rows beside the engine's, in each pool; owned by one lock step.

    ``contents``: what to write, one for each pool.
    """

    def __init__(self, setting: Setting, adapter: PayloadAdapter, contents: Sequence[Content]) -> None:
        self._adapter, self._contents = adapter, contents
        self._page_sizes = [pool.page_size for pool in setting.engine_config().pools]
        self._caches = [
            ContiguousCache(content.geometry, *(storing(content.profile, side) for side in Side))
            for content in contents
        ]
        self._poison = math.nan if setting.poison == "nan" else HUGE
        self._prompts: dict[int, Tokens] = {}
        self._writes: dict[int, list[_Write]] = {}
        self._poisoned_pages: set[tuple[int, int]] = set()
        self._poisoned_tails: dict[tuple[int, int], tuple[int, int]] = {}
        self._known: set[int] = set()
        #: Hidden copies that the last comparison looked at.
        self.copies_compared = 0

    @property
    def quantised(self) -> bool:
        """Whether rows are stored as codes and scales."""
        return any(content.profile.quantised for content in self._contents)

    def follow(
        self, operation: Operation, outcome: Outcome, tokens: dict[int, Tokens], after: Snapshot
    ) -> None:
        """Do to the reference what the operation did, and write what a unit is to write.

        ``tokens``: committed tokens of every living sequence and continuation *before* the operation.
        """
        match operation, outcome.value:
            case Submit(prompt=prompt, spans=spans), int(sequence):
                self._prompts[sequence] = labelled(prompt, spans)
            case Fork(source=source, position=position), int(child):
                self._fork(source, child, position)
            case Truncate(sequence=sequence, position=position), _:
                for cache in self._caches:
                    if position < cache.length(sequence):
                        cache.truncate(sequence, position)
            case BeginUnit(work=work), int(unit):
                self._writes[unit] = [
                    write for item in work for write in self._write(item, tokens[item.sequence])
                ]
            case EndUnit(unit=unit, commit=commit), UnitEnded(frontiers=frontiers):
                self._end(unit, dict(frontiers) if commit else {}, after)
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
            for pool in range(len(self._caches)):
                violations += self._compare_rows(owner, pool, before_cut)
                if owner in snapshot.sequences:
                    violations += self._compare_device_row(owner, pool, snapshot)
        self.copies_compared = 0
        for (owner, pool), space in sorted(snapshot.spaces.items()):
            for block, page in enumerate(space.pages):
                violations += self._compare_copy(owner, pool, block, snapshot.pages[page])
        return violations

    def compare_attention(self, snapshot: Snapshot) -> list[Violation] | None:
        """Compare the engine's decode attention over all active sequences at once, in each pool, with the float64
        oracle, within the budget that the oracle derives; returns the violations, at most one for each sequence and
        pool.  None where there is nobody to attend for or the engine has no attention of its own.
        """
        answers = [self._attention_of(pool, snapshot) for pool in range(len(self._caches))]
        asked = [found for found in answers if found is not None]
        return [violation for found in asked for violation in found] if asked else None

    def _attention_of(self, pool: int, snapshot: Snapshot) -> list[Violation] | None:
        cache = self._caches[pool]
        owners = [owner for owner in sorted(self._known & snapshot.sequences.keys()) if cache.length(owner)]
        if not owners:
            return None
        geometry = cache.geometry
        shape = (len(owners), geometry.kv_heads * QUERY_GROUP, geometry.head_dim)
        found: dict[int, Violation] = {}
        for layer in range(self._adapter.layers):
            drawn = np.random.default_rng([layer, *map(cache.length, owners)]).standard_normal(shape)
            # Rounded to float32 first: kernel and oracle must be asked about the same numbers.
            queries = drawn.astype(np.float32).astype(np.float64)
            answer = self._adapter.attend(owners, layer, queries, pool)
            if answer is None:
                return None
            for owner, violation in self._judge_attention(owners, pool, layer, queries, *answer):
                found.setdefault(owner, violation)
        return list(found.values())

    def _judge_attention(
        self, owners: list[int], pool: int, layer: int, queries: Rows, out: Rows, lse: NDArray[np.float64]
    ) -> Iterator[tuple[int, Violation]]:
        cache = self._caches[pool]
        for index, owner in enumerate(owners):
            last = np.array([cache.length(owner) - 1])
            oracle = cache.attend(owner, layer, queries[index : index + 1], last)
            budget = error_budget(oracle, self._page_sizes[pool])
            if not budget.admits(oracle, out[index : index + 1], lse[index : index + 1]):
                where = f"decode attention of sequence {owner} at {last[0]}, layer {layer}{_in(pool)}"
                found = f"{out[index].tolist()}, lse {lse[index].tolist()}"
                due = f"{oracle.out[0].tolist()}, lse {oracle.lse[0].tolist()} within the oracle's budget"
                yield owner, mismatch("kernel-oracle", where, found, due)

    def _compare_rows(self, owner: int, pool: int, name: str) -> list[Violation]:
        stop = self._caches[pool].length(owner)
        for layer in range(self._adapter.layers):
            for index, (expected, actual) in enumerate(
                zip(
                    self._caches[pool].rows(owner, layer),
                    self._adapter.read(owner, layer, stop, pool),
                    strict=True,
                )
            ):
                if np.array_equal(expected, actual):
                    continue
                if self._from_another_pool(owner, pool, layer, index, expected, actual):
                    name = "pool-isolation"
                elif self._contents[pool].profile.quantised and _off_by_a_step(expected, actual):
                    name = "codec-exact"
                where = f"sequence {owner}, layer {layer}, {'KV'[index]}{_in(pool)}"
                return rows_equal(
                    name, expected.reshape(stop, -1).tolist(), actual.reshape(stop, -1).tolist(), where
                )
        return []

    def _compare_copy(self, owner: int, pool: int, block: int, page: PageState) -> list[Violation]:
        """Compare the hidden copy of a page, where it claims to be valid, with the owner's rows."""
        hidden = page.on_host if page.visible is Tier.DEVICE else page.on_device
        if hidden is None or hidden.epoch != page.epoch or hidden.coverage < page.committed:
            return []
        start = block * self._page_sizes[pool]
        stop = min(start + page.committed, self._caches[pool].length(owner))
        if start >= stop:
            return []
        self.copies_compared += 1
        for layer in range(self._adapter.layers):
            due = self._caches[pool].rows(owner, layer)
            found = self._adapter.read_copy(page, layer, stop - start)
            for index, (expected, actual) in enumerate(zip(due, found, strict=True)):
                if not np.array_equal(expected[start:stop], actual):
                    tier = page.visible.other.value
                    where = f"hidden {tier} copy of page {page.page}, layer {layer}, {'KV'[index]}{_in(pool)}"
                    flat = [
                        rows.reshape(stop - start, -1).tolist() for rows in (expected[start:stop], actual)
                    ]
                    return rows_equal("replica-valid", flat[0], flat[1], where)
        return []

    def _from_another_pool(
        self, owner: int, pool: int, layer: int, side: int, expected: Rows, actual: Rows
    ) -> bool:
        """Say whether the first row that differs is what another pool holds at that position."""
        differs = (expected != actual).reshape(len(expected), -1).any(axis=1)
        position = int(differs.argmax())
        others = [cache for other, cache in enumerate(self._caches) if other != pool]
        return any(
            np.array_equal(cache.rows(owner, layer)[side][position], actual[position])
            for cache in others
            if position < cache.length(owner)
        )

    def _compare_device_row(self, owner: int, pool: int, snapshot: Snapshot) -> list[Violation]:
        found = self._adapter.device_row(owner, pool)
        due = snapshot.rows[pool, snapshot.sequences[owner].row].entries if snapshot.rows else None
        if found is None or due is None or found == due:
            return []
        return [mismatch("table-mirror", f"device row of sequence {owner}{_in(pool)}", found, due)]

    def _admit(self, admitted: Admitted) -> None:
        sequence = admitted.sequence
        if admitted.mode is AdmissionMode.COLD or admitted.source is None:
            for cache in self._caches:
                cache.open(sequence)
            self._known.add(sequence)
            return
        self._fork(admitted.source, sequence, admitted.hit)

    def _fork(self, source: int, child: int, position: int) -> None:
        for cache in self._caches:
            cache.fork(source, child, min(position, cache.length(source)))
        self._known.add(child)

    def _write(self, item: Work, committed: Tokens) -> Iterator[_Write]:
        """Write what one work is to write, and yield it for each pool."""
        sequence = item.sequence
        tokens = concat(committed, item.tokens) if isinstance(item, Append) else self._prompts[sequence]
        main_start = self._caches[0].length(sequence)
        main_stop = main_start + item.count
        for pool, (cache, content) in enumerate(zip(self._caches, self._contents, strict=True)):
            start = cache.length(sequence)
            stop = main_stop if pool == 0 or item.backend is None else start + item.backend
            if stop > main_stop:
                # What a round drafts ahead of Main; the end of the unit always cuts it.
                tokens = concat(tokens, run(AHEAD, main_stop, stop - main_stop))
            rows = []
            for layer in range(self._adapter.layers):
                keys, values = content.rows(tokens, start, stop, layer)
                if start < stop:
                    self._adapter.write(sequence, start, layer, keys, values, pool)
                rows.append((keys, values))
            yield _Write(sequence, pool, start, main_start, rows)

    def _end(self, unit: int, frontiers: dict[int, int], after: Snapshot) -> None:
        """Commit what the unit has written below Main's new frontiers; a row without one, or whose frontier has not
        moved, was aborted.
        """
        for write in self._writes.pop(unit):
            # What a unit has written over poison and not kept is poisoned anew.
            space = after.spaces.get((write.sequence, write.pool))
            if space is not None and space.pages:
                self._poisoned_tails.pop((write.pool, after.pages[space.pages[-1]].device), None)
            frontier = frontiers.get(write.sequence, write.main_start)
            if frontier == write.main_start:
                continue
            kept = frontier - write.start
            for layer, (keys, values) in enumerate(write.rows):
                self._caches[write.pool].append(write.sequence, layer, keys[:kept], values[:kept])

    def _forget(self, after: Snapshot) -> None:
        alive = after.sequences.keys() | after.continuations.keys()
        for gone in self._known - alive:
            for cache in self._caches:
                cache.drop(gone)
        self._known &= alive

    def _poison_stale(self, after: Snapshot) -> None:
        """Fill free pages, and the columns beyond the frontier of idle tails, with poison, once for each change."""
        free: Iterable[tuple[int, ...]] = () if after.free_pages is None else after.free_pages
        leased = {(page.pool, page.device) for page in after.pages.values()}
        slots = {(pool, page) for pool, pages in enumerate(free) for page in pages} - leased
        for pool, page in sorted(slots - self._poisoned_pages):
            self._adapter.poison(page, 0, self._page_sizes[pool], self._poison, pool)
        # Whatever is not free may be written meanwhile, by copies between the tiers too.
        self._poisoned_pages = slots
        for (_, pool), space in after.spaces.items():
            self._poison_tail(pool, space, after)

    def _poison_tail(self, pool: int, space: SpaceState, after: Snapshot) -> None:
        size = self._page_sizes[pool]
        column = space.frontier % size
        if column == 0 or space.provisional != space.frontier:
            return
        tail = after.pages[space.pages[space.frontier // size]]
        state = (tail.generation, column)
        if tail.device >= 0 and self._poisoned_tails.get((pool, tail.device)) != state:
            self._adapter.poison(tail.device, column, size, self._poison, pool)
            self._poisoned_tails[pool, tail.device] = state


def _off_by_a_step(expected: Rows, actual: Rows) -> bool:
    """Say whether the first row that differs is the row due but for how it was rounded: each element within a step.

    A step is at most half of the element, and where elements are small at most 1/12 of the largest of its head (E2M1).
    Rows that have nothing to do with one another agree so in a fraction of their elements, never in all.
    """
    position = int((expected != actual).reshape(len(expected), -1).any(axis=1).argmax())
    due = np.abs(expected[position])
    step = due / 2 + due.max(axis=-1, keepdims=True) / 12
    return bool((np.abs(actual[position] - expected[position]) <= step).all())


def _in(pool: int) -> str:
    return f", pool {pool}" if pool else ""
