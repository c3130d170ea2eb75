"""The one file of thresholds: which metric may lose how much, how often the gate looks, what it may get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import check_form, read_bounded
from kvcrucible.perf.statistics.metrics import Better, Confirmation, MetricKind, MetricPolicy, policy_name
from kvcrucible.perf.statistics.strict_yaml import parse_yaml

#: Fewest pairs that an interval is made from.  With 6, the exact sign-flip test can still reach 1/64.
MIN_PAIRS = 6

#: Most bytes of a file of thresholds that is read: a thousand times what one needs.
MAX_BYTES = 1 << 20

_REMEDY = "write it as the package's own thresholds.yaml is written"


@dataclass(frozen=True, slots=True)
class Plan:
    """When the gate looks, and the errors that it may make over all looks together.

    ``looks``: pairs of processes at each look, increasing.  ``error_rate``: one-sided error of a claim about one
    metric. ``false_discovery_rate``: of the metrics of a suite that are said to have changed, the share that may not
    have. Raises :class:`InputError` for looks that do not increase or begin below :data:`MIN_PAIRS`.
    """

    looks: tuple[int, ...]
    error_rate: float
    false_discovery_rate: float

    def __post_init__(self) -> None:
        rising = all(earlier < later for earlier, later in zip(self.looks, self.looks[1:], strict=False))
        if not self.looks or self.looks[0] < MIN_PAIRS or not rising:
            raise InputError(
                f"looks {list(self.looks)}: use increasing numbers of pairs, the first at least {MIN_PAIRS}"
            )

    @property
    def most_pairs(self) -> int:
        """Pairs at the last look."""
        return self.looks[-1]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What the file says.  ``slowdown`` is the planted one of the positive control, in minimum effects."""

    plan: Plan
    calibration_pairs: int
    expires_days: int
    slowdown: float
    metrics: Mapping[str, MetricPolicy]

    def policy(self, metric: str) -> MetricPolicy:
        """Return what is asked of ``metric`` (``name`` or ``name/case``); raises :class:`InputError` for none."""
        found = self.metrics.get(policy_name(metric))
        if found is None:
            raise InputError(
                f"metric {metric[:200]}: no threshold; the file has {', '.join(sorted(self.metrics))}"
            )
        return found


def read_thresholds(path: Path) -> Thresholds:
    """Return the thresholds in the file ``path``; raises :class:`InputError` where it cannot be used."""
    return _thresholds(read_bounded(path, MAX_BYTES, _REMEDY), str(path))


@cache
def default_thresholds() -> Thresholds:
    """Return the thresholds that come with the package."""
    return _thresholds(
        resources.files("kvcrucible.perf").joinpath("thresholds.yaml").read_text("utf-8"), "thresholds"
    )


def _thresholds(text: str, name: str) -> Thresholds:
    plain: dict[str, Any] = parse_yaml(text, name, _REMEDY)
    check_form(plain, "kvcrucible.perf.statistics", "schemas/thresholds.schema.json", name, _REMEDY)
    plan = plain["plan"]
    return Thresholds(
        Plan(tuple(plan["looks"]), plan["error_rate"], plan["false_discovery_rate"]),
        plain["calibration"]["pairs"],
        plain["calibration"]["expires_days"],
        plain["controls"]["slowdown"],
        {metric: _policy(metric, entry) for metric, entry in plain["metrics"].items()},
    )


def _policy(name: str, entry: Mapping[str, Any]) -> MetricPolicy:
    return MetricPolicy(
        name,
        MetricKind(entry["kind"]),
        entry["minimum_effect"],
        Better(entry.get("better", Better.LOWER)),
        Confirmation(entry.get("cycles", Confirmation.IF_PRESENT)),
    )
