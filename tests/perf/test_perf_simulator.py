"""The simulated machine does what it says, and the gate judges it rightly from end to end."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy", reason="needs the `perf` extra")

import numpy as np
from perf_samples import NOW, thresholds

from kvcrucible.perf.simulator.gpu import SW_POWER_CAP, SW_THERMAL, GpuTraits, SimulatedClock, SimulatedGpu
from kvcrucible.perf.simulator.nights import autoregressive, with_step
from kvcrucible.perf.simulator.noise import NoiseModel, models, process_log_times, timings
from kvcrucible.perf.simulator.runs import paired_run
from kvcrucible.perf.statistics.blocks import head_first
from kvcrucible.perf.statistics.gate import Run, judge
from kvcrucible.perf.statistics.noise_floor import certify, measure_noise
from kvcrucible.perf.statistics.samples import PairedSamples
from kvcrucible.perf.statistics.verdict import MetricVerdict, Reason, Verdict


def gpu(seed: int = 0, **traits: float) -> SimulatedGpu:
    return SimulatedGpu(SimulatedClock(), GpuTraits(**traits), seed)


def test_time_passes_only_when_something_happens() -> None:
    clock = SimulatedClock(5.0)
    one = SimulatedGpu(clock)
    one.read()
    assert clock.now_s == 5.0
    one.idle(2.0)
    assert clock.now_s == pytest.approx(7.0)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)


def test_the_same_seed_is_the_same_machine() -> None:
    assert paired_run(gpu(3), "gpu/a", 6) == paired_run(gpu(3), "gpu/a", 6)
    assert paired_run(gpu(3), "gpu/a", 6) != paired_run(gpu(4), "gpu/a", 6)


def test_cycles_take_the_time_that_the_clock_says() -> None:
    timing = gpu(process_noise=0.0).run(1.98e9)
    assert timing.seconds == pytest.approx(1.0)
    assert timing.cycles == pytest.approx(1.98e9)
    assert timing.reasons == 0


def test_a_hot_gpu_throttles_and_says_so() -> None:
    hot = gpu(slowdown_c=60.0, process_noise=0.0)
    cold = hot.run(1e9)
    for _ in range(40):
        warm = hot.run(4e9)
    assert cold.reasons == 0
    assert warm.reasons == SW_THERMAL
    assert warm.seconds / 4 > cold.seconds * 1.1
    assert warm.cycles == pytest.approx(4 * cold.cycles)


def test_a_power_cap_lowers_the_clock_and_the_power() -> None:
    capped = gpu(busy_w=900.0, process_noise=0.0)
    timing = capped.run(2e10)
    assert timing.reasons == SW_POWER_CAP
    assert capped.true_energy_j / timing.seconds == pytest.approx(700.0, rel=1e-6)


def test_the_energy_counter_lags_and_the_power_average_looks_away() -> None:
    one = gpu(process_noise=0.0)
    one.idle(1.0)
    # A burst of 20 ms that begins after the sensor has looked: the counter sees it at its next edge, the average never.
    one.idle(0.04)
    before = one.true_energy_j
    one.run(1.98e9 * 0.02)
    assert one.read().total_energy_mj / 1000 < before
    one.idle(0.1)
    assert one.read().average_power_w == pytest.approx(100.0)
    assert one.read().total_energy_mj / 1000 > before + 0.02 * 400
    true = one.true_energy_j / one.clock.now_s
    assert true > 105


def test_noise_has_the_deviation_that_it_states() -> None:
    draw = np.random.default_rng(0)
    for model in models(0.01):
        order = head_first(draw, 2_000, 20)
        base, head = process_log_times(model, draw, order)
        extra = {
            "drift": 0.04**2 * (1 / 39) ** 2,
            "bimodal": 2 * 0.015**2 * 0.24,
            "correlated": -(0.01**2) * 0.5,
            "throttled": 2 * 0.02**2 * 0.15 * 0.85 * (1 / 3 + 0.15 / (3 * 0.85)),
        }
        due = (0.01**2 + extra.get(model.name, 0.0)) ** 0.5
        assert (head - base).std() == pytest.approx(due, rel=0.04), model.name
        # Blocks differ by three times as much, which is what pairing is for.
        assert base.mean(axis=1).std() > 0
        assert base.std() > 2.5 * 0.01


def test_noise_that_remembers_remembers_from_slot_to_slot() -> None:
    draw = np.random.default_rng(0)
    model = NoiseModel("r", 0.01, autocorrelation=0.5)
    order = np.zeros((4_000, 10), dtype=bool)
    base, head = process_log_times(model, draw, order)
    assert np.corrcoef(base[:, 3], head[:, 3])[0, 1] == pytest.approx(0.5, abs=0.05)
    assert np.corrcoef(head[:, 3], base[:, 4])[0, 1] == pytest.approx(0.5, abs=0.05)
    assert base.std() == pytest.approx(0.01, rel=0.03)


def test_timings_scatter_about_their_process() -> None:
    draw = np.random.default_rng(0)
    found = timings(NoiseModel("t", 0.0, timing=0.01), draw, np.log(np.full((3, 4), 2.0)), 2_000)
    assert found.shape == (3, 4, 2_000)
    assert np.log(found).std() == pytest.approx(0.01, rel=0.05)
    assert np.median(found) == pytest.approx(2.0, rel=0.001)


def test_nights_have_the_autocorrelation_and_the_step_that_they_state() -> None:
    nights = autoregressive(np.random.default_rng(0), 500, 100, 0.5, 0.01)
    lagged = (nights[:, 1:] * nights[:, :-1]).mean() / (nights**2).mean()
    assert lagged == pytest.approx(0.5, abs=0.02)
    assert nights[:, 0].std() == pytest.approx(0.01, rel=0.1)
    stepped = with_step(nights, 60, 0.02) - nights
    assert stepped[:, :60].max() == 0
    assert stepped[:, 60:] == pytest.approx(np.log(1.02))


def judged(machine: SimulatedGpu, samples: PairedSamples) -> MetricVerdict:
    """Judge ``samples`` with a floor and twins from the same machine."""
    limits = thresholds()
    still = paired_run(machine, "gpu/still", 24, seed=11)
    noise = measure_noise(still, limits.policy("gpu/still"))
    floor = certify({samples.metric: noise}, machine.fingerprint, NOW, 1)
    slowed = paired_run(machine, "gpu/slowed", 24, slowdown=0.02, seed=12)
    verdict = judge(Run((samples,), (), (still,), (slowed,), floor), limits, NOW)
    assert verdict.void == ()
    (found,) = verdict.metrics
    return found


@pytest.mark.parametrize(
    "traits",
    [
        {},
        {"clock_drift": 0.5},
        {"mode_gap": 0.01, "mode_share": 0.3},
        {"busy_w": 900.0},
        {"slowdown_c": 40.0, "throttle": 0.005},
    ],
)
@pytest.mark.parametrize(
    ("slowdown", "verdict"), [(0.0, Verdict.PASS), (0.04, Verdict.FAIL), (-0.04, Verdict.IMPROVED)]
)
def test_the_chain_from_gpu_to_verdict_finds_the_truth(
    traits: dict[str, float], slowdown: float, verdict: Verdict
) -> None:
    machine = gpu(process_noise=0.003, seed=2, **traits)
    samples = paired_run(machine, "gpu/a", 24, slowdown=slowdown, seed=4)
    assert judged(machine, samples).verdict is verdict


def test_a_clock_that_falls_for_head_alone_is_not_blamed_on_the_code() -> None:
    machine = gpu(process_noise=0.003, seed=2)
    samples = paired_run(machine, "gpu/a", 24, seed=4)
    slow = tuple(seconds * 1.05 for seconds in samples.head)
    from dataclasses import replace

    found = judged(machine, replace(samples, head=slow))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason is Reason.CYCLES_DISAGREE
    assert "time FAIL, cycles PASS" in found.detail
