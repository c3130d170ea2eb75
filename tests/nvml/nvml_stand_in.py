"""Compiles the stand-in of the driver's library and shows the sampler on it: ``python tests/nvml/nvml_stand_in.py``.

Each case runs the real command, the real binding and real ctypes calls; only the library behind them is another.  All
that it prints is SIMULATED.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stand_in.c")

#: What is shown: name -> seconds, environment.
CASES: Mapping[str, tuple[float, Mapping[str, str]]] = {
    "energy": (5.5, {}),
    "throttle rejection": (1.0, {"STAND_IN_REASONS": "0x60"}),
    "counter reset": (1.0, {"STAND_IN_RESET_MS": "500"}),
    "function not supported": (
        1.0,
        {
            "STAND_IN_FAIL": "nvmlDeviceGetTotalEnergyConsumption=3,field:83=3,nvmlDeviceGetMarginTemperature=3"
        },
    ),
    "library not found": (1.0, {"LD_LIBRARY_PATH": ""}),
}


def compiler() -> str | None:
    """Return the C compiler, or None where there is none."""
    return shutil.which("gcc") or shutil.which("cc")


def compile_stand_in(folder: Path) -> Path:
    """Compile the stand-in into ``folder`` under the name that the binding loads; return the folder."""
    found = compiler()
    assert found is not None
    name = "libnvidia-ml.so.1"
    flags = ("-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-Wall", "-Wextra", "-Werror")
    subprocess.run([found, *flags, "-o", str(folder / name), str(SOURCE)], check=True)
    return folder


def command(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``kvcrucible perf sampler`` with the stand-in in place of the driver."""
    return subprocess.run(
        [sys.executable, "-m", "kvcrucible", "perf", "sampler", *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "COLUMNS": "110", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def main() -> int:
    """Show every case."""
    with tempfile.TemporaryDirectory() as name:
        folder = compile_stand_in(Path(name))
        for case, (seconds, environment) in CASES.items():
            done = command(folder, "--seconds", str(seconds), environment=environment)
            print(f"== {case} (status {done.returncode})\n{done.stdout}{done.stderr}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
