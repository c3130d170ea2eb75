"""Compares two revisions: counts first, then blocks of fresh processes until the gate wants no more.

A block is four processes in random order: base, head, base once more (the unchanged twin) and base with a planted
slowdown (the slowed twin).  The unchanged twin also gives the noise floor of this very run, since on a machine that is
shared yesterday's certificate says nothing; a stored one can be brought instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import parse_json
from kvcrucible.perf.child_process import run_child
from kvcrucible.perf.compare.figures import BytecodeChange, bytecode_changes, counted, paired
from kvcrucible.perf.compare.revisions import Revision
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint, this_machine
from kvcrucible.perf.statistics.gate import Run, judge
from kvcrucible.perf.statistics.noise_floor import NoiseFloor, certify, measure_noise
from kvcrucible.perf.statistics.samples import PairedSamples
from kvcrucible.perf.statistics.thresholds import Thresholds
from kvcrucible.perf.statistics.verdict import RunVerdict

#: Modules that every process takes from whoever compares, in the order in which they load.
DRIVERS = (
    "kvcrucible.perf.timing.instructions",
    "kvcrucible.perf.timing.cpu",
    "kvcrucible.perf.timing.bytecodes",
    "kvcrucible.perf.compare.smoke",
)

#: Counting processes of each side: two, so that a count that is not exact shows itself.
COUNTING_PROCESSES = 2

#: Timings of each case in one process.
REPEATS = 5

#: Seconds that one process may take, bytes that it may print.
TIMEOUT_SECONDS, MAX_OUTPUT_BYTES = 300, 16 << 20

#: The four processes of a block.
ROLES = ("base", "head", "unchanged", "slowed")

Process = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found: the gate's ``verdict`` after ``blocks`` of four processes; ``bytecodes`` say where work changed.

    ``left_out``: case to why it did not run on both sides.  ``not_measured``: what this machine does not offer.
    ``samples`` are all pairs, from which the verdict can be computed again.
    """

    verdict: RunVerdict
    blocks: int
    bytecodes: tuple[BytecodeChange, ...]
    left_out: Mapping[str, str]
    not_measured: tuple[str, ...]
    samples: tuple[PairedSamples, ...]


