"""What a machine is, as far as its figures can be compared: stable facts only.

A fingerprint must be the same an hour later and another one after a change that moves figures.  So model, counts and
driver versions belong to it; clocks, temperatures, load, free memory, host names and dates do not.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.origin import Origin

#: Facts that a fingerprint may hold.  A closed list, because one unstable reading makes every certificate worthless.
FIELDS = frozenset(
    {
        "system",
        "kernel",
        "architecture",
        "cpu",
        "cpus",
        "memory_gib",
        "python",
        "gpu",
        "gpus",
        "gpu_memory_gib",
        "driver",
        "cuda",
        "mig_profile",
        "power_limit_w",
        "machine",
    }
)

#: Longest value of a fact, in characters.
MAX_VALUE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class MachineFingerprint:
    """The stable facts of one machine (or of one simulated machine), sorted by name.

    Two fingerprints are of one machine iff they are equal.  Raises :class:`InputError` for a fact outside
    :data:`FIELDS`, one named twice, or a value that is empty or too long.
    """

    origin: Origin
    facts: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.facts]
        if unknown := sorted(set(names) - FIELDS):
            raise InputError(f"fingerprint: {', '.join(unknown)} is not one of {', '.join(sorted(FIELDS))}")
        if len(set(names)) < len(names) or not names:
            raise InputError("fingerprint: each fact stands once, and there is at least one")
        for name, value in self.facts:
            if not 0 < len(value) <= MAX_VALUE_CHARACTERS:
                raise InputError(f"fingerprint: {name} has 1 to {MAX_VALUE_CHARACTERS} characters")
        object.__setattr__(self, "facts", tuple(sorted(self.facts)))

    @classmethod
    def of(cls, origin: Origin, facts: Mapping[str, str]) -> MachineFingerprint:
        """Return the fingerprint that ``facts`` make."""
        return cls(origin, tuple(facts.items()))

    @property
    def id(self) -> str:
        """SHA-256 over origin and facts; that of a simulated machine says so."""
        text = json.dumps([self.origin, self.facts], ensure_ascii=True, separators=(",", ":"))
        prefix = "SIMULATED-" if self.origin is Origin.SIMULATED else ""
        return f"{prefix}sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"

    def differences(self, other: MachineFingerprint) -> tuple[str, ...]:
        """Return one line for each fact that differs, an empty tuple for one machine."""
        mine, theirs = dict(self.facts), dict(other.facts)
        lines = [
            f"{name}: {mine.get(name, 'absent')} against {theirs.get(name, 'absent')}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]
        if self.origin is not other.origin:
            lines.insert(0, f"origin: {self.origin} against {other.origin}")
        return tuple(lines)

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form, with the id for readers."""
        return {"origin": self.origin.value, "facts": dict(self.facts), "id": self.id}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> MachineFingerprint:
        """Return what a checked JSON form says; raises :class:`InputError` where the id is another one's."""
        found = cls.of(Origin(plain["origin"]), plain["facts"])
        if plain["id"] != found.id:
            raise InputError("fingerprint: the id does not belong to the facts; the file has been edited")
        return found


def this_machine(extra: Mapping[str, str] | None = None) -> MachineFingerprint:
    """Return the fingerprint of the machine that this runs on; ``extra`` adds facts, such as those of a GPU."""
    facts = {
        "system": platform.system(),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": str(_usable_cpus()),
        "python": f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}",
    }
    if (gib := _memory_gib()) is not None:
        facts["memory_gib"] = str(gib)
    known = {
        name: value[:MAX_VALUE_CHARACTERS] for name, value in (facts | dict(extra or {})).items() if value
    }
    return MachineFingerprint.of(Origin.MEASURED, known)


def _cpu_model(source: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in source.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"model name", "Model", "cpu model"} and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> int | None:
    """Return the physical memory to the nearest GiB: firmware and kernel keep back a little more or less each boot."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))
    except (AttributeError, OSError, ValueError):
        return None
