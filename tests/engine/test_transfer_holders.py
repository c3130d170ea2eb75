"""Transfers beside those who hold the same pages: who may be a source, and whose the pages are (decision 0013).

Verifies: admission, forks, room and lookups while pages are in a transfer or on Host; what becomes of a transfer whose
pages are taken up, or whose last reference goes.
"""

from __future__ import annotations

import pytest

from kvcrucible.contract.errors import DeviceCapacity, WrongState
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Hit,
    TransferEnded,
    TransferOutcome,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.tokens import run
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import snapshot

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import away, bench, kept  # noqa: E402

MOVED, KEPT, ABANDONED = TransferOutcome


# -- who may be a source -----------------------------------------------------------------------------------------------


def test_what_cannot_come_back_is_left_out_of_an_admission() -> None:
    b = bench()
    e = b.engine
    shorter, longer = kept(b, 3), kept(b, 14)
    e.demote(longer)
    b.moved()
    assert e.lookup(run(0, 0, 20)) == Hit(longer, 1, 14), "a lookup considers every checkpoint"
    request = e.submit(run(0, 0, 20), 0)
    waiting = e.schedule().waiting
    assert waiting is not None
    (started,) = waiting.started
    e.cancel_transfer(started.transfer)
    b.moved()
    assert e.schedule().admitted == (Admitted(request, AdmissionMode.FORK, shorter, 3),)
    b.prefill(request)
    b.settle()
    b.check(shorter, longer, request)


def test_of_equal_hits_a_resident_owner_comes_first() -> None:
    b = bench()
    first, second = kept(b, 3), kept(b, 3)
    assert b.engine.lookup(run(0, 0, 4)) == Hit(first, 0, 3)
    b.engine.demote(first)
    b.moved()
    assert b.engine.lookup(run(0, 0, 4)) == Hit(second, 1, 3)
    b.engine.demote(second)
    b.moved()
    assert b.engine.lookup(run(0, 0, 4)) == Hit(first, 0, 3)


def test_who_shares_a_demoted_page_is_away_too() -> None:
    b = bench()
    e = b.engine
    shorter, longer = kept(b, 6), kept(b, 14)
    e.demote(longer)
    b.moved()
    for source in (shorter, longer):
        with pytest.raises(WrongState, match="visible on Host"):
            e.fork(source, 2, 0)
    e.release(longer)
    e.restore(shorter)
    b.moved()
    assert e.fork(shorter, 2, 0)
    b.check(shorter)


def test_a_source_in_a_transfer_is_forked_and_never_moved() -> None:
    b = bench()
    e = b.engine
    source = kept(b, 12, session="s")
    transfer = e.demote(source)
    child = e.submit(run(0, 0, 14), 0, session="s")
    assert e.schedule().admitted == (Admitted(child, AdmissionMode.FORK, source, 12),)
    b.prefill(child)
    assert b.moved() == TransferEnded(transfer, ABANDONED), "an active sequence has taken its pages up"
    b.check(source, child)
    b.drain()


def test_a_child_that_has_ended_before_the_transfer_does_no_harm() -> None:
    b = bench()
    e = b.engine
    source = kept(b, 12)
    transfer = e.demote(source)
    e.cancel(e.fork(source, 12, 4))
    assert b.moved() == TransferEnded(transfer, MOVED)
    b.check(source)


def test_a_fork_that_only_copies_from_a_page_in_a_transfer_does_no_harm() -> None:
    b = bench()
    e = b.engine
    source = kept(b, 12)
    e.demote(source)
    child = e.fork(source, 3, 4)
    assert b.moved().outcome is MOVED
    b.check(source, child)


@pytest.mark.parametrize("consume", [False, True])
def test_a_source_in_a_transfer_is_neither_cut_nor_released_for_room(consume: bool) -> None:
    """With four pages in all the fork does not fit; the continuation is passed over until the transfer is over."""
    b = bench(pages=4)
    e = b.engine
    source = kept(b, 15)
    transfer = e.demote(source, keep=True)
    request = e.submit((*run(0, 0, 5), *run(3, 0, 8)), 0, consume=consume)
    assert e.schedule().waiting == Waiting(request, WaitingKind.DEVICE_CAPACITY)
    e.cancel_transfer(transfer)
    assert e.schedule().waiting == Waiting(request, WaitingKind.DEVICE_CAPACITY), "marked is not over"
    b.settle()
    assert e.schedule().admitted == (Admitted(request, AdmissionMode.MOVE_TRUNCATED, source, 5),)


