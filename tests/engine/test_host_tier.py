"""The Host tier by hand: rows that go to Host and back, and what is counted, at payload depth (decision 0013).

Verifies: that what is read back is exact in both plane orders and under every profile; when a transfer is over; the
work counters.
Does not verify: refusals (test_host_refusals.py), what is left behind in a tier (test_clean_copies.py), who else holds
what moves (test_transfer_holders.py), fences (test_fenced_pages.py), failing copies
(tests/host/test_transfer_failures.py), sequences at large (the campaign).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.operations import (
    Prefill,
    Progressed,
    TransferEnded,
    TransferOutcome,
)
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.pool import generation_of, page_of
from kvcrucible.engine.streams import SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import TierBench, bench, config, kept, scattered  # noqa: E402

MOVED, KEPT, ABANDONED = TransferOutcome
POOLS = pytest.mark.parametrize("backend", [(), ("mtp",), ("draft",)], ids=lambda b: "-".join(("main", *b)))


@POOLS
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_demote_and_restore_bring_every_row_back(backend: tuple[str, ...], keep: bool, seed: int) -> None:
    b = TierBench(config(*backend), SimulatedDevice(RandomWalk(seed)))
    b.engine.finish(sequence := scattered(b, 18))
    transfer = b.engine.demote(sequence, keep)
    outcome = KEPT if keep else MOVED
    ended = b.settle().transfers or b.settle().transfers
    assert ended == (TransferEnded(transfer, outcome),)
    leased = [pool.leased for pool in b.engine.pools]
    assert all(leased) if keep else not any(leased)
    b.check(sequence)
    for pool in range(len(b.storages)):  # nothing on the device may be needed any more
        for page in b.engine.pools[pool].unleased_pages():
            b.storages[pool].raw_write(page, 0, b.storages[pool].page_size, float("nan"))
    b.engine.restore(sequence)
    assert b.moved().outcome is MOVED
    assert snapshot(b.engine).extents == {}
    b.check(sequence)
    b.drain()


@pytest.mark.parametrize("profile", sorted(set(PROFILES) - {"FP32"}))
@pytest.mark.parametrize("backend", ["mtp", "draft"])
def test_codes_and_scales_come_back_bit_by_bit(profile: str, backend: str) -> None:
    import torch

    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    geometry = Geometry(2, 2, 256)
    plain = config(backend, host_bytes=1 << 18)
    pools = tuple(
        PoolSpec(
            spec.name,
            6,
            spec.page_size,
            (PlaneSpec(PROFILES[profile], geometry, spec.page_size, spec.name, order=spec.order),),
        )
        for spec in plain.pools
    )
    setting = replace(plain, pools=pools)
    storages = [
        TorchStorage(PROFILES[profile], geometry, 6, spec.page_size, 6, 16, pool=n, order=spec.order)
        for n, spec in enumerate(pools)
    ]
    e = Engine(setting, storages, host_memory=TorchHostMemory(1 << 18))
    draw = torch.Generator().manual_seed(0)
    for plane in (plane for storage in storages for plane in storage.planes()):
        raw = torch.randint(0, 256, (plane.numel() * plane.element_size(),), generator=draw).to(torch.uint8)
        plane.copy_(raw.view(plane.dtype).view(plane.shape))
    sequence = e.submit(run(0, 0, 12), 0)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, 12)]))
    e.finish(sequence)
    spaces = e.cache.continuations[sequence].spaces

    def held() -> list[bytes]:
        return [
            plane[page.device].contiguous().view(torch.uint8).numpy().tobytes()
            for storage, space in zip(storages, spaces, strict=True)
            for page in space.pages
            for plane in storage.planes()
        ]

    before = held()
    e.demote(sequence)
    e.progress()
    for plane in (plane for storage in storages for plane in storage.planes()):
        plane.zero_()
    e.restore(sequence)
    e.progress()
    assert held() == before


def test_nothing_is_over_before_progress_says_so() -> None:
    b = bench(lagging=False)
    sequence = kept(b)
    transfer = b.engine.demote(sequence)
    assert snapshot(b.engine).transfers[transfer].source is Tier.DEVICE
    assert counters(b.engine) == ((3, 0, 21),)
    assert b.engine.progress() == Progressed((), (TransferEnded(transfer, MOVED),))
    assert counters(b.engine) == ((0, 0, 24),)
    assert snapshot(b.engine).transfers == {}


def test_clean_copies_are_not_copied_again() -> None:
    b = bench()
    sequence = kept(b)
    b.engine.demote(sequence, keep=True)
    b.moved()
    copied = b.engine.work.transfer_copies
    for act, outcome in ((b.engine.restore, KEPT), (b.engine.demote, KEPT), (b.engine.restore, MOVED)):
        act(sequence, keep=outcome is KEPT)
        assert b.engine.progress().transfers[0].outcome is outcome
    assert b.engine.work.transfer_copies == copied
    assert (b.engine.work.pages_demoted, b.engine.work.pages_restored) == (6, 6)
    assert snapshot(b.engine).extents == {}
    b.check(sequence)


def test_a_copy_is_counted_for_each_run_and_byte() -> None:
    b = bench("draft")
    e, page_bytes = b.engine, [spec.page_bytes for spec in b.engine.config.pools]
    e.finish(straight := b.start(16))
    e.demote(straight)
    assert (e.work.transfer_copies, e.work.bytes_demoted) == (2, 4 * sum(page_bytes))
    assert (e.work.pages_demoted, e.work.bytes_restored) == (0, 0)
    b.moved()
    assert e.work.pages_demoted == 8
    e.restore(straight)
    b.moved()
    assert (e.work.pages_restored, e.work.bytes_restored) == (8, 4 * sum(page_bytes))
    e.demote(straight)
    e.cancel_transfer(2)
    b.moved()
    assert (e.work.transfers_abandoned, e.work.pages_demoted) == (1, 8)


def test_pages_come_back_by_address_however_often_each_was_leased() -> None:
    """They follow one another in their slots: one copy brings them back where they do so on the device too."""
    b = bench(pages=4)
    e = b.engine
    e.demote(sequence := kept(b, 16))
    b.moved()
    (pool,) = e.pools
    first, *others = sorted(pool.materialise(pool.reserve(4), 4), key=page_of)
    pool.release([*others, first])
    pool.release(pool.materialise(pool.reserve(1), 1))
    e.restore(sequence)
    b.moved()
    leases = [page.lease for page in e.cache.continuations[sequence].spaces[0].pages]
    assert [page_of(lease) for lease in leases] == [0, 1, 2, 3]
    assert generation_of(leases[0]) > generation_of(leases[1]), "by lease they would come in the same order"
    assert e.work.transfer_copies == 2, "one each way"
    b.check(sequence)


@pytest.mark.parametrize("backend", [(), ("draft",)])
def test_bytes_moved_are_those_of_the_pages_copied(backend: tuple[str, ...]) -> None:
    """Two and a half pages in each pool, pages of 4 rows of 2 layers, 2 heads, 16 elements, K and V, 4 bytes."""
    b = bench(*backend)
    sequence = kept(b, 10)
    b.engine.demote(sequence)
    b.moved()
    due = (1 + len(backend)) * 3 * (4 * 2 * 2 * 16 * 2 * 4)
    assert (b.engine.work.bytes_demoted, b.engine.work.bytes_restored) == (due, 0)
    b.engine.restore(sequence)
    b.moved()
    assert (b.engine.work.bytes_demoted, b.engine.work.bytes_restored) == (due, due)
