"""Results of fault campaigns as a file that can be kept: written by ``faults run``, read by ``faults coverage``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import check_form
from kvcrucible.fuzz.faults.catalogue import every_fault
from kvcrucible.fuzz.faults.matrix import fault_rows, invariant_rows, matrix_to_plain
from kvcrucible.fuzz.faults.run import CampaignOptions, FaultRun, Verdict, totals
from kvcrucible.fuzz.keeping import read_json

#: Name and version of the files' form; ``fault_runs.schema.json`` is its schema.
FORMAT = "kvcrucible.fault-runs/3"

#: Bytes of the largest file that is read: some ten thousand campaigns.
MAX_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class KeptRuns:
    """What a file says: of which commit, None where that was not known, and its campaigns, the controls left out."""

    commit: str | None
    runs: tuple[FaultRun, ...]


def results_to_plain(
    runs: Sequence[FaultRun],
    unchanged: Sequence[FaultRun],
    options: CampaignOptions,
    seeds: int,
    commit: str | None,
) -> dict[str, Any]:
    """Return campaigns, their totals and the kill matrix as JSON-ready data; ``commit``: as the campaigns began."""
    rows = fault_rows(runs)
    return {
        "format": FORMAT,
        "commit": commit,
        "options": {
            "examples": options.examples,
            "steps": options.steps,
            "seed": options.seed,
            "seeds": seeds,
            "shrink": options.shrink,
            "raw_seeds": options.raw_seeds,
        },
        **totals(runs),
        "matrix": matrix_to_plain(rows, invariant_rows(rows, every_fault().values())),
        "runs": [asdict(run) for run in runs],
        "unchanged": [asdict(run) for run in unchanged],
    }


def read_results(path: Path) -> KeptRuns:
    """Read a file of results; raises ``InputError`` for one that is none, is too large or cannot be read.

    So is one whose kills prove nothing: the engine as it is was killed beside them, or a kill names no invariant.
    """
    plain = read_json(path, MAX_BYTES)
    remedy = f"name a file that this version's `kvcrucible faults run` wrote ({FORMAT})"
    check_form(plain, "kvcrucible.fuzz.faults", "fault_runs.schema.json", str(path), remedy)
    condemned = next((one for one in plain["unchanged"] if one["verdict"] == Verdict.KILLED), None)
    if condemned is not None:
        raise InputError(
            f"{path}: the engine as it is was killed too ({condemned['depth']}): its kills prove nothing"
        )
    for entry in plain["runs"]:
        if entry["verdict"] == Verdict.KILLED and not (entry["seen"] or entry["invariants"]):
            raise InputError(
                f"{path}: {entry['fault']!r:.60} is said to be killed, and no invariant that told it"
            )
    names = {field.name for field in fields(FaultRun)}
    runs = [
        FaultRun(
            **{
                **{name: value for name, value in entry.items() if name in names},
                "verdict": Verdict(entry["verdict"]),
                "seen": tuple(entry["seen"]),
                "invariants": tuple(entry["invariants"]),
            }
        )
        for entry in plain["runs"]
    ]
    return KeptRuns(plain["commit"], tuple(runs))
