"""The worked example of the source article, at payload depth: a fork at 1000 of pages of 64, and what follows.

Verifies: 15 pages are shared and 40 tokens copied, the frontier stays 1000; both branches append 100 different tokens,
one is cut to 980, the other is retained, sinks to Host and comes back; every read is exact throughout; a Move copies no
byte and grants no page, decode calls the allocator exactly at page crossings.
"""

from __future__ import annotations

import pytest

from kvcrucible.contract.operations import AdmissionMode, Admitted, Append, TransferOutcome
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import count, run
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.streams import Device, ImmediateDevice, SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import TierBench, config  # noqa: E402

P = 64
FRONTIER = 1000


def article(device: Device) -> TierBench:
    setting = config(pages=48, page_sizes={"main": P}, host_bytes=1 << 20, max_context=2048)
    return TierBench(setting, device)


def decode(b: TierBench, sequence: int, tokens: int, source: int) -> list[int]:
    """Append ``tokens`` tokens one by one; return the positions at which the allocator was called."""
    crossed = []
    for index in range(tokens):
        before = b.engine.work.allocator_calls
        position = b.engine.sequences[sequence].frontier
        b.unit(Append(sequence, run(source, index, 1)))
        crossed += [position] * (b.engine.work.allocator_calls - before)
    return crossed


@pytest.mark.parametrize(
    "device", [ImmediateDevice(), SimulatedDevice(RandomWalk(1))], ids=["immediate", "lags"]
)
def test_the_example_from_fork_to_return(device: Device) -> None:
    b = article(device)
    e = b.engine
    parent = b.start(FRONTIER, 200)
    (pool,) = e.pools
    leased = pool.leased
    assert leased == 16

    child = e.fork(parent, FRONTIER, 200)
    mine, its = (e.sequences[one].spaces[0] for one in (parent, child))
    assert [page.page for page in its.pages[:15]] == [page.page for page in mine.pages[:15]]
    assert its.pages[15] is not mine.pages[15]
    assert (e.work.page_copies, e.work.columns_copied) == (1, 40)
    assert (its.frontier, its.pages[15].committed, pool.leased) == (FRONTIER, 40, leased + 1)

    # 1000 to 1099 lie in page 15, which both have already, and in page 16, from 1024 on, and 17, from 1088 on.
    assert decode(b, parent, 100, source=1) == [1024, 1088]
    assert decode(b, child, 100, source=2) == [1024, 1088]
    b.settle()
    b.check(parent, child)

    e.truncate(parent, 980)
    b.settle()
    assert [len(space.pages) for space in (mine, its)] == [16, 18]
    b.check(parent, child)
    b.append(parent, 60)

    assert e.finish(child)
    transfer = e.demote(child)
    ended = b.moved()
    assert (ended.transfer, ended.outcome) == (transfer, TransferOutcome.MOVED)
    # The parent holds 15 of its 18 pages; three were its own to move.
    visible = [page.visible for page in e.cache.continuations[child].spaces[0].pages]
    assert visible == [Tier.DEVICE] * 15 + [Tier.HOST] * 3
    assert (e.work.pages_demoted, e.work.bytes_demoted) == (3, 3 * pool.spec.page_bytes)
    b.check(parent, child)

    e.restore(child)
    assert b.moved().outcome is TransferOutcome.MOVED
    assert (e.work.pages_restored, e.work.bytes_restored) == (3, 3 * pool.spec.page_bytes)
    assert snapshot(e).extents == {}
    b.check(parent, child)

    e.cancel(parent)
    b.settle()
    e.demote(child)
    b.moved()
    assert pool.leased == 0
    b.check(child)
    e.restore(child)
    b.moved()
    b.check(child)
    b.drain()


def test_a_move_copies_no_byte_and_grants_no_page() -> None:
    b = article(ImmediateDevice())
    e = b.engine
    first = b.start(FRONTIER, 100)
    e.finish(first)
    tokens = e.cache.continuations[first].tokens
    held = e.cache.continuations[first].spaces[0].devices()
    before = (e.work.page_copies, e.work.columns_copied, e.work.pages_granted, e.work.allocator_calls)
    second = e.submit((*tokens, *run(9, 0, 1)), 99, consume=True)
    assert e.schedule().admitted == (Admitted(second, AdmissionMode.MOVE, first, count(tokens)),)
    assert e.sequences[second].spaces[0].devices() == held
    assert (
        e.work.page_copies,
        e.work.columns_copied,
        e.work.pages_granted,
        e.work.allocator_calls,
    ) == before
    b.prefill(second)
    assert e.work.allocator_calls == before[-1], "position 1000 lies in a page that it took over"
    b.check(second)
    b.drain()
