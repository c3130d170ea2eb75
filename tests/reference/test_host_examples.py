"""The Host tier in the accounting model, paragraph by paragraph of decision 0013, with figures by hand.

Pages are of 4 tokens and 128 bytes, extents of whole 256 bytes; effects are done at once.
"""

from __future__ import annotations

import pytest
from model_talk import (
    abandoned,
    do,
    host_model_of,
    kept,
    model_of,
    moved,
    reported,
    retained,
    settled,
    write,
)

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    CancelTransfer,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Lookup,
    Pin,
    Prefill,
    Progressed,
    Release,
    Restore,
    Schedule,
    Scheduled,
    Submit,
    Truncate,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import concat, run
from kvcrucible.reference.accounting import AccountingModel

DEVICE, HOST = Tier.DEVICE, Tier.HOST


def forked(model: AccountingModel, source: int, position: int, max_new: int = 0) -> int:
    child = do(model, Fork(source, position, max_new)).value
    assert isinstance(child, int)
    return child


def with_host_copies(tokens: int) -> AccountingModel:
    """A model whose continuation 0, of session a, is resident and has a clean copy of each page on Host."""
    model = host_model_of()
    kept(model, run(0, 0, tokens), session="a")
    assert settled(model, Demote(0)) == moved(0)
    assert settled(model, Restore(0, keep=True)) == retained(1)
    return model


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


# -- the last reference goes -------------------------------------------------------------------------------------------


def test_a_continuation_released_in_a_demotion_leaves_both_ends_to_it() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 10))
    assert not do(model, Demote(0)).evicted
    assert not model.cancelling(0)
    assert do(model, Release(0)).counters == ((3, 0, 5),)
    assert (model.host_used_bytes, model.cancelling(0), model.transfer_pages(0)) == (512, True, (3,))
    assert settled(model) == abandoned(0)
    assert (model.books.counters, model.host_used_bytes) == (((0, 0, 8),), 0)


@pytest.mark.parametrize("keep", [False, True])
def test_a_continuation_released_in_a_restore_leaves_both_ends_to_it(keep: bool) -> None:
    """With ``keep`` the restore's Device pages are the clean copies of before, else its own."""
    model = host_model_of()
    kept(model, run(0, 0, 10))
    settled(model, Demote(0, keep))
    assert do(model, Restore(0), Release(0)).counters == ((3, 0, 5),)
    assert model.host_used_bytes == 512
    assert settled(model) == abandoned(1)
    assert (model.books.counters, model.host_used_bytes) == (((0, 0, 8),), 0)


def test_the_pages_that_live_on_move_and_the_others_end_at_both_ends() -> None:
    """Continuations 0 and 1 share two pages; 0 goes with its tail.  The extent stays until its last slot has ended."""
    model = host_model_of()
    kept(model, run(0, 0, 10))
    do(model, Finish(forked(model, 0, 8)), Demote(0))
    assert do(model, Release(0)).counters == ((3, 0, 5),)
    assert not model.cancelling(0)
    assert settled(model) == moved(0)
    assert (model.tiers(1), model.books.counters, model.host_used_bytes) == ((HOST,) * 2, ((0, 0, 8),), 512)
    do(model, Release(1))
    assert model.host_used_bytes == 0


def test_the_next_continuation_of_a_session_ends_one_that_is_in_a_transfer() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 10), session="a")
    do(model, Demote(0))
    kept(model, run(1, 0, 4), session="a")
    assert (model.continuations(), model.books.counters) == ([1], ((4, 0, 4),))
    assert settled(model) == abandoned(0)
    assert (model.books.counters, model.host_used_bytes) == (((1, 0, 7),), 0)


def test_a_cut_reserves_anew_what_it_loses_to_a_transfer() -> None:
    """The child is the last that holds two pages in a transfer: none of them comes back to its reservation."""
    model = host_model_of()
    kept(model, run(0, 0, 8))
    do(model, Demote(0))
    child = forked(model, 0, 8)
    assert do(model, Release(0)).counters == ((2, 0, 6),)
    assert model.pages_of(child) == (0, 2)
    assert do(model, Truncate(child, 4)).counters == ((2, 1, 5),)
    assert not model.cancelling(0)
    assert do(model, Truncate(child, 2)).counters == ((3, 1, 4),), "the tail is copied"
    assert model.cancelling(0)
    assert settled(model) == abandoned(0)
    assert (model.books.counters, model.host_used_bytes) == (((1, 1, 6),), 0)


