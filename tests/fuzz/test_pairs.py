"""Ordered pairs of operations: counted where both are carried out, and none excused that could be reached."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import OPERATIONS, Fork, Pin, Progress, Schedule
from kvcrucible.fuzz.pairs import ALL_PAIRS, Pair, PairLog, impossible, missing, pair_name, pair_of

ABLE = Capabilities("everything")


def test_only_neighbours_that_were_both_carried_out_count() -> None:
    counts: Counter[Pair] = Counter()
    log = PairLog(counts)
    for operation, refused in (
        (Schedule(), False),
        (Progress(), False),
        (Fork(0, 1, 1), True),
        (Schedule(), False),
        (Schedule(), False),
    ):
        log.note(operation, refused=refused)
    assert counts == {("Schedule", "Progress"): 1, ("Schedule", "Schedule"): 1}


def test_examples_do_not_join() -> None:
    counts: Counter[Pair] = Counter()
    PairLog(counts).note(Schedule(), refused=False)
    PairLog(counts).note(Progress(), refused=False)
    assert not counts


def test_nothing_is_impossible_on_an_engine_that_can_do_everything() -> None:
    assert impossible(ABLE) == {}
    assert len(ALL_PAIRS) == len(OPERATIONS) ** 2
    assert missing(Counter(), ABLE) == list(ALL_PAIRS)
    assert missing(Counter(dict.fromkeys(ALL_PAIRS, 1)), ABLE) == []


def test_each_impossible_pair_has_its_reason() -> None:
    without_pin = replace(ABLE, operations=ABLE.operations - {"Pin"})
    reasons = impossible(without_pin)
    assert reasons == {pair: "everything has no Pin" for pair in ALL_PAIRS if Pin.__name__ in pair}
    hostless = impossible(ABLE, hosts=(False,))
    assert hostless["Submit", "Demote"] == "without a Host tier there is no Demote"
    assert len(hostless) == 17**2 - 14**2
    assert hostless == impossible(replace(ABLE, host=False))


def test_a_pair_that_is_missing_is_named() -> None:
    counts: Counter[Pair] = Counter(dict.fromkeys(ALL_PAIRS, 1))
    counts["Restore", "Restore"] = 0
    assert missing(counts, ABLE) == [("Restore", "Restore")]
    assert pair_of(pair_name(("Restore", "Pin"))) == ("Restore", "Pin")
