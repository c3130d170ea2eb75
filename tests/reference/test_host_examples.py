"""Demotions, restores and their ends in the accounting model, as decision 0013 has them, with figures by hand.

Pages are of 4 tokens and 128 bytes, extents of whole 256 bytes; effects are done at once.
"""

from __future__ import annotations

from model_talk import (
    abandoned,
    do,
    forked,
    host_model_of,
    kept,
    model_of,
    moved,
    reported,
    retained,
    settled,
    with_host_copies,
    write,
)

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    CancelTransfer,
    Demote,
    Finish,
    Pin,
    Prefill,
    Progressed,
    Release,
    Restore,
    Schedule,
    Submit,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run

DEVICE, HOST = Tier.DEVICE, Tier.HOST


# -- demote ------------------------------------------------------------------------------------------------------------


def test_a_demotion_takes_an_extent_at_once_and_frees_the_device_pages_at_its_end() -> None:
    """Three pages of 128 bytes take 512: 384, rounded up."""
    model = host_model_of()
    kept(model, run(0, 0, 10))
    outcome = do(model, Demote(0))
    assert (outcome.value, outcome.counters) == (0, ((3, 0, 5),))
    assert (model.host_used_bytes, model.transfers(), model.transfer_pages(0)) == (512, [0], (3,))
    assert (model.in_transfer(0), model.resident(0), model.movable(0)) == (True, True, 0)
    assert settled(model) == moved(0)
    assert model.books.counters == ((0, 0, 8),)
    assert (model.tiers(0), model.clean_copies(0)) == ((HOST,) * 3, (False,) * 3)
    assert (model.host_used_bytes, model.transfers(), model.restorable(0)) == (512, [], 3)
    assert not model.in_transfer(0)
    assert not model.resident(0)


def test_a_demotion_that_keeps_leaves_device_copies_that_stay_leased() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 10))
    assert settled(model, Demote(0, keep=True)) == retained(0)
    assert model.books.counters == ((3, 0, 5),)
    assert (model.tiers(0), model.clean_copies(0)) == ((HOST,) * 3, (True,) * 3)
    assert do(model, Release(0)).counters == ((0, 0, 8),)
    assert model.host_used_bytes == 0


def test_what_has_a_copy_on_host_takes_no_extent_and_cannot_fail_to_be_copied() -> None:
    model = with_host_copies(10)
    assert (model.tiers(0), model.clean_copies(0)) == ((DEVICE,) * 3, (True,) * 3)
    model.see_holes(())
    assert do(model, Demote(0)).value == 2
    assert model.host_used_bytes == 512
    assert reported(model, failed=(2,)).value == Progressed((), moved(2))
    assert model.books.counters == ((0, 0, 8),)
    assert (model.tiers(0), model.clean_copies(0), model.host_used_bytes) == ((HOST,) * 3, (False,) * 3, 512)


def test_pages_of_an_active_sequence_stay_and_the_others_go() -> None:
    """The child holds two of three pages."""
    model = host_model_of()
    kept(model, run(0, 0, 10))
    child = forked(model, 0, 8)
    assert model.movable(0) == 1
    assert settled(model, Demote(0)) == moved(0)
    assert (model.tiers(0), model.host_used_bytes) == ((DEVICE, DEVICE, HOST), 256)
    assert model.books.counters == ((2, 0, 6),)
    assert model.resident(child)
    do(model, Finish(child, retain=False))
    assert model.transfer_pages(do(model, Demote(0)).value) == (2,)  # type: ignore[arg-type]


def test_a_page_that_two_continuations_share_leaves_both() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 8))
    do(model, Finish(forked(model, 0, 4)))
    assert settled(model, Demote(1)) == moved(0)
    assert (model.tiers(0), model.tiers(1)) == ((HOST, DEVICE), (HOST,))
    assert model.movable(0) == 1


def test_a_pin_does_not_protect_from_demotion() -> None:
    model = host_model_of()
    do(model, Pin(kept(model, run(0, 0, 4))))
    assert settled(model, Demote(0)) == moved(0)


