"""One operation may give up copies on Device for one request and start to bring them back for the next: the same page,
in the same place, under another lease.
"""

from __future__ import annotations

from kvcrucible.contract.operations import (
    BeginUnit,
    Demote,
    EndUnit,
    Finish,
    Prefill,
    Progress,
    Schedule,
    Scheduled,
    Submit,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting

#: The order of free pages is one in which the restore gets a place that was just given up.
SETTING = Setting(
    capacity_pages=3, page_size=4, max_context=16, max_concurrency=2, host_bytes=1 << 12, page_order_seed=1
)


def test_a_place_that_is_given_up_and_granted_again_is_leased_anew() -> None:
    example = LockStep(SETTING)
    for step in (
        Submit(run(0, 60, 12), 0),
        Schedule(),
        BeginUnit((Prefill(0, 12),)),
        EndUnit(0),
        Finish(0),
        Demote(0, keep=True),
        Progress(),
    ):
        example.step(step)
    before = example.snapshot
    assert {page.device for page in before.pages.values()} == {0, 1, 2}
    example.step(Submit(run(0, 0, 1), 2))
    example.step(Submit(run(0, 60, 9), 0))
    outcome = example.step(Schedule())
    assert outcome is not None
    assert outcome.given_up == (0,)
    assert isinstance(outcome.value, Scheduled)
    assert [one.mode for one in outcome.value.admitted] == ["cold"], outcome.value
    assert isinstance(outcome.value.waiting, Waiting)
    assert outcome.value.waiting.kind is WaitingKind.RESTORING
    (transfer,) = example.snapshot.transfers.values()
    again = {move.page: (move.device, move.generation) for move in transfer.moves}
    same = [page for page, (device, _) in again.items() if before.pages[page].device == device]
    assert same, "no page came back to where it was"
    assert all(again[page][1] > before.pages[page].generation for page in same)
    example.close()
