"""The worked example of the source article, at payload depth: a fork at 1000 of pages of 64, and what follows.

Verifies: 15 pages are shared and 40 tokens copied, the frontier stays 1000; both branches append 100 different tokens,
one is cut to 980, the other is retained, sinks to Host and comes back; every read is exact throughout; a Move copies no
byte and grants no page, decode calls the allocator exactly at page crossings.  Pages granted and given back, columns
copied, tables written and copies between the tiers are counted at the pool, the storage and the host memory, by
wrappers that the engine knows nothing of; its own counters have to say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kvcrucible.contract.operations import AdmissionMode, Admitted, Append, TransferOutcome
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import count, run
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.storage.interface import HOLE
from kvcrucible.engine.streams import Device, ImmediateDevice, SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import TierBench, config  # noqa: E402

P = 64
FRONTIER = 1000


@dataclass
class Counted:
    """What pool, storage and host memory of a bench were really asked for, in the order in which it happened."""

    #: Arguments of each call, by the name of what was called: ``materialise``, ``dematerialise``, ``release``,
    #: ``copy_columns``, ``write_table``, ``clear_table``, ``pack``, ``unpack``.
    calls: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def watch(self, owner: Any, *names: str) -> None:
        """Count calls of ``owner``'s methods from now on; they do what they did."""
        for name in names:
            self.calls[name] = []
            setattr(owner, name, self._counting(getattr(owner, name), self.calls[name]))

    @staticmethod
    def _counting(act: Any, calls: list[tuple[Any, ...]]) -> Any:
        def counted(*arguments: Any) -> Any:
            calls.append(arguments)
            return act(*arguments)

        return counted

    def pages(self, name: str) -> int:
        """Return how many pages the calls of ``pack`` or ``unpack`` have copied."""
        return sum(copied.pages for arguments in self.calls[name] for copied in arguments[-1])

    def drain(self) -> dict[str, int]:
        """Return how often each was called since the last time, without those that were not."""
        found = {name: len(calls) for name, calls in self.calls.items() if calls}
        for calls in self.calls.values():
            calls.clear()
        return found


def article(device: Device) -> tuple[TierBench, Counted]:
    setting = config(pages=48, page_sizes={"main": P}, host_bytes=1 << 20, max_context=2048)
    bench, counted = TierBench(setting, device), Counted()
    counted.watch(bench.engine.pools[0], "materialise", "dematerialise", "release")
    counted.watch(bench.storages[0], "copy_columns", "write_table", "clear_table")
    counted.watch(bench.memory, "pack", "unpack")
    return bench, counted


def check(b: TierBench, *owners: int) -> None:
    """Check every row page by page, and those of active sequences through the device's block table as well."""
    b.check(*owners)
    (storage,) = b.storages
    for row, holder in enumerate(b.engine.rows.holders):
        entries = [entry for entry in storage.table_row(row) if entry != HOLE]
        if holder is None:
            assert not entries, f"row {row} is nobody's and maps {entries}"
            continue
        (space,) = b.engine.sequences[holder].spaces
        assert entries == [page.device for page in space.pages]
        if holder not in owners:
            continue
        tokens = b.engine.sequences[holder].tokens
        for layer in range(storage.geometry.layers):
            due = b.contents[0].rows(tokens, 0, space.frontier, layer)
            for want, have in zip(due, storage.read_row(layer, row, 0, space.frontier), strict=True):
                assert torch.equal(torch.from_numpy(want), have.double())


def decode(b: TierBench, counted: Counted, sequence: int, tokens: int, source: int) -> list[int]:
    """Append ``tokens`` tokens one by one; return the positions at which the pool was called.  No page comes back."""
    crossed = []
    counted.drain()
    for index in range(tokens):
        said = b.engine.work.allocator_calls
        position = b.engine.sequences[sequence].frontier
        b.unit(Append(sequence, run(source, index, 1)))
        calls = counted.drain()
        assert calls.get("materialise", 0) == b.engine.work.allocator_calls - said
        assert calls.keys() <= {"materialise", "write_table"}
        crossed += [position] * calls.get("materialise", 0)
    return crossed


