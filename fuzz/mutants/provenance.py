"""Whose results those of mutants are: of which engine's source, told by which judge, and what the judge was told.

A verdict holds for these three alone.  Another engine has other mutants; another judge, or the same with fewer seeds,
may kill what survived and the other way round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from kvcrucible.fuzz.faults.catalogue import source_of
from kvcrucible.fuzz.mutants.judge import Budget
from kvcrucible.fuzz.mutants.subjects import ENGINE, modules_under, subjects
from kvcrucible.fuzz.source import source_commit

#: Packages all of whose modules may have a say in a verdict.
_PACKAGES = (
    "kvcrucible.contract",
    "kvcrucible.reference",
    "kvcrucible.invariants",
    "kvcrucible.fuzz.adapters",
)

#: Modules beside them and beside those that lie in ``fuzz`` itself: what plants a mutant, serves it and judges it.
_MODULES = (
    "kvcrucible.fuzz.faults.overlay",
    "kvcrucible.fuzz.mutants.judge",
    "kvcrucible.fuzz.mutants.server",
    "kvcrucible.fuzz.mutants.verdicts",
)


def provenance(budget: Budget) -> dict[str, Any]:
    """Return JSON-ready data: the commit, the digests of engine and judge, and the budget."""
    return {
        "commit": source_commit(),
        "engine": _digest(subjects()),
        "judge": _digest(judge_modules()),
        "budget": asdict(budget),
    }


def judge_modules() -> list[str]:
    """Return the names of all modules that may have a say in a verdict and of which no mutant is made, in order.

    Those of the engine are among them, such as the device whose orders of effects decide what a seed can show.
    """
    found = {name for package in _PACKAGES for name in modules_under(package)}
    found |= {name for name in modules_under("kvcrucible.fuzz") if name.count(".") == 2}
    return sorted(found | set(_MODULES) | (set(modules_under(ENGINE)) - set(subjects())))


def _digest(modules: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for module in modules:
        digest.update(f"{module}\0{source_of(module)}\0".encode())
    return digest.hexdigest()
