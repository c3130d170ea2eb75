"""The gate: pairs of all metrics, thresholds and a noise floor in, verdicts out.

A pure function of its input.  A runner takes the pairs of the first look, asks, takes what ``wants_pairs`` says, and
asks again with all pairs so far; every verdict can be computed again from the stored pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.origin import common_origin
from kvcrucible.perf.statistics import intervals, significance
from kvcrucible.perf.statistics.blocks import log_ratios
from kvcrucible.perf.statistics.counters import judge_count
from kvcrucible.perf.statistics.looks import Decision, look, look_rates, required_pairs
from kvcrucible.perf.statistics.metrics import Better, Confirmation, MetricKind, MetricPolicy
from kvcrucible.perf.statistics.noise_floor import NoiseFloor
from kvcrucible.perf.statistics.samples import CountedWork, PairedSamples
from kvcrucible.perf.statistics.thresholds import MIN_PAIRS, Plan, Thresholds
from kvcrucible.perf.statistics.verdict import MetricVerdict, Reason, RunVerdict, Verdict

Floats = NDArray[np.float64]

#: Two-sided error of the interval that is shown; verdicts use the level of their look.
SHOWN_ERROR = 0.05

_VERDICTS = {Decision.PASS: Verdict.PASS, Decision.FAIL: Verdict.FAIL, Decision.IMPROVED: Verdict.IMPROVED}


@dataclass(frozen=True, slots=True)
class Run:
    """All that one run of the gate has.

    ``unchanged`` are pairs of base against base, ``slowed`` of base against base that was slowed by
    ``Thresholds.slowdown`` minimum effects; at least one of each, since a gate that has not shown both in this very run
    may be blind or blame anybody.  ``noise_floor`` is the machine's certificate.
    """

    sampled: tuple[PairedSamples, ...]
    counted: tuple[CountedWork, ...]
    unchanged: tuple[PairedSamples, ...]
    slowed: tuple[PairedSamples, ...]
    noise_floor: NoiseFloor | None


def judge(run: Run, thresholds: Thresholds, now: datetime) -> RunVerdict:
    """Return the verdict on ``run`` at the aware time ``now``; nothing is changed.

    Raises :class:`MixedOriginsError` where any part is simulated and another is not, :class:`InputError` for a metric
    without a threshold, of the wrong kind, or twice.
    """
    everything: tuple[PairedSamples | CountedWork, ...] = (
        *run.sampled,
        *run.counted,
        *run.unchanged,
        *run.slowed,
    )
    if not run.sampled and not run.counted:
        raise InputError("the run has no metric to judge")
    floors = () if run.noise_floor is None else (run.noise_floor.origin,)
    origin = common_origin([*(part.origin for part in everything), *floors], "a run of the gate")
    names = [part.metric for part in everything[: len(run.sampled) + len(run.counted)]]
    if len(set(names)) < len(names):
        raise InputError("the run has a metric twice")
    invalid: dict[str, MetricVerdict] = {}
    valid: list[_Metric] = []
    for samples in run.sampled:
        policy = _policy(thresholds, samples.metric, MetricKind.SAMPLED)
        reason, detail = _invalid(samples, policy, run.noise_floor, thresholds.plan, now)
        if reason is None:
            valid.append(_Metric(samples, policy, _floor(run.noise_floor, samples, thresholds.plan)))
        else:
            invalid[samples.metric] = MetricVerdict(
                samples.metric,
                MetricKind.SAMPLED,
                samples.origin,
                Verdict.INVALID,
                policy.minimum_effect,
                samples.pairs,
                reason,
                detail,
            )
    _look_at(valid, thresholds.plan)
    judged = {one.samples.metric: one.verdict(thresholds.plan) for one in valid} | invalid
    counted = [judge_count(one, _policy(thresholds, one.metric, MetricKind.EXACT)) for one in run.counted]
    void = _controls(run, thresholds) if run.sampled else ()
    return RunVerdict(origin, (*(judged[samples.metric] for samples in run.sampled), *counted), void)


def _policy(thresholds: Thresholds, metric: str, kind: MetricKind) -> MetricPolicy:
    policy = thresholds.policy(metric)
    if policy.kind is not kind:
        raise InputError(
            f"metric {metric[:200]}: the thresholds call it {policy.kind}, the run brings it as {kind}"
        )
    return policy


def _floor(certificate: NoiseFloor | None, samples: PairedSamples, plan: Plan) -> float:
    assert certificate is not None, "metrics without a noise floor are INVALID before this"
    return certificate.noise[samples.metric].floor(plan.most_pairs, plan.error_rate)


def _invalid(
    samples: PairedSamples, policy: MetricPolicy, certificate: NoiseFloor | None, plan: Plan, now: datetime
) -> tuple[Reason | None, str]:
    """Return why ``samples`` cannot be judged, first reason first; no reason where they can."""
    if (unusable := _unusable(samples, plan.looks[0])) is not None:
        return unusable, ""
    if certificate is None or samples.metric not in certificate.noise:
        return Reason.NO_NOISE_FLOOR, "run `kvcrucible perf calibrate` on this machine"
    if certificate.machine != samples.machine_base:
        return Reason.MACHINES_DIFFER, "; ".join(certificate.machine.differences(samples.machine_base))
    if not certificate.created <= now < certificate.expires:
        return Reason.NOISE_FLOOR_EXPIRED, f"good from {certificate.created} to {certificate.expires}"
    floor = _floor(certificate, samples, plan)
    if policy.minimum_effect < floor:
        return Reason.BELOW_NOISE_FLOOR, (
            f"{policy.minimum_effect:.2%} against {floor:.2%} at {plan.most_pairs} pairs: plan more pairs, quieten the "
            "machine, or raise the threshold"
        )
    if policy.cycles is Confirmation.REQUIRED and not samples.base_cycles:
        return Reason.NO_CYCLES, ""
    return None, ""


def _unusable(samples: PairedSamples, first_look: int) -> Reason | None:
    """Return why no interval can be made of ``samples``, whatever is asked of them."""
    if samples.machine_base != samples.machine_head:
        return Reason.MACHINES_DIFFER
    if samples.pairs < max(first_look, MIN_PAIRS):
        return Reason.FEW_PAIRS
    values = np.array([*samples.base, *samples.head, *samples.base_cycles, *samples.head_cycles])
    if not (np.isfinite(values) & (values > 0)).all():
        return Reason.NOT_POSITIVE
    if len(set(samples.head_first)) == 1:
        return Reason.ORDER_NOT_RANDOM
    if float(np.ptp(log_ratios(np.array(samples.base), np.array(samples.head)))) == 0:
        return Reason.NO_VARIATION
    return None


class _Metric:
    """A metric that can be judged, and how far that has come: in time, and in cycles where they are there."""

    def __init__(self, samples: PairedSamples, policy: MetricPolicy, floor: float) -> None:
        higher = policy.better is Better.HIGHER
        self.samples, self.policy, self.floor = samples, policy, floor
        self.time = log_ratios(np.array(samples.base), np.array(samples.head), higher)
        # More cycles are worse, whichever way the metric itself counts.
        cycles = (np.array(samples.base_cycles), np.array(samples.head_cycles))
        self.cycles = log_ratios(*cycles) if samples.base_cycles else None
        self.effect = float(np.log1p(policy.minimum_effect))
        self.decisions = {"time": Decision.UNDECIDED}
        if self.cycles is not None:
            self.decisions["cycles"] = Decision.UNDECIDED
        self.pairs = 0

    def series(self, name: str) -> Floats:
        found = self.time if name == "time" else self.cycles
        assert found is not None
        return found

    @property
    def is_open(self) -> bool:
        return Decision.UNDECIDED in self.decisions.values()

    def verdict(self, plan: Plan) -> MetricVerdict:
        differences = self.time[: self.pairs]
        lower, upper = intervals.interval(differences, SHOWN_ERROR / 2)
        found, reason, detail = self._said()
        needed = None
        if found is Verdict.INCONCLUSIVE:
            needed = required_pairs([float(value) for value in differences], self.effect, plan.error_rate)
        return MetricVerdict(
            self.samples.metric,
            MetricKind.SAMPLED,
            self.samples.origin,
            found,
            self.policy.minimum_effect,
            self.pairs,
            reason,
            detail,
            float(np.expm1(differences.mean())),
            float(np.expm1(lower)),
            float(np.expm1(upper)),
            float(significance.slower_p(differences)),
            float(significance.sign_flip_p(differences - self.effect)),
            float((differences > 0).mean()),
            self.floor,
            next((pairs for pairs in plan.looks if pairs > self.pairs), None) if self.is_open else None,
            needed,
        )

    def _said(self) -> tuple[Verdict, Reason | None, str]:
        time, cycles = self.decisions["time"], self.decisions.get("cycles")
        if time is Decision.UNDECIDED and cycles in (None, Decision.UNDECIDED):
            return Verdict.INCONCLUSIVE, Reason.UNDECIDED, ""
        if cycles is None or time is cycles:
            return _VERDICTS[time], None, ""
        if {time, cycles} == {Decision.PASS, Decision.IMPROVED}:
            return Verdict.PASS, None, ""
        detail = f"time {time.name}, cycles {cycles.name}"
        return Verdict.INCONCLUSIVE, Reason.CYCLES_DISAGREE, detail


def _look_at(metrics: Sequence[_Metric], plan: Plan) -> None:
    """Take every look for which the pairs are there; time and cycles are a family each."""
    for pairs, rates in zip(plan.looks, look_rates(plan), strict=True):
        ready = [one for one in metrics if one.is_open and one.samples.pairs >= pairs]
        for one in ready:
            one.pairs = pairs
        for name in ("time", "cycles"):
            asked = [one for one in ready if one.decisions.get(name) is Decision.UNDECIDED]
            if not asked:
                continue
            differences = np.stack([one.series(name)[:pairs] for one in asked])[None]
            effects = np.array([one.effect for one in asked])
            family = sum(name in one.decisions for one in metrics)
            codes = look(differences, effects, rates, family=family)[0]
            for one, code in zip(asked, codes, strict=True):
                one.decisions[name] = Decision(int(code))


def _controls(run: Run, thresholds: Thresholds) -> tuple[Reason, ...]:
    """Return what is wrong with the twins, whose true change is known."""
    if not run.unchanged or not run.slowed:
        return (Reason.NO_CONTROL,)
    void: list[Reason] = []
    plan = replace(thresholds.plan, false_discovery_rate=thresholds.plan.error_rate)
    for twins, expected in ((run.unchanged, False), (run.slowed, True)):
        for samples in twins:
            if (unusable := _unusable(samples, plan.looks[0])) is not None:
                void.append(unusable)
                continue
            twin = _Metric(samples, _policy(thresholds, samples.metric, MetricKind.SAMPLED), 0.0)
            _look_at([twin], plan)
            decision = twin.decisions["time"]
            if not expected and decision in (Decision.FAIL, Decision.IMPROVED):
                void.append(Reason.UNCHANGED_TWIN_CHANGED)
            # Seen as slower at all, and not passed: a slowdown of two minimum effects may by chance stay undecided
            # against one, and a run in fifteen would be void for that.
            seen = float(significance.slower_p(twin.time)) <= plan.error_rate
            if expected and (not seen or decision in (Decision.PASS, Decision.IMPROVED)):
                void.append(Reason.SLOWED_TWIN_NOT_FOUND)
    return tuple(dict.fromkeys(void))
