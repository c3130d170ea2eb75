"""Runs the planner's own judge against its planted faults, each in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.fuzz.faults.catalogue import Fault
from kvcrucible.fuzz.faults.planner_child import NO_FAULT, QUESTIONS
from kvcrucible.fuzz.faults.run import CHILD_SECONDS, CLOCK_FACTOR, FaultRun, Verdict
from kvcrucible.fuzz.setting import Depth

#: Characters of a lost child's last words that are kept.
_LAST_WORDS = 2_000


def run_planner(
    fault: Fault | None,
    seed: int = 0,
    questions: int = QUESTIONS,
    seconds: float = CLOCK_FACTOR * CHILD_SECONDS,
) -> FaultRun:
    """Ask the planner with ``fault`` in it, or as it is where that is None; the child hangs after ``seconds``.

    ``examples`` of the result are the questions asked before the first wrong answer, ``reproduction`` is the command
    that was answered wrongly.
    """
    name = NO_FAULT if fault is None else fault.id
    blank = FaultRun(name, Depth.LEDGER.value, seed, Verdict.NOT_RUN)
    command = [sys.executable, "-m", "kvcrucible.fuzz.faults.planner_child", name]
    command += ["--seed", str(seed), "--questions", str(questions)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return replace(blank, verdict=Verdict.HUNG, note="the child did not end in time")
    lost = replace(blank, verdict=Verdict.LOST, note=done.stderr.strip()[-_LAST_WORDS:])
    if done.returncode not in (ExitStatus.HELD, ExitStatus.VIOLATION):
        return lost
    try:
        report = json.loads(done.stdout)
        failure = report["failure"]
        if failure is None:
            return replace(blank, verdict=Verdict.SURVIVED)
        invariants = tuple(dict.fromkeys(found["invariant"] for found in failure["violations"]))
        return replace(
            blank,
            verdict=Verdict.KILLED,
            invariants=invariants,
            expected=fault is not None and bool(set(invariants) & set(fault.expects)),
            examples=report["asked"] - 1,
            reproduction=failure["command"],
        )
    except (ValueError, KeyError, TypeError):
        # A child may end with the status of a violation and yet leave no report: that proves nothing.
        return lost
