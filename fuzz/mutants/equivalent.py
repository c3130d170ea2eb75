"""Survivors that were looked at, each with the reason why no seed notices it.

Either nothing could tell it from the engine as it is, or it is another engine that keeps the contract as well, and ours
is pinned down by a test of its own, or it shows only where no seed goes: then a test is named that fails with the
mutant planted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from kvcrucible.contract.errors import InputError
from kvcrucible.fuzz.mutants.mutant import Mutant
from kvcrucible.fuzz.mutants.subjects import ENGINE

#: Name and version of the file's form.
FORMAT = "kvcrucible.equivalent-mutants/1"

_FIELDS = {"module", "function", "operator", "before", "after", "nth", "reason", "told_by"}


@dataclass(frozen=True, slots=True)
class Equivalent:
    """One judged survivor, known by what it changes: lines may move.  Fields as those of a mutant.

    ``told_by``: the test that tells it, as pytest names it; None where nothing could.
    """

    module: str
    function: str
    operator: str
    before: str
    after: str
    nth: int
    reason: str
    told_by: str | None = None

    def is_of(self, mutant: Mutant) -> bool:
        """Say whether this is about ``mutant``."""
        mine = (self.module, self.function, self.operator, self.before, self.after, self.nth)
        return mine == (
            mutant.module, mutant.function, mutant.operator, mutant.before, mutant.after, mutant.nth,
        )  # fmt: skip


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """Return all of them; raises ``InputError`` where the file does not keep its form."""
    file = resources.files("kvcrucible.fuzz.faults").joinpath("equivalent_mutants.yaml")
    plain: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    if plain.get("format") != FORMAT:
        raise InputError(f"the equivalent mutants are {plain.get('format')!r}, expected {FORMAT!r}")
    return tuple(_entry(entry) for entry in plain["mutants"])


def listed_among(mutants: Iterable[Mutant]) -> dict[str, Equivalent]:
    """Return, by id, the entry of each of the mutants that is listed."""
    entries = equivalents()
    return {mutant.id: entry for mutant in mutants for entry in entries if entry.is_of(mutant)}


def _entry(entry: dict[str, Any]) -> Equivalent:
    unknown = entry.keys() - _FIELDS
    if unknown or not str(entry.get("reason", "")).strip():
        raise InputError(f"an equivalent mutant of {entry.get('module')} has unknown fields or no reason")
    return Equivalent(
        f"{ENGINE}.{entry['module']}",
        entry["function"],
        entry["operator"],
        entry["before"],
        entry["after"],
        entry.get("nth", 0),
        entry["reason"],
        entry.get("told_by"),
    )
