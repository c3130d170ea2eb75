"""Hits on Host in worked examples: waited for, restored in part, given up (decision 0020)."""

from __future__ import annotations

from model_talk import abandoned, do, host_model_of, kept, settled

from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Cancel,
    CancelTransfer,
    Demote,
    Finish,
    Pin,
    Progressed,
    Restore,
    Schedule,
    Scheduled,
    Submit,
    TransferEnded,
    TransferOutcome,
    TransferStarted,
    TryAdmit,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import concat, run
from kvcrucible.reference.accounting import AccountingModel

DEVICE, HOST = Tier.DEVICE, Tier.HOST


def restoring(sequence: int, *started: TransferStarted) -> Scheduled:
    return Scheduled((), Waiting(sequence, WaitingKind.RESTORING, started))


def away(capacity: int = 8) -> AccountingModel:
    """Continuation 0 has 10 tokens on three pages, all on Host."""
    model = host_model_of(capacity)
    kept(model, run(0, 0, 10))
    settled(model, Demote(0))
    return model


def test_a_hit_on_host_is_restored_up_to_where_it_is_used() -> None:
    model = away()
    request = do(model, Submit(concat(run(0, 0, 6), run(1, 0, 2)), 0)).value
    assert isinstance(request, int)
    started = TransferStarted(1, 0, HOST, (2,), 6)
    assert do(model, Schedule()).value == restoring(request, started)
    assert do(model, Schedule()).value == restoring(request), "on its way: nothing more is started"
    assert do(model, TryAdmit(request)).value == Waiting(request, WaitingKind.RESTORING)
    settled(model)
    assert model.tiers(0) == (DEVICE, DEVICE, HOST)
    assert model.clean_copies(0) == (True, True, False), "the Host slots stay"
    assert do(model, Schedule()).value == Scheduled((Admitted(request, AdmissionMode.FORK, 0, 6),))


def test_the_next_turn_takes_over_what_has_come_back_whole() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 10), session="a")
    settled(model, Demote(0))
    do(model, Submit(run(0, 0, 12), 0, "a"))
    assert do(model, Schedule()).value == restoring(1, TransferStarted(1, 0, HOST, (3,), 10))
    settled(model)
    assert do(model, Schedule()).value == Scheduled((Admitted(1, AdmissionMode.MOVE, 0, 10),))


def test_a_source_of_which_a_part_is_away_is_cut_to_the_hit() -> None:
    """A fork at 6 takes one page more than a move; what lies beyond the hit is on Host and gives no page back."""
    model = away(capacity=4)
    do(model, Submit(concat(run(0, 0, 6), run(1, 0, 6)), 4), Schedule())
    settled(model)
    assert model.books.counters == ((2, 0, 2),)
    outcome = do(model, Schedule())
    assert outcome.value == Scheduled((Admitted(1, AdmissionMode.MOVE_TRUNCATED, 0, 6),))
    assert outcome.counters == ((2, 2, 0),)
    assert model.host_used_bytes == 512, "the copy of the page that was not cut is still there"


def test_a_restore_that_failed_is_not_tried_again_by_the_same_request() -> None:
    model = host_model_of()
    kept(model, run(0, 0, 10))
    kept(model, concat(run(0, 0, 3), run(1, 0, 1)))
    settled(model, Demote(0))
    do(model, Submit(run(0, 0, 9), 0), Schedule())
    failed = Progressed((), (TransferEnded(1, TransferOutcome.ABANDONED, failed=True),))
    assert model.predict_progress(failed).value == failed
    assert do(model, Schedule()).value == Scheduled((Admitted(2, AdmissionMode.FORK, 1, 3),))
    do(model, Submit(run(0, 0, 9), 0))
    assert do(model, Schedule()).value == restoring(3, TransferStarted(2, 0, HOST, (2,), 8)), (
        "another one tries"
    )


def test_a_restore_that_was_cancelled_leaves_a_cold_start() -> None:
    model = away()
    do(model, Submit(run(0, 0, 9), 0), Schedule(), CancelTransfer(1))
    assert do(model, Schedule()).value == restoring(1), "until it is over"
    assert settled(model) == abandoned(1)
    assert do(model, Schedule()).value == Scheduled((Admitted(1, AdmissionMode.COLD),))


def test_a_hit_on_host_for_which_there_is_no_room_is_passed_over() -> None:
    """Four of five pages belong to a pinned continuation: one page is free, and a cold start of one fits."""
    model = away(capacity=5)
    kept(model, run(7, 0, 16))
    do(model, Pin(1), Submit(run(0, 0, 3), 0))
    assert do(model, Schedule()).value == restoring(2, TransferStarted(1, 0, HOST, (1,), 2))
    do(model, Cancel(2))
    settled(model)
    settled(model, Demote(0))
    kept(model, run(0, 0, 1))
    do(model, Pin(3), Submit(run(0, 0, 3), 0))
    outcome = do(model, Schedule())
    assert outcome.value == Scheduled((), Waiting(4, WaitingKind.DEVICE_CAPACITY)), (
        "not: restoring, without end"
    )
    do(model, Pin(3, pinned=False))
    outcome = do(model, Schedule())
    assert (outcome.value, outcome.evicted) == (
        restoring(4, TransferStarted(2 + 1, 0, HOST, (1,), 2)),
        (3,),
    )


def test_what_a_user_restores_is_waited_for_and_its_failure_is_not_the_requests() -> None:
    model = away()
    do(model, Restore(0), Submit(run(0, 0, 9), 0))
    assert do(model, Schedule()).value == restoring(1)
    do(model, CancelTransfer(1))
    assert settled(model) == abandoned(1)
    assert do(model, Schedule()).value == restoring(1, TransferStarted(2, 0, HOST, (2,), 8))
    do(model, Cancel(1))
    settled(model)
    assert model.tiers(0) == (DEVICE, DEVICE, HOST), "the transfer outlives the request"
    do(model, Submit(run(0, 0, 9), 0))
    assert do(model, Schedule()).value == Scheduled((Admitted(2, AdmissionMode.FORK, 0, 8),))
    do(model, Finish(2, retain=False))
