"""Energy between two updates of the driver's total counter, or why there is no figure.

The counter is renewed every 20 to 100 ms or so, and the instant of an update is the only one at which its value is
exact.  So a window goes from the first update inside the asked time to the last one; it has to be long, and hold many
updates.  Power is never integrated to make a figure (on current boards the plain reading is an average over a second):
its integral is only asked whether it agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from kvcrucible.perf.nvml.records import Edge, Reading, Record
from kvcrucible.perf.origin import Origin

#: Shortest window, in seconds, and fewest updates in it.  At 100 ms between updates both say the same.
MIN_SECONDS, MIN_UPDATES = 5.0, 50

#: Relative difference from the integral of power above which neither is believed.
MAX_DISAGREEMENT = 0.10


class NoEnergy(StrEnum):
    """Why a window has no energy that counts."""

    NOT_SUPPORTED = "the device does not count energy"
    COUNTER_RESET = "the counter went back: the driver was loaded again"
    SHORT = "the window is shorter than 5 s"
    FEW_UPDATES = "the counter was renewed fewer than 50 times"
    DISAGREES = "counter and integrated power differ by more than 10 %"
    NOT_ATTRIBUTABLE = "the GPU is split: the counter is the whole board's"


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of one window.

    ``joules`` between two updates that lie ``seconds`` apart; also there where ``reason`` says that it does not count,
    as far as it is known.  ``resolution`` is the relative error that late sight of the two updates can make.
    ``integrated_joules``: power over the same window, None where instant power is not offered.
    """

    origin: Origin
    joules: float | None
    seconds: float
    updates: int
    resolution: float | None
    integrated_joules: float | None
    reason: NoEnergy | None
    detail: str = ""

    @property
    def watts(self) -> float | None:
        """Mean power of the window, None where the energy does not count."""
        return None if self.joules is None or self.reason else self.joules / self.seconds


def energy(record: Record, start_ns: int, stop_ns: int) -> Energy:
    """Return the energy that ``record`` shows between ``start_ns`` and ``stop_ns``; nothing is changed."""
    edges = [edge for edge in record.edges if start_ns <= edge.at_ns <= stop_ns]
    if len(edges) < 2:
        refused = record.header.refused.get("energy")
        none = NoEnergy.NOT_SUPPORTED if refused else NoEnergy.FEW_UPDATES
        return Energy(record.origin, None, 0.0, 0, None, None, none, refused or "")
    seconds = (edges[-1].at_ns - edges[0].at_ns) / 1e9
    back = _reset(edges)
    joules = None if back else (edges[-1].energy_mj - edges[0].energy_mj) / 1000
    integrated = None
    if record.header.power_source.startswith("instant"):
        integrated = _integral(record.readings, edges[0].at_ns, edges[-1].at_ns)
    reason: NoEnergy | None = None
    detail = ""
    if back:
        reason, detail = NoEnergy.COUNTER_RESET, f"from {back[0]:,} to {back[1]:,} mJ"
    elif record.header.mig:
        reason = NoEnergy.NOT_ATTRIBUTABLE
    elif seconds < MIN_SECONDS:
        reason, detail = NoEnergy.SHORT, f"{seconds:.2f} s"
    elif len(edges) - 1 < MIN_UPDATES:
        reason, detail = NoEnergy.FEW_UPDATES, f"{len(edges) - 1} in {seconds:.1f} s"
    elif joules is not None and integrated is not None:
        apart = abs(joules - integrated) / max(joules, integrated, 1e-9)
        if apart > MAX_DISAGREEMENT:
            reason, detail = NoEnergy.DISAGREES, f"{joules:.1f} J against {integrated:.1f} J"
    resolution = record.header.poll_ns / 1e9 / seconds
    return Energy(record.origin, joules, seconds, len(edges) - 1, resolution, integrated, reason, detail)


def _reset(edges: Sequence[Edge]) -> tuple[int, int] | None:
    return next(
        (
            (earlier.energy_mj, later.energy_mj)
            for earlier, later in pairwise(edges)
            if later.energy_mj < earlier.energy_mj
        ),
        None,
    )


def _integral(readings: Sequence[Reading], start_ns: int, stop_ns: int) -> float | None:
    """Return the joules under the power readings by trapezia, None where they do not cover the window."""
    points = [(one.at_ns, one.power_w) for one in readings if one.power_w is not None]
    total, covered = 0.0, 0
    for (begin, first), (end, second) in pairwise(points):
        left, right = max(begin, start_ns), min(end, stop_ns)
        if left >= right:
            continue
        slope = (second - first) / (end - begin)
        middle = first + slope * ((left + right) / 2 - begin)
        total += middle * (right - left) / 1e9
        covered += right - left
    # A hole of a reading or two at the ends is filled with the mean; a larger one is no integral.
    whole = stop_ns - start_ns
    return total * whole / covered if covered >= 0.9 * whole > 0 else None
