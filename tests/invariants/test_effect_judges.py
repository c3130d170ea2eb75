"""Judgements by device truth: each holds on the sound case and fires on the broken one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from host_toy import Toy
from snapshot_corruptions import put

from kvcrucible.contract.operations import TransferEnded, TransferOutcome
from kvcrucible.contract.snapshot import RetiringState, Snapshot, Tier, TransferState
from kvcrucible.invariants.behaviour import cache_yielded, releasable_pages, rows_equal, unchanged
from kvcrucible.invariants.effects import overdue, page_given_out, slot_given_out, transfer_completed
from kvcrucible.invariants.registry import INVARIANTS

MOVED, KEPT, ABANDONED = TransferOutcome
TRANSFER = TransferState(4, 1, Tier.DEVICE, keep=False, cancelling=False, moves=())


@pytest.mark.parametrize(
    ("transfer", "outcome", "said", "outstanding", "failed", "broken"),
    [
        (TRANSFER, MOVED, False, 0, 0, []),
        (replace(TRANSFER, keep=True), KEPT, False, 0, 0, []),
        (TRANSFER, ABANDONED, True, 0, 1, []),
        (TRANSFER, ABANDONED, False, 0, 0, []),
        (replace(TRANSFER, cancelling=True), ABANDONED, False, 0, 0, []),
        (TRANSFER, MOVED, False, 1, 0, ["publish-order"]),
        (TRANSFER, ABANDONED, False, 2, 0, ["recycle-fenced"]),
        (TRANSFER, MOVED, True, 0, 1, ["publish-order"]),
        (TRANSFER, MOVED, False, 0, 1, ["publish-order", "publish-order"]),
        (TRANSFER, ABANDONED, False, 0, 1, ["publish-order"]),
        (TRANSFER, ABANDONED, True, 0, 0, ["publish-order"]),
        (replace(TRANSFER, cancelling=True), MOVED, False, 0, 0, ["publish-order"]),
        (TRANSFER, KEPT, False, 0, 0, ["publish-order"]),
        (replace(TRANSFER, keep=True), MOVED, False, 0, 0, ["publish-order"]),
    ],
)
def test_a_transfer_is_over_when_its_copies_are(transfer, outcome, said, outstanding, failed, broken):
    found = transfer_completed(transfer, TransferEnded(4, outcome, said), outstanding, failed)
    assert [violation.invariant for violation in found] == broken
    assert all("transfer 4" in violation.message for violation in found)


def test_a_page_changes_hands_behind_its_fence():
    assert page_given_out(0, 3, 7, [5], []) == []
    assert page_given_out(0, 3, 7, [7], ["write of unit 2"]) == [], "back from its own reservation"
    (found,) = page_given_out(0, 3, 7, [5], ["write of unit 2"])
    assert found.invariant == "recycle-fenced"
    assert "device 3 of pool 0" in found.message
    assert "write of unit 2" in found.message
    assert page_given_out(0, 3, 7, [], ["copy of transfer 1"])


def test_a_slot_changes_hands_behind_its_copies():
    assert slot_given_out(2, 0, 9, []) == []
    assert slot_given_out(2, 0, 9, ["copy of transfer 1"])[0].invariant == "recycle-fenced"


def test_a_page_retires_only_as_long_as_its_unit_is_outstanding():
    state = Snapshot((), retiring={(0, 3): RetiringState(0, 3, 1, 8)})
    assert overdue(state, {8, 9}) == []
    (found,) = overdue(state, {9})
    assert found.invariant == "recycle-fenced"
    assert "device 3 of pool 0" in found.message


def test_the_catalogue_names_what_a_harness_judges_beside_the_checkers():
    assert INVARIANTS["publish-order"].judge is transfer_completed
    assert INVARIANTS["recycle-fenced"].judge is page_given_out
    assert INVARIANTS["replica-valid"].judge is rows_equal


def test_a_refusal_leaves_the_arena_as_it_was():
    state = next(after for _, after in Toy(1).steps(300) if len(after.host_holes) > 1)
    assert unchanged(state, state) == []
    used = replace(state, host=replace(state.host, used=0))
    assert unchanged(state, used)[0].invariant == "refusal-atomic"
    assert unchanged(state, replace(state, host_holes=state.host_holes[1:]))
    transfers = put(state, "extents", min(state.extents), None)
    assert unchanged(state, transfers)


def test_the_cache_yields_no_page_that_is_in_a_transfer_on_host_or_fenced():
    state = next(
        after
        for _, after in Toy(1).steps(400)
        if not after.transfers
        and releasable_pages(after, 0)
        and any(p.device < 0 for p in after.pages.values())
    )
    gain, free = releasable_pages(state, 0), state.pools[0].free
    held = [
        page
        for key in state.continuations
        for page in (state.pages[one] for one in state.spaces[key, 0].pages)
        if page.device >= 0 and page.references == 1
    ]
    assert gain >= len(held) > 0

    fenced = [(0, held[0].device)]
    assert releasable_pages(state, 0, fenced) == gain - 1
    assert cache_yielded([free + gain, 0], True, state, "admit 1")
    assert cache_yielded([free + gain, 0], True, state, "admit 1", fenced) == []

    pinned = replace(held[0], on_device=replace(held[0].on_device, pins=1))
    moving = replace(put(state, "pages", pinned.page, pinned), transfers={1: TRANSFER})
    owner = next(key for key in state.continuations if pinned.page in state.spaces[key, 0].pages)
    alone = [page for page in held if page.page in state.spaces[owner, 0].pages]
    assert releasable_pages(moving, 0) <= gain - len(alone)
