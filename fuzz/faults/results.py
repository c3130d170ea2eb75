"""Results of fault campaigns as a file that can be kept: written by ``faults run``, read by ``faults coverage``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import check_form
from kvcrucible.fuzz.faults.catalogue import NO_FAULT, Fault, every_fault
from kvcrucible.fuzz.faults.matrix import fault_rows, invariant_rows, matrix_to_plain
from kvcrucible.fuzz.faults.run import CampaignOptions, FaultRun, Verdict, totals
from kvcrucible.fuzz.keeping import read_json
from kvcrucible.fuzz.kernels.run import target_of
from kvcrucible.invariants.judgements import JUDGEMENTS
from kvcrucible.invariants.registry import IDS

#: Name and version of the files' form; ``fault_runs.schema.json`` is its schema.
FORMAT = "kvcrucible.fault-runs/3"

#: Bytes of the largest file that is read: some ten thousand campaigns.
MAX_BYTES = 1 << 24

#: Depth and driver of a campaign: a control answers for the kills of its own kind.
Kind: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class KeptRuns:
    """What a file says: of which commit, None where that was not known, its campaigns, and its ``controls``: the same
    campaigns on the engine as it is.
    """

    commit: str | None
    runs: tuple[FaultRun, ...]
    controls: tuple[FaultRun, ...] = ()

    def controlled(self) -> frozenset[Kind]:
        """Return the kinds of campaigns that the engine as it is survived, so that their kills show something.

        Controls of kernels do not name their back-end.  There is one for each, so that all that ran have to have
        survived, and they have to be as many as the back-ends on which something was killed.
        """
        ended: dict[Kind, list[Verdict]] = {}
        for one in self.controls:
            if one.verdict is not Verdict.NOT_RUN:
                ended.setdefault(kind_of(one), []).append(one.verdict)
        backends: dict[Kind, set[str | None]] = {}
        for run in self.runs:
            if run.verdict is Verdict.KILLED:
                backends.setdefault(kind_of(run), set()).add(_backend(run))
        return frozenset(
            kind
            for kind, verdicts in ended.items()
            if set(verdicts) == {Verdict.SURVIVED} and len(verdicts) >= len(backends.get(kind, ()))
        )


def kind_of(run: FaultRun) -> Kind:
    """Return of what kind a campaign is: at which depth it looks, and what drives the engine."""
    return run.depth, run.driver


def _depth_of(planted: Fault) -> str:
    """Return how campaigns against a fault give their depth, which is its part where none drives an engine."""
    return planted.depth.value if planted.part == "engine" else planted.part


def _backend(run: FaultRun) -> str | None:
    """Return the kernel back-end on which the catalogue has a fault tried; None for faults of other parts."""
    planted = every_fault().get(run.fault)
    return target_of(planted).name if planted is not None and planted.part == "kernels" else None


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

    So is one whose kills prove nothing: the engine as it is was killed beside them, or a kill names no invariant, or a
    name that no report can have; and one that tells of a campaign twice.  Whether a kill was told by what its fault
    names (``expected``) is asked of the catalogue here, not of the file.
    """
    plain = read_json(path, MAX_BYTES)
    remedy = f"name a file that this version's `kvcrucible faults run` wrote ({FORMAT})"
    check_form(plain, "kvcrucible.fuzz.faults", "fault_runs.schema.json", str(path), remedy)
    runs = tuple(_run_of(entry) for entry in plain["runs"])
    controls = tuple(_run_of(entry) for entry in plain["unchanged"])
    problem = _problem(runs, controls)
    if problem is not None:
        raise InputError(f"{path}: {problem}")
    return KeptRuns(plain["commit"], runs, controls)


def _run_of(entry: dict[str, Any]) -> FaultRun:
    names = {field.name for field in fields(FaultRun)}
    planted = every_fault().get(entry["fault"])
    told = {*entry["seen"], *entry["invariants"]}
    return FaultRun(
        **{
            **{name: value for name, value in entry.items() if name in names},
            "verdict": Verdict(entry["verdict"]),
            "seen": tuple(entry["seen"]),
            "invariants": tuple(entry["invariants"]),
            "expected": planted is not None and not told.isdisjoint(planted.expects),
        }
    )


def _problem(runs: Sequence[FaultRun], controls: Iterable[FaultRun]) -> str | None:
    """Return what keeps results from saying anything, None where nothing does."""
    for one in controls:
        if one.fault != NO_FAULT:
            return f"{one.fault!r:.60} stands among the campaigns on the engine as it is"
        if one.verdict is Verdict.KILLED:
            return f"the engine as it is was killed too ({one.depth}): its kills prove nothing"
    known = {*IDS, *JUDGEMENTS}
    there = set()
    for run in runs:
        if run.verdict is Verdict.KILLED and not run.fired:
            return f"{run.fault!r:.60} is said to be killed, and no invariant that told it"
        strange = sorted(set(run.fired) - known)
        if strange:
            return f"{run.fault!r:.60} is said to be told by {strange[0]!r:.60}, which no report can name"
        planted = every_fault().get(run.fault)
        if planted is not None and planted.digest == run.digest and run.depth != _depth_of(planted):
            return f"{run.fault!r:.60} is tried at depth {_depth_of(planted)}, not {run.depth}"
        if (run.fault, run.depth, run.seed) in there:
            return f"{run.fault!r:.60} is there twice under seed {run.seed} at depth {run.depth}"
        there.add((run.fault, run.depth, run.seed))
    return None
