"""What the raw loop is made of: strategies and choices, shrinking, species, rates, and the source's commit."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Hit,
    Lookup,
    Outcome,
    Schedule,
    Scheduled,
    Submit,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import PageState, PoolState, Snapshot
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz import rates, source
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.draws import lengths, positions, settings_for
from kvcrucible.fuzz.driver import FirstFailure, Recorder
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.machine import machine_class, to_hypothesis
from kvcrucible.fuzz.raw import RULES, Call, SeedFailure, draw_seed
from kvcrucible.fuzz.ruling import precondition, rule, rules_of
from kvcrucible.fuzz.shrink import shrink
from kvcrucible.fuzz.species import ABSTRACT_STATE, Incidence, Novelty, abstract, outcome_kind, species_of
from kvcrucible.fuzz.volume import VolumePlan, conditions_of
from kvcrucible.invariants.judgements import NOT_REPRODUCED
from kvcrucible.invariants.violation import Violation

# -- one contract, drawn in two ways -----------------------------------------------------------------------------------


def test_hypothesis_and_the_raw_loop_have_the_same_rules() -> None:
    settings = to_hypothesis(settings_for("paged", ("ledger",)))
    machine = machine_class(settings, Capabilities("paged"), Tally(), Recorder())
    assert issubclass(machine, RuleBasedStateMachine)
    members = [getattr(machine, name) for name in dir(machine)]
    found = [getattr(one, RULE_MARKER) for one in members if hasattr(one, RULE_MARKER)]
    theirs = {one.function.__name__: one for one in found}
    ours = {one.name: one for one in RULES}
    assert theirs.keys() == ours.keys()
    for name, one in ours.items():
        assert theirs[name].arguments.keys() == one.arguments.keys(), name
        assert len(theirs[name].preconditions) == len(one.guards), name


def test_choices_are_those_of_the_seed_for_ever() -> None:
    choices = st.SeededChoices(7)
    assert [choices.integer(0, 9) for _ in range(8)] == [3, 1, 6, 0, 5, 3, 0, 5]
    assert {st.SeededChoices(seed).integer(-1, 1) for seed in range(20)} == {-1, 0, 1}
    assert {st.SeededChoices(seed).one_of("ab") for seed in range(20)} == {"a", "b"}


@pytest.mark.parametrize(
    "strategy",
    [
        st.integers(-1, 40),
        st.integers(3, 5),
        st.booleans(),
        st.just("x"),
        st.none(),
        st.sampled_from((2, 1, 0)),
        st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=3),
        lengths,
        positions,
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_both_draw_the_same_values_and_shrink_to_the_same_one(strategy: st.Strategy[Any]) -> None:
    theirs = to_hypothesis(strategy)
    drawn = [strategy.draw(st.SeededChoices(seed)) for seed in range(200)]
    simplest = strategy.simplest()
    assert hypothesis.find(theirs, lambda _: True) == simplest
    assert simplest in (strategy.draw(st.SeededChoices(seed)) for seed in range(3000))
    # Whatever one side draws, the other can.
    rarest = min(drawn, key=drawn.count)
    assert hypothesis.find(theirs, lambda value: value == rarest) == rarest


def test_rules_are_found_by_name_with_all_of_their_guards() -> None:
    class Some:
        ready = False

        @precondition(lambda self: self.ready)
        @precondition(lambda self: True)
        @rule(number=st.integers(1, 1))
        def second(self, number: int) -> None: ...

        @rule()
        def first(self) -> None: ...

    one, two = rules_of(Some)
    assert (one.name, two.name) == ("first", "second")
    assert one.offered(Some())
    assert not two.offered(Some())
    Some.ready = True
    assert two.offered(Some())
    assert two.draw(st.SeededChoices(0)) == {"number": 1}


# -- shrinking ---------------------------------------------------------------------------------------------------------


def test_a_failure_that_does_not_come_again_keeps_its_steps_and_says_so() -> None:
    conditions = conditions_of(VolumePlan())
    swarm, _ = draw_seed(2, conditions)
    (submit,) = [one for one in RULES if one.name == "submit_only"]
    call = Call(submit, submit.draw(st.SeededChoices(1)))
    violation = Violation("pool-conservation", "seen once")
    first = FirstFailure(swarm.setting, (Submit(run(0, 0, 4), 1), Schedule()), (violation,), 3, 7)
    failure = shrink(SeedFailure(swarm, (call,), first), conditions)
    assert failure.steps == first.log
    assert [one.invariant for one in failure.violations] == ["pool-conservation", NOT_REPRODUCED]
    assert (failure.examples_before, failure.steps_before) == (3, 7)


# -- species -----------------------------------------------------------------------------------------------------------


def test_a_species_is_operation_outcome_and_state() -> None:
    waiting = Waiting(4, WaitingKind.DEVICE_CAPACITY)
    admitted = (
        Admitted(1, AdmissionMode.FORK),
        Admitted(2, AdmissionMode.COLD),
        Admitted(3, AdmissionMode.COLD),
    )
    assert outcome_kind(Outcome(Scheduled(admitted, waiting))) == "cold+fork+device-capacity"
    assert outcome_kind(Outcome(Scheduled((), None))) == "nobody"
    assert outcome_kind(Outcome(refusal=RefusalKind.NO_ROW)) == "no-row"
    assert outcome_kind(Outcome(value=False)) == "False"
    assert outcome_kind(Outcome(Hit(1, 0, 8))) == "hit"
    assert outcome_kind(Outcome(3)) == "done"
    assert species_of(Lookup(run(0, 0, 1)), Outcome(), 5) == ("Lookup", "done", 5)


def test_a_state_answers_every_question() -> None:
    pool = PoolState("main", 4, 8, 0, 0, 8)
    assert abstract(Snapshot((pool,))) == 0
    named = {"queue": (1,)}
    assert abstract(Snapshot((pool,), **named)) == 1 << ABSTRACT_STATE.index("a request is queued")
    full = PoolState("main", 4, 8, 8, 0, 0)
    assert abstract(Snapshot((full,))) == 1 << ABSTRACT_STATE.index("some pool has no free page")
    shared = PageState(0, 0, 0, 4, 2, 0, 1)
    assert abstract(Snapshot((pool,), {0: shared})) == 1 << ABSTRACT_STATE.index("a page is shared")


def test_chao2_and_novelty_by_both_units() -> None:
    a, b, c = ("A", "", 0), ("B", "", 0), ("C", "", 0)
    novelty = Novelty()
    for found in ({a, b}, {a}, {a, b}, {a, c}):
        novelty.add(frozenset(found))
    plain = novelty.to_plain()
    # By seed: a in 4, b in 2, c in 1.  Chao2 = 3 + 3/4 * 1*0 / (2*2).
    assert plain["by_seed"] == {
        "units": 4, "seen": 3, "once": 1, "twice": 1, "chao2": 3.0, "new_in_next_unit": 0.25,
    }  # fmt: skip
    assert plain["by_pair_of_seeds"]["units"] == 2
    assert plain["by_pair_of_seeds"]["twice"] == 2
    many = Incidence()
    for number in range(10):
        many.add([("A", str(number), 0)])
    # 10 + 9/10 * 10*9 / (2*1): what is always new says that there is much more.
    assert many.to_plain()["chao2"] == 50.5
    other = Novelty()
    other.merge(novelty)
    assert other.to_plain() == plain
    assert Incidence().to_plain()["chao2"] is None


# -- rates and source --------------------------------------------------------------------------------------------------


def test_rates_are_measured_in_turns_and_sum_up_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("ROUND_SEEDS", 2), ("ROUND_EXAMPLES", 2), ("PROFILED_SEEDS", 2)):
        monkeypatch.setattr(rates, name, size)
    rounds: list[int] = []
    found = rates.measure(VolumePlan(rules=10), rounds=2, on_round=rounds.append)
    assert rounds == [1, 2]
    plain = found.to_plain()
    assert set(plain["median"]) == set(rates.KINDS)
    assert all(len(each) == 2 and min(each) > 0 for each in plain["rounds"].values())
    assert plain["raw_to_hypothesis"]["least"] <= plain["raw_to_hypothesis"]["median"]
    shares = plain["profile"]["self_time_by_folder"]
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert {"engine", "reference", "invariants", "fuzz"} <= set(shares)


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-parse": "a" * 40, "status": "", "ls-files": "source.py"}
    monkeypatch.setattr(source, "_git", lambda folder, *words: answers[words[0]])
    assert source.source_commit() == "a" * 40
    answers["status"] = " M engine/pool.py"
    assert source.source_commit() == f"{'a' * 40}+changes"
    answers["ls-files"] = ""
    assert source.source_commit() is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert source.source_commit() is None