@pytest.mark.parametrize(
    "device", [ImmediateDevice(), SimulatedDevice(RandomWalk(1))], ids=["immediate", "lags"]
)
def test_the_example_from_fork_to_return(device: Device) -> None:
    b, counted = article(device)
    e = b.engine
    parent = b.start(FRONTIER, 200)
    (pool,) = e.pools
    leased = pool.leased
    assert leased == 16

    b.settle()
    counted.drain()
    child = e.fork(parent, FRONTIER, 200)
    b.settle()
    mine, its = (e.sequences[one].spaces[0] for one in (parent, child))
    assert [page.page for page in its.pages[:15]] == [page.page for page in mine.pages[:15]]
    assert its.pages[15] is not mine.pages[15]
    tail = (0, mine.pages[15].device, its.pages[15].device, 40)
    assert counted.calls["copy_columns"] == [tail]
    assert counted.drain() == {"materialise": 1, "copy_columns": 1, "write_table": 1}
    assert (e.work.page_copies, e.work.columns_copied) == (1, 40)
    assert (its.frontier, its.pages[15].committed, pool.leased) == (FRONTIER, 40, leased + 1)

    # 1000 to 1099 lie in page 15, which both have already, and in page 16, from 1024 on, and 17, from 1088 on.
    assert decode(b, counted, parent, 100, source=1) == [1024, 1088]
    assert decode(b, counted, child, 100, source=2) == [1024, 1088]
    b.settle()
    check(b, parent, child)

    counted.drain()
    epochs = [page.epoch for page in mine.pages]
    e.truncate(parent, 980)
    b.settle()
    # Page 16 and 17 go back, entries of the table with them; page 15 is cut where it lies and is another from now on.
    assert counted.drain() == {"dematerialise": 1, "clear_table": 1}
    assert [page.epoch for page in mine.pages[:15]] == epochs[:15]
    assert mine.pages[15].epoch > epochs[15]
    assert [len(space.pages) for space in (mine, its)] == [16, 18]
    check(b, parent, child)
    b.append(parent, 60)

    assert e.finish(child)
    b.settle()
    counted.drain()
    transfer = e.demote(child)
    ended = b.moved()
    assert counted.pages("pack") == 3
    packed = e.work.transfer_copies
    assert counted.drain() == {"pack": packed, "release": 3}
    assert (ended.transfer, ended.outcome) == (transfer, TransferOutcome.MOVED)
    # The parent holds 15 of its 18 pages; three were its own to move.
    visible = [page.visible for page in e.cache.continuations[child].spaces[0].pages]
    assert visible == [Tier.DEVICE] * 15 + [Tier.HOST] * 3
    assert (e.work.pages_demoted, e.work.bytes_demoted) == (3, 3 * pool.spec.page_bytes)
    check(b, parent, child)

    counted.drain()
    e.restore(child)
    assert b.moved().outcome is TransferOutcome.MOVED
    assert counted.pages("unpack") == 3
    assert counted.drain() == {"materialise": 1, "unpack": e.work.transfer_copies - packed}
    assert (e.work.pages_restored, e.work.bytes_restored) == (3, 3 * pool.spec.page_bytes)
    assert snapshot(e).extents == {}
    check(b, parent, child)

    e.cancel(parent)
    b.settle()
    e.demote(child)
    b.moved()
    assert pool.leased == 0
    check(b, child)
    e.restore(child)
    b.moved()
    check(b, child)
    b.drain()


def test_a_move_copies_no_byte_and_grants_no_page() -> None:
    b, counted = article(ImmediateDevice())
    e = b.engine
    first = b.start(FRONTIER, 100)
    e.finish(first)
    tokens = e.cache.continuations[first].tokens
    held = e.cache.continuations[first].spaces[0].devices()
    counted.drain()
    before = (e.work.page_copies, e.work.columns_copied, e.work.pages_granted, e.work.allocator_calls)
    second = e.submit((*tokens, *run(9, 0, 1)), 99, consume=True)
    assert e.schedule().admitted == (Admitted(second, AdmissionMode.MOVE, first, count(tokens)),)
    assert e.sequences[second].spaces[0].devices() == held
    assert counted.drain() == {"write_table": 1}, "nothing else but its row"
    assert (
        e.work.page_copies,
        e.work.columns_copied,
        e.work.pages_granted,
        e.work.allocator_calls,
    ) == before
    b.prefill(second)
    assert "materialise" not in counted.drain()
    assert e.work.allocator_calls == before[-1], "position 1000 lies in a page that it took over"
    check(b, second)
    b.drain()
