"""What the sensors say about one timed sample: the evidence that is stored beside it, whether it counts or not."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from kvcrucible.perf.nvml.records import Health, Reading, Record
from kvcrucible.perf.origin import Origin


@dataclass(slots=True)
class Window:
    """When something was timed, in ns of the monotonic clock; ``stop_ns`` is 0 until it has ended."""

    start_ns: int
    stop_ns: int = 0

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.stop_ns - self.start_ns) / 1e9


@contextmanager
def timed() -> Iterator[Window]:
    """Yield a window that ends with the block."""
    window = Window(time.monotonic_ns())
    try:
        yield window
    finally:
        window.stop_ns = time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The sensors during one window; None where the device does not say.

    ``sm_mhz`` and ``memory_mhz`` are means over time, ``cycles`` the window's length times the former.  ``reasons``
    is the mask over all readings; ``held_ns`` how long each counted reason held in the ``counted_seconds`` from the
    reading before the window to the one after (from counters, so what lies between two readings is in it);
    ``counter_reset`` names counters that went back.  ``foreign`` are processes that are not the sample's;
    ``foreign_hidden`` says that the sample's own are not among those listed, as in a container whose process ids
    are not the host's, and then only surplus processes count.  ``uncorrected`` and ``remapped`` are *new* errors;
    ``pending`` and ``failed`` are states.
    """

    origin: Origin
    seconds: float
    readings: int
    sm_mhz: float | None
    memory_mhz: float | None
    cycles: float | None
    reasons: int | None
    held_ns: Mapping[str, int]
    counted_seconds: float
    counter_reset: tuple[str, ...]
    power_w: float | None
    start_c: int | None
    highest_c: int | None
    margin_c: int | None
    used_bytes: int | None
    foreign: int | None
    foreign_hidden: bool
    uncorrected: int | None
    remapped: int | None
    pending: bool
    failed: bool
    lost: str
    refused: tuple[str, ...]

    def held_share(self, reason: str) -> float | None:
        """Return the share of the counted time for which a reason held, None where it is not counted."""
        if reason not in self.held_ns or self.counted_seconds <= 0:
            return None
        return min(1.0, self.held_ns[reason] / 1e9 / self.counted_seconds)

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form, as it is stored."""
        return asdict(self)


def evidence(record: Record, window: Window, own_pids: Collection[int], uses_gpu: bool = True) -> Evidence:
    """Return what ``record`` says about ``window``, in which the processes ``own_pids`` ran; nothing is changed.

    ``uses_gpu``: one of them has a context on the device.
    """
    part = record.between(window.start_ns, window.stop_ns)
    readings, seconds = part.readings, window.seconds
    sm = _mean([(one.at_ns, one.sm_mhz) for one in readings])
    memory = _mean([(one.at_ns, one.memory_mhz) for one in readings])
    power = _mean([(one.at_ns, one.power_w) for one in readings])
    held, reset = _counted(readings)
    masks = [one.reasons for one in readings if one.reasons is not None]
    mask = 0
    for one in masks:
        mask |= one
    temperatures = [one.temperature_c for one in readings if one.temperature_c is not None]
    margins = [one.margin_c for one in readings if one.margin_c is not None]
    used = [one.used_bytes for one in part.health if one.used_bytes is not None]
    foreign, hidden = _foreign(part.health, own_pids, uses_gpu)
    uncorrected, remapped, pending, failed = _errors(part.health)
    return Evidence(
        part.origin,
        seconds,
        len(readings),
        sm,
        memory,
        None if sm is None else sm * 1e6 * seconds,
        mask if masks else None,
        held,
        (readings[-1].at_ns - readings[0].at_ns) / 1e9 if readings else 0.0,
        reset,
        power,
        temperatures[0] if temperatures else None,
        max(temperatures, default=None),
        min(margins, default=None),
        max(used, default=None),
        foreign,
        hidden,
        uncorrected,
        remapped,
        pending,
        failed,
        part.lost,
        tuple(sorted(part.header.refused)),
    )


def _mean(points: Sequence[tuple[int, float | None]]) -> float | None:
    """Return the mean over time: each reading stands for half the way to its neighbours."""
    there = [(at, value) for at, value in points if value is not None]
    if len(there) < 2:
        return float(there[0][1]) if there else None
    area = sum((first + second) / 2 * (end - begin) for (begin, first), (end, second) in pairwise(there))
    return area / (there[-1][0] - there[0][0])


def _counted(readings: Sequence[Reading]) -> tuple[dict[str, int], tuple[str, ...]]:
    held: dict[str, int] = {}
    reset: set[str] = set()
    for earlier, later in pairwise(readings):
        for name in earlier.counters.keys() & later.counters.keys():
            delta = later.counters[name] - earlier.counters[name]
            if delta < 0:
                reset.add(name)
            else:
                held[name] = held.get(name, 0) + delta
    return {name: value for name, value in sorted(held.items()) if name not in reset}, tuple(sorted(reset))


def _foreign(health: Sequence[Health], own: Collection[int], uses_gpu: bool) -> tuple[int | None, bool]:
    """Return the most foreign processes of any look, and whether our own hide behind other ids."""
    most, hidden = None, False
    for one in health:
        if one.pids is None:
            continue
        others = [pid for pid in one.pids if pid not in own]
        count = len(others)
        if uses_gpu and len(others) == len(one.pids) > 0:
            # None of ours is listed though one has a context: the ids are another namespace's.  One entry is ours.
            hidden, count = True, count - 1
        most = count if most is None else max(most, count)
    return most, hidden


def _errors(health: Sequence[Health]) -> tuple[int | None, int | None, bool, bool]:
    counts = [one.uncorrected for one in health if one.uncorrected is not None]
    rows = [one.remapped for one in health if one.remapped is not None]
    uncorrected = counts[-1] - counts[0] if counts else None
    remapped = rows[-1][1] - rows[0][1] if rows else None
    return uncorrected, remapped, any(row[2] for row in rows), any(row[3] for row in rows)
