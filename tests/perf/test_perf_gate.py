"""The gate on pairs whose truth is known: each verdict, each reason not to give one, and what its controls are for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("scipy", reason="needs the `perf` extra")

import numpy as np
from perf_samples import NOW, SIMULATED, floor_of, pairs_of, run_of, thresholds

from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint
from kvcrucible.perf.statistics.gate import judge
from kvcrucible.perf.statistics.looks import Decision, all_looks
from kvcrucible.perf.statistics.samples import CountedWork, PairedSamples
from kvcrucible.perf.statistics.verdict import Reason, Verdict

LIMITS = thresholds()


def one(samples: PairedSamples, **changes: Any) -> Any:
    (found,) = judge(run_of(samples, **changes), LIMITS, NOW).metrics
    return found


@pytest.mark.parametrize(
    ("metric", "change", "verdict"),
    [
        ("time/a", 0.0, Verdict.PASS),
        ("time/a", 0.05, Verdict.FAIL),
        ("time/a", -0.05, Verdict.IMPROVED),
        ("time/a", 0.0101, Verdict.INCONCLUSIVE),
        ("rate/a", 0.05, Verdict.IMPROVED),
        ("rate/a", -0.05, Verdict.FAIL),
    ],
)
def test_each_verdict(metric: str, change: float, verdict: Verdict) -> None:
    found = one(pairs_of(metric, change))
    assert found.verdict is verdict
    assert found.lower < found.change < found.upper
    assert found.origin == "SIMULATED"
    assert (found.needed_pairs is None) or verdict is Verdict.INCONCLUSIVE
    assert found.reason is (Reason.UNDECIDED if verdict is Verdict.INCONCLUSIVE else None)


def test_undecided_metrics_say_how_many_pairs_would_decide() -> None:
    found = one(pairs_of("time/a", 0.013, 12, noise=0.008))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.pairs == 12
    assert found.next_look == 24
    assert found.needed_pairs > 12


def test_the_runner_is_asked_for_pairs_only_of_what_is_open() -> None:
    run = run_of(pairs_of("time/clear", 0.2, 6), pairs_of("time/close", 0.011, 6))
    first = judge(run, LIMITS, NOW)
    assert first.wants_pairs == {"time/close": 12}
    more = replace(run, sampled=(run.sampled[0], pairs_of("time/close", 0.011, 12)))
    second = judge(more, LIMITS, NOW)
    assert second.metrics[0] == first.metrics[0]
    assert second.metrics[1].pairs == 12
    assert second.verdict is Verdict.FAIL
    assert second.exit_status is ExitStatus.VIOLATION


def test_the_gate_and_the_self_test_run_the_same_arithmetic() -> None:
    draw = np.random.default_rng(3)
    changes = draw.choice([0.0, 0.0, 0.01, 0.02, 0.04, -0.03], 40)
    samples = [pairs_of(f"time/{place}", float(change), seed=place) for place, change in enumerate(changes)]
    judged = judge(run_of(*samples), LIMITS, NOW)
    differences = np.array([np.log(pairs.head) - np.log(pairs.base) for pairs in samples])
    codes, used = all_looks(differences[None], np.log1p(0.01), LIMITS.plan)
    names = {Decision.UNDECIDED: "INCONCLUSIVE"}
    due = [names.get(Decision(code), Decision(code).name) for code in codes[0]]
    assert [found.verdict.value for found in judged.metrics] == due
    assert [found.pairs for found in judged.metrics] == list(used[0])
    assert len(set(due)) == 4


def test_metrics_that_are_decided_stay_in_the_family() -> None:
    # The minimum effect is so small that presence decides: 20 metrics are clear at the first look, 20 are close to it.
    limits = thresholds(time=replace(LIMITS.metrics["time"], minimum_effect=0.0005))
    changes = [0.2] * 20 + [0.0032] * 20
    samples = [pairs_of(f"time/{place}", change, seed=place) for place, change in enumerate(changes)]
    floor = floor_of(*(pairs.metric for pairs in samples), deviation=0.0005)
    judged = judge(run_of(*samples, noise_floor=floor), limits, NOW)
    differences = np.array([np.log(pairs.head) - np.log(pairs.base) for pairs in samples])
    codes, used = all_looks(differences[None], np.log1p(0.0005), LIMITS.plan)
    assert [found.pairs for found in judged.metrics] == list(used[0])
    assert [found.verdict is Verdict.FAIL for found in judged.metrics] == [
        code == Decision.FAIL for code in codes[0]
    ]
    alone, _ = all_looks(differences[None, 20:], np.log1p(0.0005), LIMITS.plan)
    assert (alone == Decision.FAIL).sum() > (codes[0, 20:] == Decision.FAIL).sum()


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        (Reason.FEW_PAIRS, {"samples": pairs_of("time/a", 0, 5)}),
        (Reason.NOT_POSITIVE, {"base": (0.0, *pairs_of("time/a", 0).base[1:])}),
        (Reason.NOT_POSITIVE, {"head": (float("nan"), *pairs_of("time/a", 0).head[1:])}),
        (Reason.NO_VARIATION, {"base": (1.0,) * 24, "head": (1.5,) * 24}),
        (Reason.ORDER_NOT_RANDOM, {"head_first": (False,) * 24}),
        (
            Reason.MACHINES_DIFFER,
            {"machine_head": MachineFingerprint.of(SIMULATED.origin, {"machine": "other"})},
        ),
        (
            Reason.MACHINES_DIFFER,
            {"floor": floor_of("time/a", machine=MachineFingerprint.of(SIMULATED.origin, {"gpu": "other"}))},
        ),
        (Reason.NO_NOISE_FLOOR, {"floor": None}),
        (Reason.NO_NOISE_FLOOR, {"floor": floor_of("time/b")}),
        (Reason.BELOW_NOISE_FLOOR, {"floor": floor_of("time/a", deviation=0.05)}),
        (Reason.NO_CYCLES, {"samples": pairs_of("gpu/a", 0)}),
    ],
)
def test_what_cannot_be_judged_says_why_and_is_no_pass(reason: Reason, change: dict[str, Any]) -> None:
    samples = change.pop("samples", pairs_of("time/a", 0.0))
    floor = change.pop("floor", floor_of(samples.metric))
    found = judge(run_of(replace(samples, **change), noise_floor=floor), LIMITS, NOW)
    assert found.metrics[0].verdict is Verdict.INVALID
    assert found.metrics[0].reason is reason
    assert found.verdict is Verdict.INVALID
    assert found.exit_status is ExitStatus.INCONCLUSIVE


@pytest.mark.parametrize("days", [-2, 2])
def test_a_noise_floor_has_its_time(days: int) -> None:
    found = judge(run_of(pairs_of("time/a", 0.0)), LIMITS, NOW + timedelta(days=days))
    assert found.metrics[0].reason is Reason.NOISE_FLOOR_EXPIRED


def test_a_threshold_at_the_noise_floor_is_accepted_and_one_below_is_not() -> None:
    floor = floor_of("time/a")
    lowest = floor.noise["time/a"].floor(LIMITS.plan.most_pairs, LIMITS.plan.error_rate)
    for effect, valid in ((lowest * 1.0001, True), (lowest * 0.9999, False)):
        limits = thresholds(time=replace(LIMITS.metrics["time"], minimum_effect=effect))
        found = judge(run_of(pairs_of("time/a", 0.2)), limits, NOW).metrics[0]
        assert (found.verdict is Verdict.FAIL) is valid


def test_time_and_cycles_must_agree() -> None:
    assert one(pairs_of("gpu/a", 0.05, cycles=0.05)).verdict is Verdict.FAIL
    assert one(pairs_of("gpu/a", 0.0, cycles=-0.05)).verdict is Verdict.PASS
    clock = one(pairs_of("gpu/a", 0.05, cycles=0.0))
    assert clock.verdict is Verdict.INCONCLUSIVE
    assert clock.reason is Reason.CYCLES_DISAGREE
    hidden = one(pairs_of("time/a", 0.0, cycles=0.05))
    assert hidden.reason is Reason.CYCLES_DISAGREE


@pytest.mark.parametrize(
    ("twins", "void"),
    [
        ({"unchanged": ()}, Reason.NO_CONTROL),
        ({"slowed": ()}, Reason.NO_CONTROL),
        ({"unchanged": (pairs_of("time/twin", 0.05),)}, Reason.UNCHANGED_TWIN_CHANGED),
        ({"unchanged": (pairs_of("time/twin", -0.05),)}, Reason.UNCHANGED_TWIN_CHANGED),
        ({"slowed": (pairs_of("time/twin", 0.0),)}, Reason.SLOWED_TWIN_NOT_FOUND),
        ({"slowed": (pairs_of("time/twin", 0.02, noise=0.1),)}, Reason.SLOWED_TWIN_NOT_FOUND),
        ({"slowed": (pairs_of("time/twin", 0.02, 4),)}, Reason.FEW_PAIRS),
    ],
)
def test_a_run_whose_controls_misbehave_is_void(twins: dict[str, Any], void: Reason) -> None:
    found = judge(run_of(pairs_of("time/a", 0.0), **twins), LIMITS, NOW)
    assert found.void == (void,)
    assert found.verdict is Verdict.INVALID
    assert judge(run_of(pairs_of("time/a", 0.0)), LIMITS, NOW).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        ((100, 100), (100, 100), Verdict.PASS),
        ((100,), (101,), Verdict.FAIL),
        ((100,), (99,), Verdict.IMPROVED),
        ((0,), (1,), Verdict.FAIL),
        ((0,), (0,), Verdict.PASS),
        ((100, 101), (100, 100), Verdict.INVALID),
        ((-1,), (0,), Verdict.INVALID),
    ],
)
def test_exact_counts_need_no_statistics(
    base: tuple[int, ...], head: tuple[int, ...], verdict: Verdict
) -> None:
    counted = CountedWork("work/allocator-calls", SIMULATED, base, head)
    found = judge(run_of(counted=(counted,), noise_floor=None), LIMITS, NOW)
    assert found.metrics[0].verdict is verdict
    assert "base" in found.metrics[0].detail


def test_an_exact_metric_may_be_allowed_some_increase() -> None:
    limits = thresholds(work=replace(LIMITS.metrics["work"], minimum_effect=0.1))
    for head, verdict in ((110, Verdict.PASS), (111, Verdict.FAIL), (89, Verdict.IMPROVED)):
        counted = CountedWork("work/x", SIMULATED, (100,), (head,))
        assert judge(run_of(counted=(counted,)), limits, NOW).metrics[0].verdict is verdict


def test_a_metric_of_the_wrong_kind_twice_or_without_a_threshold_is_refused() -> None:
    with pytest.raises(InputError, match="call it exact"):
        judge(run_of(pairs_of("work/a", 0.0)), LIMITS, NOW)
    with pytest.raises(InputError, match="no threshold"):
        judge(run_of(pairs_of("unheard/a", 0.0)), LIMITS, NOW)
    with pytest.raises(InputError, match="twice"):
        judge(run_of(pairs_of("time/a", 0.0), pairs_of("time/a", 0.0)), LIMITS, NOW)
    with pytest.raises(InputError, match="no metric"):
        judge(run_of(), LIMITS, NOW)


def test_a_verdict_is_the_same_each_time_and_plain_data() -> None:
    import json

    run = run_of(pairs_of("time/a", 0.012), pairs_of("gpu/b", 0.05, cycles=0.05))
    first, second = judge(run, LIMITS, NOW), judge(run, LIMITS, NOW)
    assert first == second
    plain = json.loads(json.dumps(first.to_plain(), allow_nan=False))
    assert plain["origin"] == "SIMULATED"
    assert all(metric["origin"] == "SIMULATED" for metric in plain["metrics"])


def test_samples_have_one_shape() -> None:
    good = pairs_of("time/a", 0.0)
    with pytest.raises(InputError, match="one length"):
        replace(good, head=good.head[1:])
    with pytest.raises(InputError, match="cycles"):
        replace(good, base_cycles=(1.0,))
    with pytest.raises(InputError, match="1 to"):
        CountedWork("work/a", SIMULATED, (), (1,))
