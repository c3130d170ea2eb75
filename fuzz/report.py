"""A campaign's report as JSON-ready data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvcrucible.fuzz.campaign import Failure, Report
from kvcrucible.fuzz.pairs import pair_name
from kvcrucible.fuzz.steps import step_to_plain


def report_to_plain(report: Report, reproduction: Path | None) -> dict[str, Any]:
    """Return the report as JSON-ready data; ``reproduction`` is where a failing example was written."""
    tally, failure = report.tally, report.failure
    return {
        "format": "kvcrucible.fuzz-report/1",
        "engine": report.plan.engine,
        "depths": [depth.value for depth in report.plan.depths],
        "device": report.plan.device,
        "seed": report.plan.seed,
        "examples": tally.examples,
        "steps": tally.steps,
        "seconds": round(report.seconds, 3),
        "operations": dict(sorted(tally.operations.items())),
        "refusals": dict(sorted(tally.refusals.items())),
        "waits": dict(sorted(tally.waits.items())),
        "admissions": dict(sorted(tally.modes.items())),
        "hits": [
            {"beyond_context_pages": beyond, "came_to": what, "times": times}
            for (beyond, what), times in sorted(tally.hits.items())
        ],
        "goals": report.goals(),
        "pairs": {pair_name(pair): times for pair, times in sorted(report.tally.pairs.items())},
        "pairs_missing": [pair_name(pair) for pair in report.missing_pairs()],
        "invariants": {
            name: {"judged": tally.invariants[name], "with_premise": tally.premises[name]}
            for name in sorted(tally.invariants)
        },
        "unchecked": report.unchecked(),
        "known_differences": {waiver.id: times for waiver, times in report.known_differences()},
        "cut_short": report.cut_short,
        "failure": None if failure is None else failure_to_plain(failure, reproduction),
    }


def failure_to_plain(failure: Failure, reproduction: Path | str | None) -> dict[str, Any]:
    """Return a minimal failing example as JSON-ready data; ``reproduction``: the file that it was written to."""
    return {
        "setting": failure.setting.to_plain(),
        "steps": [step_to_plain(step) for step in failure.steps],
        "violations": [
            {"invariant": found.invariant, "message": found.message} for found in failure.violations
        ],
        "first_seen": {
            "examples": failure.examples_before,
            "steps": failure.steps_before,
            "invariants": list(dict.fromkeys(found.invariant for found in failure.first_seen)),
        },
        "reproduction": None if reproduction is None else str(reproduction),
    }
