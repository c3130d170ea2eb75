"""What the sampler writes down, one record a line: plain data between two processes, and into the store.

Times are nanoseconds of the monotonic clock, which all processes of one machine share.  A value that was refused is
None; why, the header says once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import parse_json, read_bounded
from kvcrucible.perf.origin import Origin

#: Largest record of a sampler that is read back: a day at ten readings a second.
MAX_RECORD_BYTES = 256 << 20

_REMEDY = "the sampler's record is damaged or none: sample again"


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the fast sensors.

    ``at_ns``: the middle of the look, which took ``cost_ns``.  Clocks in MHz, power in W, temperatures in °C;
    ``margin_c`` is the distance to the nearest slowdown.  ``reasons`` is a mask (:data:`values.EVENT_REASONS`),
    ``counters`` name to ns since the driver was loaded.
    """

    at_ns: int
    cost_ns: int
    sm_mhz: int | None
    memory_mhz: int | None
    reasons: int | None
    counters: Mapping[str, int]
    power_w: float | None
    temperature_c: int | None
    memory_temperature_c: int | None
    margin_c: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """The total energy counter moved: seen at ``at_ns``, now at ``energy_mj`` since the driver was loaded."""

    at_ns: int
    energy_mj: int


@dataclass(frozen=True, slots=True)
class Health:
    """One look at what changes slowly.

    Memory in bytes; ``used_bytes`` includes what the driver keeps for itself.  ``pids`` are all processes with a
    context. ``uncorrected`` counts ECC errors that could not be corrected; the remapped rows are correctable,
    uncorrectable, pending (0 or 1), failed (0 or 1).
    """

    at_ns: int
    used_bytes: int | None
    total_bytes: int | None
    pids: tuple[int, ...] | None
    corrected: int | None
    uncorrected: int | None
    remapped: tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class Header:
    """What the sampler found when it started: the device, its stable facts, and what it refuses to say.

    ``poll_ns``: between two looks at the energy counter; ``interval_ns``: between two readings.  ``cpu``: where the
    sampler runs, None for anywhere.  ``mig``: whether the GPU is split, so that energy and power are the whole board's.
    ``power_source``: which power is read.
    """

    origin: Origin
    facts: Mapping[str, str]
    refused: Mapping[str, str]
    mig: bool
    power_source: str
    interval_ns: int
    poll_ns: int
    cpu: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """All that one sampler wrote.

    ``cpu_ns`` is the CPU time that sampling took and ``late_ns`` the longest time by which a reading was late.
    ``lost`` names a status after which nothing more could be read, empty where there was none.
    """

    header: Header
    readings: tuple[Reading, ...]
    edges: tuple[Edge, ...]
    health: tuple[Health, ...]
    cpu_ns: int
    late_ns: int
    lost: str

    @property
    def origin(self) -> Origin:
        """Whether a driver said this, or the stand-in of the tests."""
        return self.header.origin

    def between(self, start_ns: int, stop_ns: int) -> Record:
        """Return the part of the record inside ``[start_ns, stop_ns]``.

        One reading and one look at the health more on each side is kept where there is one: counters need a value from
        before the start and one from after the end.
        """
        return Record(
            self.header,
            _around(self.readings, start_ns, stop_ns),
            tuple(edge for edge in self.edges if start_ns <= edge.at_ns <= stop_ns),
            _around(self.health, start_ns, stop_ns),
            self.cpu_ns,
            self.late_ns,
            self.lost,
        )


Timed = TypeVar("Timed", Reading, Health)


def _around(items: tuple[Timed, ...], start_ns: int, stop_ns: int) -> tuple[Timed, ...]:
    inside = [place for place, one in enumerate(items) if start_ns <= one.at_ns <= stop_ns]
    first = inside[0] if inside else sum(one.at_ns < start_ns for one in items)
    last = inside[-1] + 1 if inside else first
    return items[max(0, first - 1) : last + 1]


_KINDS: Mapping[str, type[Any]] = {"reading": Reading, "edge": Edge, "health": Health, "header": Header}


def line(one: Reading | Edge | Health | Header) -> str:
    """Return a record as one line of JSON."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(one, cls))
    return json.dumps({"kind": kind, **asdict(one)}, allow_nan=False, separators=(",", ":"))


def end_line(cpu_ns: int, late_ns: int, lost: str) -> str:
    """Return the last line, without which a record is incomplete."""
    return json.dumps({"kind": "end", "cpu_ns": cpu_ns, "late_ns": late_ns, "lost": lost})


def read_record(path: Path) -> Record:
    """Return the record in the file ``path``; raises :class:`InputError` where it is damaged or has no end."""
    found: dict[str, list[Any]] = {"header": [], "reading": [], "edge": [], "health": [], "end": []}
    for number, text in enumerate(read_bounded(path, MAX_RECORD_BYTES, _REMEDY).splitlines(), start=1):
        where = f"{path}: line {number}"
        plain = parse_json(text, where, _REMEDY)
        kind = plain.pop("kind", None) if isinstance(plain, dict) else None
        if kind not in found:
            raise InputError(f"{where}: not a record of the sampler")
        found[kind].append(plain if kind == "end" else _rebuilt(kind, plain, where))
    if len(found["header"]) != 1 or len(found["end"]) != 1:
        raise InputError(f"{path}: the sampler did not finish its record")
    end = found["end"][0]
    return Record(
        found["header"][0],
        tuple(found["reading"]),
        tuple(found["edge"]),
        tuple(found["health"]),
        int(end["cpu_ns"]),
        int(end["late_ns"]),
        str(end["lost"]),
    )


def _rebuilt(kind: str, plain: dict[str, Any], where: str) -> Any:
    cls = _KINDS[kind]
    if set(plain) != {field.name for field in fields(cls)}:
        raise InputError(f"{where}: a {kind} has other fields")
    for name, value in plain.items():
        if isinstance(value, list):
            plain[name] = tuple(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where}: {name} is not finite")
    if kind == "header":
        plain["origin"] = Origin(plain["origin"])
    return cls(**plain)
