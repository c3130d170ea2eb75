"""The engine's behaviour in small worked examples; sequences at large belong to the campaign."""

from __future__ import annotations

import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import DeviceCapacity, RowInFlight, StaleHandle, WrongState
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    Prefill,
    Progressed,
    Scheduled,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.tokens import Tokens, run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.streams import SimulatedDevice


def engine(capacity: int = 64, page_size: int = 64, context: int = 4096, rows: int = 4) -> Engine:
    return Engine(EngineConfig((PoolSpec("main", capacity, page_size),), context, rows))


def start(e: Engine, prompt: int, max_new: int, source: int = 0, **request: object) -> int:
    """Submit, admit and prefill a whole prompt."""
    sequence = e.submit(run(source, 0, prompt), max_new, **request)  # type: ignore[arg-type]
    assert e.schedule().waiting is None
    left = prompt - e.sequences[sequence].frontier
    if left:
        e.end_unit(e.begin_unit([Prefill(sequence, left)]))
    return sequence


def append(e: Engine, sequence: int, tokens: Tokens) -> None:
    e.end_unit(e.begin_unit([Append(sequence, tokens)]))


def pages(e: Engine, sequence: int) -> list[int]:
    return e.sequences[sequence].spaces[0].devices()


def test_fork_at_1000_shares_15_pages_and_copies_40_columns() -> None:
    e = engine()
    parent = start(e, 1000, 200)
    leased = e.pools[0].leased
    child = e.fork(parent, 1000, 200)
    assert pages(e, child)[:15] == pages(e, parent)[:15]
    assert pages(e, child)[15] != pages(e, parent)[15]
    assert e.pools[0].leased == leased + 1
    assert (e.work.page_copies, e.work.columns_copied) == (1, 40)
    assert e.sequences[child].frontier == 1000


def test_move_copies_nothing_and_grants_nothing() -> None:
    e = engine()
    first = start(e, 1000, 0, session="chat")
    held = pages(e, first)
    e.finish(first)
    before = (e.work.page_copies, e.work.pages_granted, e.work.allocator_calls)
    second = e.submit(run(0, 0, 1001), 10, session="chat")
    assert e.schedule() == Scheduled((Admitted(second, AdmissionMode.MOVE, first, 1000),))
    assert pages(e, second) == held
    assert (e.work.page_copies, e.work.pages_granted, e.work.allocator_calls) == before


def test_decode_calls_the_allocator_exactly_at_page_crossings() -> None:
    e = engine(page_size=16)
    sequence = start(e, 10, 60)
    calls = e.work.allocator_calls
    crossed = []
    for position in range(10, 70):
        append(e, sequence, run(1, position, 1))
        if e.work.allocator_calls != calls:
            calls, crossed = e.work.allocator_calls, [*crossed, position]
    assert crossed == [16, 32, 48, 64]


def test_truncated_pages_return_to_the_own_reservation() -> None:
    e = engine(capacity=8, page_size=16)
    sequence = start(e, 40, 40)
    assert counters(e) == ((3, 2, 3),)
    e.truncate(sequence, 5)
    assert counters(e) == ((1, 4, 3),)
    append(e, sequence, run(5, 0, 75))
    assert counters(e) == ((5, 0, 3),)


def test_cut_inside_a_shared_page_copies_it_and_reserves_what_was_shared() -> None:
    e = engine(capacity=16, page_size=16)
    parent = start(e, 48, 16)
    child = e.fork(parent, 48, 0)
    assert counters(e) == ((3, 1, 12),)
    e.truncate(parent, 20)
    # One page copied for the cut, one shared page reserved anew: positions 20 to 63 can be written again.
    assert counters(e) == ((4, 2, 10),)
    assert pages(e, parent)[0] == pages(e, child)[0]
    assert pages(e, parent)[1] != pages(e, child)[1]
    append(e, parent, run(7, 0, 44))
    assert e.sequences[child].frontier == 48


def test_cut_below_shared_pages_is_refused_unchanged_when_nothing_is_free() -> None:
    e = engine(capacity=4, page_size=16)
    parent = start(e, 48, 16)
    e.fork(parent, 48, 0)
    before = snapshot(e)
    with pytest.raises(DeviceCapacity):
        e.truncate(parent, 20)
    assert snapshot(e) == before


