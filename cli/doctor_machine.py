"""What ``doctor`` reads from the operating system: processors, memory, compiler.  Standard library only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

#: Where a control group states its limits, version 2 first; both are absent outside Linux.
CGROUP_MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")

#: Compilers in the order in which they are tried, after ``$CXX``.
COMPILERS = ("c++", "g++", "clang++")

#: Seconds that a compiler may take to state its version.
VERSION_TIMEOUT_SECONDS = 10


def cpu_quota(source: Path = CGROUP_CPU) -> float | None:
    """Return the processors' worth of time that the control group grants, or None where it sets no limit."""
    try:
        quota, period = source.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def memory_bytes() -> int | None:
    """Return the size of the physical memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def memory_limit_bytes(sources: tuple[Path, ...] = CGROUP_MEMORY) -> int | None:
    """Return the control group's limit of memory, or None where there is none (or one above what the machine has)."""
    for source in sources:
        try:
            limit = int(source.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        physical = memory_bytes()
        return limit if physical is None or limit < physical else None
    return None


def compiler() -> tuple[str, str] | None:
    """Return name and version line of the first C++ compiler that runs, or None."""
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        try:
            told = subprocess.run(
                [path, "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=VERSION_TIMEOUT_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return name, (told.stdout.splitlines() or [""])[0]
    return None


def has_python_headers() -> bool:
    """Return whether C and C++ extensions of this Python can be compiled (``Python.h`` is there)."""
    return Path(sysconfig.get_path("include"), "Python.h").is_file()
