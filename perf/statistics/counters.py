"""The verdict on exact counts: no noise, no interval, no number of repetitions."""

from __future__ import annotations

from kvcrucible.perf.statistics.metrics import Better, MetricKind, MetricPolicy
from kvcrucible.perf.statistics.samples import CountedWork
from kvcrucible.perf.statistics.verdict import MetricVerdict, Reason, Verdict


def judge_count(counted: CountedWork, policy: MetricPolicy) -> MetricVerdict:
    """Return the verdict on one exact metric.

    A count that differs between processes of the same code is INVALID: it is not exact, and the policy is wrong about
    it.  From 0, any increase is infinite: FAIL, with ``change`` None.
    """
    base, head = counted.base[0], counted.head[0]
    worse = head - base if policy.better is Better.LOWER else base - head

    def verdict(found: Verdict, reason: Reason | None = None, change: float | None = None) -> MetricVerdict:
        return MetricVerdict(
            counted.metric,
            MetricKind.EXACT,
            counted.origin,
            found,
            policy.minimum_effect,
            min(len(counted.base), len(counted.head)),
            reason,
            f"base {_shown(counted.base)}, head {_shown(counted.head)}",
            change,
        )

    if len(set(counted.base)) > 1 or len(set(counted.head)) > 1:
        return verdict(Verdict.INVALID, Reason.NOT_EXACT)
    if min(base, head) < 0:
        return verdict(Verdict.INVALID, Reason.NOT_POSITIVE)
    if worse == 0:
        return verdict(Verdict.PASS, change=0.0)
    if base == 0:
        return verdict(Verdict.FAIL if worse > 0 else Verdict.IMPROVED)
    change = worse / base
    if change > policy.minimum_effect:
        return verdict(Verdict.FAIL, change=change)
    return verdict(Verdict.PASS if change >= -policy.minimum_effect else Verdict.IMPROVED, change=change)


def _shown(counts: tuple[int, ...]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