def test_a_bundle_takes_one_extent_for_each_pool_or_none_at_all() -> None:
    """Main has 3 pages of 128 bytes, MTP 2 of 256: extents of 512 each."""
    model = host_model_of(backend=4)
    kept(model, run(0, 0, 10))
    for holes, fits in (((512, 511), False), ((256, 256, 512), False), ((512, 512), True), ((1024,), True)):
        model.see_holes(holes)
        assert model.refusing_row(Demote(0)) is None if fits else model.refusing_row(Demote(0)) is not None
    model.see_holes((768, 256))
    assert model.predict(Demote(0)).refusal is RefusalKind.HOST_GEOMETRY, "1024 bytes are free"
    assert (model.host_used_bytes, model.transfers()) == (0, [])
    assert do(model, Demote(0)).value == 0, "seen holes hold for one operation"
    assert (model.host_used_bytes, model.transfer_pages(0)) == (1024, (3, 2))
    assert settled(model) == moved(0)
    assert model.books.counters == ((0, 0, 8), (0, 0, 4))


def test_a_pool_with_nothing_to_copy_takes_no_extent() -> None:
    """The child holds MTP's only page and Main's first two; Main's tail goes."""
    model = host_model_of(backend=4)
    do(model, Submit(run(0, 0, 10), 0), Schedule())
    write(model, Prefill(0, 10, backend=8))
    do(model, Finish(0))
    forked(model, 0, 8)
    do(model, Demote(0))
    assert (model.transfer_pages(0), model.host_used_bytes) == ((1, 0), 256)


def test_no_continuation_is_released_to_make_room_on_host() -> None:
    model = host_model_of(host_bytes=256)
    kept(model, run(0, 0, 8))
    kept(model, run(1, 0, 8))
    settled(model, Demote(0))
    assert model.demand(Demote(1)) is None, "a demotion takes no Device pages"
    assert model.predict(Demote(1)).refusal is RefusalKind.HOST_GEOMETRY
    assert model.continuations() == [0, 1]


def test_without_a_host_tier_a_continuation_is_resident_and_nothing_moves() -> None:
    model = model_of()
    kept(model, run(0, 0, 4))
    assert model.predict(Demote(0)).refusal is RefusalKind.BAD_ARGUMENT
    assert model.predict(Restore(0)).refusal is RefusalKind.WRONG_STATE
    assert (model.resident(0), model.tiers(0), model.clean_copies(0)) == (True, (DEVICE,), (False,))


# -- restore -----------------------------------------------------------------------------------------------------------


def test_a_restore_leases_its_pages_at_once_and_frees_the_extent_at_its_end() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 10))
    settled(model, Demote(0))
    assert model.demand(Restore(0)) == -5
    assert do(model, Restore(0)).counters == ((3, 0, 5),)
    assert (model.tiers(0), model.restorable(0), model.host_used_bytes) == ((HOST,) * 3, 0, 512)
    assert settled(model) == moved(1)
    assert model.books.counters == ((3, 0, 5),)
    assert (model.tiers(0), model.clean_copies(0), model.host_used_bytes) == ((DEVICE,) * 3, (False,) * 3, 0)


def test_a_restore_takes_no_page_for_a_page_that_has_a_device_copy() -> None:
    model = host_model_of(capacity=3)
    kept(model, run(0, 0, 10))
    settled(model, Demote(0, keep=True))
    assert model.demand(Restore(0)) is None
    assert do(model, Restore(0)).counters == ((3, 0, 0),)
    assert settled(model) == moved(1)
    assert (model.tiers(0), model.host_used_bytes) == ((DEVICE,) * 3, 0)


