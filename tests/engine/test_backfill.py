"""Who passes a waiting head of the queue, and that the head starts in the end, whatever passes it (decision 0021)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kvcrucible.contract import operations as ops
from kvcrucible.contract.config import MAX_LOOKAHEAD, EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.operations import AdmissionMode, Admitted, Waiting, WaitingKind
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import Geometry, storage_profile
from kvcrucible.contract.tokens import run
from kvcrucible.engine import admission, backfill
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.records import Request
from kvcrucible.reference.accounting import AccountingModel

P = 4


def engine_of(
    capacity: int = 10, rows: int = 6, lookahead: int = 4, backend: int | None = None, host: bool = False
) -> Engine:
    sizes = [("main", capacity)] + ([] if backend is None else [("mtp", backend)])
    profile, geometry = storage_profile("FP32"), Geometry(1, 1, 4)
    pools = [PoolSpec(n, c, P, (PlaneSpec(profile, geometry, P, n),) if host else ()) for n, c in sizes]
    tier = HostSpec(1 << 16, 64) if host else None
    return Engine(EngineConfig(tuple(pools), 10 * P, rows, tier, lookahead=lookahead))


def ask(engine: Engine, pages: int, session: str | None = None, source: int = 9) -> int:
    """Queue a request for so many pages."""
    return engine.submit(run(source, 100 * engine._next_sequence, 1), pages * P - 1, session)


def fill(engine: Engine, sequence: int, count: int) -> None:
    engine.end_unit(engine.begin_unit([ops.Prefill(sequence, count)]))


def admitted(engine: Engine) -> list[int]:
    return [one.sequence for one in engine.schedule().admitted]


def test_nobody_passes_unless_a_look_ahead_is_asked_for() -> None:
    engine = engine_of(lookahead=EngineConfig().lookahead)
    long = ask(engine, 6)
    assert admitted(engine) == [long]
    ask(engine, 6)
    ask(engine, 1)
    assert admitted(engine) == []


def test_a_request_passes_if_the_head_still_fits_beside_it() -> None:
    engine = engine_of()
    long = ask(engine, 6)
    engine.schedule()
    head, exactly, beyond = ask(engine, 6), ask(engine, 4), ask(engine, 1)
    scheduled = engine.schedule()
    assert scheduled.admitted == (Admitted(exactly, AdmissionMode.COLD),)
    assert scheduled.waiting == Waiting(head, WaitingKind.DEVICE_CAPACITY)
    assert engine.work.backfilled == 1
    engine.finish(long, retain=False)
    # The head first, then the one that would have had to wait; the one that passed is still there.
    assert admitted(engine) == [head]
    assert list(engine.queue) == [beyond]


def test_what_those_hold_who_passed_before_counts_too() -> None:
    """Each of them alone would leave the head enough; one after the other, for ever, they would not."""
    engine = engine_of()
    ask(engine, 3)
    engine.schedule()
    head, first, second = ask(engine, 8), ask(engine, 2), ask(engine, 2)
    assert admitted(engine) == [first]
    engine.finish(first, retain=False)
    assert admitted(engine) == [second]
    assert next(iter(engine.queue)) == head


def test_the_look_ahead_is_a_bound() -> None:
    engine = engine_of(lookahead=1)
    ask(engine, 6)
    engine.schedule()
    ask(engine, 6)
    ask(engine, 5)
    small = ask(engine, 1)
    assert admitted(engine) == []
    assert small in engine.queue


def test_a_shared_page_of_one_that_passes_counts_as_its_own() -> None:
    """It shares five of its six pages with the one that runs, and keeps them when that one ends."""
    engine = engine_of()
    ask(engine, 6, source=1)
    engine.schedule()
    fill(engine, 0, 1)
    engine.end_unit(engine.begin_unit([ops.Append(0, run(1, 1, 5 * P))]))
    engine.checkpoint(0)
    ask(engine, 6)
    tokens = engine.sequences[0].tokens
    sharing = engine.submit((*tokens, (9, 999, 1)), 0)
    assert admission.entitlement(engine.pools, engine.queue[sharing].limit) == (6,)
    assert admitted(engine) == []


@pytest.mark.parametrize("pinned", [False, True])
def test_what_is_pinned_counts_and_what_may_be_released_does_not(pinned: bool) -> None:
    engine = engine_of()
    kept = ask(engine, 2)
    engine.schedule()
    fill(engine, kept, 1)
    engine.finish(kept)
    engine.pin(kept, pinned)
    ask(engine, 5)
    engine.schedule()
    ask(engine, 6)
    small, smaller = ask(engine, 4), ask(engine, 3)
    assert admitted(engine) == ([smaller] if pinned else [small])


@pytest.mark.parametrize("released", [False, True])
def test_what_a_transfer_holds_counts_until_it_is_over(released: bool) -> None:
    """Also where nobody else holds the page that it moves: it gives that back only when it is over."""
    engine = engine_of(host=True)
    kept = ask(engine, 1)
    engine.schedule()
    fill(engine, kept, 1)
    engine.finish(kept)
    ask(engine, 5)
    engine.schedule()
    ask(engine, 6)
    small = ask(engine, 4)
    engine.demote(kept)
    if released:
        engine.release(kept)
    assert admitted(engine) == []
    engine.progress()
    assert admitted(engine) == [small]


def test_a_request_of_an_active_session_passes_nobody() -> None:
    """The head would have all that it takes; what the request may not do is start beside the other of its session."""
    engine = engine_of()
    long = ask(engine, 6, session="a")
    engine.schedule()
    ask(engine, 6)
    of_the_session, other = ask(engine, 1, session="a"), ask(engine, 1)
    assert admitted(engine) == [other]
    assert of_the_session in engine.queue
    engine.finish(long, retain=False)
    assert of_the_session in admitted(engine)


def test_every_pool_counts() -> None:
    engine = engine_of(capacity=20, backend=10)
    ask(engine, 6)
    engine.schedule()
    ask(engine, 6)
    small, none = ask(engine, 4), ask(engine, 1)
    assert admitted(engine) == [small]
    assert none in engine.queue


def test_a_row_is_left_for_the_head() -> None:
    """With a session that is busy the head waits for no page; those who pass must not take all rows for ever."""
    engine = engine_of(rows=3)
    ask(engine, 1, session="a")
    engine.schedule()
    ask(engine, 1, session="a")
    first, second = ask(engine, 1), ask(engine, 1)
    assert admitted(engine) == [first, second]
    one_row = engine_of(rows=1, host=True)
    kept = ask(one_row, 8)
    one_row.schedule()
    fill(one_row, kept, 1)
    one_row.finish(kept)
    one_row.demote(kept, keep=True)
    ask(one_row, 10)
    small = ask(one_row, 1)
    assert one_row.schedule().waiting is not None
    assert small in one_row.queue


def test_requests_of_a_session_keep_their_order() -> None:
    engine = engine_of()
    ask(engine, 6)
    engine.schedule()
    ask(engine, 6, session="a")
    of_the_head = ask(engine, 1, session="a")
    large, after_it, other = ask(engine, 5, session="b"), ask(engine, 1, session="b"), ask(engine, 1)
    assert admitted(engine) == [other]
    assert {of_the_head, large, after_it} <= set(engine.queue)


def test_who_passed_an_earlier_head_is_one_of_those_who_end() -> None:
    engine = engine_of()
    long = ask(engine, 6)
    engine.schedule()
    head, passer = ask(engine, 6), ask(engine, 4)
    assert admitted(engine) == [passer]
    next_head, small = ask(engine, 8), ask(engine, 2)
    engine.cancel(head)
    engine.finish(long, retain=False)
    # Beside the head's 8 pages there are 2, though the one that passed its forerunner holds 4.
    assert admitted(engine) == [small]
    assert next(iter(engine.queue)) == next_head


@pytest.mark.parametrize("lookahead", [-1, MAX_LOOKAHEAD + 1])
def test_the_look_ahead_has_bounds(lookahead: int) -> None:
    with pytest.raises(BadArgument, match="look-ahead"):
        EngineConfig(lookahead=lookahead)


def _starve(engine: Engine, draw: random.Random, rounds: int) -> bool:
    """Let an endless stream of small requests pass a head until all who were there before it have ended; return whether
    the head has started, while everybody who passed it stays, cut back so that nothing is shared any more.
    """
    for _ in range(3):
        ask(engine, draw.randint(1, 3))
    engine.schedule()
    before = list(engine.sequences)
    for sequence in before:
        fill(engine, sequence, 1)
        more = draw.randint(0, engine.sequences[sequence].limit - 1)
        if more:
            engine.end_unit(engine.begin_unit([ops.Append(sequence, run(2, 0, more))]))
        engine.checkpoint(sequence)
    head = ask(engine, draw.randint(7, 9))
    for turn in range(rounds):
        for _ in range(2):
            marked = [one.committed_tokens for one in engine.sequences.values() if one.marks]
            known = draw.choice(marked) if marked and draw.random() < 0.5 else ()
            engine.submit((*known, (9, 5000 + 10 * turn + draw.randint(0, 9), 1)), draw.randint(0, 2 * P))
        engine.schedule()
        if head in engine.sequences:
            return True
        passers = [one for one in engine.sequences if one not in before]
        if len(passers) > 1 and draw.random() < 0.6:
            engine.finish(draw.choice(passers), retain=draw.random() < 0.5)
        if before and turn % 3 == 2:
            engine.finish(before.pop(), retain=draw.random() < 0.5)
        for waiting in list(engine.queue)[6:]:
            engine.cancel(waiting)
    for sequence in before:
        engine.finish(sequence, retain=draw.random() < 0.5)
    for sequence in engine.sequences.values():
        if sequence.frontier:
            engine.truncate(sequence.sequence, 0)
    engine.schedule()
    return head in engine.sequences


@pytest.mark.parametrize("backend", [None, 11])
def test_no_stream_of_small_requests_starves_the_head(backend: int | None) -> None:
    passed = 0
    for seed in range(60):
        engine = engine_of(backend=backend, rows=5)
        assert _starve(engine, random.Random(seed), 14), seed
        passed += engine.work.backfilled
    assert passed > 100


def test_counting_only_the_one_that_passes_starves_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weaker reading of the rule, each time with only one who stays, is not enough."""
    real: Callable[[Engine, Request, Request], bool] = backfill.may_pass

    def may_pass(engine: Engine, head: Request, request: Request) -> bool:
        marks = {one.sequence: one.passed for one in engine.sequences.values()}
        for one in engine.sequences.values():
            one.passed = None
        found = real(engine, head, request)
        for one in engine.sequences.values():
            one.passed = marks[one.sequence]
        return found

    monkeypatch.setattr(backfill, "may_pass", may_pass)
    assert not all(_starve(engine_of(rows=5), random.Random(seed), 14) for seed in range(60))


def test_engine_and_model_let_the_same_pass() -> None:
    draw, passings = random.Random(21), 0
    for _ in range(30):
        engine = engine_of(rows=5, lookahead=draw.choice([1, 2, 5]))
        model = AccountingModel(engine.config)
        for number in range(40):
            alive = list(engine.sequences)
            kind = draw.random()
            if kind < 0.4:
                request = ops.Submit(
                    run(9, number, 1), draw.randint(1, 9) * P - 1, draw.choice([None, None, "a"])
                )
                assert model.predict(request).value == engine.submit(
                    request.prompt, request.max_new, request.session
                )
            elif kind < 0.75 or not alive:
                found = engine.schedule()
                assert model.predict(ops.Schedule()).value == found
                passings += found.waiting is not None and any(
                    one.sequence > found.waiting.sequence for one in found.admitted
                )
            else:
                gone = draw.choice(alive)
                model.predict(ops.Finish(gone, retain=False))
                engine.finish(gone, retain=False)
    assert passings > 20
