"""Results of other tools, read within limits: pytest-benchmark, asv, Google Benchmark, nvbench.

Metrics keep the names that their tool gave them, with the tool in front, so that they never join a series of our own.
The machine is what the file says, under a label that the importer gives: figures from two files are one series only if
both say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import read_json
from kvcrucible.perf.history.store import Figure
from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.fingerprint import MAX_VALUE_CHARACTERS, MachineFingerprint

#: Largest file in bytes, most figures in one, most samples of one figure.
MAX_BYTES, MAX_FIGURES, MAX_SAMPLES = 64 << 20, 100_000, 100_000

#: Seconds in a unit of Google Benchmark.
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

#: Summaries of nvbench that are taken, in seconds, and their names here.
_NVBENCH_TAGS = {
    "nv/cold/time/gpu/mean": "gpu-cold",
    "nv/cold/time/cpu/mean": "cpu-cold",
    "nv/batch/time/gpu/mean": "gpu-batch",
}


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """What a file holds; ``skipped`` counts results without a usable figure (failed, not finite, not a time)."""

    tool: str
    revision: str
    started_s: float
    machine: MachineFingerprint
    figures: tuple[Figure, ...]
    skipped: int


def read_foreign(path: Path, label: str, revision: str = "") -> ForeignRun:
    """Return the results in the file ``path``, whose tool is told by its form.

    ``label`` names the machine; ``revision`` is used where the file names none.  Raises :class:`InputError` where it is
    no result of a known tool, is damaged, or is too large.
    """
    plain = read_json(path, MAX_BYTES, f"name a result of {', '.join(_TOOLS)}")
    if not isinstance(plain, dict):
        raise InputError(f"{path}: not a result of {', '.join(_TOOLS)}")
    for tool, (recognise, read) in _TOOLS.items():
        if recognise(plain):
            try:
                return _run(tool, read(plain), plain, label, revision)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
                raise InputError(f"{path}: a damaged result of {tool}: {error!r:.200}") from None
    raise InputError(f"{path}: not a result of {', '.join(_TOOLS)}")


def _run(
    tool: str, results: Iterator[Figure | None], plain: Mapping[str, Any], label: str, revision: str
) -> ForeignRun:
    figures: dict[str, Figure] = {}
    skipped = 0
    for one in results:
        if one is None or not math.isfinite(one.value):
            skipped += 1
            continue
        if one.metric in figures:
            raise InputError(f"{one.metric[:200]} stands twice")
        figures[one.metric] = one
        if len(figures) > MAX_FIGURES or one.samples > MAX_SAMPLES:
            raise InputError(f"more than {MAX_FIGURES:,} figures, or {MAX_SAMPLES:,} samples of one")
    if not figures:
        raise InputError("no figure that can be used")
    said, started = _said(tool, plain)
    facts = {"machine": label, **_facts(tool, plain)}
    known = {name: str(value)[:MAX_VALUE_CHARACTERS] for name, value in facts.items() if value}
    return ForeignRun(
        tool,
        (said or revision or "unknown")[:100],
        started,
        MachineFingerprint.of(Origin.MEASURED, known),
        tuple(figures.values()),
        skipped,
    )


def _figure(
    metric: str, samples: list[float], value: float | None = None, rejected: int = 0
) -> Figure | None:
    kept = [float(one) for one in samples if math.isfinite(one)]
    if value is None:
        if not kept:
            return None
        value = median(kept)
    return Figure(metric, "s", float(value), max(len(kept), 1), rejected, {"samples": kept} if kept else None)


def _pytest_benchmark(plain: Mapping[str, Any]) -> Iterator[Figure | None]:
    for one in plain["benchmarks"]:
        stats = one["stats"]
        yield _figure(
            f"pytest-benchmark/{one.get('fullname') or one['name']}",
            list(stats.get("data") or ()),
            float(stats["median"]),
        )


def _asv(plain: Mapping[str, Any]) -> Iterator[Figure | None]:
    columns = plain["result_columns"]
    for name, row in plain["results"].items():
        entry = dict(zip(columns, row, strict=False))
        results, parameters = entry.get("result"), entry.get("params") or []
        if not isinstance(results, list):
            yield None
            continue
        samples = entry.get("samples") or []
        for place, choice in enumerate(product(*parameters)):
            case = f"({', '.join(map(str, choice))})" if choice else ""
            value = results[place] if place < len(results) else None
            there = samples[place] if place < len(samples) else None
            yield None if value is None else _figure(f"asv/{name}{case}", list(there or ()), float(value))


def _google_benchmark(plain: Mapping[str, Any]) -> Iterator[Figure | None]:
    grouped: dict[tuple[str, str], list[float]] = {}
    failed: dict[str, int] = {}
    for one in plain["benchmarks"]:
        if one.get("run_type", "iteration") != "iteration":
            continue
        name = one.get("run_name") or one["name"]
        if one.get("error_occurred") or one.get("skipped"):
            failed[name] = failed.get(name, 0) + 1
            continue
        scale = _UNITS[one.get("time_unit", "ns")]
        for clock in ("real_time", "cpu_time"):
            grouped.setdefault((name, clock), []).append(float(one[clock]) * scale)
    for (name, clock), samples in grouped.items():
        yield _figure(f"google-benchmark/{name}/{clock}", samples, rejected=failed.get(name, 0))
    for name in failed:
        if (name, "real_time") not in grouped:
            yield None


def _nvbench(plain: Mapping[str, Any]) -> Iterator[Figure | None]:
    for benchmark in plain["benchmarks"]:
        for state in benchmark["states"]:
            if state.get("is_skipped"):
                yield None
                continue
            where = f"nvbench/{benchmark['name']}/{state['name']}"
            for summary in state.get("summaries") or ():
                kind = _NVBENCH_TAGS.get(summary.get("tag", ""))
                if kind is None:
                    continue
                data = {entry["name"]: entry["value"] for entry in summary["data"]}
                yield _figure(f"{where}/{kind}", [], float(data["value"]))


def _said(tool: str, plain: Mapping[str, Any]) -> tuple[str, float]:
    """Return the revision that the file names, and when it was made, in seconds since 1970."""
    if tool == "asv":
        return str(plain["commit_hash"]), float(plain.get("date") or 0) / 1000
    if tool == "pytest-benchmark":
        return str((plain.get("commit_info") or {}).get("id") or ""), _seconds(plain.get("datetime"))
    if tool == "google-benchmark":
        return "", _seconds(plain["context"].get("date"))
    return "", 0.0


def _seconds(stated: object) -> float:
    if not isinstance(stated, str):
        return 0.0
    found = datetime.fromisoformat(stated)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _facts(tool: str, plain: Mapping[str, Any]) -> dict[str, Any]:
    if tool == "pytest-benchmark":
        info = plain.get("machine_info") or {}
        cpu = info.get("cpu") or {}
        return {
            "system": info.get("system"),
            "cpu": cpu.get("brand_raw"),
            "python": info.get("python_version"),
        }
    if tool == "asv":
        params = plain.get("params") or {}
        return {"cpu": params.get("cpu"), "architecture": params.get("arch"), "python": params.get("python")}
    if tool == "google-benchmark":
        return {"cpus": plain["context"].get("num_cpus")}
    devices = plain.get("devices") or []
    return {"gpu": devices[0].get("name") if devices else None, "gpus": len(devices) or None}


_Reader = Callable[[Mapping[str, Any]], Iterator[Figure | None]]

_TOOLS: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], _Reader]] = {
    "pytest-benchmark": (lambda plain: "benchmarks" in plain and "machine_info" in plain, _pytest_benchmark),
    "asv": (lambda plain: "results" in plain and "result_columns" in plain, _asv),
    "google-benchmark": (lambda plain: "benchmarks" in plain and "context" in plain, _google_benchmark),
    "nvbench": (lambda plain: "benchmarks" in plain and "devices" in plain, _nvbench),
}
