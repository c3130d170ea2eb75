"""A simulated GPU with a clock of its own: it heats up, caps its power, throttles, and its sensors look away.

Scalar and stateful, for the chain that reads a machine: a process runs, time passes, sensors are read.  Where only the
scatter between processes matters, :mod:`kvcrucible.perf.simulator.noise` is a thousand times faster.

Not a model of any product: the numbers are round, and what is modelled is what fools measurements.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint

#: Event reasons, by the values that NVML uses.
SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL = 0x4, 0x8, 0x20

#: Seconds in which the state of the machine is taken to stand still.
_STEP_S = 0.01


@dataclass(slots=True)
class SimulatedClock:
    """Time that passes only when somebody advances it."""

    now_s: float = 0.0

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass; raises ``ValueError`` for a negative number."""
        if not seconds >= 0:
            raise ValueError(f"{seconds} s: time does not run backwards")
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class GpuTraits:
    """What a simulated GPU is like.

    Clock in Hz, power in W, temperatures in °C.  ``thermal_resistance`` in K/W and ``thermal_time_s`` make a
    first-order body.  ``cap_w`` is the power limit.  Above ``slowdown_c`` the clock falls by ``throttle`` (a share).
    ``mode_gap`` is by how much a process in the second mode, drawn with ``mode_share``, needs more cycles.
    ``process_noise`` is the standard deviation of log cycles between processes.  ``clock_drift`` is the share of the
    clock that is lost in an hour.

    Sensors: the energy counter shows its value as of the last multiple of ``energy_period_s``; the power average covers
    only the first ``power_duty`` of each ``power_window_s``, so that short kernels fall into a gap.
    """

    boost_hz: float = 1.98e9
    idle_w: float = 100.0
    busy_w: float = 550.0
    cap_w: float = 700.0
    ambient_c: float = 30.0
    thermal_resistance: float = 0.08
    thermal_time_s: float = 20.0
    slowdown_c: float = 87.0
    throttle: float = 0.15
    mode_gap: float = 0.0
    mode_share: float = 0.0
    process_noise: float = 0.005
    clock_drift: float = 0.0
    energy_period_s: float = 0.1
    power_window_s: float = 0.1
    power_duty: float = 0.25


@dataclass(frozen=True, slots=True)
class GpuTiming:
    """One process on the simulated GPU: seconds, clock cycles, the reasons for a lower clock that occurred (a mask)."""

    seconds: float
    cycles: float
    reasons: int
    temperature_c: float
    origin: Origin = field(default=Origin.SIMULATED, init=False)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the sensors say now; power is None until the first window has been seen."""

    clock_hz: float
    temperature_c: float
    total_energy_mj: int
    average_power_w: float | None
    origin: Origin = field(default=Origin.SIMULATED, init=False)


class SimulatedGpu:
    """One simulated GPU on one clock.  ``true_energy_j`` is what the sensors are to be compared with."""

    def __init__(self, clock: SimulatedClock, traits: GpuTraits | None = None, seed: int = 0) -> None:
        self.clock, self.traits = clock, traits or GpuTraits()
        self.temperature_c = self.traits.ambient_c
        self.true_energy_j = 0.0
        self._random = random.Random(seed)
        self._start_s = clock.now_s
        self._shown_energy_j = 0.0
        self._window_j = self._window_s = 0.0
        self._average_w: float | None = None

    @property
    def fingerprint(self) -> MachineFingerprint:
        """The machine's fingerprint, which is SIMULATED and so is everything that carries it."""
        return MachineFingerprint.of(
            Origin.SIMULATED,
            {
                "machine": "simulated GPU",
                "gpu": f"boost {self.traits.boost_hz / 1e9:g} GHz",
                "power_limit_w": f"{self.traits.cap_w:g}",
            },
        )

    def run(self, cycles: float) -> GpuTiming:
        """Run one process that needs about ``cycles`` clock cycles; time passes and the GPU heats up."""
        traits = self.traits
        mode = traits.mode_gap if self._random.random() < traits.mode_share else 0.0
        needed = cycles * math.exp(mode + self._random.gauss(0.0, traits.process_noise))
        started, done, reasons = self.clock.now_s, 0.0, 0
        while done < needed:
            hertz, why = self._clock_hz(traits.busy_w)
            seconds = min(_STEP_S, (needed - done) / hertz)
            done += max(seconds * hertz, 1.0)
            reasons |= why
            # Power follows the cube of the clock, as voltage goes with it.
            self._pass(seconds, traits.busy_w * (hertz / traits.boost_hz) ** 3)
        return GpuTiming(self.clock.now_s - started, needed, reasons, self.temperature_c)

    def idle(self, seconds: float) -> None:
        """Let time pass without work."""
        while seconds > 0:
            step = min(_STEP_S, seconds)
            self._pass(step, self.traits.idle_w)
            seconds -= step

    def read(self) -> GpuReading:
        """Read the sensors; takes no time."""
        hertz, _ = self._clock_hz(self.traits.idle_w)
        return GpuReading(hertz, self.temperature_c, int(self._shown_energy_j * 1000), self._average_w)

    def _clock_hz(self, wanted_w: float) -> tuple[float, int]:
        traits, reasons = self.traits, 0
        hertz = traits.boost_hz * (1 - traits.clock_drift * (self.clock.now_s - self._start_s) / 3600)
        if wanted_w > traits.cap_w:
            hertz *= (traits.cap_w / wanted_w) ** (1 / 3)
            reasons |= SW_POWER_CAP
        if self.temperature_c >= traits.slowdown_c:
            hertz *= 1 - traits.throttle
            reasons |= SW_THERMAL
        return hertz, reasons

    def _pass(self, seconds: float, watts: float) -> None:
        traits, before = self.traits, self.clock.now_s
        self.clock.advance(seconds)
        settled = traits.ambient_c + watts * traits.thermal_resistance
        self.temperature_c = settled + (self.temperature_c - settled) * math.exp(
            -seconds / traits.thermal_time_s
        )
        self.true_energy_j += watts * seconds
        if before // traits.energy_period_s != self.clock.now_s // traits.energy_period_s:
            self._shown_energy_j = self.true_energy_j
        phase = before % traits.power_window_s
        if phase < traits.power_duty * traits.power_window_s:
            self._window_j += watts * seconds
            self._window_s += seconds
        if before // traits.power_window_s != self.clock.now_s // traits.power_window_s and self._window_s:
            self._average_w = self._window_j / self._window_s
            self._window_j = self._window_s = 0.0
