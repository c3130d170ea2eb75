"""Runs in a child process: plants one fault or none, then a kernel campaign or one given case.

``python -m kvcrucible.fuzz.kernels.child FAULT TARGET …``; FAULT ``none`` plants nothing.  Writes the report as one
JSON object; the exit status is 0 held, 1 violation, 3 cut short.  Nothing of the engine may be imported before the
fault is planted, so imports stand where they are needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.fuzz.faults.catalogue import NO_FAULT
from kvcrucible.fuzz.faults.overlay import plant
from kvcrucible.fuzz.kernels.cells import CLASSES, KERNELS, all_cells, pairwise

if TYPE_CHECKING:
    from kvcrucible.fuzz.kernels.campaign import KernelReport


def main(arguments: list[str] | None = None) -> ExitStatus:
    """Carry out the command line and return the exit status."""
    # Libraries talk on standard output too (Hypothesis of a slow shrink), where nothing but the report may stand.
    with redirect_stdout(sys.stderr):
        report = _report(_parse(arguments))
    json.dump(report.to_plain(), sys.stdout)
    if report.failure is not None:
        return ExitStatus.VIOLATION
    return ExitStatus.INCONCLUSIVE if report.cut_short else ExitStatus.HELD


def _report(options: argparse.Namespace) -> KernelReport:
    if options.fault != NO_FAULT:
        from kvcrucible.fuzz.faults.catalogue import kernel_catalogue, source_of

        fault = kernel_catalogue()[options.fault]
        # Kernels are imported at their first call: a fault that no longer matches has to be refused before that.
        fault.apply_to(source_of(fault.module))
        plant(fault)
    import torch

    from kvcrucible.fuzz.kernels.backends import TARGETS
    from kvcrucible.fuzz.kernels.campaign import KernelReport, run

    torch.set_num_threads(1)
    target = TARGETS[options.target]
    if options.case is not None:
        from kvcrucible.fuzz.kernels.cases import read_case
        from kvcrucible.fuzz.kernels.checks import check

        case = read_case(options.case)
        report = KernelReport(target.name, case.seed, [case.cell])
        report.tried[case.cell] = 1
        found = check(case, target.backend, target.device)
        report.failure = (case, tuple(found)) if found else None
    else:
        wanted = all_cells(
            options.kernel or KERNELS, options.profile or tuple(PROFILES), options.length or CLASSES
        )
        if options.pairwise:
            wanted = pairwise(wanted, options.seed)

        def progress(report: KernelReport) -> None:
            done = len(report.wanted) - len(report.uncovered)
            sys.stderr.write(f"{done} {len(report.wanted)} {report.tried.total()}\n")
            sys.stderr.flush()

        report = run(
            target,
            wanted,
            options.examples,
            options.seed,
            options.seconds,
            progress,
            shrink=not options.no_shrink,
        )
    return report


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kvcrucible.fuzz.kernels.child")
    parser.add_argument("fault")
    parser.add_argument("target")
    parser.add_argument("--examples", type=int, default=2, help="examples of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--kernel", action="append", default=[])
    parser.add_argument("--profile", action="append", default=[])
    parser.add_argument("--length", action="append", default=[], help="class of lengths")
    parser.add_argument("--pairwise", action="store_true", help="few cells that hold every pair")
    parser.add_argument("--no-shrink", action="store_true", help="leave what fails as it was first seen")
    parser.add_argument("--case", type=Path, default=None, help="run this file's case instead of a campaign")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        # Python's own status for an uncaught exception is 1, which here means that an invariant is broken.
        traceback.print_exc()
        status = ExitStatus.INTERNAL
    sys.exit(status)