class Runner:
    """Starts processes of revisions; ``folder`` holds the files that they share and must outlive it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules = {}
        for name in DRIVERS:
            package, _, module = name.rpartition(".")
            text = resources.files(package).joinpath(f"{module}.py").read_text("utf-8")
            self._modules[name] = str(self._write(f"{name}.py", text))
        text = resources.files("kvcrucible.perf.compare").joinpath("process.py").read_text("utf-8")
        self._program = self._write("process.py", text)

    def __call__(self, revision: Revision, mode: str, slowdown: float = 0.0) -> Process:
        """Run one fresh process and return what it printed; raises :class:`InputError` where it failed.

        Hash seeds are fixed for counting, where they would move the count, and left to chance for timing.
        """
        settings = {
            "modules": self._modules,
            "root": str(revision.root),
            "mode": mode,
            "repeats": REPEATS,
            "slowdown": slowdown,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PYTHONPATH"] = str(revision.source)
        # One thread: a pool of them spins while it waits, which on a busy machine takes the time of everybody.
        environment["OMP_NUM_THREADS"] = "1"
        if mode == "count":
            environment["PYTHONHASHSEED"] = "0"
        command = [
            *(sys.executable, "-P", str(self._program)),
            str(self._write("settings.json", json.dumps(settings))),
        ]
        text = run_child(
            command,
            f"{revision.name}: a process",
            timeout_seconds=TIMEOUT_SECONDS,
            most_bytes=MAX_OUTPUT_BYTES,
            environment=environment,
            folder=revision.root,
        )
        found = parse_json(text, revision.name, "the code of a revision may print nothing as it is imported")
        if not isinstance(found, dict) or not isinstance(found.get("cases"), dict):
            raise InputError(f"{revision.name}: a process printed something else than figures")
        return found

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text, encoding="utf-8")
        return path


def compare(
    base: Revision,
    head: Revision,
    runner: Callable[..., Process],
    thresholds: Thresholds,
    *,
    seed: int = 0,
    noise_floor: NoiseFloor | None = None,
    counts_only: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare ``head`` with ``base``; the order inside blocks is drawn from ``seed``.

    ``counts_only``: two processes a side and no timing.  Raises :class:`InputError` where a process fails or no
    case runs on both sides.
    """
    machine = this_machine()
    counts: dict[str, list[Process]] = {"base": [], "head": []}
    for _ in range(COUNTING_PROCESSES):
        for name, revision in (("base", base), ("head", head)):
            counts[name].append(runner(revision, "count"))
            progress("counting work")
    work = counted(machine, counts["base"], counts["head"])
    bytecodes = bytecode_changes(counts["base"][0], counts["head"][0])
    left_out = _left_out(counts)
    if not work:
        reasons = "; ".join(f"{case}: {why}" for case, why in left_out.items())
        raise InputError(f"no case runs on both revisions: {reasons[:1000]}")
    if counts_only:
        counts_verdict = judge(Run((), work, (), (), None), thresholds, datetime.now(UTC))
        return Comparison(counts_verdict, 0, bytecodes, left_out, ("time: only counts were asked for",), ())
    generator = np.random.default_rng(seed)
    blocks: dict[str, list[Process]] = {role: [] for role in ROLES}
    places: list[dict[str, int]] = []
    slowdowns = thresholds.slowdown * min(
        policy.minimum_effect for name, policy in thresholds.metrics.items() if name == "cpu-time"
    )
    verdict: RunVerdict | None = None
    samples: tuple[PairedSamples, ...] = ()
    for pairs in thresholds.plan.looks:
        orders = _orders(generator, pairs - len(places))
        for order in orders:
            for role in order:
                revision = head if role == "head" else base
                blocks[role].append(runner(revision, "time", slowdowns if role == "slowed" else 0.0))
            places.append({role: place for place, role in enumerate(order)})
            progress(f"block {len(places)}")
        run = _assembled(machine, blocks, places, work, thresholds, noise_floor)
        verdict, samples = judge(run, thresholds, datetime.now(UTC)), run.sampled
        if not verdict.wants_pairs:
            break
    assert verdict is not None
    reason = blocks["base"][0].get("no_instructions")
    missing = (f"instructions: {reason}",) if reason else ()
    return Comparison(verdict, len(places), bytecodes, left_out, missing, samples)


def _orders(generator: np.random.Generator, count: int) -> list[list[str]]:
    """Return the order of each block: random, with base ahead of head in half of the blocks (as many as can be)."""
    found = []
    for number in range(count):
        order = [str(role) for role in generator.permutation(ROLES)]
        if (order.index("head") < order.index("base")) != bool(number % 2):
            swap = {"head": "base", "base": "head"}
            order = [swap.get(role, role) for role in order]
        found.append(order)
    return [found[place] for place in generator.permutation(count)]


def _assembled(
    machine: MachineFingerprint,
    blocks: Mapping[str, Sequence[Process]],
    places: Sequence[Mapping[str, int]],
    work: tuple[Any, ...],
    thresholds: Thresholds,
    noise_floor: NoiseFloor | None,
) -> Run:
    def against_base(role: str, metrics: Sequence[str] | None = None) -> tuple[PairedSamples, ...]:
        first = [place[role] < place["base"] for place in places]
        return paired(machine, blocks["base"], blocks[role], first, metrics)

    if noise_floor is None:
        noise = {}
        for one in against_base("unchanged"):
            try:
                noise[one.metric] = measure_noise(one, thresholds.policy(one.metric))
            except InputError:
                # Equal code that differs from itself, or a clock that does not move: the gate says that it has no
                # floor.
                continue
        noise_floor = certify(noise, machine, datetime.now(UTC), thresholds.expires_days)
    return Run(
        against_base("head"),
        work,
        against_base("unchanged", ["cpu-time"]),
        against_base("slowed", ["cpu-time"]),
        noise_floor,
    )


def _left_out(counts: Mapping[str, Sequence[Process]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for side, processes in counts.items():
        for process in processes:
            for case, why in process.get("failed", {}).items():
                found.setdefault(case, f"{side}: {why}")
    return found
