"""Units whose effects lag, and pages that wait for them, paragraph by paragraph of decision 0013, with figures by hand.

Pages are of 4 tokens; a fence is written as the set of the units that touched the page.
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
    reported,
    settled,
    start,
    typed_pool,
    write,
)

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    Cancel,
    Demote,
    EndUnit,
    Finish,
    Outcome,
    Pin,
    Progress,
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
from kvcrucible.contract.tokens import concat, run
from kvcrucible.reference.accounting import AccountingModel


def lagging(capacity: int = 8, backend: int = 0) -> AccountingModel:
    return host_model_of(capacity, backend=backend, immediate=False)


# -- what retires ------------------------------------------------------------------------------------------------------


def test_pages_that_an_outstanding_unit_touched_retire_and_are_free_when_it_is_reported() -> None:
    model = lagging()
    sequence = start(model, run(0, 0, 8), 4)
    assert model.outstanding_units == (0,)
    assert do(model, Finish(sequence, retain=False)).counters == ((2, 0, 6),), (
        "the promised page was never touched"
    )
    assert model.retiring() == 2
    assert reported(model).counters == ((2, 0, 6),)
    assert reported(model, (0,)) == Outcome(Progressed((0,)), counters=((0, 0, 8),))
    assert (model.retiring(), model.outstanding_units) == (0, ())


def test_nothing_retires_where_effects_are_immediate() -> None:
    model = host_model_of()
    sequence = start(model, run(0, 0, 8), 4)
    assert model.outstanding_units == ()
    assert do(model, Finish(sequence, retain=False)).counters == ((0, 0, 8),)
    assert reported(model, (0,)).value == Progressed((0,))


def test_a_unit_in_flight_is_not_outstanding_and_touches_every_page_that_its_rows_map() -> None:
    """Unit 1 writes into page 1 and touches page 0 too; unit 0 alone touched the other sequence's page."""
    model = lagging(backend=4)
    sequence, other = start(model, run(0, 0, 4), 4), start(model, run(1, 0, 4))
    do(model, BeginUnit((Append(sequence, run(2, 0, 1)),)))
    assert reported(model, (0, 1, 2)).value == Progressed((0, 1)), "unit 2 has not ended"
    do(model, Finish(other, retain=False))
    assert model.books.counters == ((2, 0, 6), (1, 0, 3)), "at rest, so free"
    do(model, EndUnit(2))
    assert model.outstanding_units == (2,)
    do(model, Finish(sequence, retain=False))
    assert (model.retiring(0), model.retiring(1)) == (2, 1)


def test_a_page_waits_for_the_last_of_its_units_and_for_no_later_one() -> None:
    model = lagging()
    first, second = start(model, run(0, 0, 4), 1), start(model, run(1, 0, 4))
    write(model, Append(first, run(0, 4, 1)))
    do(model, Finish(second, retain=False), Finish(first, retain=False))
    assert model.books.counters == ((3, 0, 5),)
    assert reported(model, (0,)).counters == ((3, 0, 5),)
    assert reported(model, (1,)).counters == ((2, 0, 6),), "the second's page, touched by unit 1 alone"
    assert reported(model, (2,)).counters == ((0, 0, 8),)


def test_units_complete_in_the_order_in_which_they_ended() -> None:
    model = lagging()
    first, second = start(model, run(0, 0, 4), 4), start(model, run(1, 0, 4), 4)
    do(model, BeginUnit((Append(first, run(2, 0, 1)),)), BeginUnit((Append(second, run(3, 0, 1)),)))
    do(model, EndUnit(3), EndUnit(2))
    assert model.outstanding_units == (0, 1, 3, 2)
    assert reported(model, (0, 1, 2, 3)).value == Progressed((0, 1, 3))
    assert reported(model, (3, 2)).value == Progressed((2,))


def test_a_row_that_its_unit_cancels_leaves_all_its_pages_to_the_fence() -> None:
    model = lagging()
    sequence = start(model, run(0, 0, 4), 8)
    reported(model, (0,))
    do(model, BeginUnit((Append(sequence, run(1, 0, 5)),)), Cancel(sequence))
    assert do(model, EndUnit(1)).counters == ((3, 0, 5),)
    assert model.retiring() == 3
    assert reported(model, (1,)).counters == ((0, 0, 8),)


