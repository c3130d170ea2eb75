"""The checker and the accounting model agree on every line of random walks, and on what is no legal line."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from walks import Walk

from kvcrucible.contract import history
from kvcrucible.contract.history import Line
from kvcrucible.contract.operations import AdmissionMode, TransferOutcome
from kvcrucible.invariants.history.check import HistoryChecker
from kvcrucible.invariants.history.outcome import Broken

SETTINGS = list(itertools.product((1, 2), (False, True), (True, False), (True, False)))


def describe(setting: tuple[int, bool, bool, bool]) -> str:
    pools, host, immediate, reserves = setting
    words = (host, "host", "device"), (immediate, "now", "later"), (reserves, "reserved", "free")
    return "-".join([str(pools), *(yes if said else no for said, yes, no in words)])


@pytest.mark.parametrize("setting", SETTINGS, ids=describe)
def test_what_the_model_predicts_is_legal(setting: tuple[int, bool, bool, bool]) -> None:
    pools, host, immediate, reserves = setting
    done: Counter[str] = Counter()
    for seed in range(4):
        walk = Walk(seed, pools, host, immediate, reserves)
        checker = HistoryChecker(walk.header)
        for number in range(400):
            line = walk.step()
            try:
                checker.take(line)
            except Broken as broken:
                raise AssertionError(f"seed {seed}, line {number}, {line}: {broken}") from broken
            done.update(_kinds(line))
            ledger = checker.ledger
            assert ledger.entries >= sum(ledger.leased)
    expected = {"Fork", "Truncate", "Finish", "fork", "cold"} | (
        {"move"} if pools == 1 and not host else set()
    )
    expected |= {"moved", "kept", "abandoned", "Restore"} if host else set()
    assert expected <= done.keys(), done


@pytest.mark.parametrize("setting", SETTINGS[::5], ids=describe)
def test_who_the_model_lets_past_the_head_may_pass(setting: tuple[int, bool, bool, bool]) -> None:
    done: Counter[str] = Counter()
    for seed in range(5):
        walk = Walk(50 + seed, *setting, lookahead=3)
        checker = HistoryChecker(walk.header)
        for _ in range(300):
            line = walk.step()
            checker.take(line)
            done.update(_kinds(line))
    assert done["passed"] > 2


def _kinds(line: Line) -> Iterator[str]:
    """Yield what a line did: its kind unless it was refused, admissions' modes and transfers' outcomes."""
    if line.refused is None:
        yield type(line).__name__
    if isinstance(line, history.Admit) and line.admission is not None:
        yield line.admission.mode.value
    if isinstance(line, history.Schedule):
        yield from (one.mode.value for one in line.admitted)
        if line.wait is not None and any(one.sequence > line.wait.sequence for one in line.admitted):
            yield "passed"
    if isinstance(line, history.Progress):
        yield from (one.outcome.value for one in line.transfers)


def altered(line: Line) -> Iterator[Line]:
    """Yield lines that claim something else than what came of the operation; counters are left out."""
    if isinstance(line, history.Schedule) and line.admitted and line.admitted[-1].source is not None:
        for mode in AdmissionMode:
            if mode is not line.admitted[-1].mode:
                other = copy.deepcopy(line)
                other.admitted[-1].mode = mode
                yield other
        other = copy.deepcopy(line)
        other.admitted[-1].hit += 1
        yield other
    if isinstance(line, history.End) and line.refused is None and line.frontiers:
        other = copy.deepcopy(line)
        other.frontiers = [(name, at + 1) for name, at in line.frontiers]
        yield other
    if isinstance(line, history.Progress):
        for index, one in enumerate(line.transfers):
            for outcome in TransferOutcome:
                if outcome is not one.outcome:
                    other = copy.deepcopy(line)
                    other.transfers[index].outcome = outcome
                    yield other
    if (
        isinstance(line, history.Schedule | history.Fork | history.Restore | history.Truncate)
        and line.evicted
    ):
        other = copy.deepcopy(line)
        other.evicted.pop()
        yield other
    if isinstance(line, history.Demote) and line.extents:
        for change in ({"size": line.extents[0].size + 256}, {"offset": line.extents[0].offset + 1}):
            other = copy.deepcopy(line)
            for name, value in change.items():
                setattr(other.extents[0], name, value)
            yield other
    if line.refused is not None and not isinstance(line, history.Admit):
        other = copy.deepcopy(line)
        other.refused = None
        yield other


@pytest.mark.parametrize("setting", SETTINGS[::3], ids=describe)
def test_what_the_model_does_not_predict_is_not_legal(setting: tuple[int, bool, bool, bool]) -> None:
    """Another outcome for the same operation is reported at once, without the help of counters."""
    tried: Counter[str] = Counter()
    for seed in range(6):
        walk = Walk(100 + seed, *setting)
        lines = [walk.step() for _ in range(90)]
        for number, line in enumerate(lines):
            for other in altered(line):
                other.counters = None
                checker = HistoryChecker(walk.header)
                for before in lines[:number]:
                    checker.take(before)
                with pytest.raises(Broken):
                    checker.take(other)
                tried[type(line).__name__] += 1
    assert tried.total() > 50
