"""Reads one device once: fast sensors, energy, health, and the stable facts for its fingerprint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.nvml import values
from kvcrucible.perf.nvml.binding import Library, Missing, text
from kvcrucible.perf.nvml.records import Health, Reading

T = TypeVar("T")


class Device:
    """One GPU, or one MIG slice of it.  Nothing here changes a setting: that needs privileges and helps nobody else.

    ``index`` counts GPUs from 0; ``mig_uuid`` names a slice instead.  Raises :class:`InputError` where there is no such
    device.  Must not outlive the library.
    """

    def __init__(self, library: Library, index: int = 0, mig_uuid: str = "") -> None:
        self._library, self._nvml = library, library.binding
        nvml = self._nvml
        if mig_uuid:
            self._slice = self._required("slice", lambda: nvml.nvmlDeviceGetHandleByUUID(mig_uuid), mig_uuid)
            self._board = self._required(
                "board", lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._slice), mig_uuid
            )
        else:
            self._board = self._required(
                "device", lambda: nvml.nvmlDeviceGetHandleByIndex(index), f"GPU {index}"
            )
            self._slice = self._board
        mode = self._or_none("MIG mode", lambda: nvml.nvmlDeviceGetMigMode(self._board))
        #: Whether the GPU is split; what the board says about power and energy is then everybody's.
        self.mig = bool(mode and mode[0])
        self._reading_power, self.power_source = self._choose_power()

    def facts(self) -> dict[str, str]:
        """Return the stable facts of the device, in the names of the machine's fingerprint."""
        nvml, board = self._nvml, self._board
        found: dict[str, str | None] = {
            "gpu": self._worded("name", lambda: text(nvml.nvmlDeviceGetName(board))),
            "gpus": self._worded("count", nvml.nvmlDeviceGetCount),
            "driver": self._worded("driver", lambda: text(nvml.nvmlSystemGetDriverVersion())),
            "cuda": self._worded("CUDA version", lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion())),
            "gpu_memory_gib": self._worded(
                "memory", lambda: round(nvml.nvmlDeviceGetMemoryInfo(self._slice).total / (1 << 30))
            ),
            "power_limit_w": self._worded(
                "power limit", lambda: round(nvml.nvmlDeviceGetEnforcedPowerLimit(board) / 1000)
            ),
            "mig_profile": self._profile(),
        }
        return {name: value for name, value in found.items() if value}

    def read(self) -> Reading:
        """Read the fast sensors; a few calls, each of which may take milliseconds."""
        nvml, board = self._nvml, self._board
        started = time.monotonic_ns()
        sm = self._or_none("SM clock", lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_SM))
        memory = self._or_none(
            "memory clock", lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_MEM)
        )
        reasons = self._reasons()
        names = tuple(values.REASON_COUNTERS)
        fields = self._fields(
            (*(f"counter: {name}" for name in names), "memory temperature"),
            (*values.REASON_COUNTERS.values(), values.FIELD_MEMORY_TEMPERATURE),
        )
        power = self._reading_power()
        temperature = self._temperature()
        margin = self._or_none("margin", lambda: nvml.nvmlDeviceGetMarginTemperature(board))
        stopped = time.monotonic_ns()
        counters = {name: int(value) for name, value in zip(names, fields, strict=False) if value is not None}
        return Reading(
            (started + stopped) // 2,
            stopped - started,
            sm,
            memory,
            reasons,
            counters,
            power,
            temperature,
            None if fields[-1] is None else int(fields[-1]),
            margin,
        )

    def energy_mj(self) -> int | Missing:
        """Return the millijoules that the board took since the driver was loaded, or why it does not say."""
        nvml, board = self._nvml, self._board
        total = self._library.ask("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(board))
        if not isinstance(total, Missing):
            return int(total)
        (field,) = self._fields(("energy field",), (values.FIELD_TOTAL_ENERGY,))
        return total if field is None else int(field)

    def health(self) -> Health:
        """Read what changes slowly."""
        nvml, board = self._nvml, self._board
        at = time.monotonic_ns()
        memory = self._or_none("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(self._slice))
        pids = self._pids()
        corrected = self._errors("ECC corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)
        uncorrected = self._errors("ECC uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        remapped = self._or_none("remapped rows", lambda: nvml.nvmlDeviceGetRemappedRows(board))
        return Health(
            at,
            None if memory is None else int(memory.used),
            None if memory is None else int(memory.total),
            pids,
            corrected,
            uncorrected,
            None if remapped is None else tuple(int(one) for one in remapped),  # type: ignore[arg-type]
        )

    def _errors(self, reading: str, kind: int) -> int | None:
        """Return the memory errors of one kind since the driver was loaded."""
        nvml, board = self._nvml, self._board
        return self._or_none(
            reading, lambda: int(nvml.nvmlDeviceGetTotalEccErrors(board, kind, nvml.NVML_VOLATILE_ECC))
        )

    def _pids(self) -> tuple[int, ...] | None:
        nvml = self._nvml
        compute = self._or_none(
            "compute processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._slice)
        )
        graphics = self._or_none(
            "graphics processes", lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(self._slice)
        )
        if compute is None:
            return None
        return tuple(sorted({int(one.pid) for one in (*compute, *(graphics or ()))}))

    def _reasons(self) -> int | None:
        nvml, board = self._nvml, self._board
        mask = self._or_none("event reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(board))
        if mask is None and self._refused_for_good("event reasons"):
            # Drivers before the renaming know the same mask under its old name only.
            mask = self._or_none(
                "throttle reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(board)
            )
        return None if mask is None else int(mask)

    def _temperature(self) -> int | None:
        nvml, board = self._nvml, self._board
        sensor = nvml.NVML_TEMPERATURE_GPU
        found = self._or_none("temperature", lambda: nvml.nvmlDeviceGetTemperatureV(board, sensor))
        if found is None and self._refused_for_good("temperature"):
            # The older call, which newer drivers call deprecated.
            found = self._or_none("older temperature", lambda: nvml.nvmlDeviceGetTemperature(board, sensor))
        return None if found is None else int(found)

    def _choose_power(self) -> tuple[Callable[[], float | None], str]:
        """Return how power is read, and its name: the instant one where there is one.

        The plain call is an average over a second on most boards, which a short run ends before.
        """
        nvml, board = self._nvml, self._board
        field = (values.FIELD_POWER_INSTANT, values.SCOPE_GPU)
        if self._fields(("instant power",), (field,))[0] is not None:

            def instant() -> float | None:
                (found,) = self._fields(("instant power",), (field,))
                return None if found is None else found / 1000

            return instant, "instant, GPU"

        def average() -> float | None:
            found = self._or_none("power", lambda: nvml.nvmlDeviceGetPowerUsage(board))
            return None if found is None else found / 1000

        return average, "none" if average() is None else "average of one second"

    def _profile(self) -> str | None:
        if self._slice is self._board:
            return "split" if self.mig else None
        nvml = self._nvml
        found = self._or_none("MIG profile", lambda: nvml.nvmlDeviceGetAttributes_v2(self._slice))
        if found is None:
            return "slice of unknown size"
        return f"{found.gpuInstanceSliceCount}g.{round(found.memorySizeMB / 1024)}gb"

    def _fields(
        self, names: Sequence[str], wanted: Sequence[int | tuple[int, int]]
    ) -> tuple[float | None, ...]:
        """Return a value for each field, None where it was refused; one call for all, each with a status of its own."""
        library = self._library
        whole = "field values"
        got = library.ask(whole, lambda: self._nvml.nvmlDeviceGetFieldValues(self._board, list(wanted)))
        if isinstance(got, Missing):
            library.refused.update(dict.fromkeys(names, got))
            return (None,) * len(names)
        found: list[float | None] = []
        for name, one in zip(names, got, strict=True):
            member = values.VALUE_MEMBERS.get(int(one.valueType))
            if one.nvmlReturn or member is None:
                library.refused[name] = library.missing(int(one.nvmlReturn) or values.NOT_SUPPORTED)
                found.append(None)
            else:
                library.refused.pop(name, None)
                found.append(getattr(one.value, member))
        return tuple(found)

    def _required(self, reading: str, call: Callable[[], Any], name: str) -> Any:
        found = self._library.ask(reading, call)
        if isinstance(found, Missing):
            raise InputError(f"{name[:200]}: {found}")
        return found

    def _or_none(self, reading: str, call: Callable[[], T]) -> T | None:
        found = self._library.ask(reading, call)
        return None if isinstance(found, Missing) else found

    def _worded(self, reading: str, call: Callable[[], object]) -> str | None:
        found = self._or_none(reading, call)
        return None if found is None else str(found)

    def _refused_for_good(self, reading: str) -> bool:
        known = self._library.refused.get(reading)
        return known is not None and known.code in values.PERMANENT


def _cuda(version: int) -> str:
    """Return 13.0 for 13000, as the driver writes it."""
    return f"{version // 1000}.{version % 1000 // 10}"
