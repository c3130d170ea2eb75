"""Which samples do not count, and why.  They are kept and shown: a machine that rejects half of them is a finding.

Some evidence speaks against one sample, whatever it is compared with.  A power cap does not: a loaded board may
stand at its limit all day, on both sides alike.  Nor does a temperature.  They speak against a *pair* whose sides
differ in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvcrucible.perf.nvml import values
from kvcrucible.perf.nvml.evidence import Evidence
from kvcrucible.perf.origin import common_origin

#: Largest difference between the sides of a pair in the share of time at the power cap.
MAX_CAP_DIFFERENCE = 0.10

#: Largest difference between the temperatures at which the sides of a pair start, in K.
MAX_START_DIFFERENCE_C = 3


class Reject(StrEnum):
    """Why a sample, or a pair of samples, does not count."""

    THERMAL = "thermal slowdown"
    POWER_BRAKE = "hardware power brake"
    HARDWARE_SLOWDOWN = "hardware slowdown"
    FOREIGN_PROCESS = "a foreign process on the device"
    MEMORY_ERRORS = "memory errors: take the machine out of service"
    COUNTER_RESET = "a counter went back: the driver was loaded again"
    DEVICE_LOST = "the device was lost"
    UNSEEN = "no reading inside the window"
    POWER_CAP_DIFFERS = "the power cap held longer on one side"
    TEMPERATURE_DIFFERS = "the sides started at different temperatures"


@dataclass(frozen=True, slots=True)
class Rejection:
    """One reason, and what only this case knows."""

    reason: Reject
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


def reject_sample(evidence: Evidence) -> tuple[Rejection, ...]:
    """Return every reason for which a sample with this evidence does not count; none where it does.

    Silence is no reason: a device that does not tell its event reasons gives samples whose evidence says so
    (``evidence.refused``).
    """
    return tuple(_against(evidence))


def _against(evidence: Evidence) -> Iterator[Rejection]:
    mask = evidence.reasons or 0
    held = evidence.held_ns
    thermal = mask & (values.SOFTWARE_THERMAL | values.HARDWARE_THERMAL)
    thermal_ns = max(held.get("software thermal", 0), held.get("hardware thermal", 0))
    if evidence.lost:
        yield Rejection(Reject.DEVICE_LOST, evidence.lost)
    if not evidence.readings:
        yield Rejection(Reject.UNSEEN)
    if thermal or thermal_ns:
        yield Rejection(Reject.THERMAL, _held(values.reason_names(thermal), thermal_ns))
    if mask & values.POWER_BRAKE or held.get("power brake"):
        yield Rejection(Reject.POWER_BRAKE, _held((), held.get("power brake", 0)))
    # The general bit comes with each of the two above; alone, it means something that has no bit of its own.
    if mask & values.HARDWARE_SLOWDOWN and not mask & (values.HARDWARE_THERMAL | values.POWER_BRAKE):
        yield Rejection(Reject.HARDWARE_SLOWDOWN)
    if evidence.foreign:
        hidden = "; the sample's own process ids are hidden" if evidence.foreign_hidden else ""
        yield Rejection(Reject.FOREIGN_PROCESS, f"{evidence.foreign}{hidden}")
    if errors := _errors(evidence):
        yield Rejection(Reject.MEMORY_ERRORS, ", ".join(errors))
    if evidence.counter_reset:
        yield Rejection(Reject.COUNTER_RESET, ", ".join(evidence.counter_reset))


def _held(names: tuple[str, ...], held_ns: int) -> str:
    return ", ".join([*names, *([f"held for {held_ns / 1e6:,.1f} ms"] if held_ns else [])])


def _errors(evidence: Evidence) -> list[str]:
    found = []
    if evidence.uncorrected:
        found.append(f"{evidence.uncorrected} new uncorrected errors")
    if evidence.remapped:
        found.append(f"{evidence.remapped} newly remapped rows")
    if evidence.pending:
        found.append("a row waits to be remapped")
    if evidence.failed:
        found.append("remapping failed")
    return found


def reject_pair(base: Evidence, head: Evidence) -> tuple[Rejection, ...]:
    """Return why two samples that count each cannot be compared; none where they can.

    Raises :class:`MixedOriginsError` for a simulated side beside a measured one.
    """
    common_origin((base.origin, head.origin), "two sides of a pair")
    found = []
    shares = [_cap_share(one) for one in (base, head)]
    if None not in shares:
        first, second = (share or 0.0 for share in shares)
        if abs(first - second) > MAX_CAP_DIFFERENCE:
            found.append(Rejection(Reject.POWER_CAP_DIFFERS, f"{first:.0%} against {second:.0%} of the time"))
    if base.start_c is not None and head.start_c is not None:
        apart = abs(base.start_c - head.start_c)
        if apart > MAX_START_DIFFERENCE_C:
            found.append(
                Rejection(Reject.TEMPERATURE_DIFFERS, f"{base.start_c} °C against {head.start_c} °C")
            )
    return tuple(found)


def _cap_share(evidence: Evidence) -> float | None:
    """Return the share of time at the power cap: counted, else from the mask, which says only whether it was seen."""
    counted = evidence.held_share("power cap")
    if counted is not None:
        return counted
    return None if evidence.reasons is None else float(bool(evidence.reasons & values.SOFTWARE_POWER_CAP))
