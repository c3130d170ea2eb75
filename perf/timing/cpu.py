"""Times something on the CPU: process CPU time beside wall time, instructions where the machine offers them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvcrucible.perf.timing.instructions import InstructionCounter


@dataclass(frozen=True, slots=True)
class CpuTiming:
    """One run: seconds of CPU (all threads of the process), seconds of the wall clock, instructions or None."""

    cpu_s: float
    wall_s: float
    instructions: int | None


def time_cpu(
    work: Callable[[], object],
    repeats: int,
    *,
    warm_up: int = 1,
    slowdown: float = 0.0,
    counter: InstructionCounter | None = None,
) -> list[CpuTiming]:
    """Return ``repeats`` timings of ``work()``, after ``warm_up`` runs that are not kept.

    The collector of cycles stands still inside a run and runs between two, so that no run pays for another's garbage.
    ``slowdown``: each run is followed by a spin of that share of its own CPU time inside the window, which is a
    slowdown of known size for the gate's positive control.
    """
    if repeats < 1 or warm_up < 0 or slowdown < 0:
        raise ValueError("repeats >= 1, warm_up >= 0, slowdown >= 0")
    for _ in range(warm_up):
        work()
    found = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            gc.collect()
            found.append(_once(work, slowdown, counter))
    finally:
        if was_enabled:
            gc.enable()
    return found


def _once(work: Callable[[], object], slowdown: float, counter: InstructionCounter | None) -> CpuTiming:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    if counter is None:
        work()
    else:
        with counter:
            work()
    if slowdown:
        now = time.process_time_ns()
        until = now + int((now - cpu) * slowdown)
        while time.process_time_ns() < until:
            pass
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return CpuTiming(cpu / 1e9, wall / 1e9, None if counter is None else counter.instructions)
