"""A monitor leaves out the checkers that read nothing of what a step has changed, and misses nothing by it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from firing import fired_in_step
from host_corruptions import HOST_CORRUPTIONS
from pool_corruptions import CORRUPTIONS

from kvcrucible.contract.snapshot import KEYED_PARTS, Snapshot, Touched, advanced
from kvcrucible.invariants.monitor import Monitor, differences
from kvcrucible.invariants.registry import CHECKERS, checkers
from kvcrucible.invariants.shadow import Shadow

#: Steps of a walk, and corruptions that are tried on each.
STEPS, TRIES = 60, 8

WALKS = {"walk": CORRUPTIONS, "host_walk": HOST_CORRUPTIONS}


class Recording:
    """Stands for a snapshot, or one of its parts, and notes what is read of it."""

    def __init__(self, of: Any, read: set[str], names: dict[str, str]) -> None:
        self._of, self._read, self._names = of, read, names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            self._read.add(self._names[name])
        found = getattr(self._of, name)
        if name == "pools":
            counters = dict.fromkeys(("leased", "reserved", "free"), "counters")
            return tuple(Recording(pool, self._read, counters) for pool in found)
        if name == "host" and found is not None:
            return Recording(found, self._read, dict.fromkeys(("used", "free"), "arena"))
        return found

    def __eq__(self, other: object) -> bool:
        return self._of == other

    __hash__ = None  # type: ignore[assignment]


PARTS = {part: "checkpoints" if part == "findable" else part for part in KEYED_PARTS}

#: What of a scope says that entries have changed.
SCOPE = {name: name for name in Touched.__slots__} | {
    "kept": "pages",
    "created": "pages",
    "removed": "pages",
    "gained": "spaces",
    "lost": "spaces",
}


@pytest.mark.parametrize("name", WALKS)
def test_step_checks_read_what_their_checker_names_and_no_more(request, name):
    read: dict[str, set[str]] = {checker.id: set() for checker in CHECKERS}
    for step in request.getfixturevalue(name)(5, STEPS):
        closed = Shadow(step.before).step(step.partial, step.touched)
        for checker in (one for one in checkers() if one.is_local):
            before, after = (
                Recording(side, read[checker.id], PARTS) for side in (closed.before, closed.after)
            )
            scope = Recording(closed.scope, read[checker.id], SCOPE)
            assert list(checker.check_delta(before, after, scope)) == []
    for checker in CHECKERS:
        if checker.is_local:
            assert read[checker.id] <= checker.reads, checker.id
            assert checker.reads <= {*Touched.__slots__, "counters", "arena"}, checker.id
            assert read[checker.id], f"{checker.id} read nothing at all: the walk proves nothing"


@pytest.mark.parametrize("name", WALKS)
def test_who_is_left_out_would_have_had_nothing_to_say(request, name):
    random, compared, left_out = Random(3), 0, 0
    corruptions = WALKS[name]
    for step in request.getfixturevalue(name)(8, 3 * STEPS):
        for corruption in random.sample(list(corruptions), TRIES):
            broken = corruptions[corruption][1](step.after, random)
            if broken is None:
                continue
            monitor = Monitor(checkers())
            monitor.observe_full(step.after)
            found = monitor.observe(broken, differences(step.after, broken))
            local = {one.invariant for one in found} - {"no-leak-at-quiescence"}
            assert local == fired_in_step(step.after, broken), corruption
            compared += 1
            left_out += any(tally.full and not tally.steps for tally in monitor.tallies.values())
    assert compared > 30
    assert left_out > 5, "everybody was always asked"


@pytest.mark.parametrize("name", WALKS)
def test_a_state_moved_on_by_what_was_touched_is_the_state(request, name):
    """The same entries as the full snapshot; what was not touched is shared with the state before."""
    shared = 0
    for step in request.getfixturevalue(name)(11, 3 * STEPS):
        moved = advanced(step.before, step.partial, step.touched)
        for part in (*KEYED_PARTS, "pools", "queue", "host"):
            assert getattr(moved, part) == getattr(step.after, part), part
            shared += getattr(moved, part) is getattr(step.before, part)
        assert moved.free_pages is None
        assert moved.host_holes is None
    assert shared > STEPS


def test_a_step_that_changes_nothing_asks_nobody(walk):
    monitor = Monitor(checkers())
    (step,) = walk(1, 1)
    monitor.observe_full(step.after)
    before = {name: tally.steps for name, tally in monitor.tallies.items()}
    assert monitor.observe(Snapshot(step.after.pools, queue=step.after.queue), Touched()) == []
    assert {name: tally.steps for name, tally in monitor.tallies.items()} == before
