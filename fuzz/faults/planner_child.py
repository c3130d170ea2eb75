"""Runs in a child process: plants one fault into the capacity planner or none, then asks and judges it.

``python -m kvcrucible.fuzz.faults.planner_child FAULT …``; FAULT ``none`` plants nothing: so the judge is judged too.
Writes one JSON object: ``failure``, None or the command of the first question that was answered wrongly with the
violations, ``asked``, ``refused``.  The exit status is 0 held, 1 violation.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import traceback
from typing import Any

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.fuzz.faults.catalogue import NO_FAULT, planner_catalogue, source_of
from kvcrucible.fuzz.faults.overlay import plant

#: Questions unless told otherwise; some 50 ms each.
QUESTIONS = 100

#: Questions of one seed at most: those of the next begin behind them.
MOST_QUESTIONS = 1 << 20


def main(arguments: list[str] | None = None) -> ExitStatus:
    """Carry out the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvcrucible.fuzz.faults.planner_child")
    parser.add_argument("fault", choices=[NO_FAULT, *planner_catalogue()])
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.fault != NO_FAULT:
        fault = planner_catalogue()[options.fault]
        # The planner is imported with the first question: a fault that no longer matches has to be refused before that.
        fault.apply_to(source_of(fault.module))
        plant(fault)
    report = _ask(options.seed, min(options.questions, MOST_QUESTIONS))
    json.dump(report, sys.stdout)
    return ExitStatus.HELD if report["failure"] is None else ExitStatus.VIOLATION


def _ask(seed: int, questions: int) -> dict[str, Any]:
    from kvcrucible.fuzz.planning.asks import ask, drawn
    from kvcrucible.fuzz.planning.judge import judge

    report: dict[str, Any] = {"failure": None, "asked": 0, "refused": 0}
    for number in range(questions):
        question = drawn(seed * MOST_QUESTIONS + number)
        answer = ask(question)
        report["asked"] += 1
        report["refused"] += answer.plain is None
        found = judge(question, answer)
        if found:
            report["failure"] = {
                "command": shlex.join(["kvcrucible", *question.arguments()]),
                "violations": [{"invariant": one.invariant, "message": one.message} for one in found],
            }
            break
    return report


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        # Python's own status for an uncaught exception is 1, which here means that an invariant is broken.
        traceback.print_exc()
        status = ExitStatus.INTERNAL
    sys.exit(status)
