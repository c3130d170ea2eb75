"""Who is given what units may still touch, judged by device truth on snapshots made by hand."""

from __future__ import annotations

from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    EndUnit,
    Operation,
    Outcome,
    Progress,
    Progressed,
    Schedule,
    Scheduled,
)
from kvcrucible.contract.snapshot import PageState, PoolState, RetiringState, Snapshot, SpaceState, UnitState
from kvcrucible.fuzz.fencing import FenceJudge
from kvcrucible.invariants.violation import Violation

POOL = PoolState("main", 4, 4, 0, 0, 4)


def state(holders: dict[int, tuple[int, int]], unit: int | None = None, retiring: bool = False) -> Snapshot:
    """Return a state in which each owner has one page: (device, generation)."""
    pages = {
        owner: PageState(owner, 0, 0, 1, 1, device, generation)
        for owner, (device, generation) in holders.items()
    }
    spaces = {(owner, 0): SpaceState(owner, 0, (owner,), 1, 1) for owner in holders}
    units = {} if unit is None else {unit: UnitState(unit, tuple((o, 0, 0, 1) for o in holders), ())}
    waiting = {(0, 2): RetiringState(0, 2, 1, 9)} if retiring else {}
    return Snapshot((POOL,), pages=pages, spaces=spaces, units=units, retiring=waiting)


def told(*steps: tuple[Operation, Outcome, Snapshot, Snapshot]) -> list[Violation]:
    judge = FenceJudge()
    return [violation for step in steps for violation in judge.judge(*step)]


HELD, EMPTY = state({0: (2, 1)}), state({})
ENDED = (EndUnit(0), Outcome(), state({0: (2, 1)}, unit=0), HELD)
LET_GO = (Schedule(), Outcome(), HELD, EMPTY)


def test_a_page_given_to_another_in_front_of_its_fence_is_told() -> None:
    found = told(ENDED, LET_GO, (Schedule(), Outcome(), EMPTY, state({1: (2, 2)})))
    assert [violation.invariant for violation in found] == ["recycle-fenced"]
    assert "unit 0" in found[0].message


def test_its_own_sequence_may_have_it_again() -> None:
    assert told(ENDED, LET_GO, (Schedule(), Outcome(), EMPTY, state({0: (2, 2)}))) == []


def test_behind_its_fence_it_is_anybodys() -> None:
    reported = (Progress(), Outcome(Progressed((0,))), EMPTY, EMPTY)
    assert told(ENDED, LET_GO, reported, (Schedule(), Outcome(), EMPTY, state({1: (2, 2)}))) == []


def test_who_takes_a_source_over_takes_what_it_gave_back() -> None:
    moved = Scheduled((Admitted(5, AdmissionMode.MOVE_TRUNCATED, 0, 1),))
    assert told(ENDED, LET_GO, (Schedule(), Outcome(moved), EMPTY, state({5: (2, 2)}))) == []


def test_a_page_that_is_only_shared_is_not_given_out() -> None:
    shared = Snapshot((POOL,), pages=HELD.pages, spaces={**HELD.spaces, (1, 0): SpaceState(1, 0, (0,), 1, 1)})
    assert told(ENDED, (Schedule(), Outcome(), HELD, shared)) == []


def test_what_retires_for_a_unit_that_is_over_is_told() -> None:
    found = told(ENDED, (Schedule(), Outcome(), HELD, state({0: (2, 1)}, retiring=True)))
    assert [violation.invariant for violation in found] == ["recycle-fenced"]
