"""Every checker is silent on sound states and fires on its own corruption; step checks agree with full checks."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest
from firing import fired_in_full, fired_in_step
from pool_corruptions import CORRUPTIONS
from snapshot_corruptions import put

from kvcrucible.invariants.checker import Checker
from kvcrucible.invariants.monitor import Monitor, differences
from kvcrucible.invariants.registry import CHECKERS, checkers

#: Steps of a walk; enough for sharing, eviction and units in flight to come up.
STEPS = 300

#: States that one corruption is tried on.
TRIES = 25


#: Rules of the Host tier, which this walk does without; test_host_checkers.py has one.
HOST = {"recycle-fenced", *(c.id for c in CHECKERS if c.needs_host)}


@pytest.mark.parametrize("seed", range(4))
def test_sound_runs_are_clean_fully_reported_and_not_vacuous(walk, seed):
    monitor = Monitor(checkers())
    for number, step in enumerate(walk(seed, 3 * STEPS)):
        if number == 0:
            assert monitor.observe_full(step.before) == []
        assert monitor.observe(step.partial, step.touched) == []
        if number % 3 == 0:
            assert monitor.observe_full(step.after) == []
    rare = {name for name, tally in monitor.tallies.items() if tally.premises < 10}
    assert rare <= {"no-leak-at-quiescence"} | HOST
    assert monitor.tallies["no-leak-at-quiescence"].premises


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_corruption_is_found_in_full_and_in_one_step(walk, name):
    invariant, corrupt = CORRUPTIONS[name]
    checker = next(c for c in CHECKERS if c.id == invariant)
    random, tried = Random(7), 0
    for step in walk(16, STEPS):
        broken = corrupt(step.after, random)
        if broken is None:
            continue
        tried += 1
        if tried > TRIES:
            break
        if checker.check is not Checker.check:
            assert invariant in fired_in_full(broken)
        if checker.is_local:
            assert invariant in fired_in_step(step.after, broken)
    assert tried, "nothing was there to corrupt: the walk proves nothing"


@pytest.mark.parametrize("seed", range(3))
def test_step_checks_agree_with_full_checks_on_random_broken_steps(walk, seed):
    temporal = {c.id for c in CHECKERS if c.is_temporal}
    random = Random(seed)
    compared = 0
    for step in walk(100 + seed, STEPS // 2):
        for name in random.sample(list(CORRUPTIONS), 12):
            broken = CORRUPTIONS[name][1](step.after, random)
            if broken is None:
                continue
            full = fired_in_full(replace(broken, free_pages=None), local=True)
            stepwise = fired_in_step(step.before, broken)
            compared += 1
            assert full <= stepwise, f"{name}: the step check misses {full - stepwise}"
            assert stepwise - full <= temporal, f"{name}: only the step check sees {stepwise - full}"
    assert compared > 100


def test_every_checker_has_a_corruption():
    step_alone = {"stale-handle-refused"}
    assert {c.id for c in CHECKERS} - HOST == {
        invariant for invariant, _ in CORRUPTIONS.values()
    } | step_alone


@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_say_what_they_verify_and_what_not(checker):
    text = checker.__doc__
    assert text.startswith("Verifies:")
    assert re.search(r"^\s*Does not verify:", text, re.MULTILINE)


# -- what only a step can show -----------------------------------------------------------------------------------------


def step_with(walk, wanted):
    """The first state of the walk that satisfies ``wanted``."""
    return next(step.after for step in walk(11, 400) if wanted(step.after))


def test_a_lease_given_out_again_under_an_old_generation_is_found(walk):
    monitor = Monitor(checkers())
    state = step_with(walk, lambda s: any(p.references == 1 for p in s.pages.values()))
    monitor.observe_full(state)
    page = next(iter(state.pages.values()))
    gone = put(state, "pages", page.page, None)
    monitor.observe(gone, differences(state, gone))
    again = put(gone, "pages", 10_000, replace(page, page=10_000))
    found = monitor.observe(again, differences(gone, again))
    assert "stale-handle-refused" in {v.invariant for v in found}

    risen = put(gone, "pages", 10_001, replace(page, page=10_001, generation=page.generation + 1))
    found = monitor.observe(risen, differences(again, risen))
    assert "stale-handle-refused" not in {v.invariant for v in found}


def test_a_lease_that_goes_on_keeps_its_generation(walk):
    state = step_with(walk, lambda s: s.pages and not s.units)
    page = next(iter(state.pages.values()))
    assert fired_in_step(
        state, put(state, "pages", page.page, replace(page, generation=page.generation + 1))
    ) == {"stale-handle-refused"}


def test_an_engine_without_generations_is_passed_over(walk):
    state = step_with(walk, lambda s: s.pages)
    page = replace(next(iter(state.pages.values())), generation=-1)
    state = put(state, "pages", page.page, page)
    monitor = Monitor(checkers())
    monitor.observe_full(state)
    gone = put(state, "pages", page.page, None)
    monitor.observe(gone, differences(state, gone))
    found = monitor.observe(state, differences(gone, state))
    assert "stale-handle-refused" not in {v.invariant for v in found}


def test_a_page_of_a_selected_sequence_must_not_change_in_flight(walk):
    state = step_with(walk, lambda s: any(u.work[0][2] > 0 for u in s.units.values()))
    owner = next(u.work[0][0] for u in state.units.values() if u.work[0][2] > 0)
    page = state.pages[state.spaces[owner, 0].pages[0]]
    broken = put(state, "pages", page.page, replace(page, epoch=page.epoch + 1))
    assert "unit-frozen" in fired_in_step(state, broken)


def test_a_selected_space_and_a_unit_must_not_change_in_flight(walk):
    state = step_with(walk, lambda s: s.units)
    unit = next(iter(state.units.values()))
    key = (unit.work[0][0], 0)
    space = state.spaces[key]
    assert "unit-frozen" in fired_in_step(
        state, put(state, "spaces", key, replace(space, pages=space.pages[:-1]))
    )
    longer = replace(unit, work=((*unit.work[0][:3], unit.work[0][3] + 1), *unit.work[1:]))
    assert "unit-frozen" in fired_in_step(state, put(state, "units", unit.unit, longer))


def test_another_holder_of_a_shared_page_may_end_in_flight(walk):
    """References may fall under a unit; the sound runs do it, and this pins that the checker lets them."""
    seen = 0
    for step in (step for seed in range(4) for step in walk(seed, 3 * STEPS)):
        for key in step.before.units.keys() & step.after.units.keys():
            for owner, pool, _, _ in step.before.units[key].work:
                for page in step.before.spaces[owner, pool].pages:
                    seen += step.before.pages[page].references != step.after.pages[page].references
    assert seen


@pytest.mark.parametrize(
    "change",
    [
        lambda free: (*free[:-1], free[0]),
        lambda free: free[1:],
        lambda free: (*free, 24),
    ],
    ids=["twice", "lost", "beyond"],
)
def test_free_lists_are_judged_in_full_snapshots(walk, change):
    state = step_with(walk, lambda s: s.sequences and len(s.free_pages[0]) > 2)
    assert not fired_in_full(state)
    broken = replace(state, free_pages=(change(state.free_pages[0]), *state.free_pages[1:]))
    assert fired_in_full(broken) == {"lease-unique"}


def test_a_leased_page_in_the_free_list_is_found(walk):
    state = step_with(walk, lambda s: s.pages and s.free_pages[0] and not s.units)
    leased = next(p.device for p in state.pages.values() if p.pool == 0)
    broken = replace(state, free_pages=((*state.free_pages[0], leased), *state.free_pages[1:]))
    assert fired_in_full(broken) == {"lease-unique"}
