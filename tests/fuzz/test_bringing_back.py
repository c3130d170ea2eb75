"""What an example leaves on Host comes back at its end, at payload depth, and is read there."""

from __future__ import annotations

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
from kvcrucible.contract.tokens import run
from kvcrucible.engine.host import tier
from kvcrucible.engine.host.packing import CopyRun
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.invariants.violation import InvariantViolated

STEPS: tuple[Step, ...] = (
    Submit(run(0, 0, 11), 0), Schedule(), BeginUnit((Prefill(0, 11),)), EndUnit(0),
    Finish(0), Demote(0), Progress(),
)  # fmt: skip


def ended(depth: Depth) -> Tally:
    tally = Tally()
    lock = LockStep(Setting(depth=depth, capacity_pages=4, host_bytes=1 << 16), tally)
    for step in STEPS:
        lock.step(step)
    lock.close()
    return tally


def test_what_is_on_host_at_the_end_is_restored_and_read() -> None:
    pytest.importorskip("torch")
    assert ended(Depth.PAYLOAD).operations["Restore"] == 1


def test_what_came_back_may_have_released_what_is_next() -> None:
    pytest.importorskip("torch")
    tally = Tally()
    lock = LockStep(Setting(depth=Depth.PAYLOAD, capacity_pages=4, host_bytes=1 << 16), tally)
    for sequence in (0, 1):
        lock.step(Submit(run(sequence, 0, 40), 0))
        lock.step(Schedule())
        lock.step(BeginUnit((Prefill(sequence, 40),)))
        lock.step(EndUnit(sequence))
        lock.step(Finish(sequence))
        if not sequence:
            lock.step(Demote(0))
            lock.step(Progress())
    lock.close()
    assert tally.operations["Restore"] == 1


def test_at_ledger_depth_there_is_nothing_to_read() -> None:
    assert ended(Depth.LEDGER).operations["Restore"] == 0


def test_rows_that_come_back_spoilt_are_told_though_nobody_came_back_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    copied, moves = tier.coalesce, 0

    def down_alone(placed: list[tuple[int, int]]) -> list[CopyRun]:
        nonlocal moves
        moves += 1
        return copied(placed) if moves == 1 else []

    monkeypatch.setattr(tier, "coalesce", down_alone)
    with pytest.raises(InvariantViolated) as found:
        ended(Depth.PAYLOAD)
    assert found.value.violations[0].invariant in {"no-stale-read", "publish-order"}
