"""Runs campaigns against planted faults, each in a child process, and says which were killed.

Killed means that the campaign reported a violation.  A child that crashes, hangs or loses its anchor is none of the
verdicts that count as killed: a judge that falls over proves nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.fuzz.faults.catalogue import Fault
from kvcrucible.fuzz.faults.child import NO_FAULT
from kvcrucible.fuzz.setting import Depth

#: Seconds after which a child counts as hung; a campaign of the default size takes a tenth of it on one core.
CHILD_SECONDS = 300

#: Characters of a lost child's last words that are kept.
_LAST_WORDS = 500


class Verdict(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    HUNG = "hung"
    LOST = "lost"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One fault under one campaign.

    ``invariants``: what the minimal example violates, in order; ``expected``: whether the catalogue names one of them.
    ``examples``, ``steps``: what was tried until a failure was first seen; ``length``: steps of the minimal example.
    """

    fault: str
    verdict: Verdict
    invariants: tuple[str, ...] = ()
    expected: bool = False
    examples: int | None = None
    steps: int | None = None
    length: int | None = None
    reproduction: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CampaignOptions:
    """How each child's campaign runs."""

    examples: int = 300
    steps: int = 60
    seed: int = 0
    out: Path | None = None
    seconds: float = CHILD_SECONDS


def run_faults(
    faults: Sequence[Fault], options: CampaignOptions, on_done: Callable[[FaultRun], None] | None = None
) -> list[FaultRun]:
    """Run every fault's campaign, as many at a time as there are cores for this process; results in the given order."""
    workers = max(1, len(os.sched_getaffinity(0)))

    def one(fault: Fault) -> FaultRun:
        done = run_fault(fault, options)
        if on_done is not None:
            on_done(done)
        return done

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, faults))


def run_fault(fault: Fault, options: CampaignOptions) -> FaultRun:
    """Run one fault's campaign at the depth that the catalogue names for it."""
    if fault.depth is Depth.PAYLOAD and find_spec("torch") is None:
        return FaultRun(fault.id, Verdict.NOT_RUN, note="payload depth needs torch (the extra 'engine')")
    return _judge(fault.id, fault.expects, _start(fault.id, fault.depth, options))


def run_unchanged(depth: Depth, options: CampaignOptions) -> FaultRun:
    """Run the same campaign on the engine as it is: it has to survive, or the judge condemns everybody."""
    return _judge(NO_FAULT, (), _start(NO_FAULT, depth, options))


def totals(runs: Sequence[FaultRun]) -> dict[str, Any]:
    """Return killed, total and the medians over the killed."""
    killed = [run for run in runs if run.verdict is Verdict.KILLED]
    return {
        "faults": len(runs),
        "killed": len(killed),
        "median_examples": median(run.examples or 0 for run in killed) if killed else None,
        "median_length": median(run.length or 0 for run in killed) if killed else None,
        "longest": max((run.length or 0 for run in killed), default=None),
    }


def _start(name: str, depth: Depth, options: CampaignOptions) -> subprocess.CompletedProcess[str] | None:
    command = [sys.executable, "-m", "kvcrucible.fuzz.faults.child", name, "--depth", depth.value]
    command += [
        "--examples",
        str(options.examples),
        "--steps",
        str(options.steps),
        "--seed",
        str(options.seed),
    ]
    if options.out is not None:
        command += ["--out", str(options.out)]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.seconds)
    except subprocess.TimeoutExpired:
        return None


def _judge(name: str, expects: Sequence[str], done: subprocess.CompletedProcess[str] | None) -> FaultRun:
    if done is None:
        return FaultRun(name, Verdict.HUNG, note="the child did not end in time")
    if done.returncode not in (ExitStatus.HELD, ExitStatus.VIOLATION):
        return FaultRun(name, Verdict.LOST, note=done.stderr.strip()[-_LAST_WORDS:])
    try:
        failure = json.loads(done.stdout)["failure"]
    except (ValueError, KeyError, TypeError):
        # An exception that nobody caught ends Python with the same status as a violation, but without a report.
        return FaultRun(name, Verdict.LOST, note=done.stderr.strip()[-_LAST_WORDS:])
    if failure is None:
        return FaultRun(name, Verdict.SURVIVED)
    invariants = tuple(dict.fromkeys(found["invariant"] for found in failure["violations"]))
    return FaultRun(
        name,
        Verdict.KILLED,
        invariants,
        bool(set(invariants) & set(expects)),
        failure["first_seen"]["examples"],
        failure["first_seen"]["steps"],
        len(failure["steps"]),
        failure["reproduction"],
    )
