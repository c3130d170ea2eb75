"""The sampler: ``python -m kvcrucible.perf.nvml.sampler_process FILE INTERVAL_MS POLL_MS CPU DEVICE``.

A process of its own, because a call of the driver may take milliseconds, which must not fall on whoever is timed.  It
writes its records to FILE, prints ``ready`` once the first are there, and ends when its standard input closes: also
where the parent was killed.  CPU is where it runs, -1 for anywhere; DEVICE an index or the UUID of a MIG slice.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from kvcrucible.contract.errors import CrucibleError
from kvcrucible.perf.nvml.binding import Library, Missing, NvmlAbsentError, open_library
from kvcrucible.perf.nvml.device import Device
from kvcrucible.perf.nvml.records import Edge, Header, end_line, line
from kvcrucible.perf.nvml.values import LOST

#: Longest time that one sampler runs; a forgotten one must not fill a disk.
MAX_SECONDS = 24 * 3600

#: Between two looks at the slow values.
HEALTH_NS = 1_000_000_000

#: Exit status where there is no library; the reason stands on standard error.
ABSENT = 5


def sample(library: Library, out: Path, interval_ns: int, poll_ns: int, cpu: int | None, where: str) -> None:
    """Sample until standard input closes, the device is lost or the time is up, and write the record to ``out``."""
    device = Device(library, int(where)) if where.isdecimal() else Device(library, 0, where)
    facts = device.facts()
    first, health, last = device.read(), device.health(), device.energy_mj()
    refused = {name: str(missing) for name, missing in sorted(library.refused.items())}
    header = Header(
        library.origin, facts, refused, device.mig, device.power_source, interval_ns, poll_ns, cpu
    )
    started, spent = time.monotonic_ns(), time.process_time_ns()
    next_reading, next_health, late, lost = started + interval_ns, started + HEALTH_NS, 0, ""
    with out.open("w", encoding="utf-8") as file:
        for one in (header, first, health):
            file.write(line(one) + "\n")
        print("ready", flush=True)
        while not _told_to_stop(poll_ns) and not lost:
            energy = device.energy_mj()
            now = time.monotonic_ns()
            if not isinstance(energy, Missing) and energy != last:
                file.write(line(Edge(now, energy)) + "\n")
                last = energy
            if now >= next_reading:
                late = max(late, now - next_reading)
                file.write(line(device.read()) + "\n")
                # From now, not from when it was due: a sampler that was held up does not catch up in a burst.
                next_reading = now + interval_ns
            if now >= next_health:
                file.write(line(device.health()) + "\n")
                next_health = now + HEALTH_NS
            lost = next((str(one) for one in library.refused.values() if one.code in LOST), "")
            if now - started > MAX_SECONDS * 10**9:
                break
        for one in (device.read(), device.health()):
            file.write(line(one) + "\n")
        file.write(end_line(time.process_time_ns() - spent, late, lost) + "\n")


def _told_to_stop(timeout_ns: int) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], timeout_ns / 1e9)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1)


def main() -> int:
    """Run the sampler that the arguments describe."""
    out, interval_ms, poll_ms, cpu, where = sys.argv[1:]
    place = int(cpu)
    if place >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {place})
    try:
        with open_library() as library:
            sample(
                library,
                Path(out),
                int(float(interval_ms) * 1e6),
                int(float(poll_ms) * 1e6),
                place if place >= 0 else None,
                where,
            )
    except NvmlAbsentError as absent:
        sys.stderr.write(absent.reason + "\n")
        return ABSENT
    except CrucibleError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
