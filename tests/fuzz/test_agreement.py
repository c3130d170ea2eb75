"""Engine and model side by side: each field of replicas, transfers, host bytes and fences that differs is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcrucible.contract.operations import (
    BeginUnit,
    Demote,
    EndUnit,
    Finish,
    Prefill,
    Progress,
    Schedule,
    Submit,
)
from kvcrucible.contract.snapshot import RetiringState, Tier
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.agreement import state_agrees
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting

SETTING = Setting(capacity_pages=6, page_size=4, max_context=24, host_bytes=1 << 14, lagging=True)


@pytest.fixture
def moving() -> LockStep:
    """An example in which a continuation of two pages is on its way to Host."""
    lock = LockStep(SETTING)
    for step in (
        Submit(run(0, 0, 8), 0),
        Schedule(),
        BeginUnit((Prefill(0, 8),)),
        EndUnit(0),
        Finish(0),
        Demote(0),
    ):
        lock.step(step)
    return lock


def told(lock: LockStep, **changes: Any) -> list[str]:
    changed = replace(lock.snapshot, **changes)
    found = state_agrees(Progress(), lock.model, changed, lock.adapter.capabilities)
    return [violation.invariant for violation in found]


def test_what_is_the_same_agrees(moving: LockStep) -> None:
    assert told(moving) == []


def test_every_field_that_differs_is_told(moving: LockStep) -> None:
    snapshot = moving.snapshot
    assert snapshot.host is not None
    page, transfer = snapshot.pages[0], snapshot.transfers[0]
    hidden = replace(page, on_host=page.on_device)
    assert told(moving, pages={**snapshot.pages, 0: replace(page, visible=Tier.HOST)}) == [
        "one-visible-replica"
    ]
    assert told(moving, pages={**snapshot.pages, 0: hidden}) == ["replica-valid"]
    assert told(moving, transfers={}) == ["transfer-pinned"]
    assert told(moving, transfers={0: replace(transfer, cancelling=True)}) == ["transfer-pinned"]
    assert told(moving, transfers={0: replace(transfer, moves=transfer.moves[1:])}) == ["transfer-pinned"]
    assert told(moving, host=replace(snapshot.host, used=0)) == ["host-conservation"]
    assert told(moving, retiring={(0, 5): RetiringState(0, 5, 1, 0)}) == ["recycle-fenced"]


def test_who_the_model_does_not_know_is_told_once_and_breaks_nothing(moving: LockStep) -> None:
    snapshot = moving.snapshot
    spaces = {**snapshot.spaces, (9, 0): replace(snapshot.spaces[0, 0], owner=9)}
    kept = {**snapshot.continuations, 9: replace(snapshot.continuations[0], continuation=9)}
    assert "replica-valid" not in told(moving, spaces=spaces, continuations=kept)
    assert told(moving, spaces={}, continuations={})[0] == "frontier-visibility"


def test_a_space_that_names_a_page_which_has_ended_is_left_to_the_count_of_references(
    moving: LockStep,
) -> None:
    pages = dict(moving.snapshot.pages)
    del pages[0]
    assert told(moving, pages=pages) == []
