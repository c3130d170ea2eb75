"""Looks at one optional library, in a process of its own: ``python -m kvcrucible.cli.doctor_probes NAME``.

A library that is installed wrongly may raise anything, print, hang or take the process with it, so ``doctor`` never
imports one itself.  The last line of this program's output is a JSON object: ``found`` (whether the library works),
``detail`` (what it is, or why it does not work) and ``facts`` (the same for machines).
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

#: What a probe returns: a sentence for people and facts for machines.
Seen = tuple[str, dict[str, Any]]

#: Libraries without which the command line does not do its work: import name -> distribution name.
CORE = {
    "hypothesis": "hypothesis",
    "jsonschema": "jsonschema",
    "rich": "rich",
    "typer": "typer",
    "yaml": "PyYAML",
}

#: The driver's own library, which the binding loads.
NVML_LIBRARY = "libnvidia-ml.so.1"


def core() -> Seen:
    """Import every core library."""
    for name in CORE:
        import_module(name)
    return "", {}


def numpy() -> Seen:
    """Import numpy."""
    return "", {"version": import_module("numpy").__version__}


def torch() -> Seen:
    """Import torch and say which build it is, what it would compute on and with how many threads."""
    library = import_module("torch")
    build = "CPU build"
    if library.version.cuda:
        build = f"CUDA {library.version.cuda} build"
    elif getattr(library.version, "hip", None):
        build = f"ROCm {library.version.hip} build"
    devices = []
    if library.cuda.is_available():
        for index in range(library.cuda.device_count()):
            properties = library.cuda.get_device_properties(index)
            capability = f"{properties.major}.{properties.minor}"
            devices.append(
                {"name": properties.name, "memory_bytes": properties.total_memory, "capability": capability}
            )
    vectors, threads = library.backends.cpu.get_cpu_capability(), library.get_num_threads()
    facts = {
        "version": library.__version__,
        "build": build,
        "devices": devices,
        "cpu_vectors": vectors,
        "threads": threads,
    }
    return f"{build}; on the CPU {vectors}, {threads} threads", facts


def kernels() -> Seen:
    """Compile the CPU kernels, or take them from the cache, and load them; torch is not needed for that."""
    built = import_module("kvcrucible.engine.kernels.cpu_library").library().built
    how = "compiled just now" if built.built else "from the cache"
    facts = {"compiler": built.compiler.version, "flags": list(built.flags), "path": str(built.path)}
    return f"{built.compiler.version}, {how}", facts


def triton() -> Seen:
    """Import triton and its interpreter, through which kernels run on CPU tensors."""
    version = import_module("triton").__version__
    try:
        import_module("triton.runtime.interpreter")
    except ImportError as error:
        return f"kernels cannot be interpreted: {error}", {"version": version, "interpreter": False}
    return "kernels can run through the interpreter", {"version": version, "interpreter": True}


def nvml() -> Seen:
    """Load the driver's management library, through its binding where that is installed, and name the devices."""
    try:
        binding = import_module("pynvml")
    except ModuleNotFoundError:
        ctypes.CDLL(NVML_LIBRARY)
        return "the driver's library is here, its Python binding is not", {"binding": False}
    binding.nvmlInit()
    try:
        driver = _text(binding.nvmlSystemGetDriverVersion())
        handles = map(binding.nvmlDeviceGetHandleByIndex, range(binding.nvmlDeviceGetCount()))
        names = [_text(binding.nvmlDeviceGetName(handle)) for handle in handles]
    finally:
        binding.nvmlShutdown()
    return f"driver {driver}; {', '.join(names) or 'no device'}", {"driver": driver, "devices": names}


def gguf() -> Seen:
    """Import the reader of model files."""
    import_module("gguf")
    return "", {}


def tokenizers() -> Seen:
    """Import the tokeniser."""
    return "", {"version": import_module("tokenizers").__version__}


PROBES: dict[str, Callable[[], Seen]] = {
    probe.__name__: probe for probe in (core, numpy, torch, kernels, triton, nvml, gguf, tokenizers)
}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def main() -> None:
    """Run the probe that the command line names and print what it saw."""
    try:
        detail, facts = PROBES[sys.argv[1]]()
        seen: dict[str, Any] = {"found": True, "detail": detail, "facts": facts}
    except Exception as error:
        # Whatever the library raised is what the user wants to read; one line of it is enough.
        lines = str(error).strip().splitlines() or [""]
        seen = {"found": False, "detail": f"{type(error).__name__}: {lines[0]}".rstrip(": "), "facts": {}}
    print("\n" + json.dumps(seen))


if __name__ == "__main__":
    main()
