"""The fault catalogue: small declared source changes that a campaign must find (DESIGN 5, 7).

Product code carries no switches: a fault is applied by an overlay in a child process
(:mod:`kvcrucible.fuzz.faults.overlay`), and the catalogue fails its tests when an anchor no longer matches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from typing import Any

import yaml

from kvcrucible.contract.errors import InputError
from kvcrucible.fuzz.faults.bugs import PublicBug, public_bug
from kvcrucible.fuzz.setting import Depth

#: Names what is judged as it is, where a child is told which fault to plant.
NO_FAULT = "none"

#: Name and version of the catalogue's form.
FORMAT = "kvcrucible.faults/1"

#: What modules of each part of the catalogue begin with: faults are the product's, never the judge's.
MUTABLE: dict[str, tuple[str, ...]] = {
    "engine": ("kvcrucible.engine.",),
    "kernels": ("kvcrucible.engine.",),
    "planner": ("kvcrucible.perf.planner", "kvcrucible.cli.plan"),
}


@dataclass(frozen=True, slots=True)
class Sought:
    """Kernels, storage profiles and classes of lengths in which a kernel campaign finds a fault within seconds: some of
    those that it spoils.  No lengths means all.
    """

    kernels: tuple[str, ...]
    profiles: tuple[str, ...]
    lengths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault.

    ``depth`` is the lowest at which it can be seen, ``expects`` names the invariants that may tell it.  ``part`` is the
    folder of the catalogue that holds it, one of ``MUTABLE``.  ``sought``: where a kernel campaign looks for it; None
    for faults of other parts.
    """

    id: str
    title: str
    module: str
    anchor: str
    replacement: str
    depth: Depth
    expects: tuple[str, ...]
    recreates: tuple[PublicBug, ...]
    mechanism: str
    part: str = "engine"
    sought: Sought | None = None

    @property
    def digest(self) -> str:
        """What identifies the change itself: a kept result counts for a fault only as long as this is the same."""
        change = [self.module, self.anchor, self.replacement, self.depth.value]
        return sha256(json.dumps(change).encode()).hexdigest()[:16]

    def apply_to(self, source: str) -> str:
        """Return the module's source with the fault in it; raises ``InputError`` unless the anchor is there once."""
        times = source.count(self.anchor)
        if times != 1:
            raise InputError(
                f"fault {self.id} no longer matches: its anchor occurs {times} times in {self.module}; "
                "write it anew against the present source"
            )
        return source.replace(self.anchor, self.replacement)


@cache
def catalogue() -> dict[str, Fault]:
    """Return every fault by id, in the order of the files of ``engine/`` by name."""
    return _load("engine")


@cache
def kernel_catalogue() -> dict[str, Fault]:
    """Return the faults that kernel campaigns must find, which drive kernels and no engine."""
    return _load("kernels")


@cache
def planner_catalogue() -> dict[str, Fault]:
    """Return the faults of the capacity planner, which its own judge must find (:mod:`.planner_child`)."""
    return _load("planner")


def catalogue_files(folder: str) -> list[Traversable]:
    """Return the files of one part of the catalogue, one of ``MUTABLE``, by name."""
    beside = resources.files("kvcrucible.fuzz.faults").joinpath(folder)
    return sorted(
        (file for file in beside.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name
    )


def _load(folder: str) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for file in catalogue_files(folder):
        plain: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
        if plain.get("format") != FORMAT:
            raise InputError(
                f"{file.name} of the fault catalogue is {plain.get('format')!r}, expected {FORMAT!r}"
            )
        for entry in plain["faults"]:
            planted = _fault(entry, folder)
            if planted.id in found:
                raise InputError(
                    f"{file.name} of the fault catalogue names {planted.id}, as another entry does"
                )
            found[planted.id] = planted
    return found


@cache
def every_fault() -> dict[str, Fault]:
    """Return the faults of all parts by id, those of engines first; raises ``InputError`` for an id in two."""
    found: dict[str, Fault] = {}
    for part in (catalogue(), kernel_catalogue(), planner_catalogue()):
        twice = found.keys() & part.keys()
        if twice:
            raise InputError(f"two parts of the fault catalogue name {', '.join(sorted(twice))}")
        found |= part
    return found


def fault(name: str) -> Fault:
    """Return one fault of any part; raises ``InputError`` for an unknown id."""
    found = every_fault().get(name)
    if found is None:
        near = get_close_matches(name, every_fault(), n=3, cutoff=0.3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(
            f"unknown fault {name!r:.60}; {meant}`kvcrucible faults list` shows all {len(every_fault())}"
        )
    return found


def source_of(module: str) -> str:
    """Return a module's own source without running it."""
    spec = find_spec(module)
    loader = None if spec is None else spec.loader
    source = loader.get_source(module) if loader is not None and hasattr(loader, "get_source") else None
    if source is None:
        raise InputError(f"module {module} has no source to plant a fault in")
    return str(source)


def _fault(entry: dict[str, Any], part: str) -> Fault:
    mutable = MUTABLE[part]
    module = entry["module"]
    if not module.startswith(mutable):
        raise InputError(f"fault {entry['id']} changes {module}; only {', '.join(mutable)} may be changed")
    return Fault(
        id=entry["id"],
        title=entry["title"],
        module=module,
        anchor=entry["anchor"],
        replacement=entry["replacement"],
        depth=Depth(entry["depth"]),
        expects=tuple(entry["expects"]),
        recreates=tuple(public_bug(name) for name in entry["recreates"]),
        mechanism=entry["mechanism"],
        part=part,
        sought=_sought(entry),
    )


def _sought(entry: dict[str, Any]) -> Sought | None:
    where = entry.get("sought")
    if where is None:
        return None
    return Sought(*(tuple(where.get(name, ())) for name in ("kernels", "profiles", "lengths")))
