"""Known differences of engines under test: each is documented, narrow, counted in the report and kept honest.

A waiver names an engine, an invariant, a condition in code that says exactly which violations it covers, the reason,
and a minimal example.  The tests run that example without the waiver and require the violation: a defect that has been
mended makes them fail until the waiver is taken out.

Does not verify: that an engine's maintainers know; the reason says where the fault lies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from kvcrucible.contract.snapshot import RowState, Snapshot
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step, steps_from_plain
from kvcrucible.invariants.violation import Violation

#: Name and version of the ledger's form.
FORMAT = "kvcrucible.waivers/1"

Condition = Callable[[Violation, Snapshot], bool]


@dataclass(frozen=True, slots=True)
class Waiver:
    """One known difference.  ``setting`` and ``steps`` are an example that shows it; ``seen_in`` the versions."""

    id: str
    engine: str
    invariant: str
    condition: str
    seen_in: str
    reason: str
    setting: Setting
    steps: tuple[Step, ...]

    def covers(self, violation: Violation, snapshot: Snapshot) -> bool:
        """Say whether ``violation``, found with the engine in the state ``snapshot``, is this difference."""
        return violation.invariant == self.invariant and CONDITIONS[self.condition](violation, snapshot)


@cache
def ledger() -> tuple[Waiver, ...]:
    """Return every waiver, in the order of the file."""
    text = resources.files("kvcrucible.fuzz.adapters").joinpath("waivers.yaml").read_text("utf-8")
    plain: dict[str, Any] = yaml.safe_load(text)
    assert plain["format"] == FORMAT, plain["format"]
    return tuple(_waiver(entry) for entry in plain["waivers"])


def waivers_of(engine: str) -> tuple[Waiver, ...]:
    """Return the waivers of one engine."""
    return tuple(waiver for waiver in ledger() if waiver.engine == engine)


def covering(waivers: Sequence[Waiver], violation: Violation, snapshot: Snapshot) -> Waiver | None:
    """Return the first waiver that covers a violation, None where it counts."""
    return next((waiver for waiver in waivers if waiver.covers(violation, snapshot)), None)


def _waiver(entry: dict[str, Any]) -> Waiver:
    assert entry["condition"] in CONDITIONS, entry["condition"]
    setting = Setting.from_plain({"engine": entry["engine"], **entry.pop("setting")})
    steps = tuple(steps_from_plain(entry.pop("steps")))
    return Waiver(setting=setting, steps=steps, **entry)


# -- conditions --------------------------------------------------------------------------------------------------------


def _stale_pairs(row: RowState) -> set[tuple[int, int]] | None:
    """Return what a row maps back beyond its own pages; None where it maps one of its own pages back wrongly."""
    inverse = set(row.inverse or ())
    due = {(page, block) for block, page in enumerate(row.entries)}
    stale = inverse - due
    own = set(row.entries)
    return None if due - inverse or any(page in own for page, _ in stale) else stale


def _only_erased_pages_mapped_back(violation: Violation, snapshot: Snapshot) -> bool:
    named = re.match(r"row (\d+), mapping back", violation.message)
    return named is not None and bool(_stale_pairs(snapshot.rows[0, int(named[1])]))


def _attention_over_erased_pages(violation: Violation, snapshot: Snapshot) -> bool:
    """Whether the row of the sequence whose attention is wrong maps erased pages back below the frontier."""
    named = re.match(r"decode attention of sequence (\d+) ", violation.message)
    if named is None:
        return False
    sequence = int(named[1])
    first_beyond = snapshot.spaces[sequence, 0].frontier
    stale = _stale_pairs(snapshot.rows[0, snapshot.sequences[sequence].row]) or set()
    return any(block * snapshot.pools[0].page_size < first_beyond for _, block in stale)


#: Conditions by the names that the ledger uses.
CONDITIONS: dict[str, Condition] = {
    "only-erased-pages-mapped-back": _only_erased_pages_mapped_back,
    "attention-over-erased-pages": _attention_over_erased_pages,
}
