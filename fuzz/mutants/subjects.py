"""Which modules of the engine mutants are made of, and which are left out, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

#: What all subjects lie under.
ENGINE = "kvcrucible.engine"

#: Modules and packages (with all that is in them) of the engine that no mutant is made of, each with the reason.
LEFT_OUT: dict[str, str] = {
    "kernels": "computes rows, which ledger depth has none of; `kvcrucible fuzz --kernels` judges it",
    "model": "a decoder on top of the cache; compared token by token by its own tests",
    "storage.torch_storage": "holds rows, which ledger depth has none of",
    "storage.planes": "holds rows, which ledger depth has none of",
    "storage.host_memory": "holds bytes, which ledger depth has none of",
    "storage.staging": "buffers of a GPU, which ledger depth has none of; its own tests judge it over a stand-in",
    "storage.null": "stores nothing: the stand-in of ledger depth itself",
    "history": "writes histories, which campaigns do not read; its tests judge it with the checker of histories",
    "history_lines": "writes histories, which campaigns do not read; its tests judge it with the checker of histories",
    "placement": "chooses where memory and streams are; ledger depth has neither, and its own tests judge it",
    "streams.cuda": "the streams of a GPU, which ledger depth never asks; its own tests judge it over a stand-in",
    "streams.cuda_runtime": "calls the GPU's runtime, which ledger depth never does; its own tests judge it",
    "work": "exact counts, which the performance gate and their own tests judge; no campaign reads them",
    "streams.strategies": "orders of device effects: whatever one answers is an order that a device may choose",
    "streams.strategy": "orders of device effects: whatever one answers is an order that a device may choose",
    "streams.simulated": "the device of campaigns: a fault in it weakens the judge, and its own tests see it",
    "host.policies.by_address": "placement for the arena study; the engine places by best fit",
    "host.policies.first_fit": "placement for the arena study; the engine places by best fit",
    "host.policies.next_fit": "placement for the arena study; the engine places by best fit",
    "host.policies.segregated": "placement for the arena study; the engine places by best fit",
}


def subjects() -> list[str]:
    """Return the names of all modules that mutants are made of, in order."""
    return sorted(name for name in modules_under(ENGINE) if left_out_because(name) is None)


def left_out_because(module: str) -> str | None:
    """Return why no mutant is made of a module of the engine, None where mutants are."""
    inner = module.removeprefix(f"{ENGINE}.")
    for name, reason in LEFT_OUT.items():
        if inner == name or inner.startswith(f"{name}."):
            return reason
    return None


def modules_under(package: str) -> Iterator[str]:
    """Yield the names of all modules in a package and in those below it, in no order; packages themselves are none."""
    return _modules(resources.files(package), package)


def _modules(folder: Traversable, name: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.joinpath("__init__.py").is_file():
            yield from _modules(entry, f"{name}.{entry.name}")
        elif entry.name.endswith(".py") and entry.name != "__init__.py":
            yield f"{name}.{entry.name.removesuffix('.py')}"
