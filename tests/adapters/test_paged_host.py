"""Our own engine with a Host tier under test: where rows are read from, what is poisoned, what a spoilt byte tells."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvcrucible.contract.operations import (
    BeginUnit,
    Demote,
    EndUnit,
    Finish,
    Prefill,
    Progress,
    Release,
    Schedule,
    Submit,
)
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.adapters.paged import HOST_POISON, PagedPayloadAdapter
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step
from kvcrucible.invariants.violation import InvariantViolated

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

KEPT: tuple[Step, ...] = (
    Submit(run(0, 0, 10), 0),
    Schedule(),
    BeginUnit((Prefill(0, 10),)),
    EndUnit(0),
    Finish(0),
)
#: More device effects than there are.
ALL = RunEffects(1000)


def example(steps: Sequence[Step], **changes: object) -> LockStep:
    setting = {
        "depth": "payload",
        "page_size": 4,
        "capacity_pages": 6,
        "max_context": 24,
        "host_bytes": 1 << 18,
        **changes,
    }
    lock = LockStep(Setting.from_plain(setting))
    for step in steps:
        lock.step(step)
    return lock


def adapter_of(lock: LockStep) -> PagedPayloadAdapter:
    assert isinstance(lock.adapter, PagedPayloadAdapter)
    return lock.adapter


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("backend", [None, "draft"])
def test_rows_are_read_from_where_their_pages_are_visible(profile: str, backend: str | None) -> None:
    lock = example((*KEPT, Demote(0), Progress()), profile=profile, backend=backend, backend_page_size=8)
    assert {page.visible for page in lock.snapshot.pages.values()} == {Tier.HOST}
    assert all(page.device == -1 for page in lock.snapshot.pages.values())
    lock.step(ReadBack())
    lock.close()


def test_a_spoilt_byte_on_host_shows_in_the_rows() -> None:
    lock = example((*KEPT, Demote(0), Progress()))
    memory = adapter_of(lock).engine.host.memory  # type: ignore[union-attr]
    memory.fill(0, 64, 0x3F)  # type: ignore[attr-defined]
    with pytest.raises(InvariantViolated, match="no-stale-read"):
        lock.step(ReadBack())


def test_a_spoilt_byte_of_a_hidden_copy_shows_too() -> None:
    lock = example((*KEPT, Demote(0, keep=True), Progress()))
    page = lock.snapshot.pages[0]
    assert (page.visible, page.device) == (Tier.HOST, 0)
    lock.step(ReadBack())
    adapter_of(lock).storages[0].raw_write(0, 1, 2, 7.0)
    with pytest.raises(InvariantViolated, match="replica-valid: hidden device copy of page 0"):
        lock.step(ReadBack())


@pytest.mark.parametrize("poison", HOST_POISON)
def test_an_extent_that_ends_is_filled_in_stream_order(poison: str) -> None:
    lock = example((*KEPT, Demote(0), ALL, Progress(), Release(0)), lagging=True, poison=poison)
    memory = adapter_of(lock).engine.host.memory  # type: ignore[union-attr]
    before = memory.read(0, 64)  # type: ignore[attr-defined]
    lock.step(ALL)
    after = memory.read(0, 64)  # type: ignore[attr-defined]
    assert before != after == bytes([HOST_POISON[poison]]) * 64
