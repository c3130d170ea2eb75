"""Changes to the story that make it illegal, each with the line at which that shows first, found by reading the story.

``line`` is where the change is made, counted from 1 with the header; ``shows`` where no legal continuation exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from histories import Plain


@dataclass(frozen=True)
class Corruption:
    """One change.  ``by_counters``: only the counters show it."""

    name: str
    kind: str
    change: Callable[[list[Plain]], None]
    shows: int
    rule: str
    by_counters: bool = False


def put(line: int, **fields: Any) -> Callable[[list[Plain]], None]:
    """Set fields of a line; None takes one out."""

    def change(lines: list[Plain]) -> None:
        for name, value in fields.items():
            if value is None:
                lines[line - 1].pop(name, None)
            else:
                lines[line - 1][name] = value

    return change


def work(line: int, index: int = 0, **fields: Any) -> Callable[[list[Plain]], None]:
    """Set fields of one work of a unit."""
    return lambda lines: lines[line - 1]["work"][index].update(fields)


def admission(line: int, **fields: Any) -> Callable[[list[Plain]], None]:
    """Set fields of an admission."""
    return lambda lines: lines[line - 1]["admission"].update(fields)


def insert(line: int, new: Plain) -> Callable[[list[Plain]], None]:
    """Put a new line where ``line`` is."""
    return lambda lines: lines.insert(line - 1, new)


def delete(line: int, counted: bool = False) -> Callable[[list[Plain]], None]:
    """Take a line out; ``counted``: the close line knows."""

    def change(lines: list[Plain]) -> None:
        del lines[line - 1]
        lines[-1]["lines"] -= counted

    return change


def cold(lines: list[Plain]) -> None:
    """Let sequence 2 start cold although continuation 0 has its prompt."""
    lines[16]["admission"] = {"sequence": 2, "mode": "cold", "row": 0}


def swap_admissions(lines: list[Plain]) -> None:
    """Let the second of the queue be admitted first."""
    lines[27]["admitted"].reverse()


def cut_in_flight(lines: list[Plain]) -> None:
    """Cut a row that a unit has selected, where its cancel was recorded."""
    lines[18] = {"op": "truncate", "sequence": 2, "position": 10}


def refused_unit(lines: list[Plain]) -> None:
    """Refuse an active sequence a position that it was promised."""
    lines[20] = {
        "op": "begin",
        "work": [{"sequence": 1, "append": [[6, 90, 1]]}],
        "refused": "device-capacity",
    }


CORRUPTIONS = [
    Corruption("page of another block", "leases", work(7, pages=[[2]]), 7, "lease-unique"),
    Corruption("page beyond the pool", "leases", work(7, pages=[[24]]), 7, "lease-unique"),
    Corruption("page twice in a grant", "leases", work(4, pages=[[2, 1, 1]]), 4, "lease-unique"),
    Corruption("copy into a page that is held", "leases", put(9, pages=[[3]]), 9, "lease-unique"),
    Corruption("old generation", "generations", put(13, generations=[[1]]), 13, "stale-handle-refused"),
    Corruption("no generation", "generations", put(13, generations=None), 13, "stale-handle-refused"),
    Corruption("too few pages", "grants", work(4, pages=[[2, 1]]), 4, "frontier-bounds"),
    Corruption("too many pages", "grants", work(4, pages=[[2, 1, 0, 9]]), 4, "completion-guarantee"),
    Corruption("no page to copy to", "grants", put(13, pages=None), 13, "frontier-bounds"),
    Corruption("leak", "counters", put(33, counters=[[1, 20, 3]]), 33, "pool-conservation", True),
    Corruption("refusal moves pages", "counters", put(23, counters=[[5, 1, 18]]), 23, "refusal-atomic", True),
    Corruption("promise lost", "counters", put(13, counters=[[5, 1, 18]]), 13, "pool-conservation", True),
    Corruption("frontier short", "frontiers", put(8, frontiers=[[0, 12]]), 8, "frontier-visibility"),
    Corruption("aborted unit commits", "frontiers", put(22, commit=None), 22, "frontier-visibility"),
    Corruption("beyond the limit", "frontiers", work(7, append=[[5, 0, 7]]), 7, "beyond-limit"),
    Corruption("beyond the prompt", "frontiers", work(4, prefill=11), 4, "prefill-beyond-prompt"),
    Corruption("copied too much", "copies", put(9, copies=[[0, 1, 4, 3]]), 9, "cow-isolation"),
    Corruption("copied another page", "copies", admission(17, copies=[[0, 1, 4, 2]]), 17, "cow-isolation"),
    Corruption("cut without a copy", "copies", put(13, copies=None), 13, "cow-isolation"),
    Corruption("hit too long", "hits", admission(17, hit=11), 17, "exact-prefix-identity"),
    Corruption("hit too short", "hits", admission(17, hit=8), 17, "exact-prefix-identity"),
    Corruption("hit missed", "hits", cold, 17, "exact-prefix-identity"),
    Corruption(
        "another tenant's hit", "hits", put(14, identity={"tenant_salt": "b"}), 17, "exact-prefix-identity"
    ),
    Corruption(
        "lookup of the wrong length",
        "hits",
        put(25, hit={"source": 0, "length": 9}),
        25,
        "exact-prefix-identity",
    ),
    Corruption(
        "checkpoint moved",
        "checkpoints",
        insert(7, {"op": "checkpoint", "sequence": 0, "checkpoint": 1}),
        7,
        "protected-prefix",
    ),
    Corruption(
        "moved though to be forked", "candidates", admission(17, mode="move-truncated"), 17, "candidate-order"
    ),
    Corruption("queue overtaken", "queue", swap_admissions, 28, "admission-order"),
    Corruption(
        "waits although it fits",
        "queue",
        insert(36, {"op": "schedule", "wait": {"sequence": 5, "why": "device-capacity"}}),
        36,
        "admission-by-count",
    ),
    Corruption(
        "waits for another reason",
        "queue",
        put(31, wait={"sequence": 5, "why": "device-capacity"}),
        31,
        "outcome",
    ),
    Corruption("admitted without pages", "queue", delete(35), 35, "no-pages"),
    Corruption("pinned is released", "pins", delete(24), 27, "no-pages"),
    Corruption("pin is ignored", "pins", put(23, refused=None), 23, "release-of-pinned"),
    Corruption("nobody is released", "room", put(28, evicted=None), 28, "making-room"),
    Corruption("released for nothing", "room", put(17, evicted=[0]), 17, "making-room"),
    Corruption("session twice", "sessions", put(9, session="a"), 9, "session-busy"),
    Corruption("row taken", "rows", put(9, row=0), 9, "row-unique"),
    Corruption("row beyond the table", "rows", put(9, row=3), 9, "row-unique"),
    Corruption("number again", "handles", put(14, sequence=1), 14, "numbering"),
    Corruption("cut of nobody", "handles", put(12, sequence=9), 12, "unknown-sequence"),
    Corruption("unit ends twice", "handles", insert(9, {"op": "end", "unit": 1}), 9, "unknown-unit"),
    Corruption("frozen row is cut", "units", cut_in_flight, 19, "row-in-flight"),
    Corruption("cancel takes effect at once", "units", put(19, done=True), 19, "unit-frozen"),
    Corruption("cancel is forgotten", "units", put(20, cancelled=None), 20, "outcome"),
    Corruption("unit done out of order", "units", put(29, units=[0, 2]), 29, "recycle-fenced"),
    Corruption("promise broken", "refusals", refused_unit, 21, "completion-guarantee"),
    Corruption("other refusal", "refusals", put(23, refused="stale-handle"), 23, "release-of-pinned"),
    Corruption("cut above the frontier", "truncation", put(32, refused=None), 32, "truncate-position"),
    Corruption("cut leaves the page", "truncation", put(13, position=4), 13, "completion-guarantee"),
    Corruption(
        "table keeps the old page",
        "tables",
        insert(14, {"op": "table", "sequence": 1, "pages": [[2]]}),
        14,
        "table-mirror",
    ),
    Corruption("kept nothing", "outcomes", put(33, kept=True), 33, "outcome"),
    Corruption("something is left", "quiescence", delete(43, counted=True), 43, "no-leak-at-quiescence"),
]
