"""Runs the canary through every stage that judges: each has to find it, or what that stage reports is void.

A stage is void, too, where it finds something in our own engine under the very same conditions: it would condemn
anybody.  The gate of the performance suites has its own canary, the slowed twin of every run (decision 0014).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import DeviceCapacity, NotRunError
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    EndUnit,
    Finish,
    Operation,
    Prefill,
    Release,
    Schedule,
    Submit,
)
from kvcrucible.contract.tokens import run as tokens_of
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.history import HistoryWriter
from kvcrucible.engine.observe import drain
from kvcrucible.engine.pool import Reservation
from kvcrucible.engine.streams import UnitFences
from kvcrucible.fuzz import campaign
from kvcrucible.fuzz.canary.engine import CANARY
from kvcrucible.fuzz.nth_failure import campaign as nth_failure
from kvcrucible.fuzz.nth_failure.failing import FailingPool
from kvcrucible.fuzz.nth_failure.subject import Subject
from kvcrucible.fuzz.nth_failure.workloads import Workload
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.volume import VolumePlan, VolumeReport, run_volume
from kvcrucible.invariants.history.check import check_file
from kvcrucible.invariants.history.outcome import Judgement
from kvcrucible.invariants.judgements import ENGINE_FAULT

#: Examples of each campaign, at ledger and at payload depth: the canary fails in the first few.
_EXAMPLES = {Depth.LEDGER: 6, Depth.PAYLOAD: 4}

#: Most rules in one example.
_STEPS = 8

#: Seeds of the raw loop.
_SEEDS = 6

#: A short run that asks for promises, grants and uploads: what the stages without a campaign are judged by.
_OPERATIONS: tuple[Operation, ...] = (
    Submit(tokens_of(0, 0, 20), 8),
    Schedule(),
    BeginUnit((Prefill(0, 20),)),
    EndUnit(0),
    BeginUnit((Append(0, tokens_of(0, 20, 3)),)),
    EndUnit(1),
    Finish(0),
    Release(0),
)


class Verdict(StrEnum):
    """What a stage made of the canary."""

    FAILED = "failed, as it has to"
    CRASHED = "fell over instead of being told: reports of this stage are void"
    PASSED = "passed: reports of this stage are void"
    CONDEMNS_ALL = "our own engine fails, too: reports of this stage are void"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class StageResult:
    """One stage: its verdict, and what was found or why it did not run."""

    stage: str
    verdict: Verdict
    note: str

    @property
    def void(self) -> bool:
        """Whether nothing that this stage reports may be believed."""
        return self.verdict in (Verdict.PASSED, Verdict.CRASHED, Verdict.CONDEMNS_ALL)


#: Runs one stage on the canary, or for False on our own engine; returns what was found, None for nothing.
Stage = Callable[[bool], str | None]


def run_stage(name: str) -> StageResult:
    """Run one stage of :data:`STAGES` on the canary, then on our own engine."""
    stage = STAGES[name]
    try:
        found = stage(True)
        unfounded = stage(False)
    except NotRunError as missing:
        return StageResult(name, Verdict.NOT_RUN, str(missing))
    if found is None:
        return StageResult(name, Verdict.PASSED, "nothing found")
    if unfounded is not None:
        return StageResult(name, Verdict.CONDEMNS_ALL, unfounded)
    if found.startswith(f"{ENGINE_FAULT}:"):
        # What the canary does wrong has to be told; one that raises is found by a judge that compares nothing.
        return StageResult(name, Verdict.CRASHED, found)
    return StageResult(name, Verdict.FAILED, found)


def _campaign_at(depth: Depth) -> Stage:
    def stage(canary: bool) -> str | None:
        engine = CANARY if canary else "paged"
        # Main alone without a Host tier: what the canary does wrong shows there, and it is found and shrunk sooner.
        plan = campaign.Plan(
            engine, (depth,), _EXAMPLES[depth], _STEPS, backends=(None,), profiles=("FP32",), hosts=(False,)
        )
        return _told(campaign.run(plan))

    return stage


def _raw(canary: bool) -> str | None:
    return _told(run_volume(VolumePlan(CANARY if canary else "paged", seeds=_SEEDS, rules=_STEPS)))


def _told(report: campaign.Report | VolumeReport) -> str | None:
    """Return what a campaign found; an interrupted one has let nobody pass, and ends the stages."""
    if report.failure is not None:
        return str(report.failure.violations[0])
    if report.cut_short == "interrupted":
        raise KeyboardInterrupt
    return None


class LeakyPool(FailingPool):
    """A pool of which a promise that fails is kept all the same."""

    def extend(self, reservation: Reservation, pages: int) -> None:
        """Promise pages, or fail and lose them."""
        try:
            super().extend(reservation, pages)
        except DeviceCapacity:
            if pages <= self.free:
                self.reserved += pages
            raise


class LeakySubject(Subject):
    """Our engine over leaky pools."""

    def _pool(self, spec: PoolSpec, fences: UnitFences) -> FailingPool:
        return LeakyPool(self.gate, spec, fences)


def _nth_failure(canary: bool) -> str | None:
    workload = Workload(Setting(), _OPERATIONS)
    report = nth_failure.run(0, 1, source=[workload], build=LeakySubject if canary else Subject)
    return None if report.failure is None else str(report.failure.violations[0])


def _history(canary: bool) -> str | None:
    """Write the history of a short run, in which the canary counts a page as free that is leased, and judge it."""
    config = EngineConfig((PoolSpec(capacity_pages=4, page_size=16),), 64, 2)
    engine = Engine(config)
    with tempfile.TemporaryDirectory() as folder:
        writer = HistoryWriter(Path(folder) / "canary.jsonl", config)
        for operation in _OPERATIONS:
            outcome = execute(engine, operation)
            if canary:
                counters = tuple(
                    [(max(0, n - 1), kept, free + (n > 0)) for n, kept, free in outcome.counters]
                )
                outcome = replace(outcome, counters=counters)
            writer.record(operation, outcome, drain(engine)[0])
        writer.close(empty=True)
        verdict = check_file(writer.path)
    if verdict.judgement is Judgement.PASS:
        return None
    return f"{verdict.judgement.value} at line {verdict.line}: {verdict.reason}"


def _kernels(canary: bool) -> str | None:
    """Run a few cells of a kernel campaign over torch's kernels, of which the canary's forget the last output."""
    try:
        from kvcrucible.engine.kernels import torch_backend
        from kvcrucible.engine.kernels.backends import BACKENDS
        from kvcrucible.fuzz.kernels.backends import Target
        from kvcrucible.fuzz.kernels.campaign import run
        from kvcrucible.fuzz.kernels.cells import Cell
    except ImportError as error:
        raise NotRunError(f"kernels need torch: {error}") from None
    cells = [Cell("decode", "FP32", "page-major", "1"), Cell("append", "FP32", "page-major", "1")]
    with _backend(BACKENDS, CANARY, _Forgetful(torch_backend) if canary else torch_backend):
        report = run(Target(CANARY, CANARY), cells, 2, 0)
    return None if report.failure is None else str(report.failure[1][0])


class _Forgetful:
    """A back-end of kernels whose attention leaves the last line of its output at zero."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        """Everything else is the back-end's own."""
        return getattr(self._inner, name)

    def paged_attention(self, *args: Any, **options: Any) -> Any:
        """Attend, and forget one line."""
        out, lse = self._inner.paged_attention(*args, **options)
        out[-1] = 0
        return out, lse


@contextmanager
def _backend(backends: dict[str, Any], name: str, backend: Any) -> Iterator[None]:
    backends[name] = backend
    try:
        yield
    finally:
        del backends[name]


def _payload(canary: bool) -> str | None:
    if Depth.PAYLOAD not in campaign.default_depths():
        raise NotRunError("payload depth needs torch")
    return _campaign_at(Depth.PAYLOAD)(canary)


#: Every stage that judges, by name.
STAGES: dict[str, Stage] = {
    "ledger": _campaign_at(Depth.LEDGER),
    "raw": _raw,
    "payload": _payload,
    "kernels": _kernels,
    "history": _history,
    "nth-failure": _nth_failure,
}
