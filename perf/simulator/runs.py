"""Pairs of processes on a simulated GPU, in the types that the gate judges."""

from __future__ import annotations

import numpy as np

from kvcrucible.perf.simulator.gpu import SimulatedGpu
from kvcrucible.perf.statistics.blocks import head_first
from kvcrucible.perf.statistics.samples import PairedSamples


def paired_run(
    gpu: SimulatedGpu,
    metric: str,
    pairs: int,
    *,
    slowdown: float = 0.0,
    cycles: float = 4e8,
    rest_s: float = 1.0,
    seed: int = 0,
) -> PairedSamples:
    """Run ``pairs`` blocks of base and head on ``gpu``, head with ``slowdown`` (relative) more cycles to do.

    The order inside blocks is drawn from ``seed``; the GPU rests ``rest_s`` after each process.  The GPU is warmer
    afterwards.
    """
    order = head_first(np.random.default_rng(seed), 1, pairs)[0]
    seconds: dict[bool, list[float]] = {True: [], False: []}
    counted: dict[bool, list[float]] = {True: [], False: []}
    for first in order:
        for is_head in (bool(first), not first):
            timing = gpu.run(cycles * (1 + slowdown) if is_head else cycles)
            seconds[is_head].append(timing.seconds)
            counted[is_head].append(timing.cycles)
            gpu.idle(rest_s)
    return PairedSamples(
        metric,
        gpu.fingerprint,
        gpu.fingerprint,
        tuple(seconds[False]),
        tuple(seconds[True]),
        tuple(bool(first) for first in order),
        tuple(counted[False]),
        tuple(counted[True]),
    )
