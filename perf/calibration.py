"""Pairs of fresh processes of one and the same code, from which a noise floor is made."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import parse_json
from kvcrucible.perf.child_process import run_child
from kvcrucible.perf.statistics.blocks import head_first, process_summary
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint
from kvcrucible.perf.statistics.samples import PairedSamples

#: The benchmark that is calibrated unless somebody names another: it needs no GPU and no model.
BUILTIN = (sys.executable, "-m", "kvcrucible.perf.builtin_benchmark")

#: Seconds that one process may take; the built-in benchmark takes less than one.
TIMEOUT_SECONDS = 300

#: Most bytes that a process may print, most metrics in them, most timings of one.
MAX_OUTPUT_BYTES, MAX_METRICS, MAX_TIMINGS = 1 << 20, 1_000, 10_000

_REMEDY = "it has to print one JSON object and nothing else, metric to a list of seconds"

#: One fresh process: metric to its timings, in seconds.
Process = Callable[[], Mapping[str, Sequence[float]]]


def fresh_process(
    command: Sequence[str] = BUILTIN, timeout_seconds: float = TIMEOUT_SECONDS
) -> dict[str, list[float]]:
    """Run ``command`` once and return metric to timings, which it prints as one JSON object.

    The hash seed is left to chance: it is part of what differs between processes.  Raises :class:`InputError` where the
    command cannot be started, fails, takes too long or prints something else.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    name = f"benchmark `{' '.join(command)[:300]}`"
    text = run_child(
        command,
        name,
        timeout_seconds=timeout_seconds,
        most_bytes=MAX_OUTPUT_BYTES,
        environment=environment,
    )
    return _checked(parse_json(text, name, _REMEDY), name)


def unchanged_pairs(
    machine: MachineFingerprint, pairs: int, seed: int = 0, process: Process = fresh_process
) -> Iterator[list[PairedSamples]]:
    """Run ``pairs`` blocks of two processes of one code; yield all pairs so far after each block, one entry a metric.

    Which of the two is called base is drawn from ``seed``, as in a run of the gate.  Raises :class:`InputError` where a
    process has other metrics than the first.
    """
    order = head_first(np.random.default_rng(seed), 1, pairs)[0]
    sides: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    names: set[str] = set()
    for block, first in enumerate(order):
        for is_head in (bool(first), not first):
            found = process()
            names = names or set(found)
            if set(found) != names:
                raise InputError(f"benchmark: {sorted(found)} where another process had {sorted(names)}")
            for metric, timings in found.items():
                summary = float(process_summary(np.asarray(timings, dtype=np.float64)))
                sides[is_head].setdefault(metric, []).append(summary)
        started = tuple(bool(first) for first in order[: block + 1])
        yield [
            PairedSamples(
                metric, machine, machine, tuple(sides[False][metric]), tuple(sides[True][metric]), started
            )
            for metric in sorted(names)
        ]


def _checked(plain: object, name: str) -> dict[str, list[float]]:
    if not isinstance(plain, dict) or not 0 < len(plain) <= MAX_METRICS:
        raise InputError(f"{name}: not an object of 1 to {MAX_METRICS:,} metrics")
    for metric, timings in plain.items():
        usable = isinstance(timings, list) and 0 < len(timings) <= MAX_TIMINGS
        if not usable or not all(_is_timing(one) for one in timings):
            raise InputError(f"{name}: {metric[:80]} has no list of 1 to {MAX_TIMINGS:,} positive numbers")
    return plain


def _is_timing(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
