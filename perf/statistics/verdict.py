"""What the gate says: of a metric, of a control, of the whole run.

IMPROVED, PASS and FAIL are claims with a stated error.  INCONCLUSIVE means that the pairs do not decide, and comes with
how many would.  INVALID means that there is nothing to judge, and comes with the reason.  Neither is ever a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.metrics import MetricKind


class Verdict(StrEnum):
    """The five things that can be said."""

    IMPROVED = "IMPROVED"
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class Reason(StrEnum):
    """Why a verdict is INVALID or, for the last two, INCONCLUSIVE."""

    FEW_PAIRS = "fewer pairs than the first look needs"
    NOT_POSITIVE = "a value that is not positive and finite"
    NO_VARIATION = "no variation at all: a clock too coarse, or not a sampled metric"
    MACHINES_DIFFER = "base, head and noise floor are not of one machine"
    ORDER_NOT_RANDOM = "one side always ran first"
    NO_NOISE_FLOOR = "no noise floor was calibrated for this metric"
    NOISE_FLOOR_EXPIRED = "the noise floor has expired"
    BELOW_NOISE_FLOOR = "the minimum effect lies below the noise floor"
    NO_CYCLES = "cycles are required and not there"
    NOT_EXACT = "an exact count that differs between runs of the same code"
    NO_CONTROL = "the run has no unchanged twin or no slowed twin"
    UNCHANGED_TWIN_CHANGED = "the gate called unchanged code changed"
    SLOWED_TWIN_NOT_FOUND = "the gate did not see the planted slowdown"
    UNDECIDED = "the pairs do not decide"
    CYCLES_DISAGREE = "time and cycles disagree: the clock changed, or only one of them is decided"


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """What was found of one metric.

    ``change`` is relative, above 0 where head is worse; ``lower`` and ``upper`` are its 95 % interval, None for exact
    metrics and where nothing could be judged.  ``superiority`` is the share of pairs in which head was worse.
    ``p_slower`` is against no change, ``p_sign_flip`` against the minimum effect, both one-sided.  ``detail`` adds to
    ``reason`` what only this case knows.

    ``pairs`` were looked at; ``next_look`` is how many the plan wants next, None where it has ended for this metric.
    ``needed_pairs`` would decide an INCONCLUSIVE metric nine times in ten, None where no sensible number would.
    """

    metric: str
    kind: MetricKind
    origin: Origin
    verdict: Verdict
    minimum_effect: float
    pairs: int
    reason: Reason | None = None
    detail: str = ""
    change: float | None = None
    lower: float | None = None
    upper: float | None = None
    p_slower: float | None = None
    p_sign_flip: float | None = None
    superiority: float | None = None
    noise_floor: float | None = None
    next_look: int | None = None
    needed_pairs: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


#: Which verdict of a metric speaks for the whole run: the first of these that occurs.
PRECEDENCE = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.PASS)

EXIT_STATUS: Mapping[Verdict, ExitStatus] = {
    Verdict.FAIL: ExitStatus.VIOLATION,
    Verdict.INVALID: ExitStatus.INCONCLUSIVE,
    Verdict.INCONCLUSIVE: ExitStatus.INCONCLUSIVE,
    Verdict.IMPROVED: ExitStatus.HELD,
    Verdict.PASS: ExitStatus.HELD,
}


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What was found of a whole run.  ``void`` says why nothing in it counts, empty where the controls behaved."""

    origin: Origin
    metrics: tuple[MetricVerdict, ...]
    void: tuple[Reason, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The run's verdict: INVALID where a control misbehaved, else the first of :data:`PRECEDENCE` that occurs."""
        if self.void:
            return Verdict.INVALID
        found = {metric.verdict for metric in self.metrics}
        return next((verdict for verdict in PRECEDENCE if verdict in found), Verdict.INVALID)

    @property
    def exit_status(self) -> ExitStatus:
        """The command line's answer."""
        return EXIT_STATUS[self.verdict]

    @property
    def wants_pairs(self) -> Mapping[str, int]:
        """Metric to pairs that the plan wants next; empty where every metric has ended."""
        return {one.metric: one.next_look for one in self.metrics if one.next_look is not None}

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form; ``origin`` stands on top and in each metric."""
        return {
            "origin": self.origin.value,
            "verdict": self.verdict.value,
            "void": [reason.value for reason in self.void],
            "metrics": [metric.to_plain() for metric in self.metrics],
        }