def test_a_tail_that_no_unit_touched_is_free_at_once() -> None:
    model = lagging()
    parent = start(model, run(0, 0, 6))
    child = forked(model, parent, 6)
    assert model.books.counters == ((3, 0, 5),)
    assert do(model, Finish(child, retain=False)).counters == ((2, 0, 6),)


# -- making room -------------------------------------------------------------------------------------------------------


def test_room_that_is_made_counts_quiet_pages_only() -> None:
    """Of 3 pages the continuation has 2; while unit 0 is outstanding its release frees none of them."""
    model = lagging(capacity=3)
    old = kept(model, run(0, 0, 8))
    do(model, Submit(run(1, 0, 8), 0))
    assert (model.available_pages(), model.demand(Schedule())) == ((1,), 1)
    assert do(model, Schedule()).value == Scheduled((), Waiting(1, WaitingKind.DEVICE_CAPACITY))
    assert model.continuations() == [old], "nothing is released in vain"
    reported(model, (0,))
    outcome = do(model, Schedule())
    assert (outcome.evicted, outcome.counters) == ((old,), ((0, 2, 1),))


def test_a_release_that_frees_too_little_is_followed_by_the_next() -> None:
    """The first continuation's page retires, the second's is quiet."""
    model = lagging(capacity=3)
    quiet = start(model, run(0, 0, 4))
    reported(model, (0,))
    fresh = kept(model, run(1, 0, 4))
    do(model, Finish(quiet), Submit(run(2, 0, 8), 0))
    assert model.continuations_by_use() == [fresh, quiet]
    outcome = do(model, Schedule())
    assert (outcome.evicted, outcome.counters) == ((fresh, quiet), ((1, 2, 0),))


def test_pages_that_a_move_cuts_off_are_promised_to_the_new_owner() -> None:
    """A fork at 5 takes 4 of the 3 free pages.  The move needs 3, of which page 2 that it cuts off is one."""
    model = lagging(capacity=6)
    source = kept(model, run(0, 0, 10))
    do(model, Submit(concat(run(0, 0, 5), run(1, 0, 10)), 5))
    outcome = do(model, Schedule())
    assert outcome.value == Scheduled((Admitted(1, AdmissionMode.MOVE_TRUNCATED, source, 5),))
    assert (outcome.counters, model.retiring()) == (((2, 3, 1),), 0)


def test_pages_that_a_move_cuts_off_retire_where_the_new_owner_has_no_use_for_them() -> None:
    """The source has 5 pages of 6.  A fork at 5 takes 2 of the 1 that is free; the move keeps 2 and needs 1."""
    model = lagging(capacity=6)
    source = kept(model, run(0, 0, 20))
    do(model, Submit(concat(run(0, 0, 5), run(1, 0, 5)), 0))
    outcome = do(model, Schedule())
    assert outcome.value == Scheduled((Admitted(1, AdmissionMode.MOVE_TRUNCATED, source, 5),))
    assert (outcome.counters, model.retiring()) == (((4, 1, 1),), 2)


# -- reservations ------------------------------------------------------------------------------------------------------


def test_what_a_cut_returns_is_promised_again_at_once_and_retires_when_the_reservation_closes() -> None:
    for retain in (False, True):
        model = lagging()
        sequence = start(model, run(0, 0, 12))
        assert do(model, Truncate(sequence, 4)).counters == ((1, 2, 5),)
        assert model.retiring() == 0
        assert do(model, Finish(sequence, retain)).counters == ((3, 0, 5),)
        assert model.retiring() == (2 if retain else 3)
        assert reported(model, (0,)).counters == ((int(retain), 0, 8 - retain),)


def test_what_is_returned_and_at_rest_is_a_promise_like_any_other() -> None:
    model = lagging()
    sequence = start(model, run(0, 0, 12))
    do(model, Truncate(sequence, 4))
    assert reported(model, (0,)).counters == ((1, 2, 5),)
    assert do(model, Finish(sequence)).counters == ((1, 0, 7),)


def test_an_aborted_unit_returns_pages_that_it_touched() -> None:
    model = lagging()
    sequence = start(model, run(0, 0, 4), 8)
    do(model, BeginUnit((Append(sequence, run(1, 0, 8)),)))
    assert do(model, EndUnit(1, commit=False)).counters == ((1, 2, 5),)
    assert do(model, Finish(sequence)).counters == ((3, 0, 5),)


