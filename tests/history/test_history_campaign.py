"""Histories of our own engine, from campaigns and replays, pass; those of an engine with a planted fault do not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from histories import CONFIG, STORY

import kvcrucible.fuzz.lockstep as lockstep
from kvcrucible.contract import operations as ops
from kvcrucible.contract.config import LRU, EngineConfig, PoolSpec
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.history import HistoryWriter, ObservedEngine
from kvcrucible.engine.observe import drain
from kvcrucible.fuzz import campaign
from kvcrucible.fuzz.adapters.paged import PagedAdapter
from kvcrucible.fuzz.adapters.registry import build
from kvcrucible.fuzz.setting import Setting
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement, Verdict


class _Recorded:
    """Builds adapters that write a history each; :meth:`judge` checks the latest."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, 0
        self.writer: HistoryWriter | None = None
        self.verdicts: list[Verdict] = []

    def build(self, setting: Setting) -> Any:
        adapter = build(setting)
        if not isinstance(adapter, PagedAdapter):
            return adapter
        self.made += 1
        path = self.folder / f"{self.made}.jsonl"
        self.writer = HistoryWriter(
            path, setting.engine_config(), not setting.lagging, tables=True, lru=setting.policy == LRU
        )
        observed = ObservedEngine(adapter.engine, self.writer)
        execute_, drain_ = adapter.execute, adapter.drain
        latest: list[tuple[ops.Operation, ops.Outcome]] = []

        def executing(operation: ops.Operation) -> ops.Outcome:
            outcome = execute_(operation)
            latest.append((operation, outcome))
            return outcome

        def draining() -> Any:
            found = drain_()
            while latest:
                observed.record(*latest.pop(), found[0])
            return found

        adapter.execute, adapter.drain = executing, draining  # type: ignore[method-assign]
        return adapter

    def judge(self) -> None:
        assert self.writer is not None
        self.writer.close(empty=True)
        self.verdicts.append(check_file(self.writer.path))
        self.writer.path.unlink()


def test_histories_of_a_campaign_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, close = _Recorded(tmp_path), lockstep.LockStep.close

    def closing(self: lockstep.LockStep) -> None:
        close(self)
        recorded.judge()

    monkeypatch.setattr(lockstep, "build", recorded.build)
    monkeypatch.setattr(lockstep.LockStep, "close", closing)
    report = campaign.run(campaign.Plan(examples=25, steps=50, seed=16))
    assert report.failure is None
    assert len(recorded.verdicts) >= 25
    assert {(one.judgement, one.reason) for one in recorded.verdicts} == {(Judgement.PASS, None)}
    assert sum(one.operations for one in recorded.verdicts) > 1000


def _history_of(engine: Engine, path: Path) -> Verdict:
    writer = HistoryWriter(path, engine.config)
    observed = ObservedEngine(engine, writer)
    for operation in STORY:
        outcome = execute(engine, operation)
        observed.record(operation, outcome, drain(engine)[0])
    writer.close()
    return check_file(path)


def test_a_fault_in_the_engine_shows_in_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that loses a page as it frees others, and one that copies a column too few."""
    assert _history_of(Engine(CONFIG), tmp_path / "right.jsonl").judgement is Judgement.PASS
    leaking = Engine(CONFIG)
    release = leaking.pools[0].release

    lost: list[Any] = []

    def leak(leases: list[Any], fences: list[int] | None = None) -> None:
        last = len(leases) - (not lost)
        lost.extend(leases[last:])
        release(leases[:last], None if fences is None else fences[:last])

    monkeypatch.setattr(leaking.pools[0], "release", leak)
    verdict = _history_of(leaking, tmp_path / "leaking.jsonl")
    assert (verdict.rule, verdict.line) == ("pool-conservation", 20)
    verdict = _history_with_short_copies(Engine(CONFIG), tmp_path / "short.jsonl")
    assert (verdict.rule, verdict.line) == ("cow-isolation", 9)


def _history_with_short_copies(engine: Engine, path: Path) -> Verdict:
    writer = HistoryWriter(path, engine.config)
    for operation in STORY[:9]:
        outcome = execute(engine, operation)
        touched = drain(engine)[0]
        fork = isinstance(operation, ops.Fork)
        writer.record(operation, outcome, touched, [(0, 1, touched.pages[4].device, 1)] if fork else [])
    writer.close()
    return check_file(path)


def test_what_is_clearly_legal_is_what_no_row_refuses() -> None:
    """Units are judged by a short way: on random works it and the table say the same."""
    from kvcrucible.contract import history
    from kvcrucible.contract.history_header import Shown
    from kvcrucible.engine.history import header_of
    from kvcrucible.invariants.history.check import HistoryChecker
    from kvcrucible.invariants.history.outcome import Broken
    from kvcrucible.invariants.history.units import _require

    draw = random.Random(16)
    config = EngineConfig((PoolSpec("main", 40, 4), PoolSpec("mtp", 40, 4)), 40, 4)
    legal = illegal = 0
    for _ in range(400):
        shows = [Shown.TOKENS, Shown.REFUSALS]
        checker = HistoryChecker(header_of(config, "random", shows))
        ledger = checker.ledger
        for sequence in range(3):
            prompt = draw.randint(1, 9)
            checker.take(history.Submit(prompt=list(run(sequence, 0, prompt)), max_new=6, sequence=sequence))
            admission = history.Admission(sequence=sequence, mode=ops.AdmissionMode.COLD)
            checker.take(history.Admit(admission=admission))
            if draw.random() < 0.6:
                work = history.Work(
                    sequence=sequence, prefill=draw.randint(1, prompt), backend=draw.choice([None, 0])
                )
                checker.take(history.Begin(work=[work], unit=2 * sequence))
                if draw.random() < 0.8:
                    checker.take(history.End(unit=2 * sequence))
        works = []
        for sequence in draw.choices(range(4), k=draw.choice([1, 1, 2])):
            backend = draw.choice([None, None, None, -1, 0, 1, 3, 12])
            if draw.random() < 0.5:
                works.append(history.Work(sequence=sequence, prefill=draw.randint(0, 9), backend=backend))
            else:
                runs = [(5, 0, draw.randint(1, 9))] * draw.randint(0, 1)
                works.append(history.Work(sequence=sequence, append=runs, backend=backend))
        line = history.Begin(work=works, unit=100)
        try:
            _require(ledger, line)
            due = None
        except Broken as broken:
            due = broken.rule
        try:
            checker.take(line)
            found = None
        except Broken as broken:
            found = broken.rule
        assert found == due, (line, found, due)
        legal, illegal = legal + (due is None), illegal + (due is not None)
    assert min(legal, illegal) > 20
