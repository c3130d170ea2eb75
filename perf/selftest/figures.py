"""A figure of the self-test: a rate over simulated trials, with its Monte-Carlo error and the bound it must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvcrucible.contract.errors import ExitStatus
from kvcrucible.perf.origin import Origin

#: Confidence of a figure's Monte-Carlo interval.
CONFIDENCE = 0.95


class Status(StrEnum):
    """How a figure stands to its bound."""

    #: The whole Monte-Carlo interval keeps it.
    HELD = "held"
    #: The figure itself does not.
    MISSED = "missed"
    #: The figure does and its interval does not: too few trials to say.
    UNRESOLVED = "unresolved"
    #: There is no bound; the figure is there to be read.
    SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class Figure:
    """``hits`` of ``trials``, to lie between ``at_least`` and ``at_most`` (rates; both None for no bound).

    ``note`` says what else a reader should know, such as pairs used.
    """

    check: str
    name: str
    hits: int
    trials: int
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def rate(self) -> float:
        """The share of hits."""
        return self.hits / self.trials

    @property
    def monte_carlo(self) -> tuple[float, float]:
        """The 95 % interval of the true rate, given so many trials (Clopper and Pearson 1934: never too narrow)."""
        from scipy import special

        tail = (1 - CONFIDENCE) / 2
        hits, misses = self.hits, self.trials - self.hits
        lower = float(special.betaincinv(hits, misses + 1, tail)) if hits else 0.0
        upper = float(special.betaincinv(hits + 1, misses, 1 - tail)) if misses else 1.0
        return lower, upper

    @property
    def status(self) -> Status:
        """Whether the bound is kept."""
        if self.at_least is None and self.at_most is None:
            return Status.SHOWN
        low = 0.0 if self.at_least is None else self.at_least
        high = 1.0 if self.at_most is None else self.at_most
        if not low <= self.rate <= high:
            return Status.MISSED
        lower, upper = self.monte_carlo
        return Status.HELD if low <= lower and upper <= high else Status.UNRESOLVED

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form, marked as simulated."""
        lower, upper = self.monte_carlo
        return {
            "origin": Origin.SIMULATED.value,
            "check": self.check,
            "name": self.name,
            "rate": self.rate,
            "hits": self.hits,
            "trials": self.trials,
            "monte_carlo_95": [lower, upper],
            "at_least": self.at_least,
            "at_most": self.at_most,
            "status": self.status.value,
            "note": self.note,
        }


def exit_status(figures: Sequence[Figure]) -> ExitStatus:
    """Return 1 where a bound is missed, 3 where one is not resolved (or nothing was checked), else 0."""
    found = {figure.status for figure in figures}
    if Status.MISSED in found:
        return ExitStatus.VIOLATION
    if Status.UNRESOLVED in found or Status.HELD not in found:
        return ExitStatus.INCONCLUSIVE
    return ExitStatus.HELD
