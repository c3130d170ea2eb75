"""The accounting model on situations that the design states in figures, each by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest
from model_talk import do, kept, model_of, start, write

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    Cancel,
    Checkpoint,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Identity,
    Lookup,
    Outcome,
    Pin,
    Prefill,
    Progress,
    Progressed,
    Release,
    Schedule,
    Scheduled,
    Submit,
    Truncate,
    TryAdmit,
    UnitEnded,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.semantics import State
from kvcrucible.contract.tokens import concat, count, run
from kvcrucible.reference.accounting import AccountingModel

# -- sharing -----------------------------------------------------------------------------------------------------------


def test_fork_at_frontier_1000_shares_15_pages_and_copies_40_columns() -> None:
    model = model_of(capacity=64, page_size=64, context=2048)
    parent = start(model, run(0, 0, 1000))
    before = model.books.counters[0]
    outcome = do(model, Fork(parent, 1000, max_new=24))
    assert isinstance(outcome.value, int)
    child = outcome.value
    assert model.pages_of(child) == (1, 15)
    assert model.frontier(child) == 1000
    assert model.frontier(child) - 64 * model.shared_pages(child) == 40
    assert outcome.counters[0] == (before[0] + 1, before[1], before[2] - 1)


def test_forked_pages_are_charged_once_whoever_ends_first() -> None:
    for first in (0, 1):
        model = model_of()
        parent = start(model, run(0, 0, 8))
        do(model, Fork(parent, 8, 4))
        assert model.books.counters[0] == (2, 1, 5)
        do(model, Finish(first, retain=False))
        assert model.books.leased(0) == 2
        do(model, Finish(1 - first, retain=False))
        assert model.books.counters[0] == (0, 0, 8)


# -- cuts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "counters", "pages"),
    [
        (10, (4, 0, 4), (1, 2)),
        (9, (4, 0, 4), (1, 2)),
        (8, (3, 1, 4), (0, 2)),
        (5, (4, 1, 3), (1, 1)),
        (4, (3, 2, 3), (0, 1)),
        (1, (4, 2, 2), (1, 0)),
        (0, (3, 3, 2), (0, 0)),
    ],
)
def test_a_cut_reserves_what_it_may_need_again(
    position: int, counters: tuple[int, int, int], pages: tuple[int, int]
) -> None:
    """Of a child of 10 tokens at pages of 4: two pages are shared, the tail is its own."""
    model = model_of()
    child = do(model, Fork(start(model, run(0, 0, 10)), 10, 0)).value
    assert isinstance(child, int)
    assert model.books.counters[0] == (4, 0, 4)
    assert do(model, Truncate(child, position)).counters == (counters,)
    assert model.pages_of(child) == pages
    assert model.limit(child) == 10


def test_a_cut_that_cannot_be_regrown_is_refused_unless_a_continuation_yields() -> None:
    model = model_of(capacity=3)
    parent = start(model, run(0, 0, 8))
    child = do(model, Fork(parent, 8, 0)).value
    assert isinstance(child, int)
    old = kept(model, run(5, 0, 4))
    do(model, Pin(old))
    assert model.demand(Truncate(child, 4)) == 1
    assert model.predict(Truncate(child, 4)).refusal is RefusalKind.DEVICE_CAPACITY
    do(model, Pin(old, pinned=False))
    assert model.demand(Truncate(child, 4)) == 0
    assert do(model, Truncate(child, 4)) == Outcome(None, None, (old,), ((2, 1, 0),))


def test_a_cut_below_the_prompt_ends_prefill_and_forgets_the_rest() -> None:
    model = model_of()
    sequence = do(model, Submit(run(0, 0, 8), 2)).value
    assert isinstance(sequence, int)
    do(model, Schedule())
    write(model, Prefill(sequence, 5))
    do(model, Truncate(sequence, 5))
    assert model.state(sequence) is State.PREFILL, "a cut at the frontier is a no-op"
    do(model, Truncate(sequence, 3))
    assert model.state(sequence) is State.DECODE
    assert (model.prompt(sequence), model.prompt_left(sequence), model.limit(sequence)) == (3, 0, 10)
    write(model, Append(sequence, run(9, 0, 7)))
    assert model.tokens(sequence) == concat(run(0, 0, 3), run(9, 0, 7))
    assert model.predict(BeginUnit((Append(sequence, run(9, 7, 1)),))).refusal is RefusalKind.LIMIT_EXCEEDED


def test_a_cut_drops_the_checkpoints_beyond_it_and_keeps_one_at_it() -> None:
    model = model_of()
    sequence = start(model, run(0, 0, 4), 8)
    first = do(model, Checkpoint(sequence)).value
    write(model, Append(sequence, run(1, 0, 3)))
    second = do(model, Checkpoint(sequence)).value
    assert do(model, Checkpoint(sequence)).value == second
    assert do(model, Lookup(run(0, 0, 9))).value == Hit(sequence, 0, 4)
    do(model, Truncate(sequence, 4))
    assert [entry[:3] for entry in model.checkpoints] == [(first, sequence, 4)]


# -- hits and admission ------------------------------------------------------------------------------------------------


def test_a_hit_is_capped_and_the_lowest_checkpoint_wins_a_tie() -> None:
    model = model_of()
    sequence = start(model, run(0, 0, 4), 4)
    do(model, Checkpoint(sequence))
    write(model, Append(sequence, run(0, 4, 2)))
    do(model, Checkpoint(sequence))
    assert do(model, Lookup(run(0, 0, 7))).value == Hit(sequence, 1, 6)
    assert do(model, Lookup(run(0, 0, 5))).value == Hit(sequence, 0, 4)
    assert do(model, Lookup(run(0, 0, 5), Identity(adapter="other"))).value is None
    assert do(model, Lookup(run(0, 0, 1))).value is None


@pytest.mark.parametrize(
    ("session", "consume", "prompt", "mode", "counters"),
    [
        ("a", False, 7, AdmissionMode.MOVE, (2, 1, 5)),
        (None, True, 7, AdmissionMode.MOVE, (2, 1, 5)),
        ("b", False, 7, AdmissionMode.FORK, (3, 1, 4)),
        ("a", True, 6, AdmissionMode.FORK, (3, 1, 4)),
    ],
)
def test_move_only_for_the_consumer_of_the_whole_frontier(
    session: str | None, consume: bool, prompt: int, mode: AdmissionMode, counters: tuple[int, int, int]
) -> None:
    """The continuation holds 6 tokens in 2 pages; the request asks for 9 positions."""
    model = model_of()
    source = kept(model, run(0, 0, 6), session="a")
    do(model, Submit(run(0, 0, prompt), 9 - prompt, session, consume))
    outcome = do(model, TryAdmit(1))
    assert outcome.value == Admitted(1, mode, source, min(6, prompt - 1))
    assert outcome.counters == (counters,)
    assert model.continuations() == ([] if mode is AdmissionMode.MOVE else [source])
    assert model.checkpoints[0][:3] == (0, 1 if mode is AdmissionMode.MOVE else source, 6)


def test_a_pin_stops_pressure_but_not_its_own_consumer() -> None:
    model = model_of(capacity=3)
    source = kept(model, run(0, 0, 8), session="a")
    do(model, Pin(source), Submit(run(5, 0, 8), 0))
    assert do(model, Schedule()).value == Scheduled((), Waiting(1, WaitingKind.DEVICE_CAPACITY))
    do(model, Cancel(1), Submit(run(0, 0, 9), 0, session="a"))
    assert do(model, Schedule()).value == Scheduled((Admitted(2, AdmissionMode.MOVE, source, 8),))
    do(model, Finish(2))
    assert do(model, Release(2)).counters == ((0, 0, 3),), "the pin went with the continuation that had it"


def test_move_with_truncation_where_a_fork_does_not_fit() -> None:
    """The source holds 3 of 5 pages: a fork at 5 takes 5 − 1 of the 2 left, the move 5 − 2 of 2 and 1 cut off."""
    model = model_of(capacity=5)
    source = kept(model, run(0, 0, 10))
    do(model, Submit(concat(run(0, 0, 5), run(1, 0, 10)), 5))
    assert model.demand(Schedule()) == 0
    outcome = do(model, Schedule())
    assert outcome.value == Scheduled((Admitted(1, AdmissionMode.MOVE_TRUNCATED, source, 5),))
    assert outcome.evicted == ()
    assert outcome.counters == ((2, 3, 0),)
    assert model.checkpoints == [], "the only checkpoint lay beyond the cut"


def test_a_pinned_source_is_not_cut() -> None:
    model = model_of(capacity=5)
    do(model, Pin(kept(model, run(0, 0, 10))), Submit(concat(run(0, 0, 5), run(1, 0, 10)), 5))
    assert model.demand(Schedule()) == 2, "a fork at 5 takes 4 of the 2 pages left"
    assert do(model, Schedule()).value == Scheduled((), Waiting(1, WaitingKind.DEVICE_CAPACITY))


def test_move_with_truncation_needs_less_once_who_shares_the_cut_page_is_released() -> None:
    """Sources 0 and 1 share a page; releasing 1 frees its own page and spares the copy of the shared one."""
    model = model_of(capacity=5)
    first = start(model, run(0, 0, 4), 4)
    second = do(model, Fork(first, 4, 4)).value
    assert isinstance(second, int)
    write(model, Append(first, run(1, 0, 1)), Append(second, run(2, 0, 1)))
    do(model, Finish(first), Finish(second))
    do(model, Submit(concat(run(0, 0, 3), run(3, 0, 7)), 10))
    outcome = do(model, Schedule())
    assert outcome.value == Scheduled((Admitted(2, AdmissionMode.MOVE_TRUNCATED, first, 3),))
    assert outcome.evicted == (second,)
    assert outcome.counters == ((1, 4, 0),)


def test_a_source_in_flight_is_left_out_of_admission_but_not_of_lookup() -> None:
    model = model_of()
    sequence = start(model, run(0, 0, 4), 4)
    do(model, Checkpoint(sequence), BeginUnit((Append(sequence, run(1, 0, 1)),)))
    assert do(model, Lookup(run(0, 0, 6))).value == Hit(sequence, 0, 4)
    do(model, Submit(run(0, 0, 6), 0))
    assert do(model, Schedule()).value == Scheduled((Admitted(1, AdmissionMode.COLD),))


@pytest.mark.parametrize(("capacity", "slack"), [(3, 1), (4, 0), (5, -1)])
def test_capacity_at_demand(capacity: int, slack: int) -> None:
    model = model_of(capacity=capacity)
    start(model, run(0, 0, 4), 4)
    do(model, Submit(run(1, 0, 5), 3))
    assert model.demand(Schedule()) == slack
    assert model.demand(TryAdmit(1)) == slack
    scheduled = do(model, Schedule()).value
    assert isinstance(scheduled, Scheduled)
    assert (scheduled.waiting is None) == (slack <= 0)


def test_least_recently_used_go_first_and_only_as_many_as_needed() -> None:
    model = model_of(capacity=4)
    names = [kept(model, run(source, 0, 4)) for source in range(3)]
    do(model, Fork(names[0], 4, 0), Finish(3, retain=False))
    do(model, Lookup(run(1, 0, 5)), Pin(names[2]), Pin(names[2], pinned=False))
    do(model, Submit(run(9, 0, 8), 0))
    outcome = do(model, Schedule())
    assert outcome.evicted == (names[1],), "a fork counts as a use, lookup and pin do not"
    do(model, Finish(4, retain=False), Submit(run(8, 0, 16), 0))
    assert do(model, Schedule()).evicted == (names[2], names[0])


def test_an_admission_by_fork_is_a_use_of_its_source() -> None:
    model = model_of(capacity=4)
    names = [kept(model, run(source, 0, 4)) for source in range(2)]
    do(model, Submit(run(0, 0, 5), 0), Schedule(), Finish(2, retain=False))
    do(model, Submit(run(9, 0, 12), 0))
    assert do(model, Schedule()).evicted == (names[1],)


def test_retaining_is_a_use_later_than_an_earlier_fork() -> None:
    model = model_of(capacity=3)
    first = start(model, run(0, 0, 4))
    forked = kept(model, run(1, 0, 4))
    do(model, Fork(forked, 4, 0), Finish(2, retain=False), Finish(first), Submit(run(9, 0, 8), 0))
    assert do(model, Schedule()).evicted == (forked,)


def test_nothing_is_released_in_vain() -> None:
    model = model_of(capacity=4)
    old = kept(model, run(0, 0, 4))
    start(model, run(1, 0, 8), 4)
    do(model, Submit(run(2, 0, 8), 0))
    waits = Scheduled((), Waiting(2, WaitingKind.DEVICE_CAPACITY))
    assert do(model, Schedule()) == Outcome(waits, None, (), ((3, 1, 0),))
    assert model.continuations() == [old]


def test_the_queue_is_first_come_first_served() -> None:
    model = model_of(capacity=4, rows=1)
    start(model, run(0, 0, 4))
    do(model, Submit(run(1, 0, 4), 0), Submit(run(2, 0, 4), 0))
    assert do(model, TryAdmit(2)).value == Waiting(2, WaitingKind.BEHIND_HEAD)
    assert do(model, TryAdmit(1)).value == Waiting(1, WaitingKind.NO_ROW)
    do(model, Cancel(1), Finish(0, retain=False))
    assert do(model, TryAdmit(2)).value == Admitted(2, AdmissionMode.COLD)


def test_retaining_under_a_used_key_replaces_even_a_pinned_one() -> None:
    model = model_of()
    old = kept(model, run(0, 0, 4), session="a")
    do(model, Pin(old))
    new = kept(model, run(1, 0, 8), session="a")
    assert model.continuations() == [new]
    assert [owner for _, owner, *_ in model.checkpoints] == [new]
    assert model.books.counters[0] == (2, 0, 6)


def test_nothing_is_retained_of_an_empty_sequence() -> None:
    model = model_of()
    do(model, Submit(run(0, 0, 4), 0), Schedule())
    assert do(model, Finish(0)) == Outcome(False, None, (), ((0, 0, 8),))


# -- units -------------------------------------------------------------------------------------------------------------


def test_a_recorded_cancel_aborts_its_row_alone() -> None:
    model = model_of()
    rows = [start(model, run(source, 0, 4), 4) for source in range(3)]
    do(model, BeginUnit(tuple(Append(row, run(9, row, 1)) for row in reversed(rows))))
    assert model.books.counters[0] == (6, 0, 2)
    assert [do(model, Cancel(rows[1])).value for _ in range(2)] == [False, False]
    outcome = do(model, EndUnit(3))
    assert outcome.value == UnitEnded(((2, 5), (0, 5)), (1,))
    assert outcome.counters == ((4, 0, 4),)


def test_an_aborted_unit_gives_its_pages_back_to_the_same_reservation() -> None:
    model = model_of()
    sequence = start(model, run(0, 0, 3), 6)
    do(model, BeginUnit((Append(sequence, run(1, 0, 6)),)))
    assert model.books.counters[0] == (3, 0, 5)
    assert model.tokens(sequence) == run(0, 0, 3), "others see the frontier before the unit"
    assert do(model, EndUnit(1, commit=False)).counters == ((1, 2, 5),)
    assert model.reserved(sequence) == 2


def test_a_unit_is_judged_by_the_gravest_of_its_works() -> None:
    model = model_of()
    sequence = start(model, run(0, 0, 4), 1)
    too_long = Append(sequence, run(1, 0, 9))
    for works, kind in (
        ((too_long,), RefusalKind.LIMIT_EXCEEDED),
        ((too_long, too_long), RefusalKind.BAD_ARGUMENT),
        ((too_long, Prefill(sequence, 1)), RefusalKind.WRONG_STATE),
        ((too_long, Prefill(77, 1)), RefusalKind.STALE_HANDLE),
    ):
        assert model.predict(BeginUnit(works)).refusal is kind


# -- other engines, other configurations -------------------------------------------------------------------------------


def test_without_reservations_pages_come_when_they_are_written_and_go_when_they_are_cut() -> None:
    operations = Capabilities("").operations - {"Release", "Pin", "Fork"}
    config = EngineConfig((PoolSpec("main", 2, 4),), 32, 4)
    model = AccountingModel(config, Capabilities("on demand", operations, reserves=False))
    first, second = start(model, run(0, 0, 4), 4), start(model, run(1, 0, 4), 4)
    assert model.books.counters[0] == (2, 0, 0)
    unit = BeginUnit((Append(first, run(2, 0, 1)),))
    assert model.demand(unit) == 1
    assert model.predict(unit).refusal is RefusalKind.DEVICE_CAPACITY
    assert do(model, Truncate(second, 0)).counters == ((1, 0, 1),)
    assert do(model, unit).counters == ((2, 0, 0),)
    do(model, EndUnit(2, commit=False))
    assert do(model, Finish(first)).value is False, "nothing can be retained that could never be released"
    with pytest.raises(ValueError, match="has no operation Fork"):
        model.predict(Fork(second, 1, 1))


def test_without_reservations_a_cold_start_takes_nothing_where_a_fork_lacks_its_tail() -> None:
    model = AccountingModel(EngineConfig((PoolSpec("main", 1, 4),), 32, 4), Capabilities("", reserves=False))
    source = start(model, run(0, 0, 3))
    do(model, Checkpoint(source), Submit(run(0, 0, 3), 0))
    assert do(model, Schedule()).value == Scheduled((Admitted(1, AdmissionMode.COLD),))
    assert model.books.counters[0] == (1, 0, 0)


def test_a_backend_that_lags_is_counted_by_itself() -> None:
    config = EngineConfig((PoolSpec("main", 8, 4), PoolSpec("mtp", 4, 8)), 32, 4)
    model = AccountingModel(config)
    do(model, Submit(run(0, 0, 10), 2))
    assert do(model, Schedule()).counters == ((0, 3, 5), (0, 2, 2))
    assert do(model, BeginUnit((Prefill(0, 10, backend=3),))).counters == ((3, 0, 5), (1, 1, 2))
    do(model, EndUnit(0))
    assert model.reach(0) == (10, 3)
    do(model, Checkpoint(0))
    assert model.checkpoints[0][2] == 3
    child = do(model, Fork(0, 9, 3)).value
    assert isinstance(child, int)
    assert model.reach(child) == (9, 3)
    assert model.books.counters == ((4, 0, 4), (2, 2, 0))
    do(model, Truncate(child, 3))
    assert (model.reach(child), model.pages_of(child, 1)) == ((3, 3), (1, 0))
    assert do(model, Finish(0)).value is True
    assert do(model, Lookup(run(0, 0, 12))).value == Hit(0, 0, 3)


def test_progress_moves_no_counter_where_effects_are_immediate() -> None:
    model = model_of()
    start(model, run(0, 0, 4))
    assert model.predict(Progress()) == Outcome(Progressed((0,)), None, (), ((1, 0, 7),))
    assert model.predict(Progress()) == Outcome(Progressed(), None, (), ((1, 0, 7),)), (
        "a unit is reported once"
    )
    assert count(model.tokens(0)) == 4


def test_the_model_imports_neither_torch_nor_numpy_nor_the_engine() -> None:
    program = (
        "import sys, kvcrucible.reference.accounting, kvcrucible.fuzz.scenarios;"
        "print([name for name in sys.modules if name in ('torch', 'numpy') or 'kvcrucible.engine' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