def test_half_in_a_transfer_is_passed_over_as_a_whole() -> None:
    b = bench(pages=5)
    e = b.engine
    source = kept(b, 16)
    child = e.fork(source, 8, 0)
    e.demote(source)
    e.cancel(child)
    request = e.submit(run(1, 0, 8), 0)
    assert e.schedule().waiting == Waiting(request, WaitingKind.DEVICE_CAPACITY)
    b.settle()
    assert e.schedule().waiting is None
    assert source in e.cache.continuations
    b.check(source)


def test_what_has_no_device_page_is_not_asked_for_any() -> None:
    b = bench(pages=4)
    e = b.engine
    lost = away(b, 8)
    clean = kept(b, 8, source=1)
    e.demote(clean, keep=True)
    b.moved()
    request = e.submit(run(2, 0, 16), 0)
    assert [one.sequence for one in e.schedule().admitted] == [request]
    assert (e.evicted, e.given_up) == ([], [clean]), (
        "its clean copies were in the way, the other one holds none"
    )
    assert lost in e.cache.continuations


# -- the last reference goes while a page is in a transfer -------------------------------------------------------------


@pytest.mark.parametrize("restoring", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_release_leaves_both_ends_to_the_transfer(restoring: bool, keep: bool) -> None:
    b = bench("draft")
    e = b.engine
    sequence = away(b, 10) if restoring else kept(b, 10)
    transfer = (e.restore if restoring else e.demote)(sequence, keep)
    e.release(sequence)
    now = snapshot(e)
    assert now.pages == {}
    assert now.transfers[transfer].cancelling
    assert all(move.dropped for move in now.transfers[transfer].moves)
    assert [pool.leased for pool in now.pools] == [3, 3]
    assert sum(len(extent.live) for extent in now.extents.values()) == 6
    assert b.moved() == TransferEnded(transfer, ABANDONED)
    b.drain()


@pytest.mark.parametrize("keep", [False, True])
def test_pages_that_live_on_move_though_others_have_ended(keep: bool) -> None:
    """Both continuations share two pages; the transfer was started for the one that is released."""
    b = bench()
    e = b.engine
    longer = kept(b, 16)
    shorter = e.fork(longer, 8, 0)
    e.finish(shorter)
    transfer = e.demote(longer, keep)
    e.release(longer)
    assert [move.dropped for move in snapshot(e).transfers[transfer].moves] == [False, False, True, True]
    assert not snapshot(e).transfers[transfer].cancelling
    assert b.moved() == TransferEnded(transfer, KEPT if keep else MOVED)
    assert counters(e) == ((2 * keep, 0, 24 - 2 * keep),)
    b.check(shorter)
    b.drain()


def test_a_cut_reserves_anew_what_it_loses_to_a_transfer() -> None:
    """A child alone is left to hold pages in a transfer; what it cuts off is the transfer's until that is over."""
    b = bench(pages=8)
    e = b.engine
    source = kept(b, 16)
    e.demote(source)
    child = e.fork(source, 16, 0)
    e.release(source)
    assert counters(e) == ((4, 0, 4),)
    e.truncate(child, 6)
    # Two pages beyond the cut are reserved anew, the cut page is copied, and the transfer holds what it had.
    assert counters(e) == ((5, 2, 1),)
    assert b.moved().outcome is ABANDONED
    assert counters(e) == ((2, 2, 4),)
    b.append(child, 10)
    b.settle()
    b.check(child)
    b.drain()


def test_a_cut_that_cannot_reserve_anew_is_refused_unchanged() -> None:
    b = bench(pages=5)
    e = b.engine
    source = kept(b, 16)
    e.demote(source)
    child = e.fork(source, 16, 0)
    e.release(source)
    before = b.digest()
    with pytest.raises(DeviceCapacity, match="let units and transfers complete"):
        e.truncate(child, 6)
    assert b.digest() == before
    b.settle()
    e.truncate(child, 6)
    assert counters(e) == ((2, 2, 1),)
