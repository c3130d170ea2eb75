"""The Host tier by hand: what demote and restore move, refuse and leave behind, at payload depth (decision 0013).

Verifies: every refusal; that what is read back is exact in both plane orders and under every profile; clean copies and
extents; the work counters; what snapshots say.
Does not verify: who else holds what moves (test_transfer_holders.py), fences (test_fenced_pages.py), failing copies
(tests/host/test_transfer_failures.py), sequences at large (the campaign).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.errors import BadArgument, DeviceCapacity, HostGeometry, StaleHandle, WrongState
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Prefill,
    Progressed,
    TransferEnded,
    TransferOutcome,
)
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.engine.streams import SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import GEOMETRY, TierBench, away, bench, config, kept, scattered  # noqa: E402

MOVED, KEPT, ABANDONED = TransferOutcome
POOLS = pytest.mark.parametrize("backend", [(), ("mtp",), ("draft",)], ids=lambda b: "-".join(("main", *b)))


# -- there and back ----------------------------------------------------------------------------------------------------


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


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_an_engine_without_a_host_tier_moves_nothing() -> None:
    e = Engine(replace(config(), host=None))
    sequence = e.submit(run(0, 0, 4), 4)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, 4)]))
    with pytest.raises(WrongState, match="no continuation"):
        e.demote(sequence)
    e.finish(sequence)
    with pytest.raises(BadArgument, match="no Host tier"):
        e.demote(sequence)
    with pytest.raises(WrongState, match="0 are visible on Host"):
        e.restore(sequence)
    with pytest.raises(StaleHandle):
        e.cancel_transfer(0)
    assert e.host is None
    assert snapshot(e).pages[0].on_device is None


def test_what_cannot_move_is_refused_and_changes_nothing() -> None:
    b = bench()
    e = b.engine
    here, there = kept(b), away(b, source=1)
    before = b.digest()
    for act, sequence, refusal in (
        (e.demote, 99, StaleHandle),
        (e.restore, 99, StaleHandle),
        (e.restore, here, WrongState),
        (e.demote, there, WrongState),
        (e.cancel_transfer, 0, StaleHandle),
        (e.cancel_transfer, 1, StaleHandle),
        (lambda source: e.fork(source, 5, 0), there, WrongState),
    ):
        with pytest.raises(refusal):
            act(sequence)
        assert b.digest() == before
    transfer = e.demote(here)
    for act in (e.demote, e.restore):
        with pytest.raises(WrongState, match=r"3 in a transfer|0 are visible on Host"):
            act(here)
    assert transfer == 1, "refused operations give out no number"


def test_what_active_sequences_hold_stays() -> None:
    b = bench()
    e = b.engine
    sequence = kept(b, 16)
    child = e.fork(sequence, 9, 4)
    e.demote(sequence)
    b.moved()
    pages = e.cache.continuations[sequence].spaces[0].pages
    assert [page.visible for page in pages] == [Tier.DEVICE] * 2 + [Tier.HOST] * 2
    with pytest.raises(WrongState, match="2 held by active sequences"):
        e.demote(sequence)
    b.check(sequence, child)
    e.finish(child, retain=False)
    e.demote(sequence)
    assert b.moved().outcome is MOVED
    b.check(sequence)


def test_a_pin_does_not_keep_from_sinking() -> None:
    b = bench()
    sequence = kept(b)
    b.engine.pin(sequence)
    b.engine.demote(sequence)
    assert b.moved().outcome is MOVED


def test_free_bytes_that_are_no_hole_refuse() -> None:
    b = bench(host_bytes=4 * 2048)
    e = b.engine
    assert e.config.pools[0].page_bytes == 2048
    first, second, third = (away(b, 4, source=source) for source in range(3))
    wide = kept(b, 12, source=9)
    e.release(first)
    e.release(third)
    before = b.digest()
    with pytest.raises(HostGeometry, match="6144 of 8192 bytes free in 2 holes, the largest 4096"):
        e.demote(wide)
    assert b.digest() == before
    e.release(second)
    e.demote(wide)
    assert b.moved().outcome is MOVED
    b.check(wide)


def test_restoring_makes_room_but_not_at_its_own_cost() -> None:
    b = bench(pages=6)
    e = b.engine
    sequence, partly = away(b, 16), kept(b, 12, source=1)
    e.restore(sequence)
    assert e.evicted == [partly]
    b.moved()
    e.demote(sequence)
    b.moved()
    active = b.start(12, source=2)
    before = b.digest()
    with pytest.raises(DeviceCapacity):
        e.restore(sequence)
    assert b.digest() == before
    e.cancel(active)
    b.settle()
    e.restore(sequence)
    b.moved()
    b.check(sequence)


# -- clean copies ------------------------------------------------------------------------------------------------------


def test_clean_copies_end_where_their_page_changes() -> None:
    """A column committed beyond the coverage, a cut inside a page, and the end of a page each end one slot."""
    b = bench()
    e = b.engine
    source = kept(b, 14, session="s")
    for act in (e.demote, e.restore):
        act(source, keep=True)
        b.moved()
    request = e.submit(run(0, 0, 15), 5, session="s")
    assert e.schedule().admitted == (Admitted(request, AdmissionMode.MOVE, source, 14),)

    def clean() -> list[bool]:
        pages = e.sequences[request].spaces[0].pages
        return [page.replicas.at(Tier.HOST) is not None for page in pages]

    assert clean() == [True] * 4
    b.prefill(request)
    assert clean() == [True, True, True, False]
    e.truncate(request, 12)
    assert clean() == [True, True, True], "a cut between pages changes none that stays"
    e.truncate(request, 7)
    assert clean() == [True, False]
    b.append(request, 9)
    e.finish(request)
    e.demote(request)
    assert b.moved().outcome is MOVED
    b.check(request)
    assert e.work.pages_demoted == 4 + 4
    b.drain()


def test_a_page_on_both_tiers_ends_on_both() -> None:
    b = bench()
    sequence = kept(b)
    b.engine.demote(sequence, keep=True)
    b.moved()
    b.engine.release(sequence)
    assert counters(b.engine) == ((0, 0, 24),)
    b.drain()


def test_an_extent_lives_as_long_as_its_last_slot() -> None:
    b = bench()
    e = b.engine
    longer = kept(b, 16)
    shorter = e.fork(longer, 4, 0)
    e.finish(shorter)
    e.demote(longer)
    b.moved()
    e.release(longer)
    (extent,) = snapshot(e).extents.values()
    assert (extent.slots, extent.live, extent.size) == (4, (0,), 4 * 2048)
    b.check(shorter)
    e.release(shorter)
    assert snapshot(e).extents == {}


def test_the_arena_hands_over_what_it_takes_back() -> None:
    """As the harness does it: bytes of an ended extent are poisoned, and nobody misses them."""
    b = bench()
    e = b.engine
    assert e.host is not None
    e.host.arena.on_release = lambda offset, size: b.memory.fill(offset, size, 0xFF)
    first, second = away(b, 8), away(b, 8, source=1)
    e.release(first)
    e.restore(second)
    b.moved()
    assert set(b.memory.read(0, 4 * 2048)) == {0xFF}
    b.check(second)


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


# -- construction and observation --------------------------------------------------------------------------------------


def test_storages_are_what_their_pools_declare() -> None:
    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    setting = config("draft")
    plain = {
        "profile": PROFILES["FP32"],
        "geometry": GEOMETRY,
        "page_size": 4,
        "order": PlaneOrder.HEAD_MAJOR,
    }
    main = TorchStorage(PROFILES["FP32"], GEOMETRY, 24, 4, 6, 16)
    for change in (
        {"profile": PROFILES["BF16"]},
        {"geometry": Geometry(1, 2, 16)},
        {"page_size": 8},
        {"order": PlaneOrder.PAGE_MAJOR},
    ):
        shape = plain | change
        order = shape.pop("order")
        draft = TorchStorage(
            capacity_pages=24, max_rows=6, max_blocks_per_row=16, pool=1, order=order, **shape
        )  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="pool draft with planes FP32"):
            Engine(setting, [main, draft])
    with pytest.raises(BadArgument, match="host memory of 64"):
        Engine(setting, host_memory=TorchHostMemory(64))


def test_a_host_memory_without_bytes_behind_real_planes_is_refused() -> None:
    """A restore would report success and bring back nothing."""
    b = bench("draft")
    with pytest.raises(BadArgument, match=r"storage holds planes, the host memory nothing.*TorchHostMemory"):
        Engine(b.engine.config, b.storages)
    Engine(replace(b.engine.config, host=None), b.storages)


def test_a_host_memory_with_bytes_behind_a_storage_without_planes_is_refused() -> None:
    """A demotion would fail half-way, with nothing to copy."""
    from kvcrucible.engine.storage.null import NullStorage

    b = bench("draft")
    with pytest.raises(BadArgument, match=r"pool 0.*storage holds nothing, the host memory real bytes"):
        Engine(b.engine.config, host_memory=b.memory)
    with pytest.raises(BadArgument, match=r"pool 1.*storage holds nothing"):
        Engine(b.engine.config, [b.storages[0], NullStorage()], host_memory=b.memory)
    Engine(b.engine.config)


def test_partial_snapshots_say_what_full_ones_do() -> None:
    """Every entry that differs between two full snapshots was touched, and shows as in the later one."""
    b = bench("mtp")
    e = b.engine
    drain(e)
    before = snapshot(e)

    def step(act: Callable[[], object]) -> None:
        nonlocal before
        act()
        partial, touched = drain(e)
        after = snapshot(e)
        for part in ("pages", "transfers", "retiring", "extents"):
            old, new, seen = getattr(before, part), getattr(after, part), getattr(partial, part)
            changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
            assert changed <= getattr(touched, part), part
            assert {key: seen[key] for key in changed if key in seen} == {
                key: new[key] for key in changed if key in new
            }
        assert (partial.pools, partial.host) == (after.pools, after.host)
        before = after

    sequence = b.start(14, session="s")
    for act in (
        lambda: e.finish(sequence),
        lambda: e.demote(sequence, keep=True),
        b.settle,
        lambda: e.restore(sequence, keep=True),
        b.settle,
        lambda: e.submit(run(0, 0, 15), 5, session="s"),
        e.schedule,
        lambda: b.prefill(1),
        lambda: e.truncate(1, 5),
        lambda: e.finish(1),
        lambda: e.demote(1),
        lambda: e.release(1),
        e.progress,
        b.settle,
    ):
        step(act)
    assert not before.pages
    b.drain()
