"""Runs in a child process: plants one fault, then a campaign, seeds of the raw loop or a reproduction.

``python -m kvcrucible.fuzz.faults.child FAULT …``; FAULT ``none`` plants nothing: so the judge itself is judged.
Kernels are the plain ones in torch: a fault can be planted in them, and a score does not hang on a compiler.
Nothing of the engine may be imported before the fault is planted, so imports stand where they are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.contract.planes import BACKENDS
from kvcrucible.fuzz.faults.catalogue import NO_FAULT, fault
from kvcrucible.fuzz.faults.overlay import plant


def main(arguments: list[str] | None = None) -> ExitStatus:
    """Carry out the command line and return the exit status: 0 held, 1 violation."""
    options = _parse(arguments)
    os.environ["KVCRUCIBLE_KERNELS"] = "torch"
    if options.processor_seconds is not None:
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (options.processor_seconds, most))
    if options.fault != NO_FAULT:
        plant(fault(options.fault))
    if options.reproduction is not None:
        return _reproduce(options.reproduction)
    if options.raw is not None:
        return _volume(options)
    return _campaign(options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kvcrucible.fuzz.faults.child")
    parser.add_argument("fault")
    parser.add_argument("--depth", action="append", default=[])
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument(
        "--backend", choices=BACKENDS, default=None, help="this pool beside Main; else any or none"
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--raw", type=int, default=None, help="so many seeds of the raw loop, from --seed on")
    parser.add_argument("--out", type=Path, default=None, help="folder for the reproduction")
    parser.add_argument("--no-shrink", action="store_true", help="leave what fails as it was first seen")
    parser.add_argument("--processor-seconds", type=int, default=None, help="end by SIGXCPU after so many")
    parser.add_argument(
        "--reproduction", type=Path, default=None, help="run this file's test instead of a campaign"
    )
    return parser.parse_args(arguments)


def _campaign(options: argparse.Namespace) -> ExitStatus:
    from kvcrucible.fuzz.campaign import Plan, default_depths, keep_out_of_the_working_folder, run
    from kvcrucible.fuzz.report import report_to_plain
    from kvcrucible.fuzz.reproduction import write
    from kvcrucible.fuzz.setting import Depth

    keep_out_of_the_working_folder()
    depths = tuple(Depth(depth) for depth in options.depth) or default_depths()
    backends = (None, *BACKENDS) if options.backend is None else (options.backend,)
    plan = Plan(
        "paged",
        depths,
        options.examples,
        options.steps,
        options.seed,
        backends=backends,
        shrink=not options.no_shrink,
    )
    # Libraries talk on standard output too (Hypothesis of a slow shrink), where nothing but the report may stand.
    with redirect_stdout(sys.stderr):
        report = run(plan)
    path = None
    if report.failure is not None and options.out is not None:
        path = write(options.out, report.failure.setting, report.failure.steps, report.failure.violations)
    json.dump(report_to_plain(report, path), sys.stdout)
    return ExitStatus.HELD if report.failure is None else ExitStatus.VIOLATION


def _volume(options: argparse.Namespace) -> ExitStatus:
    from kvcrucible.fuzz.reproduction import write
    from kvcrucible.fuzz.volume import VolumePlan, run_volume, volume_to_plain

    # In this process alone: another one would not have the fault.
    plan = VolumePlan(
        first_seed=options.seed, seeds=options.raw, rules=options.steps, shrink=not options.no_shrink
    )
    report = run_volume(plan)
    path = None
    if report.failure is not None and options.out is not None:
        path = write(options.out, report.failure.setting, report.failure.steps, report.failure.violations)
    json.dump(volume_to_plain(report, None if path is None else str(path)), sys.stdout)
    return ExitStatus.HELD if report.failure is None else ExitStatus.VIOLATION


def _reproduce(path: Path) -> ExitStatus:
    from runpy import run_path

    from kvcrucible.invariants.violation import InvariantViolated

    tests = [value for name, value in run_path(str(path)).items() if name.startswith("test_")]
    assert tests, f"{path} holds no test"
    try:
        for test in tests:
            test()
    except InvariantViolated as found:
        print(found)
        return ExitStatus.VIOLATION
    return ExitStatus.HELD


def guarded(arguments: list[str] | None = None) -> ExitStatus:
    """Carry out the command line whatever it raises: Python's own status for an uncaught exception is 1, which here
    means that an invariant is broken.
    """
    try:
        return main(arguments)
    except Exception:
        traceback.print_exc()
        return ExitStatus.INTERNAL


if __name__ == "__main__":
    sys.exit(guarded())