def test_a_cut_that_cannot_reserve_anew_what_it_loses_to_a_transfer_is_refused() -> None:
    model = host_model_of(capacity=2)
    kept(model, run(0, 0, 8))
    do(model, Demote(0))
    child = forked(model, 0, 8)
    do(model, Release(0))
    assert model.demand(Truncate(child, 4)) == 1
    assert model.predict(Truncate(child, 4)).refusal is RefusalKind.DEVICE_CAPACITY


def test_the_end_of_a_child_leaves_its_pages_to_the_transfer() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 8))
    do(model, Demote(0))
    child = forked(model, 0, 8, max_new=4)
    do(model, Release(0))
    assert model.books.counters == ((2, 1, 5),)
    assert do(model, Finish(child, retain=False)).counters == ((2, 0, 6),)
    assert settled(model) == abandoned(0)
    assert model.books.counters == ((0, 0, 8),)


# -- clean copies ------------------------------------------------------------------------------------------------------


def continued(model: AccountingModel, tokens: int) -> int:
    """Let a request of session a, with one token more, take continuation 0 by Move; return it."""
    sequence = do(model, Submit(run(0, 0, tokens + 1), 3, "a")).value
    assert isinstance(sequence, int)
    admitted = Admitted(sequence, AdmissionMode.MOVE, 0, tokens)
    assert do(model, Schedule()).value == Scheduled((admitted,))
    return sequence


def test_a_copy_ends_when_its_page_gains_a_committed_column() -> None:
    model = with_host_copies(6)
    sequence = continued(model, 6)
    assert model.clean_copies(sequence) == (True, True)
    for commit, copies in ((False, (True, True)), (True, (True, False))):
        unit = do(model, BeginUnit((Prefill(sequence, 1),))).value
        assert model.clean_copies(sequence) == (True, True), "nothing is committed yet"
        do(model, EndUnit(unit, commit))  # type: ignore[arg-type]
        assert model.clean_copies(sequence) == copies
    assert model.host_used_bytes == 256, "page 0 has a slot in the extent"
    do(model, Finish(sequence))
    model.see_holes((256,))
    assert do(model, Demote(sequence)).value == 2, "one page is copied, into an extent of its own"
    assert model.host_used_bytes == 512


def test_a_copy_of_a_full_page_outlives_appends() -> None:
    model = with_host_copies(8)
    sequence = continued(model, 8)
    write(model, Prefill(sequence, 1))
    assert model.clean_copies(sequence) == (True, True, False)


@pytest.mark.parametrize(
    ("position", "copies", "used"),
    [(8, (True, True), 512), (7, (True, False), 512), (4, (True,), 512), (2, (False,), 0)],
)
def test_a_cut_ends_the_copies_of_what_it_changes_or_drops(
    position: int, copies: tuple[bool, ...], used: int
) -> None:
    model = with_host_copies(10)
    sequence = continued(model, 10)
    do(model, Truncate(sequence, position))
    assert (model.clean_copies(sequence), model.host_used_bytes) == (copies, used)


def test_a_cut_inside_a_shared_page_leaves_the_copy_to_the_others() -> None:
    model = with_host_copies(8)
    child = forked(model, 0, 8)
    assert model.clean_copies(child) == (True, True)
    do(model, Truncate(child, 2))
    assert (model.clean_copies(child), model.clean_copies(0)) == ((False,), (True, True))


def test_a_backend_that_catches_up_ends_the_copy_of_its_own_tail() -> None:
    """One page in each pool: full with 4 tokens in Main, half full in MTP."""
    model = host_model_of(backend=4)
    kept(model, run(0, 0, 4), session="a")
    settled(model, Demote(0))
    settled(model, Restore(0, keep=True))
    sequence = continued(model, 4)
    write(model, Prefill(sequence, 1, backend=0))
    assert (model.clean_copies(sequence, 0), model.clean_copies(sequence, 1)) == ((True, False), (True,))
    write(model, Append(sequence, run(1, 0, 1)))
    assert (model.clean_copies(sequence, 0), model.clean_copies(sequence, 1)) == ((True, False), (False,))
    assert model.host_used_bytes == 256


# -- who may be a source -----------------------------------------------------------------------------------------------