def test_the_sequence_is_granted_what_it_returned_before_anything_else() -> None:
    """Two pages came back; one of them is granted, so one retires at the end, beside two that are held."""
    model = lagging()
    sequence = start(model, run(0, 0, 12))
    do(model, Truncate(sequence, 4))
    write(model, Append(sequence, run(1, 0, 4)))
    assert do(model, Finish(sequence)).counters == ((3, 0, 5),)
    assert model.retiring() == 1


def test_the_latest_returned_is_granted_first() -> None:
    """Returned are a page of {0}, then one of {0, 1}; unit 2 gets the latter, and once 0 is reported all rest."""
    model = lagging()
    sequence = start(model, run(0, 0, 12))
    do(model, Truncate(sequence, 4))
    write(model, Append(sequence, run(1, 0, 4)))
    do(model, Truncate(sequence, 4))
    write(model, Append(sequence, run(2, 0, 4)))
    reported(model, (0,))
    assert do(model, Finish(sequence)).counters == ((2, 0, 6),)


def test_a_cut_returns_pages_in_the_order_of_their_blocks() -> None:
    """Page 0 is of {0, 1}, since a child read it in unit 1, page 1 of {0}: the last to return, it is granted first."""
    model = lagging()
    parent = start(model, run(0, 0, 8))
    child = forked(model, parent, 4, max_new=1)
    write(model, Append(child, run(1, 0, 1)))
    do(model, Finish(child, retain=False), Truncate(parent, 0))
    assert model.retiring() == 1
    write(model, Append(parent, run(2, 0, 4)))
    assert reported(model, (0,)).counters == ((2, 1, 5),)
    do(model, Finish(parent))
    assert model.retiring() == 2, "the child's tail, and page 0"


def test_a_tail_is_copied_into_what_the_same_cut_returned_and_that_was_touched_before() -> None:
    """The child's page 1, of {1}, comes back, and the copy of the shared page 0 is made in it."""
    model = lagging()
    parent = start(model, run(0, 0, 4))
    child = forked(model, parent, 4, max_new=4)
    write(model, Append(child, run(1, 0, 4)))
    assert do(model, Truncate(child, 2)).counters == ((2, 1, 5),)
    assert do(model, Finish(child, retain=False)).counters == ((2, 0, 6),)
    assert model.retiring() == 1
    assert reported(model, (0, 1)).counters == ((1, 0, 7),)


def test_another_sequence_is_never_granted_what_came_back() -> None:
    model = lagging(capacity=4)
    sequence = start(model, run(0, 0, 12))
    do(model, Truncate(sequence, 4))
    other = start(model, run(1, 0, 4))
    assert do(model, Finish(other, retain=False)).counters == ((2, 2, 0),)
    assert model.predict(Truncate(sequence, 0)).counters == ((1, 3, 0),)
    assert do(model, Finish(sequence)).counters == ((4, 0, 0),)


def test_without_reservations_what_a_cut_or_an_abort_drops_retires() -> None:
    config = EngineConfig((typed_pool("main", 4, 4),), 32, 4)
    model = AccountingModel(config, Capabilities("on demand", reserves=False), immediate=False)
    sequence = start(model, run(0, 0, 4), 12)
    do(model, BeginUnit((Append(sequence, run(1, 0, 8)),)))
    assert do(model, EndUnit(1, commit=False)).counters == ((3, 0, 1),)
    assert model.retiring() == 2
    unit = BeginUnit((Append(sequence, run(1, 0, 8)),))
    assert model.demand(unit) == 1
    assert model.predict(unit).refusal is RefusalKind.DEVICE_CAPACITY
    reported(model, (0, 1))
    assert do(model, unit).counters == ((3, 0, 1),)
    do(model, EndUnit(2))
    assert do(model, Truncate(sequence, 4)).counters == ((3, 0, 1),)


