"""Pairs, floors and thresholds for the tests of the gate, on a simulated machine whose noise is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint
from kvcrucible.perf.statistics.gate import Run
from kvcrucible.perf.statistics.metrics import Better, Confirmation, MetricKind, MetricPolicy
from kvcrucible.perf.statistics.noise_floor import Noise, NoiseFloor
from kvcrucible.perf.statistics.samples import CountedWork, PairedSamples
from kvcrucible.perf.statistics.thresholds import Thresholds, default_thresholds

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
SIMULATED = MachineFingerprint.of(Origin.SIMULATED, {"machine": "test"})
MEASURED = MachineFingerprint.of(Origin.MEASURED, {"cpu": "test"})


def thresholds(**metrics: MetricPolicy) -> Thresholds:
    """The default thresholds with metrics of the tests' own: time, rate, gpu, work."""
    chosen = {
        "time": MetricPolicy("time", MetricKind.SAMPLED, 0.01),
        "rate": MetricPolicy("rate", MetricKind.SAMPLED, 0.01, Better.HIGHER),
        "gpu": MetricPolicy("gpu", MetricKind.SAMPLED, 0.01, cycles=Confirmation.REQUIRED),
        "work": MetricPolicy("work", MetricKind.EXACT, 0.0),
    }
    return replace(default_thresholds(), metrics=chosen | metrics)


def pairs_of(
    metric: str,
    change: float,
    pairs: int = 24,
    *,
    noise: float = 0.005,
    cycles: float | None = None,
    seed: int = 1,
    machine: MachineFingerprint = SIMULATED,
) -> PairedSamples:
    """Pairs in which head takes ``change`` longer (and ``cycles`` more of them); ``noise`` is that of a pair."""
    draw = np.random.default_rng(seed)
    block = np.exp(0.03 * draw.standard_normal(pairs))
    sides = [block * np.exp(noise / 2**0.5 * draw.standard_normal(pairs)) for _ in range(2)]
    counted: list[tuple[float, ...]] = [(), ()]
    if cycles is not None:
        counted = [tuple(sides[0] * 1e9), tuple(sides[1] * 1e9 * (1 + cycles))]
    return PairedSamples(
        metric,
        machine,
        machine,
        tuple(sides[0]),
        tuple(sides[1] * (1 + change)),
        tuple(place % 2 == 0 for place in range(pairs)),
        *counted,
    )


def floor_of(*metrics: str, deviation: float = 0.005, machine: MachineFingerprint = SIMULATED) -> NoiseFloor:
    """A certificate of two days for ``metrics``, made yesterday."""
    noise = {metric: Noise(24, deviation, deviation * 1.3) for metric in metrics}
    return NoiseFloor(machine, NOW - timedelta(days=1), NOW + timedelta(days=1), noise)


def run_of(*sampled: PairedSamples, counted: tuple[CountedWork, ...] = (), **changes: object) -> Run:
    """A run of the gate with twins that behave and a certificate for all metrics."""
    names = {samples.metric for samples in sampled}
    run = Run(
        sampled,
        counted,
        (pairs_of("time/unchanged", 0.0, seed=5),),
        (pairs_of("time/slowed", 0.02, seed=6),),
        floor_of(*names),
    )
    return replace(run, **changes)  # type: ignore[arg-type]
