"""The monitor: what it adds to a step, what it compares, what it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshot_corruptions import put

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.snapshot import Touched
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.invariants.judgements import UNREPORTED_CHANGE
from kvcrucible.invariants.monitor import Monitor, differences
from kvcrucible.invariants.registry import checkers
from kvcrucible.invariants.shadow import Shadow, shared_length


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [
        ((), (), 0),
        ((1, 2), (), 0),
        ((1, 2), (1, 2), 2),
        ((1, 2, 3), (1, 2), 2),
        ((1, 2, 3, 4), (1, 9, 3, 4), 1),
        ((9, 2), (1, 2), 0),
        (tuple(range(1000)), (*range(700), -1, *range(701, 1000)), 700),
    ],
)
def test_shared_length(left, right, length):
    assert shared_length(left, right) == length == shared_length(right, left)


def test_a_step_looks_at_what_was_touched_and_not_at_what_is_held():
    engine = Engine(EngineConfig((PoolSpec("main", 3000, 4),), max_context=12_000, max_concurrency=2))
    engine.submit(run(1, 0, 8000), 100)
    engine.schedule()
    engine.end_unit(engine.begin_unit([Prefill(0, 8000)]))
    drain(engine)
    shadow = Shadow(snapshot(engine))
    unit = engine.begin_unit([Append(0, run(2, 0, 6))])
    begun = shadow.step(*drain(engine))
    shadow.advance(begun)
    engine.end_unit(unit)
    ended = shadow.step(*drain(engine))
    assert len(begun.after.spaces[0, 0].pages) == 2002
    assert set(begun.after.pages) == {2000, 2001}
    assert set(ended.after.pages) == {2000, 2001}


def test_following_steps_gives_the_same_state_as_full_snapshots(walk):
    shadow = None
    for step in walk(3, 300):
        shadow = shadow or Shadow(step.before)
        shadow.advance(shadow.step(step.partial, step.touched))
        assert differences(shadow.state, step.after) == Touched()
        # What is derived from the entries follows them too.
        fresh = Shadow(step.after)
        assert shadow._holders == fresh._holders
        assert shadow._names.ids == fresh._names.ids
        assert shadow._checkpoints_by_owner.ids == fresh._checkpoints_by_owner.ids
        assert shadow._checkpoints_by_page.ids == fresh._checkpoints_by_page.ids


def test_a_change_that_was_not_reported_is_a_violation_of_its_own(walk):
    step = next(step for step in walk(1, 200) if step.after.pages)
    monitor = Monitor(checkers())
    assert monitor.observe_full(step.before) == []
    assert monitor.observe(step.partial, step.touched) == []
    page = next(iter(step.after.pages.values()))
    changed = put(step.after, "pages", page.page, replace(page, epoch=page.epoch + 1))
    found = [
        violation for violation in monitor.observe_full(changed) if violation.invariant == UNREPORTED_CHANGE
    ]
    assert len(found) == 1
    assert f"pages {page.page}" in found[0].message
    assert monitor.observe_full(changed) == [], "the shadow follows the engine"


def test_an_engine_without_touched_sets_is_followed_by_its_full_snapshots(walk):
    monitor = Monitor(checkers(), reports_touched=False)
    state = None
    for step in walk(2, 200):
        assert monitor.observe_full(step.after) == []
        if any(page.references > 1 for page in step.after.pages.values()):
            state = step.after
            break
    assert state is not None
    page = next(page for page in state.pages.values() if page.references > 1)
    rewritten = put(state, "pages", page.page, replace(page, epoch=page.epoch + 1))
    assert "shared-immutable" in {violation.invariant for violation in monitor.observe_full(rewritten)}


def test_leaks_are_found_at_the_step_that_ends_the_last_sequence():
    engine = Engine(EngineConfig((PoolSpec("main", 8, 4),), max_context=32, max_concurrency=2))
    monitor = Monitor(checkers())
    monitor.observe_full(snapshot(engine))
    engine.submit(run(1, 0, 8), 4)
    engine.schedule()
    monitor.observe(*drain(engine))
    engine.finish(0, retain=False)
    partial, touched = drain(engine)
    (pool,) = partial.pools
    leaking = replace(partial, pools=(replace(pool, reserved=3, free=5),))
    assert {violation.invariant for violation in monitor.observe(leaking, touched)} == {
        "no-leak-at-quiescence",
        "pool-conservation",
    }


def test_tallies_count_runs_premises_and_what_the_harness_judged():
    engine = Engine(EngineConfig((PoolSpec("main", 8, 4),), 32, 2))
    monitor = Monitor(checkers())
    monitor.observe_full(snapshot(engine))
    engine.submit(run(1, 0, 8), 4)
    engine.schedule()
    monitor.observe(*drain(engine))
    monitor.count("refusal-atomic")
    monitor.count("refusal-atomic", premise=False)
    # A sequence and its row were touched, and no page: whoever reads pages alone was not asked about the step.
    assert (monitor.tallies["row-unique"].full, monitor.tallies["row-unique"].steps) == (1, 1)
    assert (monitor.tallies["replica-valid"].full, monitor.tallies["replica-valid"].steps) == (1, 0)
    assert monitor.tallies["row-unique"].premises == 1
    assert monitor.tallies["pool-conservation"].premises == 2
    assert (monitor.tallies["refusal-atomic"].harness, monitor.tallies["refusal-atomic"].premises) == (2, 1)


def test_steps_need_a_state_before_them(walk):
    (step,) = walk(1, 1)
    with pytest.raises(AssertionError, match="observe_full"):
        Monitor(checkers()).observe(step.partial, step.touched)