def test_a_restore_makes_room_but_not_by_its_own_continuation() -> None:
    """Of 4 pages continuation 1 holds 2; the restore takes 3.  Continuation 0 is the least recently used."""
    model = host_model_of(capacity=4)
    kept(model, run(0, 0, 10))
    settled(model, Demote(0))
    kept(model, run(1, 0, 8))
    do(model, Pin(1))
    assert model.demand(Restore(0)) == 1
    assert model.predict(Restore(0)).refusal is RefusalKind.DEVICE_CAPACITY
    do(model, Pin(1, pinned=False))
    outcome = do(model, Restore(0))
    assert (outcome.evicted, outcome.counters) == ((1,), ((3, 0, 1),))


def test_neither_demote_nor_restore_is_a_use() -> None:
    model = host_model_of()
    names = [kept(model, run(source, 0, 4)) for source in range(2)]
    settled(model, Demote(names[0]))
    settled(model, Restore(names[0]))
    assert model.continuations_by_use() == names


# -- the end of a transfer ---------------------------------------------------------------------------------------------


def test_a_cancelled_or_failed_demotion_leaves_the_source_and_frees_the_slots() -> None:
    for failed in (False, True):
        model = host_model_of()
        kept(model, run(0, 0, 10))
        do(model, Demote(0))
        if not failed:
            do(model, CancelTransfer(0), CancelTransfer(0))
            assert model.cancelling(0)
        outcome = reported(model, (0,), failed=(0,)) if failed else reported(model, (0,), (0,))
        assert outcome.value.transfers == abandoned(0, failed=failed)  # type: ignore[union-attr]
        assert outcome.counters == ((3, 0, 5),)
        assert (model.tiers(0), model.clean_copies(0), model.host_used_bytes) == (
            (DEVICE,) * 3,
            (False,) * 3,
            0,
        )


def test_an_abandoned_restore_gives_its_pages_back() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 10))
    settled(model, Demote(0))
    assert do(model, Restore(0), CancelTransfer(1)).counters == ((3, 0, 5),)
    assert settled(model) == abandoned(1)
    assert model.books.counters == ((0, 0, 8),)
    assert (model.tiers(0), model.host_used_bytes) == ((HOST,) * 3, 512)


def test_an_abandoned_transfer_leaves_a_copy_that_was_there_before() -> None:
    model = with_host_copies(10)
    assert settled(model, Demote(0), CancelTransfer(2)) == abandoned(2)
    assert (model.tiers(0), model.clean_copies(0), model.host_used_bytes) == ((DEVICE,) * 3, (True,) * 3, 512)


def test_an_active_sequence_that_holds_a_page_makes_the_transfer_stale() -> None:
    """Nothing moves, the tail neither, which nobody else holds: all or none."""
    model = host_model_of()
    kept(model, run(0, 0, 10))
    do(model, Demote(0))
    forked(model, 0, 4)
    assert settled(model) == abandoned(0)
    assert (model.tiers(0), model.books.counters, model.host_used_bytes) == ((DEVICE,) * 3, ((3, 0, 5),), 0)


def test_an_active_sequence_that_has_ended_before_the_end_does_no_harm() -> None:
    for retain in (False, True):
        model = host_model_of()
        kept(model, run(0, 0, 8))
        do(model, Demote(0))
        do(model, Finish(forked(model, 0, 8), retain))
        assert settled(model) == moved(0)
        assert model.books.counters == ((0, 0, 8),)


def test_transfers_end_when_they_are_reported_and_not_before() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 4))
    kept(model, run(1, 0, 4))
    do(model, Demote(0), Demote(1))
    assert reported(model, (0, 1)).counters == ((2, 0, 6),)
    assert reported(model, over=(1,)).counters == ((1, 0, 7),)
    assert (model.tiers(0), model.tiers(1), model.transfers()) == ((DEVICE,), (HOST,), [0])
    assert model.predict(CancelTransfer(1)).refusal is RefusalKind.STALE_HANDLE


def test_transfers_are_numbered_and_a_refused_one_gives_out_no_number() -> None:
    model = host_model_of(host_bytes=256)
    kept(model, run(0, 0, 10))
    kept(model, run(1, 0, 4))
    assert model.predict(Demote(0)).refusal is RefusalKind.HOST_GEOMETRY
    assert do(model, Demote(1)).value == 0
