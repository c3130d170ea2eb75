"""Runs campaigns against planted faults, each in a child process, and says which were killed.

Killed means that the campaign reported a violation.  A child that crashes, hangs or loses its anchor is none of the
verdicts that count as killed: a judge that falls over proves nothing.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.contract.extras import install_remedy
from kvcrucible.fuzz.cores import usable_cores
from kvcrucible.fuzz.faults.catalogue import Fault
from kvcrucible.fuzz.faults.child import NO_FAULT
from kvcrucible.fuzz.setting import Depth

#: Seconds of processor time after which a child counts as hung, however busy the machine is; a campaign of the default
#: size takes a tenth of it.
CHILD_SECONDS = 300

#: How many times as long by the clock: a child that sleeps takes no processor time.
CLOCK_FACTOR = 10

#: Children that run at a time unless told otherwise: each holds a core and, at payload depth, torch.
DEFAULT_JOBS = 2

#: Characters of a lost child's last words that are kept.
_LAST_WORDS = 2_000


class Verdict(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    HUNG = "hung"
    LOST = "lost"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One fault under one campaign; ``NO_FAULT`` names the engine as it is.

    ``invariants``: what the minimal example violates, in order; ``expected``: whether the catalogue names one of them.
    ``examples``, ``steps``: what was tried until a failure was first seen; ``length``: steps of the minimal example.
    """

    fault: str
    depth: str
    seed: int
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
    """How each child's campaign runs; ``seconds`` of processor time: after which it counts as hung."""

    examples: int = 300
    steps: int = 60
    seed: int = 0
    out: Path | None = None
    seconds: float = CHILD_SECONDS


@dataclass(frozen=True, slots=True)
class Trial:
    """One campaign to run: against ``fault``, or against the engine as it is where that is None."""

    fault: Fault | None
    depth: Depth
    options: CampaignOptions


def trials_of(faults: Sequence[Fault], options: CampaignOptions, seeds: int = 1) -> list[Trial]:
    """Return a trial for each fault, at the depth that the catalogue names, under each of ``seeds`` seeds in turn."""
    return [
        Trial(fault, fault.depth, replace(options, seed=options.seed + index))
        for fault in faults
        for index in range(seeds)
    ]


def unchanged_trials(faults: Sequence[Fault], options: CampaignOptions) -> list[Trial]:
    """Return the same campaigns, once for each depth, on the engine as it is, where they must find nothing: a judge
    that condemns everybody would find every fault.
    """
    depths = dict.fromkeys(fault.depth for fault in faults)
    return [Trial(None, depth, options) for depth in depths]


def run_trials(
    trials: Sequence[Trial], jobs: int = DEFAULT_JOBS, on_done: Callable[[FaultRun], None] | None = None
) -> list[FaultRun]:
    """Run campaigns, at most ``jobs`` and no more than this process has cores at a time; results in the given order."""

    def one(trial: Trial) -> FaultRun:
        done = run_trial(trial)
        if on_done is not None:
            on_done(done)
        return done

    with ThreadPoolExecutor(max(1, min(jobs, usable_cores()))) as pool:
        return list(pool.map(one, trials))


def run_trial(trial: Trial) -> FaultRun:
    """Run one campaign in a child process and judge how the child ended."""
    name = NO_FAULT if trial.fault is None else trial.fault.id
    expects = () if trial.fault is None else trial.fault.expects
    blank = FaultRun(name, trial.depth.value, trial.options.seed, Verdict.NOT_RUN)
    if trial.depth is Depth.PAYLOAD and find_spec("torch") is None:
        return replace(blank, note=f"payload depth needs torch: {install_remedy('engine')}")
    return _judge(blank, expects, _start(name, trial.depth, trial.options))


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
    command += ["--processor-seconds", str(math.ceil(options.seconds))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=CLOCK_FACTOR * options.seconds
        )
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode == -signal.SIGXCPU else done


def _judge(
    blank: FaultRun, expects: Sequence[str], done: subprocess.CompletedProcess[str] | None
) -> FaultRun:
    if done is None:
        return replace(blank, verdict=Verdict.HUNG, note="the child did not end in time")
    lost = replace(blank, verdict=Verdict.LOST, note=done.stderr.strip()[-_LAST_WORDS:])
    if done.returncode not in (ExitStatus.HELD, ExitStatus.VIOLATION):
        return lost
    try:
        failure = json.loads(done.stdout)["failure"]
    except (ValueError, KeyError, TypeError):
        # A child may end with the status of a violation and yet leave no report: that proves nothing.
        return lost
    if failure is None:
        return replace(blank, verdict=Verdict.SURVIVED)
    invariants = tuple(dict.fromkeys(found["invariant"] for found in failure["violations"]))
    return replace(
        blank,
        verdict=Verdict.KILLED,
        invariants=invariants,
        expected=bool(set(invariants) & set(expects)),
        examples=failure["first_seen"]["examples"],
        steps=failure["first_seen"]["steps"],
        length=len(failure["steps"]),
        reproduction=failure["reproduction"],
    )
