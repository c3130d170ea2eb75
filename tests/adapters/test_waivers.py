"""The waiver ledger: each entry is needed, narrow, and no longer than the fault lives."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from kvcrucible.contract.operations import DEFAULT_IDENTITY
from kvcrucible.contract.snapshot import PoolState, RowState, SequenceState, Snapshot, SpaceState
from kvcrucible.fuzz.adapters.registry import ENGINES
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.waivers import CONDITIONS, Waiver, covering, ledger, waivers_of
from kvcrucible.invariants.registry import INVARIANTS
from kvcrucible.invariants.violation import InvariantViolated, Violation

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.parametrize("waiver", ledger(), ids=lambda waiver: waiver.id)
class TestEveryEntry:
    def test_names_what_exists(self, waiver: Waiver) -> None:
        assert waiver.engine in ENGINES
        assert waiver.invariant in INVARIANTS
        assert waiver.condition in CONDITIONS
        assert waiver.reason.strip()
        assert waiver.seen_in.strip()

    @needs_torch
    def test_example_still_shows_the_difference(self, waiver: Waiver) -> None:
        """An engine that has been mended fails here: take the waiver out."""
        example = LockStep(waiver.setting, waivers=[other for other in ledger() if other.id != waiver.id])
        for step in waiver.steps[:-1]:
            example.step(step)
        with pytest.raises(InvariantViolated) as found:
            example.step(waiver.steps[-1])
        assert {violation.invariant for violation in found.value.violations} == {waiver.invariant}

    @needs_torch
    def test_example_holds_and_is_counted_with_the_waiver(self, waiver: Waiver) -> None:
        tally = Tally()
        example = LockStep(waiver.setting, tally)
        for step in waiver.steps:
            example.step(step)
        example.close()
        assert tally.waived[waiver.id] > 0


def test_ids_are_unique() -> None:
    assert len({waiver.id for waiver in ledger()}) == len(ledger())


def test_our_own_engine_has_no_waiver() -> None:
    assert waivers_of("paged") == ()


# -- the conditions are narrow -----------------------------------------------------------------------------------------

_POOL = PoolState("main", 4, 4, 2, 0, 2)
_SEQUENCE = SequenceState(7, 0, 8, 8, None, (2,), (0,), False, False, ((0, 0, 8),), DEFAULT_IDENTITY)
_MIRROR = Violation("table-mirror", "row 0, mapping back (page, block): found …, expected …")
_ATTENTION = Violation("kernel-oracle", "decode attention of sequence 7 at 7, layer 0: found …, expected …")


def _state(inverse: tuple[tuple[int, int], ...] | None, frontier: int = 8) -> Snapshot:
    return Snapshot(
        pools=(_POOL,),
        pages={},
        spaces={(7, 0): SpaceState(7, 0, (0, 1), frontier, frontier)},
        sequences={7: _SEQUENCE},
        rows={(0, 0): RowState(0, 0, 7, (1, 0), inverse)},
    )


def _covered(violation: Violation, snapshot: Snapshot) -> str | None:
    waiver = covering(waivers_of("torch-paged-attention"), violation, snapshot)
    return None if waiver is None else waiver.id


_OWN = ((0, 1), (1, 0))


def test_erased_pages_are_covered() -> None:
    state = _state((*_OWN, (3, 1)))
    assert _covered(_MIRROR, state) == "torch-erase-keeps-mapping-back"
    assert _covered(_ATTENTION, state) == "torch-attends-erased-pages"


@pytest.mark.parametrize(
    "inverse",
    [
        pytest.param(_OWN, id="nothing stale"),
        pytest.param(((0, 1), (3, 1)), id="an own page not mapped back"),
        pytest.param(((0, 0), (1, 0), (3, 1)), id="an own page mapped back wrongly"),
        pytest.param(None, id="no mapping back at all"),
    ],
)
def test_other_faults_of_the_mapping_are_not_covered(inverse: tuple[tuple[int, int], ...] | None) -> None:
    assert _covered(_MIRROR, _state(inverse)) is None
    assert _covered(_ATTENTION, _state(inverse)) is None


def test_attention_is_not_covered_where_what_is_stale_lies_beyond_the_frontier() -> None:
    state = _state((*_OWN, (3, 2)))
    assert _covered(_MIRROR, state) == "torch-erase-keeps-mapping-back"
    assert _covered(_ATTENTION, state) is None


def test_other_violations_of_the_same_invariants_are_not_covered() -> None:
    state = _state((*_OWN, (3, 1)))
    assert (
        _covered(Violation("table-mirror", "row 0 of sequence 7, entries: found 1, expected 2"), state)
        is None
    )
    assert _covered(replace(_MIRROR, invariant="row-unique"), state) is None
    assert _covered(Violation("kernel-oracle", "something else"), state) is None
