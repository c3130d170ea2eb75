"""An injected failure at each phase of each transfer, for every k-th copy, leaves the same digest as before.

Verifies, for demotion and restoration, with and without ``keep``, with and without clean copies at the destination, in
every combination of pools: failure to reserve, failure to queue, an error that nobody foresees, each copy failing with
and without its effect, a transfer found stale, and a cancel in each phase that the engine can be asked in.  The digest
is the whole snapshot and every committed byte of what is visible, but for generations, serials and the order of free
pages.  Afterwards the same operation succeeds, the content is exact, and when all is drained the free set is the
initial one.  The exception, stated in decision 0013: what a restore has released to make room stays released, and
nothing else differs.
Does not verify: cancels before a transfer is queued; those are the state machine's, in test_transfer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from kvcrucible.contract.errors import DeviceCapacity, HostGeometry
from kvcrucible.contract.operations import TransferEnded, TransferOutcome
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host.phases import Phase
from kvcrucible.engine.host.tier import COPY_STREAMS, HostTier
from kvcrucible.engine.streams import EffectFailed, ImmediateDevice, SimulatedDevice
from kvcrucible.engine.streams.strategies import Failing, InOrder
from kvcrucible.engine.streams.strategy import EffectOutcome

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import TierBench, config, kept, scattered  # noqa: E402


@dataclass(frozen=True)
class Case:
    """One kind of transfer: out of ``source``, in which pools, keeping its source or not, ``clean``: some of its pages
    have a clean copy at the destination already.
    """

    backend: tuple[str, ...]
    source: Tier
    keep: bool
    clean: bool

    def __str__(self) -> str:
        parts = ["main", *self.backend, self.source.value, "keep" * self.keep, "clean" * self.clean]
        return "-".join(filter(None, parts))


CASES = [
    Case(*case) for case in product([(), ("mtp",), ("draft",)], list(Tier), [False, True], [False, True])
]


class Prepared:
    """An engine in which ``case``'s transfer can start; ``before`` is its digest."""

    def __init__(self, case: Case, device: Any = None) -> None:
        self.case = case
        self.device: Any = SimulatedDevice() if device is None else device
        self.bench = bench = TierBench(config(*case.backend), self.device)
        self.engine = engine = bench.engine
        first = scattered(bench, 18, session="s")
        engine.finish(first)
        bench.settle()
        self.kept = first
        if case.clean and case.source is Tier.DEVICE:
            # Move on from a restored continuation: full pages keep their clean copies, those written to lose them.
            engine.demote(first, keep=True)
            bench.moved()
            engine.restore(first, keep=True)
            bench.moved()
            self.kept = bench.engine.submit((*engine.cache.continuations[first].tokens, (5, 0, 1)), 9, "s")
            engine.schedule()
            bench.prefill(self.kept)
            bench.append(self.kept, 8)
            engine.finish(self.kept)
        elif case.source is Tier.HOST:
            if case.clean:
                # What a shorter continuation shares is demoted first, leaving clean copies.
                shorter = engine.fork(first, 9, 0)
                engine.finish(shorter)
                engine.demote(shorter, keep=True)
                bench.moved()
            engine.demote(first)
            bench.moved()
        bench.settle()
        bench.check(self.kept)
        self.before = bench.digest()

    def start(self) -> int:
        act = self.engine.demote if self.case.source is Tier.DEVICE else self.engine.restore
        return act(self.kept, self.case.keep)

    @property
    def tier(self) -> HostTier:
        assert self.engine.host is not None
        return self.engine.host

    def came_to_nothing(self, transfer: int, *, failed: bool) -> None:
        assert self.bench.moved() == TransferEnded(transfer, TransferOutcome.ABANDONED, failed)
        assert self.bench.digest() == self.before
        self.succeeds()

    def succeeds(self) -> None:
        """The same transfer now takes place; then all is drained."""
        self.device.strategy = InOrder()
        transfer = self.start()
        outcome = TransferOutcome.KEPT if self.case.keep else TransferOutcome.MOVED
        assert self.bench.moved() == TransferEnded(transfer, outcome)
        visible = {page.visible for space in self.spaces() for page in space.pages}
        assert visible == {self.case.source.other}
        self.bench.check(self.kept)
        self.bench.drain()

    def spaces(self) -> Any:
        return self.engine.cache.continuations[self.kept].spaces


