"""What demote and restore refuse, and what does not keep them from moving pages (decision 0013).

Verifies: every refusal, that it changes nothing and uses up no number, and what has to happen for it to be lifted.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcrucible.contract.errors import BadArgument, DeviceCapacity, HostGeometry, StaleHandle, WrongState
from kvcrucible.contract.operations import (
    Prefill,
    TransferOutcome,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import snapshot

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import away, bench, config, kept  # noqa: E402

MOVED = TransferOutcome.MOVED


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
    child = e.fork(sequence, 4, 0)
    with pytest.raises(WrongState, match="1 held by active sequences"):
        e.demote(sequence)
    e.cancel(child)
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


def test_who_cancels_what_is_over_is_told_what_is_under_way() -> None:
    b = bench()
    e = b.engine
    away(b, source=1)
    with pytest.raises(StaleHandle, match=r"cancel transfer 0; found: under way: \[\]"):
        e.cancel_transfer(0)
    e.demote(kept(b))
    with pytest.raises(StaleHandle, match=r"cancel transfer 0; found: under way: \[1\]"):
        e.cancel_transfer(0)


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
