"""Public bugs of paged KV caches: their ids, threads and failure classes, and which our engine cannot express.

One file of ``public_bugs/`` for each failure class.  By whom a bug is re-created is said by the faults themselves
(``recreates``).  An entry with ``not_expressible`` gives the reason why no small change of the engine or its kernels
could have the same mechanism (decision 0026).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import yaml

from kvcrucible.contract.errors import InputError

#: Name and version of the files' form; ``public_bugs.schema.json`` is its schema.
FORMAT = "kvcrucible.public-bugs/1"


@dataclass(frozen=True, slots=True)
class PublicBug:
    """A bug of another engine: its id in the catalogue of public bugs, its thread, its failure class, and why our
    engine cannot express it; None where it can.
    """

    id: str
    url: str
    failure_class: str
    not_expressible: str | None = None


def public_bug_files() -> list[Traversable]:
    """Return the files, by name."""
    folder = resources.files("kvcrucible.fuzz.faults").joinpath("public_bugs")
    return sorted(
        (file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name
    )


@cache
def public_bugs() -> dict[str, PublicBug]:
    """Return every public bug by id, in the order of the ids; raises ``InputError`` for one that is named twice."""
    found: dict[str, PublicBug] = {}
    for file in public_bug_files():
        plain = yaml.safe_load(file.read_text("utf-8"))
        if plain.get("format") != FORMAT:
            raise InputError(f"{file.name} is {plain.get('format')!r}, expected {FORMAT!r}")
        for entry in plain["bugs"]:
            bug = PublicBug(entry["id"], entry["url"], plain["failure_class"], entry.get("not_expressible"))
            if bug.id in found:
                raise InputError(f"{file.name} names {bug.id}, as another entry does")
            found[bug.id] = bug
    return dict(sorted(found.items()))


def public_bug(name: str) -> PublicBug:
    """Return one public bug; raises ``InputError`` for an id that no file has."""
    found = public_bugs().get(name)
    if found is None:
        raise InputError(f"public bug {name!r:.40} is in no file of fuzz/faults/public_bugs")
    return found
