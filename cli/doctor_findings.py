"""What ``doctor`` makes of what it saw: one finding for each thing looked for, with the reason and the remedy.

Nothing here raises for a library that is absent or broken; that is what a finding says.
"""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvcrucible import __version__
from kvcrucible.cli import doctor_machine as machine
from kvcrucible.cli.doctor_probes import CORE
from kvcrucible.contract.errors import CrucibleError
from kvcrucible.contract.extras import install_command
from kvcrucible.fuzz.cores import usable_cores

#: Seconds that a library may take to import; torch from a cold disk needs a good part of a minute.
PROBE_TIMEOUT_SECONDS = 120


class State(StrEnum):
    """What became of one thing that was looked for."""

    PRESENT = "present"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``facts`` holds for machines what ``detail`` says to people."""

    name: str
    state: State
    detail: str
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Library:
    """An optional library: the probe that imports it, the distribution that carries it, and how to get that."""

    probe: str
    distribution: str
    remedy: str


LIBRARIES = (
    Library("numpy", "numpy", install_command("engine")),
    Library("torch", "torch", install_command("engine")),
    Library("triton", "triton", f"{install_command('triton')} (about 1 GB; Linux)"),
    Library("gguf", "gguf", install_command("model")),
    Library("tokenizers", "tokenizers", install_command("model")),
    Library("nvml", "nvidia-ml-py", install_command("perf")),
)


#: Name of the finding about kernels for main memory.
KERNELS = "compiled kernels"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a probe's process came to; ``found`` is false where the library does not work, ``detail`` then says why."""

    found: bool
    detail: str
    facts: dict[str, Any] = field(default_factory=dict)


def run_probe(name: str) -> Outcome:
    """Run one probe in a process of its own; never raises for what the library does there."""
    # -P keeps the current folder off the import path: a file torch.py in it is not torch.
    command = [sys.executable, "-P", "-m", "kvcrucible.cli.doctor_probes", name]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, f"no answer after {PROBE_TIMEOUT_SECONDS} s of importing")
    if done.returncode < 0:
        return Outcome(False, f"importing it ended the process ({_signal_name(-done.returncode)})")
    try:
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        return Outcome(False, f"importing it ended the process with status {done.returncode}")