def copies_of(case: Case) -> int:
    """Return how many copies the transfer of ``case`` queues."""
    prepared = Prepared(case)
    before = prepared.engine.work.transfer_copies
    prepared.start()
    return prepared.engine.work.transfer_copies - before


@pytest.mark.parametrize("case", CASES, ids=str)
def test_whichever_copy_fails_nothing_has_changed(case: Case) -> None:
    copies = copies_of(case)
    assert copies >= 2
    for k in range(1, copies + 1):
        for outcome in (EffectOutcome.FAIL_WITHOUT_EFFECT, EffectOutcome.FAIL_AFTER_EFFECT):
            prepared = Prepared(case)
            transfer = prepared.start()
            failing = Failing(InOrder(), f"transfer {transfer}", {k}, outcome)
            prepared.device.strategy = failing
            prepared.device.synchronize()
            assert failing.seen == copies
            prepared.came_to_nothing(transfer, failed=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_whichever_copy_cannot_be_queued_nothing_has_changed(case: Case) -> None:
    for k in range(copies_of(case)):
        prepared = Prepared(case)
        stream: Any = prepared.device.stream(COPY_STREAMS[case.source])
        raise_after(stream, k, EffectFailed("the copy stream takes nothing"))
        transfer = prepared.start()
        assert not prepared.engine.progress().transfers
        del stream.submit
        prepared.came_to_nothing(transfer, failed=True)


def raise_after(stream: Any, effects: int, error: Exception) -> None:
    """Let ``stream`` take ``effects`` more effects and then raise ``error`` for each."""
    take, left = stream.submit, iter(range(effects))

    def submit(effect: Any, label: str = "") -> None:
        if next(left, None) is None:
            raise error
        take(effect, label)

    stream.submit = submit


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_destination_that_is_full_refuses_and_nothing_has_changed(case: Case) -> None:
    prepared = Prepared(case)
    if case.source is Tier.DEVICE:
        taken = [prepared.tier.arena.reserve(size) for _, size in prepared.tier.arena.holes()]
    else:
        reservations = [(pool, pool.reserve(pool.free)) for pool in prepared.engine.pools]
        prepared.engine.pin(prepared.kept)
        for one in prepared.engine.cache.continuations:
            prepared.engine.pin(one)
    full = prepared.bench.digest()
    with pytest.raises(HostGeometry if case.source is Tier.DEVICE else DeviceCapacity):
        prepared.start()
    assert prepared.bench.digest() == full
    assert not prepared.tier.under_way
    if case.source is Tier.DEVICE:
        for extent in taken:
            prepared.tier.arena.release(extent)
    else:
        for pool, reservation in reservations:
            pool.close(reservation)
        for one in prepared.engine.cache.continuations:
            prepared.engine.pin(one, False)
    assert prepared.bench.digest() == prepared.before
    prepared.succeeds()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_found_stale_is_not_published(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the engine is told that an active sequence has taken a page up."""
    prepared = Prepared(case)
    transfer = prepared.start()
    with monkeypatch.context() as patch:
        patch.setattr(prepared.tier, "in_use", lambda pages: True)
        assert prepared.bench.moved() == TransferEnded(transfer, TransferOutcome.ABANDONED)
    assert prepared.bench.digest() == prepared.before
    prepared.succeeds()


@pytest.mark.parametrize("phase", [Phase.COPYING, Phase.CANCELLING, Phase.COPIED, Phase.VERIFIED])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cancel_in_any_phase_leaves_nothing(case: Case, phase: Phase) -> None:
    for steps in ahead(phase):
        prepared = Prepared(case)
        transfer = prepared.start()
        machine = prepared.tier.under_way[transfer].transfer
        if phase is Phase.CANCELLING:
            prepared.engine.cancel_transfer(transfer)
        prepared.device.run(steps)
        while machine.phase is not phase:
            assert machine.step()
        prepared.engine.cancel_transfer(transfer)
        prepared.came_to_nothing(transfer, failed=False)


def ahead(phase: Phase) -> Iterator[int]:
    """Yield how many effects and signals have taken place when the cancel comes: few and, where it can be, some."""
    if phase in (Phase.COPYING, Phase.CANCELLING):
        yield from (0, 3)
    else:
        yield 1_000


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_copy_that_fails_while_its_transfer_is_cancelled_is_told(case: Case) -> None:
    prepared = Prepared(case)
    transfer = prepared.start()
    prepared.engine.cancel_transfer(transfer)
    prepared.device.strategy = Failing(InOrder(), f"transfer {transfer}", {1})
    prepared.came_to_nothing(transfer, failed=True)


@pytest.mark.parametrize("why", ["fails", "cancelled"])
def test_a_restore_that_makes_room_and_comes_to_nothing_leaves_all_but_what_it_released(why: str) -> None:
    """Exactly as if the evicted continuation had been released and no restore asked for."""
    bench, away, victim = with_a_victim()
    engine = bench.engine
    before = bench.digest()
    transfer = engine.restore(away)
    assert engine.evicted == [victim]
    if why == "fails":
        assert isinstance(engine.device, SimulatedDevice)
        engine.device.strategy = Failing(InOrder(), f"transfer {transfer}", {1})
    else:
        engine.cancel_transfer(transfer)
    assert bench.moved() == TransferEnded(transfer, TransferOutcome.ABANDONED, why == "fails")
    assert bench.digest() != before
    bench.check(away)

    other, _, released = with_a_victim()
    assert other.digest() == before
    other.engine.release(released)
    assert bench.digest() == other.digest()
    bench.drain()


def test_a_restore_that_raises_takes_back_the_room_that_it_made() -> None:
    bench, away, _ = with_a_victim()
    before = bench.digest()
    stream: Any = bench.engine.device.stream(COPY_STREAMS[Tier.HOST])
    raise_after(stream, 0, RuntimeError("the device is unwell"))
    with pytest.raises(RuntimeError, match="unwell"):
        bench.engine.restore(away)
    assert bench.engine.evicted == []
    del stream.submit
    assert bench.digest() == before
    bench.check(away)
    bench.drain()


def with_a_victim() -> tuple[TierBench, int, int]:
    """Return a bench on which a restore of the first continuation has to release the second."""
    bench = TierBench(config(pages=6), SimulatedDevice())
    away = kept(bench, 16)
    bench.engine.demote(away)
    bench.moved()
    return bench, away, kept(bench, 16, source=5)


def test_the_digest_tells_a_byte_and_a_counter() -> None:
    """The comparison above is not vacuous."""
    prepared = Prepared(CASES[0])
    page = prepared.spaces()[0].pages[0]
    plane = prepared.bench.storages[0].planes()[0]
    plane[page.device, 0, 0, 0] += 1
    assert prepared.bench.digest() != prepared.before
    plane[page.device, 0, 0, 0] -= 1
    assert prepared.bench.digest() == prepared.before
    prepared.engine.pools[0].reserve(1)
    assert prepared.bench.digest() != prepared.before


@pytest.mark.parametrize("lagging", [False, True], ids=["at-once", "lags"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whichever_copy_raises_an_unforeseen_error_as_it_is_queued_nothing_has_changed(
    case: Case, lagging: bool
) -> None:
    """It passes through; what was queued before it has run or never will."""
    for k in range(copies_of(case)):
        prepared = Prepared(case, SimulatedDevice() if lagging else ImmediateDevice())
        stream: Any = prepared.device.stream(COPY_STREAMS[case.source])
        raise_after(stream, k, RuntimeError("the device is unwell"))
        with pytest.raises(RuntimeError, match="unwell"):
            prepared.start()
        assert prepared.bench.digest() == prepared.before
        assert not prepared.tier.under_way
        assert not lagging or not any(step.label for step in prepared.device.steps()), "a copy may still run"
        del stream.submit
        prepared.succeeds()


def test_an_unforeseen_error_on_a_lagging_device_is_a_failed_copy() -> None:
    """It reaches whoever made the effect run; what it has not copied is not published."""
    prepared = Prepared(CASES[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared.tier.memory, "pack", lambda *_: 1 // 0)
        transfer = prepared.start()
        for _ in range(copies_of(CASES[0])):
            with pytest.raises(ZeroDivisionError):
                prepared.device.synchronize()
    prepared.came_to_nothing(transfer, failed=True)
