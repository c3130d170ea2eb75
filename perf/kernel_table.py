"""What kernels cost on a target, without the target: the ahead-of-time table (DESIGN 4.11).

The figures are deterministic for one version of Triton and of the assembler, which stand beside them: registers,
spills, shared memory and instructions, for every variant.  Times are not among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvcrucible.contract.errors import CrucibleError, InputError

#: Targets that can be asked for; the compiling module knows what they are to Triton.
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")

#: Profiles whose variants must keep everything in registers.
NO_SPILLS = ("BF16", "INT8-G64")

_LAST_WORDS = 2_000


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The variants of one target, each as ``ahead.compile_variant`` describes it, and the versions behind them."""

    target: str
    versions: dict[str, str]
    variants: tuple[dict[str, Any], ...]

    @property
    def unsupported(self) -> tuple[dict[str, Any], ...]:
        """The variants that the target cannot hold."""
        return tuple(variant for variant in self.variants if "unsupported" in variant)

    @property
    def spilling(self) -> tuple[dict[str, Any], ...]:
        """The variants that keep values in memory for want of registers."""
        return tuple(variant for variant in self.variants if spills(variant))

    @property
    def broken_promises(self) -> tuple[dict[str, Any], ...]:
        """Variants of the ``NO_SPILLS`` profiles that spill or are not supported."""
        found = (*self.spilling, *self.unsupported)
        return tuple(variant for variant in found if variant["profile"] in NO_SPILLS)

    def to_plain(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {
            "target": self.target,
            "versions": self.versions,
            "variants": list(self.variants),
            "unsupported": len(self.unsupported),
            "spilling": len(self.spilling),
        }


def spills(variant: dict[str, Any]) -> bool:
    """Tell whether a variant's compiled form spills."""
    return bool(variant.get("spill_store_bytes") or variant.get("spill_load_bytes"))


def require_target(target: str) -> None:
    """Raise ``InputError`` for a target that cannot be asked for."""
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r:.40}; use {', '.join(TARGETS)}")


def compile_table(
    target: str, profiles: Sequence[str] = (), on_variant: Callable[[int], None] | None = None
) -> KernelTable:
    """Return the table of one target, compiled in a child process: a process interprets kernels or compiles them.

    Raises ``InputError`` for an unknown target and ``CrucibleError`` where the child fails.
    """
    require_target(target)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "kvcrucible.engine.kernels.triton.ahead",
        target,
        *profiles,
    ]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        found: list[dict[str, Any]] = []
        words = ""
        try:
            for line in child.stdout:
                # What compilers say besides goes the same way; only our own lines are objects.
                if line.startswith("{"):
                    found.append(json.loads(line))
                    if on_variant is not None:
                        on_variant(len(found) - 1)
                else:
                    words = (words + line)[-_LAST_WORDS:]
        except BaseException:
            child.kill()
            raise
    if child.returncode or len(found) < 2:
        raise CrucibleError(f"compiling for {target} ended with status {child.returncode}: {words.strip()}")
    header, *variants = found
    return KernelTable(target, header["versions"], tuple(variants))
