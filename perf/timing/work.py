"""The engine's own counters as exact metrics: what was done, the same on every machine."""

from __future__ import annotations

from dataclasses import asdict

from kvcrucible.engine.work import WorkCounters


def exact_metrics(case: str, before: WorkCounters, after: WorkCounters) -> dict[str, int]:
    """Return ``work/CASE/COUNTER`` to how far each counter moved between two copies of the engine's counters."""
    earlier, later = asdict(before), asdict(after)
    return {
        f"work/{case}/{name.replace('_', '-')}": int(later[name]) - int(earlier[name])
        for name in sorted(later)
    }