def test_a_checkpoint_beyond_a_cut_is_no_longer_found() -> None:
    e = engine(page_size=16)
    sequence = start(e, 40, 8)
    e.checkpoint(sequence)
    assert e.lookup(run(0, 0, 41)) is not None
    e.truncate(sequence, 30)
    assert e.lookup(run(0, 0, 41)) is None


def test_a_request_waits_only_when_releasing_everything_would_not_do() -> None:
    e = engine(capacity=4, page_size=16)
    kept = start(e, 48, 0)
    e.finish(kept)
    sequence = e.submit(run(9, 0, 64), 0)
    assert e.schedule().admitted == (Admitted(sequence, AdmissionMode.COLD),)
    assert e.evicted == [kept]


def test_a_pinned_continuation_makes_a_request_wait() -> None:
    e = engine(capacity=4, page_size=16)
    kept = start(e, 48, 0)
    e.finish(kept)
    e.pin(kept)
    sequence = e.submit(run(9, 0, 64), 0)
    assert e.schedule().waiting == Waiting(sequence, WaitingKind.DEVICE_CAPACITY)
    with pytest.raises(WrongState, match="pinned"):
        e.release(kept)


def test_a_source_is_cut_and_moved_when_a_fork_does_not_fit() -> None:
    e = engine(capacity=4, page_size=16)
    kept = start(e, 60, 0)
    e.finish(kept)
    sequence = e.submit((*run(0, 0, 20), *run(3, 0, 30)), 14)
    assert e.schedule().admitted == (Admitted(sequence, AdmissionMode.MOVE_TRUNCATED, kept, 20),)
    assert counters(e) == ((2, 2, 0),)


def test_a_row_in_flight_is_frozen_and_its_cancel_waits() -> None:
    e = engine(page_size=16)
    sequence = e.submit(run(0, 0, 20), 20)
    e.schedule()
    unit = e.begin_unit([Prefill(sequence, 20)])
    for use in (
        lambda: e.truncate(sequence, 0),
        lambda: e.finish(sequence),
        lambda: e.begin_unit([Prefill(sequence, 1)]),
    ):
        with pytest.raises(RowInFlight):
            use()
    assert e.cancel(sequence) is False
    assert e.end_unit(unit).cancelled == (sequence,)
    assert counters(e) == ((0, 0, 64),)
    with pytest.raises(StaleHandle):
        e.end_unit(unit)


def test_an_aborted_unit_leaves_no_trace_but_numbers() -> None:
    e = engine(page_size=16)
    sequence = start(e, 20, 60)
    before = snapshot(e)
    e.end_unit(e.begin_unit([Append(sequence, run(1, 0, 40))]), commit=False)
    after = snapshot(e)
    assert (after.pools, after.spaces, after.sequences, after.rows) == (
        before.pools,
        before.spaces,
        before.sequences,
        before.rows,
    )


def test_progress_reports_a_unit_once_its_effects_have_run() -> None:
    device = SimulatedDevice()
    e = Engine(EngineConfig((PoolSpec("main", 8, 16),), 128, 2), device=device)
    sequence = e.submit(run(0, 0, 20), 0)
    e.schedule()
    unit = e.begin_unit([Prefill(sequence, 20)])
    e.end_unit(unit)
    assert device.pending > 0
    assert e.progress() == Progressed()
    device.synchronize()
    assert e.progress() == Progressed((unit,))
    assert e.progress() == Progressed()


def test_a_source_that_a_release_leaves_alone_is_cut_without_a_copy() -> None:
    """Two continuations share every page of a full pool; making room for a cut of one releases the other."""
    e = engine(capacity=3, page_size=16)
    first = start(e, 48, 0)
    second = e.fork(first, 48, 0)
    e.finish(first)
    e.finish(second)
    sequence = e.submit(run(0, 0, 48), 0)
    assert e.schedule().admitted == (Admitted(sequence, AdmissionMode.MOVE_TRUNCATED, first, 47),)
    assert e.evicted == [second]
    assert counters(e) == ((3, 0, 0),)
    assert e.work.page_copies == 0
