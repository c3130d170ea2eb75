"""Install a wheel into an empty environment outside the checkout, without torch, and use it there: `make wheel-check`.

Verifies: one top-level import name and every file of the package; the command line starts and the ledger-depth
commands of ``COMMANDS`` end as they should where torch does not exist.  Does not verify: anything that needs tensors.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tree import package_files
from wheel_rules import violations

ROOT = Path(__file__).resolve().parents[2]

#: What must work on the core dependencies alone.
COMMANDS = (
    ["--version"],
    ["--help"],
    ["doctor", "--json"],
    ["invariants"],
    ["capacity"],
    ["fuzz", "--depth", "ledger", "--examples", "20"],
)


def main() -> int:
    """Check the wheel that the command line names; print each finding and return 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--constraint", type=Path, required=True)
    options = parser.parse_args()

    found = violations(options.wheel, package_files(ROOT))
    for line in found:
        print(line)
    if found:
        return 1
    with tempfile.TemporaryDirectory(prefix="kvcrucible-wheel-") as folder:
        return _use(options.wheel.resolve(), options.constraint.resolve(), Path(folder))


def _use(wheel: Path, constraint: Path, folder: Path) -> int:
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(constraint)]
    subprocess.run([python, *pip, str(wheel)], cwd=folder, env=own, check=True)
    absent = subprocess.run([python, "-c", "import torch"], cwd=folder, env=own, capture_output=True)
    if absent.returncode == 0:
        print("torch came along: the core dependencies are no longer light")
        return 1
    for command in COMMANDS:
        done = subprocess.run(
            [python.with_name("kvcrucible"), *command],
            cwd=folder,
            env=own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        print(f"kvcrucible {' '.join(command)}: exit {done.returncode}")
        if done.returncode:
            print(done.stdout + done.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
