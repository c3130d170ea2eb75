"""Pages that end in a transfer, clean copies, sources and pressure as decision 0013 has them, with figures by hand.

Pages are of 4 tokens and 128 bytes, extents of whole 256 bytes; effects are done at once.
"""

from __future__ import annotations

import pytest
from model_talk import (
    abandoned,
    do,
    forked,
    host_model_of,
    kept,
    moved,
    settled,
    with_host_copies,
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
    Prefill,
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
    assert do(model, Lookup(concat(run(0, 0, 4), run(1, 0, 5)))).value == Hit(1, 1, 8), "a page of it is away"


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


def test_a_source_in_a_transfer_is_not_cut_for_a_request() -> None:
    """Only the source's tail is in the transfer.  A fork at 5 takes 4 of 3 free pages, a move cut to 5 would take 3."""
    model = host_model_of(capacity=6)
    kept(model, run(0, 0, 10))
    child = forked(model, 0, 8)
    do(model, Demote(0), Finish(child, retain=False), Submit(concat(run(0, 0, 5), run(1, 0, 10)), 5))
    assert (model.transfer_pages(0), model.books.counters) == ((1,), ((3, 0, 3),))
    assert do(model, Schedule()).value == Scheduled((), Waiting(2, WaitingKind.DEVICE_CAPACITY))
    settled(model, CancelTransfer(0))
    assert do(model, Schedule()).value == Scheduled((Admitted(2, AdmissionMode.MOVE_TRUNCATED, 0, 5),))


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
