"""From what fresh processes printed to the types that the gate judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcrucible.perf.statistics.blocks import process_summary
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint
from kvcrucible.perf.statistics.samples import CountedWork, PairedSamples

#: What is summarised of each timed case: key in the process's output -> metric, quantile of the process.  A neighbour
#: can only make wall time longer, so the lower quartile has more of the code and less of the neighbour.
TIMED = {"cpu": ("cpu-time", 0.5), "wall": ("wall-time", 0.25), "instructions": ("instructions", 0.5)}

#: Smallest share of a case's bytecodes that a function has to have, on either side, to be named.
MIN_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class BytecodeChange:
    """A function of the engine that executes more or fewer bytecode instructions: attribution, not a verdict."""

    case: str
    function: str
    base: int
    head: int


def counted(
    machine: MachineFingerprint, base: Sequence[Mapping[str, Any]], head: Sequence[Mapping[str, Any]]
) -> tuple[CountedWork, ...]:
    """Return the exact metrics that all processes of both sides have: work counters and the bytecodes of each case."""
    sides = [[_exact(process) for process in side] for side in (base, head)]
    shared = set.intersection(*(set(process) for side in sides for process in side))
    return tuple(
        CountedWork(
            metric,
            machine,
            tuple(process[metric] for process in sides[0]),
            tuple(process[metric] for process in sides[1]),
        )
        for metric in sorted(shared)
    )


def _exact(process: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for case, entry in process["cases"].items():
        for counter, value in entry["work"].items():
            found[f"work/{case}/{counter.replace('_', '-')}"] = int(value)
        found[f"bytecodes/{case}"] = sum(entry["bytecodes"].values())
    return found


def bytecode_changes(base: Mapping[str, Any], head: Mapping[str, Any]) -> tuple[BytecodeChange, ...]:
    """Return the functions that changed in each case, the largest difference first; those of a tiny share left out."""
    found = []
    for case in base["cases"].keys() & head["cases"].keys():
        before, after = (side["cases"][case]["bytecodes"] for side in (base, head))
        least = MIN_SHARE * min(sum(before.values()), sum(after.values()))
        for function in before.keys() | after.keys():
            old, new = before.get(function, 0), after.get(function, 0)
            if old != new and max(old, new) >= least:
                found.append(BytecodeChange(case, function, old, new))
    return tuple(sorted(found, key=lambda one: (-abs(one.head - one.base), one.case, one.function)))


def paired(
    machine: MachineFingerprint,
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    second_first: Sequence[bool],
    metrics: Iterable[str] | None = None,
) -> tuple[PairedSamples, ...]:
    """Return pairs of the timed metrics that every process has; ``metrics`` names kinds, None means all of them."""
    sides = [[_summaries(process) for process in side] for side in (first, second)]
    shared = set.intersection(*(set(process) for side in sides for process in side))
    wanted = None if metrics is None else set(metrics)
    return tuple(
        PairedSamples(
            metric,
            machine,
            machine,
            tuple(process[metric] for process in sides[0]),
            tuple(process[metric] for process in sides[1]),
            tuple(second_first),
        )
        for metric in sorted(shared)
        if wanted is None or metric.partition("/")[0] in wanted
    )


def _summaries(process: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{TIMED[kind][0]}/{case}": float(
            process_summary(np.asarray(values, dtype=np.float64), TIMED[kind][1])
        )
        for case, entry in process["cases"].items()
        for kind, values in entry.items()
    }