def test_without_reservations_a_move_cannot_copy_a_tail_into_what_it_cuts_off() -> None:
    """The source's second page is shared, its third is not at rest, and no page is free: a cold start takes none."""
    config = EngineConfig((typed_pool("main", 4, 4),), 32, 4)
    model = AccountingModel(config, Capabilities("on demand", reserves=False), immediate=False)
    source = kept(model, run(0, 0, 10))
    child = forked(model, source, 8)
    do(model, Finish(child), Pin(child))
    start(model, run(1, 0, 4))
    do(model, Submit(concat(run(0, 0, 5), run(2, 0, 1)), 0))
    assert model.books.free == (0,)
    assert do(model, Schedule()).value == Scheduled((Admitted(3, AdmissionMode.COLD),))


# -- transfers ---------------------------------------------------------------------------------------------------------


def test_the_device_pages_that_a_demotion_leaves_retire_like_any_others() -> None:
    model = lagging()
    kept(model, run(0, 0, 8))
    do(model, Demote(0))
    assert reported(model, over=(0,)).counters == ((2, 0, 6),)
    assert (model.retiring(), model.resident(0)) == (2, False)
    assert do(model, Release(0)).counters == ((2, 0, 6),), "nothing is freed twice"
    assert reported(model, (0,)).counters == ((0, 0, 8),)


def test_units_are_noted_before_transfers() -> None:
    model = lagging()
    kept(model, run(0, 0, 8))
    do(model, Demote(0))
    outcome = reported(model, (0,), (0,))
    assert outcome == Outcome(Progressed((0,), moved(0)), counters=((0, 0, 8),))


def test_a_restored_page_has_been_touched_by_nobody() -> None:
    """Its old Device page waits for unit 0; the new one is free at once."""
    model = lagging()
    kept(model, run(0, 0, 4))
    do(model, Demote(0))
    reported(model, over=(0,))
    do(model, Restore(0))
    assert reported(model, over=(1,)).counters == ((2, 0, 6),)
    assert do(model, Release(0)).counters == ((1, 0, 7),)


def test_a_kept_device_copy_has_been_touched_by_whoever_touched_it() -> None:
    model = lagging()
    kept(model, run(0, 0, 4))
    do(model, Demote(0, keep=True))
    reported(model, over=(0,))
    assert do(model, Release(0)).counters == ((1, 0, 7),)
    assert model.retiring() == 1


@pytest.mark.parametrize("units", [(), (0,)])
def test_pages_that_end_in_a_transfer_retire_when_it_is_over(units: tuple[int, ...]) -> None:
    model = lagging()
    kept(model, run(0, 0, 8))
    do(model, Demote(0), Release(0))
    assert (model.books.counters, model.retiring()) == (((2, 0, 6),), 0)
    outcome = reported(model, units, (0,))
    assert outcome.value == Progressed(units, abandoned(0))
    assert model.retiring() == (0 if units else 2)
    assert outcome.counters == (((0, 0, 8) if units else (2, 0, 6)),)


def test_pages_that_end_in_a_restore_were_touched_by_nobody() -> None:
    model = lagging()
    kept(model, run(0, 0, 8))
    settled(model, Demote(0))
    start(model, run(1, 0, 4))
    do(model, Restore(0), Release(0))
    assert reported(model, over=(1,)).counters == ((1, 0, 7),)


# -- reports -----------------------------------------------------------------------------------------------------------


def test_what_is_impossible_in_a_report_is_left_out_and_not_carried_out() -> None:
    model = lagging()
    for source in range(3):
        kept(model, run(source, 0, 4))
    do(model, Demote(0), Demote(1), Demote(2))
    assert reported(model, (1, 7), (9,)).value == Progressed()
    assert (model.outstanding_units, model.transfers()) == ((0, 1, 2), [0, 1, 2])
    assert reported(model, (0, 0, 2), (1, 0, 1, 2)).value == Progressed((0,), moved(1, 2))
    assert (model.outstanding_units, model.transfers()) == ((1, 2), [0])
    assert reported(model, over=(1,)).value == Progressed()


def test_without_a_report_everything_under_way_is_taken_to_be_done() -> None:
    model = lagging()
    kept(model, run(0, 0, 4))
    kept(model, run(1, 0, 4))
    do(model, Demote(1), Demote(0))
    assert do(model, Progress()) == Outcome(Progressed((0, 1), moved(0, 1)), counters=((0, 0, 8),))
    with pytest.raises(ValueError, match="has no operation Progress"):
        AccountingModel(model.config, Capabilities("none", frozenset())).predict_progress(Progressed())