def installed_version(distribution: str) -> str | None:
    """Return the version that the installed metadata states, without importing anything; None where there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def library_finding(library: Library, installed: str | None, outcome: Outcome) -> Finding:
    """Judge one library by its metadata and its probe: present, absent, or there and broken."""
    stated = installed or outcome.facts.get("version", "")
    facts = {"version": stated or None, **outcome.facts}
    if outcome.found:
        detail = ", ".join(part for part in (stated, outcome.detail) if part)
        return Finding(library.probe, State.PRESENT, detail, facts=facts)
    if installed is None:
        detail = "not installed" if outcome.detail.startswith("ModuleNotFoundError") else outcome.detail
        return Finding(library.probe, State.ABSENT, detail, library.remedy, facts)
    detail = f"{installed} is installed but does not work: {outcome.detail}"
    return Finding(library.probe, State.BROKEN, detail, f"reinstall it: {library.remedy}", facts)


def nvml_finding(library: Library, installed: str | None, outcome: Outcome) -> Finding:
    """Judge NVML, where an installed binding without a driver beneath it is an absent device, not a broken library."""
    if outcome.found and outcome.facts.get("binding", True):
        return library_finding(library, installed, outcome)
    if installed is None:
        return Finding(
            library.probe, State.ABSENT, f"no binding; {outcome.detail}", library.remedy, outcome.facts
        )
    detail = f"binding {installed}; {outcome.detail}"
    return Finding(
        library.probe, State.ABSENT, detail, "run on a machine with an NVIDIA driver", outcome.facts
    )


def accelerator_finding(outcome: Outcome) -> Finding:
    """Say what torch would compute on beside the CPU, or why there is nothing."""
    devices = outcome.facts.get("devices", [])
    if devices:
        lines = [f"{d['name']} ({_gib(d['memory_bytes'])}, capability {d['capability']})" for d in devices]
        return Finding("accelerator", State.PRESENT, "; ".join(lines), facts={"devices": devices})
    if not outcome.found:
        return Finding("accelerator", State.ABSENT, "torch does not work here", "see torch")
    build = outcome.facts.get("build", "")
    if build.startswith("CPU"):
        remedy = (
            "on a machine with a GPU, install a build of torch for it: make distclean setup TORCH_INDEX=URL"
        )
        return Finding("accelerator", State.ABSENT, "this torch is a CPU build", remedy)
    return Finding(
        "accelerator", State.ABSENT, f"{build}, but it finds no device", "check driver and permissions"
    )


def kernels_finding(outcome: Outcome, torch: Outcome, asked: str) -> Finding:
    """Say which kernels work on main memory, and why; ``asked`` is what ``$KVCRUCIBLE_KERNELS`` names, or nothing."""
    facts = {"asked": asked or None, **outcome.facts}
    if not outcome.found:
        reason = outcome.detail.removeprefix("Unbuildable: ")
        detail = f"the plain ones in torch are used, several times slower: {reason}"
        remedy = (
            "install gcc or clang, or name one in CC; the folder for compiled kernels must be yours alone"
        )
        return Finding(KERNELS, State.ABSENT, detail, remedy, facts)
    if not torch.found:
        return Finding(KERNELS, State.ABSENT, "torch does not work here", "see torch", facts)
    if asked and asked != "cpu":
        detail = f"{outcome.detail}; not used: KVCRUCIBLE_KERNELS={asked}"
        return Finding(KERNELS, State.PRESENT, detail, facts=facts)
    return Finding(KERNELS, State.PRESENT, f"used on the CPU: {outcome.detail}", facts=facts)


def core_finding(outcome: Outcome) -> Finding:
    """Name the core libraries and their versions."""
    versions = {name: installed_version(name) for name in CORE.values()}
    detail = ", ".join(f"{name} {stated or 'missing'}" for name, stated in versions.items())
    if outcome.found:
        return Finding("core libraries", State.PRESENT, detail, facts=versions)
    return Finding(
        "core libraries", State.BROKEN, f"{outcome.detail} ({detail})", install_command(), versions
    )


def machine_findings() -> list[Finding]:
    """Look at everything that needs no library: Python, platform, processors, memory, compiler."""
    cpus, quota = usable_cores(), machine.cpu_quota()
    memory, limit = machine.memory_bytes(), machine.memory_limit_bytes()
    shown_quota = "" if quota is None else f", limited to {quota:g} by the control group"
    shown_limit = "" if limit is None else f", limited to {_gib(limit)} by the control group"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    findings = [
        Finding("kvcrucible", State.PRESENT, __version__, facts={"version": __version__}),
        Finding(
            "python",
            State.PRESENT,
            f"{python}, {sys.executable}",
            facts={"version": platform.python_version()},
        ),
        Finding("platform", State.PRESENT, platform.platform()),
        Finding("cpu", State.PRESENT, f"{cpus} usable{shown_quota}", facts={"usable": cpus, "quota": quota}),
    ]
    facts = {"bytes": memory, "limit_bytes": limit}
    if memory is None:
        findings.append(Finding("memory", State.ABSENT, "the system does not tell its size", facts=facts))
    else:
        findings.append(Finding("memory", State.PRESENT, f"{_gib(memory)}{shown_limit}", facts=facts))
    return [*findings, compiler_finding()]


def compiler_finding() -> Finding:
    """Say which C++ compiler runs here and whether Python's headers are there."""
    found = machine.compiler()
    if found is None:
        return Finding(
            "compiler", State.ABSENT, "no C++ compiler runs here", "install g++ or clang++, or set CXX"
        )
    headers = machine.has_python_headers()
    detail = f"{found[0]}: {found[1]}; Python headers {'present' if headers else 'absent'}"
    return Finding("compiler", State.PRESENT, detail, facts={"command": found[0], "python_headers": headers})


def model_finding() -> Finding:
    """Say whether the demonstration model has been fetched."""
    from kvcrucible.engine.model.fetch import model_path, require_model

    try:
        path = require_model()
    except CrucibleError as error:
        path = model_path()
        state = State.BROKEN if path.is_file() else State.ABSENT
        return Finding("model file", state, str(error), "kvcrucible model fetch", {"path": str(path)})
    return Finding("model file", State.PRESENT, str(path), facts={"path": str(path)})


def abilities(findings: Iterable[Finding]) -> dict[str, list[str]]:
    """Return for each kind of work the names of what it lacks here; an empty list means that it can run."""
    works = {finding.name for finding in findings if finding.state is State.PRESENT}
    needs = {
        "ledger-depth fuzzing, replay, capacity": ["core libraries"],
        "payload-depth fuzzing, paged attention": ["core libraries", "numpy", "torch"],
        "text generation": ["core libraries", "numpy", "torch", "gguf", "tokenizers", "model file"],
    }
    return {work: [name for name in wanted if name not in works] for work, wanted in needs.items()}


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
