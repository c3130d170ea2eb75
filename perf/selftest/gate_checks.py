"""Checks of intervals, errors and power of the gate on simulated pairs.

*Noise* of so many per cent is the standard deviation of the log ratio of a pair, the number that calibration measures.
Every scenario adds three times as much between blocks, which pairing has to remove.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kvcrucible.perf.selftest.figures import Figure
from kvcrucible.perf.simulator.noise import NoiseModel, models, process_log_times, timings
from kvcrucible.perf.statistics import blocks, intervals, looks
from kvcrucible.perf.statistics.looks import Decision
from kvcrucible.perf.statistics.thresholds import Plan, default_thresholds

Floats = NDArray[np.float64]

#: Noise and minimum effect of the scenarios: 1 %.
NOISE, MINIMUM_EFFECT = 0.01, 0.01

#: Metrics of a suite.
METRICS = 50

#: Pairs at which intervals are tried: the fewest that are judged, both sides of the change of method, and the most.
COVERAGE_PAIRS = (6, 8, 12, 16, 19, 20, 24, 30, 40, 50)

#: Resamples of the bootstrap in here: an end moves by 5 % of a standard error, at a fifth of the time.
RESAMPLES = 1_999

#: Numbers held at once, which bounds memory to some tens of megabytes.
_AT_ONCE = 2_000_000


def twelve_pairs() -> Plan:
    """Return the default plan, ended at 12 pairs."""
    plan = default_thresholds().plan
    return Plan(
        tuple(pairs for pairs in plan.looks if pairs <= 12), plan.error_rate, plan.false_discovery_rate
    )


def differences(
    model: NoiseModel, generator: np.random.Generator, series: int, pairs: int, effect: float = 0.0
) -> Floats:
    """Return log ratios ``[series, pairs]`` of code of which head takes ``effect`` (relative) longer."""
    order = blocks.head_first(generator, series, pairs)
    base, head = process_log_times(model, generator, order)
    return blocks.log_ratios(np.exp(base), np.exp(head + np.log1p(effect)))


def coverage(generator: np.random.Generator, scale: float) -> Iterator[Figure]:
    """Check that 95 % intervals hold the truth in 93 to 97 %, for every number of pairs and kind of noise."""
    for model in models(NOISE):
        if model.name == "normal":
            trials = _trials(8_000, scale)
            for pairs in COVERAGE_PAIRS:
                hits = _covered(model, generator, trials, pairs)
                yield Figure("coverage", f"{model.name} noise, {pairs} pairs", hits, trials, 0.93, 0.97)
            # Student's interval is exact here, so its check can be far narrower than the bound for all.
            trials = _trials(200_000, scale)
            hits = _covered(model, generator, trials, 6)
            yield Figure("coverage", "normal noise, 6 pairs, exact", hits, trials, 0.947, 0.953)
            continue
        trials = _trials(6_000, scale)
        for pairs in (6, 12, 20, 50):
            hits = _covered(model, generator, trials, pairs)
            yield Figure("coverage", f"{model.name} noise, {pairs} pairs", hits, trials, 0.93, 0.97)


def _covered(model: NoiseModel, generator: np.random.Generator, trials: int, pairs: int) -> int:
    hits = 0
    for part in _parts(trials, pairs):
        lower, upper = intervals.interval(differences(model, generator, part, pairs, 0.02), 0.025, RESAMPLES)
        truth = np.log1p(0.02)
        hits += int(((lower <= truth) & (truth <= upper)).sum())
    return hits


def processes(generator: np.random.Generator, scale: float) -> Iterator[Figure]:
    """Check coverage through the whole chain from timings: 20 of each process, correlated 0.37 within it."""
    process = NOISE / np.sqrt(2)
    model = NoiseModel("timings", process, 3 * NOISE, timing=float(process * np.sqrt(0.63 / 0.37)))
    trials, hits = _trials(6_000, scale), 0
    for part in _parts(trials, 12 * 2 * 20):
        order = blocks.head_first(generator, part, 12)
        base, head = process_log_times(model, generator, order)
        of_timings = blocks.differences_of_timings(
            timings(model, generator, base, 20), timings(model, generator, head, 20)
        )
        lower, upper = intervals.interval(of_timings, 0.025, RESAMPLES)
        hits += int(((lower <= 0) & (upper >= 0)).sum())
    yield Figure("coverage", "12 pairs of processes of 20 timings", hits, trials, 0.93, 0.97)


def false_failures(generator: np.random.Generator, scale: float) -> Iterator[Figure]:
    """Check that at most 1 % of suites of 50 unchanged metrics have a FAIL, down to the lowest minimum effect."""
    model, plan = models(NOISE)[0], twelve_pairs()
    trials = _trials(40_000, scale)
    # The noise floor of somebody who knows the noise: the lowest minimum effect that the gate accepts.
    quantile = special.stdtrit(plan.most_pairs - 1, 1 - plan.error_rate)
    floor = float(np.expm1(quantile * NOISE / np.sqrt(plan.most_pairs)))
    hits = _suites(model, generator, trials, plan, floor)[0]
    name = f"minimum effect at the noise floor ({floor:.2%}), 12 pairs"
    yield Figure("false-failures", name, hits, trials, at_most=0.01)
    plan = default_thresholds().plan
    for model in models(NOISE):
        trials = _trials(600, scale)
        hits, passed, used = _suites(model, generator, trials, plan, MINIMUM_EFFECT)
        note = f"{passed:.1%} of metrics PASS, {used:.1f} pairs on average"
        name = f"{model.name} noise, minimum effect 1 %, looks {'/'.join(map(str, plan.looks))}"
        yield Figure("false-failures", name, hits, trials, at_most=0.01, note=note)


def _suites(
    model: NoiseModel, generator: np.random.Generator, trials: int, plan: Plan, minimum_effect: float
) -> tuple[int, float, float]:
    """Return suites with a FAIL, the share of metrics that pass, and pairs used on average."""
    hits, passed, used = 0, 0, 0.0
    for part in _parts(trials, METRICS * plan.most_pairs):
        found = differences(model, generator, part * METRICS, plan.most_pairs)
        codes, pairs = looks.all_looks(
            found.reshape(part, METRICS, -1), np.log1p(minimum_effect), plan, RESAMPLES
        )
        hits += int((codes == Decision.FAIL).any(axis=1).sum())
        passed += int((codes == Decision.PASS).sum())
        used += float(pairs.sum())
    return hits, passed / (trials * METRICS), used / (trials * METRICS)


def power(generator: np.random.Generator, scale: float) -> Iterator[Figure]:
    """Check that one metric of 50 that is 2 % slower is found in 90 % of suites: noise 1 %, minimum effect 1 %."""
    plan = default_thresholds().plan
    for title, chosen, noise, trials, bound in (
        ("12 pairs", twelve_pairs(), NOISE, 20_000, 0.9),
        ("default plan", plan, NOISE, 1_500, 0.9),
        ("12 pairs, noise 1 % a process (1.4 % a pair)", twelve_pairs(), NOISE * 2**0.5, 4_000, None),
        ("default plan, noise 1 % a process (1.4 % a pair)", plan, NOISE * 2**0.5, 1_000, None),
    ):
        total = _trials(trials, scale)
        codes, used = _one_changed(models(noise)[0], generator, total, chosen, 0.02)
        note = f"{used.mean():.1f} pairs on average"
        found = int((codes == Decision.FAIL).sum())
        yield Figure("power", f"+2 %, {title}", found, total, at_least=bound, note=note)


def boundary(generator: np.random.Generator, scale: float) -> Iterator[Figure]:
    """Check the claims where they are hardest: at an effect of exactly the minimum, each errs at most in 5 %."""
    for title, plan, full in (
        ("12 pairs", twelve_pairs(), 200_000),
        ("default plan", default_thresholds().plan, 45_000),
    ):
        trials = _trials(full, scale)
        codes, _ = _one_changed(models(NOISE)[0], generator, trials, plan, MINIMUM_EFFECT, alone=True)
        undecided = float((codes == Decision.UNDECIDED).mean())
        for decision in (Decision.FAIL, Decision.PASS):
            hits = int((codes == decision).sum())
            name = f"true change equal to the minimum effect: {decision.name}, {title}"
            note = f"{undecided:.0%} INCONCLUSIVE"
            yield Figure("boundary", name, hits, trials, at_most=plan.error_rate, note=note)


def _one_changed(
    model: NoiseModel,
    generator: np.random.Generator,
    trials: int,
    plan: Plan,
    effect: float,
    alone: bool = False,
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Return decision and pairs used of the one metric that changed, in a suite of 50 or ``alone``."""
    metrics = 1 if alone else METRICS
    codes, used = [], []
    for part in _parts(trials, metrics * plan.most_pairs):
        found = differences(model, generator, part * metrics, plan.most_pairs).reshape(part, metrics, -1)
        found[:, 0] = differences(model, generator, part, plan.most_pairs, effect)
        decided, pairs = looks.all_looks(found, np.log1p(MINIMUM_EFFECT), plan, RESAMPLES)
        codes.append(decided[:, 0])
        used.append(pairs[:, 0])
    return np.concatenate(codes), np.concatenate(used)


def _trials(full: int, scale: float) -> int:
    return max(50, round(full * scale))


def _parts(trials: int, numbers_each: int) -> Iterator[int]:
    """Yield how many trials to make at once until all are made."""
    most = max(1, _AT_ONCE // numbers_each)
    while trials:
        part = min(most, trials)
        yield part
        trials -= part