def test_what_is_not_resident_is_no_source_but_found() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 8))
    kept(model, concat(run(0, 0, 4), run(1, 0, 4)))
    settled(model, Demote(0))
    assert model.predict(Fork(0, 4, 0)).refusal is RefusalKind.WRONG_STATE
    assert do(model, Lookup(run(0, 0, 9))).value == Hit(0, 0, 8)
    do(model, Submit(run(0, 0, 9), 0))
    assert do(model, Schedule()).value == Scheduled((Admitted(2, AdmissionMode.COLD),)), (
        "the page that both share is on Host, so neither is resident"
    )


def test_admission_starts_from_the_next_best() -> None:
    model = host_model_of()
    kept(model, concat(run(0, 0, 3), run(1, 0, 3)))
    kept(model, run(0, 0, 8))
    settled(model, Demote(1))
    do(model, Submit(run(0, 0, 9), 0))
    assert do(model, Schedule()).value == Scheduled((Admitted(2, AdmissionMode.FORK, 0, 3),))


def test_of_equal_hits_a_resident_owner_comes_first() -> None:
    """The second continuation has a copy of the first one's partial tail, and shares nothing with it."""
    model = host_model_of()
    kept(model, run(0, 0, 4))
    kept(model, run(0, 0, 4))
    assert do(model, Lookup(run(0, 0, 5))).value == Hit(0, 0, 4)
    settled(model, Demote(0))
    assert do(model, Lookup(run(0, 0, 5))).value == Hit(1, 1, 4)
    settled(model, Demote(1))
    assert do(model, Lookup(run(0, 0, 5))).value == Hit(0, 0, 4)


def test_a_source_in_a_transfer_is_forked_where_it_would_be_moved() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 8), session="a")
    do(model, Demote(0), Submit(run(0, 0, 9), 0, "a"))
    assert do(model, Schedule()).value == Scheduled((Admitted(1, AdmissionMode.FORK, 0, 8),))


def test_a_source_in_a_transfer_is_not_cut_for_its_consumer() -> None:
    """Out of transfer the request takes the source, cut to 5 tokens; in it neither that nor a release makes room."""
    request = Submit(concat(run(0, 0, 5), run(1, 0, 10)), 5)
    model = host_model_of(capacity=5)
    kept(model, run(0, 0, 10))
    do(model, Demote(0), request)
    assert do(model, Schedule()).value == Scheduled((), Waiting(1, WaitingKind.DEVICE_CAPACITY))
    settled(model, CancelTransfer(0))
    assert do(model, Schedule()).value == Scheduled((Admitted(1, AdmissionMode.MOVE_TRUNCATED, 0, 5),))


# -- pressure ----------------------------------------------------------------------------------------------------------


def test_pressure_passes_over_what_is_in_a_transfer_and_what_frees_nothing_on_device() -> None:
    """Continuation 0 is on Host, 1 is being moved there, 2 is on Host with Device copies; 3 is resident."""
    model = host_model_of(capacity=4, host_bytes=2048)
    kept(model, run(0, 0, 4))
    settled(model, Demote(0))
    for source in (1, 2, 3):
        kept(model, run(source, 0, 4))
    settled(model, Demote(2, keep=True))
    do(model, Demote(1), Submit(run(9, 0, 12), 0))
    assert model.available_pages() == (3,)
    outcome = do(model, Schedule())
    assert outcome.evicted == (2, 3)
    assert outcome.counters == ((1, 3, 0),)
    assert model.continuations() == [0, 1]
    assert model.host_used_bytes == 512


def test_a_continuation_with_a_page_in_the_transfer_of_another_is_passed_over() -> None:
    model = host_model_of(capacity=2)
    kept(model, run(0, 0, 8))
    do(model, Finish(forked(model, 0, 4)), Demote(1))
    assert model.in_transfer(0)
    assert model.available_pages() == (0,)
    settled(model)
    assert model.available_pages() == (2,), "one is free, and continuation 0 has another"


def test_one_device_page_makes_a_continuation_worth_releasing() -> None:
    """The child held two of its pages, so that only the tail is on Host."""
    model = host_model_of(capacity=4)
    kept(model, run(0, 0, 10))
    child = forked(model, 0, 8)
    settled(model, Demote(0))
    do(model, Finish(child, retain=False), Submit(run(9, 0, 12), 0))
    assert model.tiers(0) == (DEVICE, DEVICE, HOST)
    outcome = do(model, Schedule())
    assert (outcome.evicted, outcome.counters, model.host_used_bytes) == ((0,), ((0, 3, 1),), 0)
