"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return on how many cores this process may run; affinity counts, a control group's quota does not."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
