"""What a metric is and what is asked of it: exact counts of work, and samples that scatter.

The kinds are never judged alike.  A count that differs differs; no number of repetitions makes it truer, and no
threshold below noise exists for it.  A sample means nothing without its noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """How a metric behaves when the same code runs again."""

    #: The same number each time: work counters, and instructions where they are deterministic.
    EXACT = "exact"
    #: Scatters: times, energy.
    SAMPLED = "sampled"


class Better(StrEnum):
    """Which way is an improvement."""

    LOWER = "lower"
    HIGHER = "higher"


class Confirmation(StrEnum):
    """Whether cycles must agree with time before a verdict stands.

    A machine that slowed its clock makes code look slower in time and not in cycles; a change in the code shows in
    both.
    """

    #: Without cycles there is no verdict: for a GPU, whose clock moves by itself.
    REQUIRED = "required"
    #: Where the machine offers them.
    IF_PRESENT = "if-present"


@dataclass(frozen=True, slots=True)
class MetricPolicy:
    """What the thresholds file asks of one metric.

    ``minimum_effect`` is the relative change (0.03 is 3 %) below which nobody minds; for an exact metric the increase
    that is allowed, 0 for none.  ``cycles`` is for sampled metrics alone.
    """

    name: str
    kind: MetricKind
    minimum_effect: float
    better: Better = Better.LOWER
    cycles: Confirmation = Confirmation.IF_PRESENT


def policy_name(metric: str) -> str:
    """Return the name under which the thresholds file knows ``metric``: of ``name/case`` the name."""
    return metric.partition("/")[0]
