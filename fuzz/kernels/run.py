"""Starts kernel campaigns in child processes and reads their reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcrucible.contract.errors import CrucibleError, ExitStatus
from kvcrucible.fuzz.faults.catalogue import NO_FAULT, Fault
from kvcrucible.fuzz.kernels.backends import TARGETS, Target, why_not
from kvcrucible.fuzz.kernels.cells import KERNELS, all_cells

#: Characters of a lost child's last words that are shown.
_LAST_WORDS = 2_000


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What a kernel campaign tries on each target; no kernels, profiles or lengths means all; ``seconds``: for one.

    ``shrink``: whether a failing case is made small.
    """

    examples_a_cell: int = 2
    seed: int = 0
    seconds: float | None = None
    kernels: Sequence[str] = ()
    profiles: Sequence[str] = ()
    lengths: Sequence[str] = ()
    pairwise: bool = False
    case: Path | None = None
    fault: str = NO_FAULT
    shrink: bool = True
    on_progress: Callable[[str, int, int], None] | None = field(default=None, compare=False)


def target_of(fault: Fault) -> Target:
    """Return where a fault of the kernel catalogue shows."""
    if ".kernels.triton." in fault.module:
        return TARGETS["interpreter"]
    return TARGETS["cpu" if fault.module.endswith("cpu_backend") else "torch"]


def run_target(target: Target, plan: KernelPlan) -> dict[str, Any]:
    """Return the report of a campaign on ``target`` as plain data (``campaign.KernelReport.to_plain``).

    Where the target cannot run here the report has tried nothing and ``not_run`` says why.  Raises ``CrucibleError``
    for a child that ends in any other way than with a report: that proves nothing.
    """
    reason = why_not(target)
    if reason is not None:
        wanted = all_cells(plan.kernels or KERNELS)
        return {
            "target": target.name,
            "not_run": reason,
            "failure": None,
            "cells": len(wanted),
            "examples": 0,
        }
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kvcrucible.fuzz.kernels.child", plan.fault, target.name]
    # The report goes to a file: two pipes of which one is read would block the child once the other is full.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as written:
        child = subprocess.Popen(
            command + _arguments(plan),
            env=environment | dict(target.environment),
            stdout=written,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            words = _listen(child, target.name, plan.on_progress)
        except BaseException:
            child.kill()
            raise
        finally:
            child.wait()
        written.seek(0)
        report = written.read()
    if child.returncode not in (ExitStatus.HELD, ExitStatus.VIOLATION, ExitStatus.INCONCLUSIVE):
        raise CrucibleError(f"the campaign on {target.name} ended with status {child.returncode}: {words}")
    try:
        plain: dict[str, Any] = json.loads(report)
    except ValueError:
        raise CrucibleError(f"the campaign on {target.name} left no report: {words}") from None
    return plain


def status_of(reports: Sequence[dict[str, Any]]) -> ExitStatus:
    """Return what several reports mean together; a target that did not run counts only where none did."""
    if any(report["failure"] is not None for report in reports):
        return ExitStatus.VIOLATION
    ran = [report for report in reports if report["not_run"] is None]
    if not ran:
        return ExitStatus.NOT_RUN
    return ExitStatus.INCONCLUSIVE if any(report["cut_short"] for report in ran) else ExitStatus.HELD


def _listen(
    child: subprocess.Popen[str], name: str, on_progress: Callable[[str, int, int], None] | None
) -> str:
    """Pass progress on until the child closes its error stream; return its last words."""
    assert child.stderr is not None
    words = ""
    with child.stderr:
        for line in child.stderr:
            numbers = line.split()
            if len(numbers) == 3 and all(number.isdigit() for number in numbers):
                if on_progress is not None:
                    on_progress(name, int(numbers[0]), int(numbers[1]))
            else:
                words = (words + line)[-_LAST_WORDS:]
    return words.strip()


def _arguments(plan: KernelPlan) -> list[str]:
    arguments = ["--examples", str(plan.examples_a_cell), "--seed", str(plan.seed)]
    if plan.seconds is not None:
        arguments += ["--seconds", str(plan.seconds)]
    for name, values in (
        ("--kernel", plan.kernels),
        ("--profile", plan.profiles),
        ("--length", plan.lengths),
    ):
        for value in values:
            arguments += [name, value]
    if plan.pairwise:
        arguments.append("--pairwise")
    if not plan.shrink:
        arguments.append("--no-shrink")
    if plan.case is not None:
        arguments += ["--case", str(plan.case)]
    return arguments
