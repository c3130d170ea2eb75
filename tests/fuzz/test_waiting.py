"""A prefix hit keeps no request out that a cold start would let in, and who passes the head leaves it enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcrucible.contract.operations import (
    BeginUnit,
    Finish,
    Prefill,
    Schedule,
    Submit,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.tokens import run
from kvcrucible.engine import admission, backfill
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.records import Request
from kvcrucible.fuzz import lockstep
from kvcrucible.fuzz.campaign import Plan, Report
from kvcrucible.fuzz.campaign import run as run_campaign
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.invariants.violation import InvariantViolated

#: Pages of every pool beyond L = ceil(S / P).
AT_CONTEXT = (-1, 0, 1)


def campaign(monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr("kvcrucible.fuzz.campaign.BATCH_EXAMPLES", 20)
    return run_campaign(Plan(examples=60, steps=40, seed=7, capacity_at=AT_CONTEXT))


def test_a_hit_keeps_nobody_out_in_pools_of_one_longest_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    report = campaign(monkeypatch)
    assert report.failure is None, report.failure
    tried = dict.fromkeys(AT_CONTEXT, 0)
    for (beyond, what), times in report.tally.hits.items():
        tried[beyond] += times * (what != "waits")
    assert set(tried) == set(AT_CONTEXT)
    assert min(tried.values()) > 2, report.tally.hits
    assert report.tally.premises["cache-yields"] > 20


def _first_candidate_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request with a hit only the first candidate is tried: its own source stays in its way."""
    real = admission.plan

    def plan(cache, pools, request, hit, source):  # type: ignore[no-untyped-def]
        found = real(cache, pools, request, hit, source)
        if hit is None or found is None or found.mode in ("fork", "move"):
            return found
        return None

    monkeypatch.setattr(admission, "plan", plan)


@pytest.mark.slow
def test_without_its_fallback_the_campaign_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle alone tells it: what the model predicts is not asked."""
    monkeypatch.setattr(lockstep, "judge_outcome", lambda *_: [])
    _first_candidate_only(monkeypatch)
    report = campaign(monkeypatch)
    assert report.failure is not None
    assert "cache-yields" in {found.invariant for found in report.failure.violations}


#: A retained sequence of two pages, and a request for the whole pool that begins like it.
HIT: tuple[Step, ...] = (
    Submit(run(0, 0, 20), 0),
    Schedule(),
    BeginUnit((Prefill(0, 20),)),
)


@pytest.mark.parametrize("pages", [7, 8, 9])
def test_a_request_for_the_whole_pool_starts_from_its_hit(pages: int) -> None:
    """At L − 1 pages a longest sequence is refused at once, so the request asks for what the pool has."""
    example = LockStep(Setting(capacity_pages=pages, page_size=16, max_context=128))
    limit = min(pages * 16, 128)
    for step in HIT:
        example.step(step)
    example._operate(lockstep.EndUnit(0))
    example.step(Finish(0))
    example.step(Submit(run(0, 0, 18), limit - 18))
    outcome = example.step(Schedule())
    assert outcome is not None
    (one,) = outcome.value.admitted  # type: ignore[union-attr]
    assert (one.hit, outcome.evicted) == (17, ())
    example.close()


BEFORE: tuple[Step, ...] = (Submit(run(0, 0, 1), 95), Schedule(), Submit(run(1, 0, 1), 63))


def _of(lookahead: int = 2) -> LockStep:
    example = LockStep(Setting(capacity_pages=8, page_size=16, max_context=128, lookahead=lookahead))
    for step in BEFORE:
        example.step(step)
    return example


def test_who_passes_is_judged_by_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    example = _of()
    example.step(Submit(run(2, 0, 1), 31))
    outcome = example.step(Schedule())
    assert outcome is not None
    assert [one.sequence for one in outcome.value.admitted] == [2]  # type: ignore[union-attr]
    example.close()

    def anybody(engine: Engine, head: Request, request: Request) -> bool:
        return True

    monkeypatch.setattr(backfill, "may_pass", anybody)
    monkeypatch.setattr(lockstep, "judge_outcome", lambda *_: [])
    example = LockStep(Setting(capacity_pages=10, page_size=16, max_context=128, lookahead=2))
    for step in (Submit(run(0, 0, 1), 63), Schedule(), Submit(run(1, 0, 1), 111), Submit(run(2, 0, 1), 63)):
        example.step(step)
    with pytest.raises(InvariantViolated) as raised:
        example.step(Schedule())
    assert "completion-guarantee" in {found.invariant for found in raised.value.violations}


def test_strictly_in_order_nobody_passes() -> None:
    example = _of(lookahead=0)
    example.step(Submit(run(2, 0, 1), 31))
    outcome = example.step(Schedule())
    assert outcome is not None
    assert outcome.value.waiting == Waiting(1, WaitingKind.DEVICE_CAPACITY)  # type: ignore[union-attr]
    assert outcome.value.admitted == ()  # type: ignore[union-attr]
    example.close()


def test_what_is_beyond_the_context_is_told_by_the_setting() -> None:
    setting = Setting(capacity_pages=8, page_size=16, max_context=128)
    assert setting.beyond_context == 0
    assert replace(setting, max_context=129).beyond_context == -1
