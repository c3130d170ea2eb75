"""Judgements that a harness calls: each holds on the sound case and fires on the broken one."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
from snapshot_corruptions import CORRUPTIONS, put

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.snapshot import PoolState, Snapshot
from kvcrucible.invariants.behaviour import (
    admitted_by_count,
    cache_yielded,
    epochs_risen,
    releasable_pages,
    rows_close,
    rows_equal,
    stale_refused,
    unchanged,
)
from kvcrucible.invariants.violation import InvariantViolated, Violation


def state_of(walk, wanted):
    return next(step.after for step in walk(1, 500) if wanted(step.after))


def test_unchanged_names_the_first_field_that_a_refusal_left_changed(walk):
    state = state_of(walk, lambda s: s.pages and s.sequences)
    assert unchanged(state, state) == []
    page = next(iter(state.pages.values()))
    (found,) = unchanged(state, put(state, "pages", page.page, replace(page, epoch=page.epoch + 5)))
    assert found.invariant == "refusal-atomic"
    assert f"pages {page.page}" in found.message
    assert "epoch" in found.message
    (found,) = unchanged(state, put(state, "pages", page.page, None))
    assert "absent" in found.message


def test_a_cut_page_that_lives_on_has_a_higher_epoch(walk):
    state = state_of(walk, lambda s: any(page.committed > 1 for page in s.pages.values()))
    page = next(page for page in state.pages.values() if page.committed > 1)
    cut = replace(page, committed=page.committed - 1)
    assert epochs_risen(state, put(state, "pages", page.page, replace(cut, epoch=page.epoch + 1))) == []
    assert epochs_risen(state, put(state, "pages", page.page, None)) == []
    (found,) = epochs_risen(state, put(state, "pages", page.page, cut))
    assert found.invariant == "token-exact-truncation"
    assert f"page {page.page}" in found.message


def test_unchanged_sees_queue_counters_and_free_lists_but_not_their_order(walk):
    state = state_of(walk, lambda s: len(s.free_pages[0]) > 1)
    assert unchanged(state, replace(state, queue=(*state.queue, 99)))
    pool = replace(state.pools[0], free=state.pools[0].free - 1)
    assert unchanged(state, replace(state, pools=(pool, *state.pools[1:])))
    first, *others = state.free_pages
    assert unchanged(state, replace(state, free_pages=(first[1:], *others)))
    assert unchanged(state, replace(state, free_pages=(first[::-1], *others))) == []


def test_stale_handles():
    assert stale_refused(RefusalKind.STALE_HANDLE, "truncate 3") == []
    assert stale_refused(None, "truncate 3")[0].invariant == "stale-handle-refused"
    assert "wrong-state" in stale_refused(RefusalKind.WRONG_STATE, "truncate 3")[0].message


@pytest.mark.parametrize(
    ("expected", "actual", "held"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], True),
        ([[1.0, 2.0]], [[1.0, 2.5]], False),
        ([[1.0]], [[1.0], [1.0]], False),
        ([[1.0]], [[1.0, 1.0]], False),
        ([[math.nan]], [[math.nan]], True),
        ([[0.0]], [[math.nan]], False),
        ([[0.0]], [[-0.0]], False),
        ([b"ab"], [b"ab"], True),
        ([b"ab"], [b"ac"], False),
        ([], [], True),
    ],
)
def test_rows_equal(expected, actual, held):
    found = rows_equal("no-stale-read", expected, actual, "sequence 4, K")
    assert (found == []) is held
    if found:
        assert found[0].invariant == "no-stale-read"
        assert "sequence 4, K" in found[0].message


@pytest.mark.parametrize(
    ("expected", "actual", "held"),
    [
        ([[1.0]], [[1.009]], True),
        ([[1.0]], [[1.02]], False),
        ([[math.inf]], [[math.inf]], True),
        ([[-math.inf]], [[math.inf]], False),
        ([[1.0]], [[math.nan]], False),
        ([[1.0]], [], False),
        ([[1.0]], [[1.0, 2.0]], False),
    ],
)
def test_rows_close(expected, actual, held):
    assert (rows_close("kernel-oracle", expected, actual, 0.01, "decode") == []) is held


def test_admission_asks_for_counts():
    state = Snapshot((PoolState("main", 4, 8, 3, 1, 4),))
    assert admitted_by_count([4], True, state, "admit 1")[0].invariant == "admission-by-count"
    assert admitted_by_count([5], True, state, "admit 1") == []
    assert admitted_by_count([4], False, state, "admit 1") == []


def test_the_cache_yields_what_continuations_alone_hold(walk):
    state = state_of(walk, lambda s: releasable_pages(s, 0) > 0)
    gain, free = releasable_pages(state, 0), state.pools[0].free
    big = state.pools[1].capacity
    assert gain <= sum(len(state.spaces[key, 0].pages) for key in state.continuations)
    assert cache_yielded([free + gain, 0], True, state, "admit 1")[0].invariant == "cache-yields"
    assert cache_yielded([free + gain + 1, 0], True, state, "admit 1") == []
    assert cache_yielded([0, big + 1], True, state, "admit 1") == []
    assert cache_yielded([free + gain, 0], False, state, "admit 1") == []
    pinned = {key: replace(kept, pinned=True) for key, kept in state.continuations.items()}
    assert releasable_pages(replace(state, continuations=pinned), 0) == 0


def test_violations_survive_being_rebuilt():
    error = InvariantViolated([Violation("table-mirror", "row 3: found 1, expected 2")])
    again = copy.copy(error)
    assert again.violations == error.violations
    assert str(again) == "table-mirror: row 3: found 1, expected 2"


def test_every_corruption_is_named_once():
    assert len(CORRUPTIONS) > 40
