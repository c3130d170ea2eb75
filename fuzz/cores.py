"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the cores of this process, which may be fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
