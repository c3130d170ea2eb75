"""The planner's judge: it holds on the planner as it is, condemns wrong answers, and finds what is planted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcrucible.contract.errors import CrucibleError, InputError
from kvcrucible.fuzz.faults.catalogue import Fault, planner_catalogue, source_of
from kvcrucible.fuzz.faults.run import (
    PLANNER,
    CampaignOptions,
    FaultRun,
    Trial,
    Verdict,
    run_trial,
    trials_of,
    unchanged_trials,
)
from kvcrucible.fuzz.planning.asks import Answer, Ask, ask, bytes_of, drawn
from kvcrucible.fuzz.planning.judge import judge, lead_pages, serves, whole_contexts
from kvcrucible.fuzz.setting import Depth
from kvcrucible.invariants.judgements import JUDGEMENTS
from kvcrucible.invariants.registry import IDS

FAULTS = list(planner_catalogue().values())

#: The faults that the fast tests plant.
FAST = ("draft-pool-costs-all-layers", "sized-before-the-lead")

#: S = 10, C = 3, P = 4: L = 3, M_min = 3, M_max = 9; 5 drafted tokens reach one page ahead a row.
PLAIN = Ask(10, 3, 4, "FP32", 1, 8, 2, "mtp", 1, 5, tokens=17)


def test_what_engines_of_a_size_serve() -> None:
    assert not serves(PLAIN.config(2, 9))
    assert serves(PLAIN.config(3, 9))
    assert not serves(PLAIN.config(9, 2)), "the other pool may be the one that is short"
    assert whole_contexts(PLAIN.config(9, 9)) == (3, 9)
    assert whole_contexts(PLAIN.config(8, 9)) == (2, 6)
    # 4 tokens × 8 elements × 4 bytes × 2 sides = 256 bytes a layer and page; two tables of 3 × 3 entries.
    assert bytes_of(PLAIN.config(5, 8)) == 5 * 512 + 8 * 256 + 2 * 36


@pytest.mark.parametrize(("drafted", "pages"), [(1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_a_round_reaches_so_many_pages_ahead(drafted: int, pages: int) -> None:
    assert lead_pages(replace(PLAIN, draft_tokens=drafted)) == 3 * pages
    assert lead_pages(replace(PLAIN, draft_tokens=drafted, backend="draft")) == 0


def test_right_answers_hold_and_wrong_ones_do_not() -> None:
    answer = ask(PLAIN)
    assert answer.plain is not None
    assert (answer.plain["main_pages"], answer.plain["backend_pages"]) == (5, 8)
    assert judge(PLAIN, answer) == []
    for changes, invariant in (
        ({"main_pages": 6}, "predicted-outcome"),
        ({"main_pages": 2}, "completion-guarantee"),
        ({"backend_pages": 5}, "predicted-outcome"),
        ({"bytes": answer.plain["bytes"] - 1}, "predicted-outcome"),
        ({"fewest_pages": 2}, "predicted-outcome"),
        ({"most_pages": 10}, "predicted-outcome"),
    ):
        found = judge(PLAIN, Answer(answer.plain | changes))
        assert [one.invariant for one in found] == [invariant], changes
    assert [one.invariant for one in judge(PLAIN, Answer(None, "no"))] == ["completion-guarantee"]
    too_few = replace(PLAIN, tokens=9)
    assert ask(too_few).plain is None
    assert judge(too_few, ask(too_few)) == []
    assert [one.invariant for one in judge(too_few, answer)] == ["predicted-outcome"]


def test_a_command_that_falls_over_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("kvcrucible.perf.planner.plan_explicit", broken)
    with pytest.raises(CrucibleError, match="ended with 4"):
        ask(PLAIN)


def test_the_planner_as_it_is_holds_and_is_asked_both_ways() -> None:
    refused = 0
    for seed in range(20):
        answer = ask(drawn(seed))
        refused += answer.plain is None
        assert judge(drawn(seed), answer) == [], drawn(seed).arguments()
    assert 5 <= refused <= 15


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.id)
def test_a_fault_of_the_planner_matches_once(planted: Fault) -> None:
    changed = planted.apply_to(source_of(planted.module))
    assert changed != source_of(planted.module)
    compile(changed, planted.module, "exec")
    assert set(planted.expects) <= {*IDS, *JUDGEMENTS}
    assert planted.sought is None


def test_only_the_planner_may_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcrucible.fuzz.faults import catalogue

    monkeypatch.setitem(catalogue.MUTABLE, "planner", ("kvcrucible.engine.",))
    with pytest.raises(InputError, match=r"only kvcrucible\.engine\. may be changed"):
        catalogue._load("planner")


@pytest.mark.parametrize(
    "planted",
    [pytest.param(planted, marks=[] if planted.id in FAST else [pytest.mark.slow]) for planted in FAULTS],
    ids=lambda planted: planted.id,
)
def test_a_fault_of_the_planner_is_found(planted: Fault) -> None:
    (trial,) = trials_of([planted], CampaignOptions())
    done = run_trial(trial)
    assert done.verdict is Verdict.KILLED, done
    assert done.expected, done.invariants
    assert done.depth == PLANNER
    assert done.reproduction is not None
    assert done.reproduction.startswith("kvcrucible plan --json")


def as_it_is(**changes: int) -> FaultRun:
    return run_trial(Trial(None, Depth.LEDGER, CampaignOptions(**changes), PLANNER))


def test_the_planner_as_it_is_survives_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcrucible.fuzz.faults.run.QUESTIONS", 5)
    assert [trial.target for trial in unchanged_trials(FAULTS, CampaignOptions())] == [PLANNER]
    assert as_it_is().verdict is Verdict.SURVIVED


def test_a_child_that_is_asked_for_nothing_known_proves_nothing() -> None:
    (trial,) = trials_of([replace(FAULTS[0], id="made-up")], CampaignOptions())
    assert run_trial(trial).verdict is Verdict.LOST


def test_a_planner_that_hangs_proves_nothing() -> None:
    assert as_it_is(seconds=0).verdict is Verdict.HUNG
