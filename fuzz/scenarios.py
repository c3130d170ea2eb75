"""For every cell of the semantics table, the shortest way into it: plain data to run against any engine.

A cell is (row of ``contract.semantics.ROWS``, operation or work that it refuses).  The last operation of a scenario
is the one that is refused, or that waits; those before it are carried out, and no other row of a higher precedence
applies.

Does not cover: what the refused operation leaves behind; whoever runs a scenario compares before and after.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Lookup,
    Operation,
    Pin,
    Prefill,
    Progress,
    Release,
    Restore,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.tokens import EMPTY, run


class Scenario(NamedTuple):
    """Operations for a new engine of ``config``; the last one is refused or waits."""

    config: EngineConfig
    operations: tuple[Operation, ...]


def _config(capacity: int = 6, context: int = 16, rows: int = 2) -> EngineConfig:
    return EngineConfig((PoolSpec("main", capacity, page_size=4),), context, rows)


def _with_backend(name: str = "mtp") -> EngineConfig:
    return EngineConfig((PoolSpec("main", 6, page_size=4), PoolSpec(name, 4, page_size=8)), 16, 2)


def _with_host(capacity: int = 6, host_pages: int = 4) -> EngineConfig:
    """Return an engine whose host arena holds ``host_pages`` pages of Main."""
    main = PoolSpec("main", capacity, 4, (PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 4), page_size=4),))
    return EngineConfig((main,), 16, 2, HostSpec(host_pages * main.page_bytes, alignment_bytes=64))


_ONE, _FIVE = run(7, 0, 1), run(7, 0, 5)

#: Sequence 0 has a prompt of 4 tokens and may grow to 8: an entitlement of 2 pages of 4 tokens.
_QUEUED: tuple[Operation, ...] = (Submit(run(0, 0, 4), 4, session="a"),)
_ADMITTED = (*_QUEUED, Schedule())
_FILLED = (*_ADMITTED, BeginUnit((Prefill(0, 4),)), EndUnit(0))
_IN_FLIGHT = (*_FILLED, BeginUnit((Append(0, _ONE),)))
_KEPT = (*_FILLED, Finish(0))
#: Sequences 0 and 1 share two full pages, and both are at their limits.
_SHARED = (Submit(run(0, 0, 8), 0), Schedule(), BeginUnit((Prefill(0, 8),)), EndUnit(0), Fork(0, 8, 0))


def _after(prelude: tuple[Operation, ...], last: Operation, config: EngineConfig | None = None) -> Scenario:
    return Scenario(_config() if config is None else config, (*prelude, last))


#: Continuation 0 holds one page, which is visible on Host.
_DEMOTED = (*_KEPT, Demote(0), Progress())

#: Cells that no engine can be in, each with its reason.
UNREACHABLE: dict[tuple[str, str], str] = {
    (
        "host-absent",
        "Restore",
    ): "without a Host tier nothing is visible there, and nothing to move comes first",
}

#: (row, operation or work) to its scenario, for engines whose admission reserves the worst case.
CELLS: dict[tuple[str, str], Scenario] = {
    ("unknown-sequence", "Prefill"): _after((), BeginUnit((Prefill(0, 1),))),
    ("unknown-sequence", "Append"): _after((), BeginUnit((Append(0, _ONE),))),
    ("unknown-sequence", "Truncate"): _after((), Truncate(0, 0)),
    ("unknown-sequence", "Checkpoint"): _after((), Checkpoint(0)),
    ("unknown-sequence", "Finish"): _after((*_ADMITTED, Finish(0, retain=False)), Finish(0)),
    ("unknown-sequence", "Release"): _after((*_KEPT, Release(0)), Release(0)),
    ("unknown-sequence", "Pin"): _after((*_KEPT, Release(0)), Pin(0)),
    ("unknown-sequence", "TryAdmit"): _after((*_QUEUED, Cancel(0)), TryAdmit(0)),
    ("unknown-sequence", "Fork"): _after((), Fork(0, 1, 1)),
    ("unknown-sequence", "Cancel"): _after((*_ADMITTED, Cancel(0)), Cancel(0)),
    ("unknown-sequence", "Demote"): _after((*_KEPT, Release(0)), Demote(0), _with_host()),
    ("unknown-sequence", "Restore"): _after((*_DEMOTED, Release(0)), Restore(0), _with_host()),
    ("unknown-unit", "EndUnit"): _after(_FILLED, EndUnit(0)),
    ("unknown-transfer", "CancelTransfer"): _after(_DEMOTED, CancelTransfer(0), _with_host()),
    ("not-active", "Prefill"): _after(_QUEUED, BeginUnit((Prefill(0, 1),))),
    ("not-active", "Append"): _after(_KEPT, BeginUnit((Append(0, _ONE),))),
    ("not-active", "Truncate"): _after(_KEPT, Truncate(0, 2)),
    ("not-active", "Checkpoint"): _after(_KEPT, Checkpoint(0)),
    ("not-active", "Finish"): _after(_QUEUED, Finish(0)),
    ("prompt-complete", "Prefill"): _after(_FILLED, BeginUnit((Prefill(0, 1),))),
    ("prompt-incomplete", "Append"): _after(_ADMITTED, BeginUnit((Append(0, _ONE),))),
    ("not-queued", "TryAdmit"): _after(_ADMITTED, TryAdmit(0)),
    ("fork-of-queued", "Fork"): _after(_QUEUED, Fork(0, 1, 1)),
    ("not-continuation", "Release"): _after(_FILLED, Release(0)),
    ("not-continuation", "Pin"): _after(_QUEUED, Pin(0)),
    ("not-continuation", "Demote"): _after(_FILLED, Demote(0), _with_host()),
    ("not-continuation", "Restore"): _after(_QUEUED, Restore(0), _with_host()),
    ("release-of-pinned", "Release"): _after((*_KEPT, Pin(0)), Release(0)),
    ("nothing-to-move", "Demote"): _after((*_FILLED, Fork(0, 4, 4), Finish(0)), Demote(0), _with_host()),
    ("nothing-to-move", "Restore"): _after(_KEPT, Restore(0), _with_host()),
    ("fork-of-demoted", "Fork"): _after(_DEMOTED, Fork(0, 4, 1), _with_host()),
    ("cancel-of-continuation", "Cancel"): _after(_KEPT, Cancel(0)),
    ("checkpoint-of-nothing", "Checkpoint"): _after(_ADMITTED, Checkpoint(0)),
    ("row-in-flight", "Prefill"): _after(
        (*_ADMITTED, BeginUnit((Prefill(0, 1),))), BeginUnit((Prefill(0, 1),))
    ),
    ("row-in-flight", "Append"): _after(_IN_FLIGHT, BeginUnit((Append(0, _ONE),))),
    ("row-in-flight", "Truncate"): _after(_IN_FLIGHT, Truncate(0, 4)),
    ("row-in-flight", "Checkpoint"): _after(_IN_FLIGHT, Checkpoint(0)),
    ("row-in-flight", "Finish"): _after(_IN_FLIGHT, Finish(0)),
    ("row-in-flight", "Fork"): _after(_IN_FLIGHT, Fork(0, 4, 1)),
    ("host-absent", "Demote"): _after(_KEPT, Demote(0)),
    ("empty-unit", "BeginUnit"): _after(_FILLED, BeginUnit(())),
    ("repeated-sequence", "Prefill"): _after(_ADMITTED, BeginUnit((Prefill(0, 1), Prefill(0, 1)))),
    ("repeated-sequence", "Append"): _after(_FILLED, BeginUnit((Append(0, _ONE), Append(0, _ONE)))),
    ("empty-work", "Prefill"): _after(_ADMITTED, BeginUnit((Prefill(0, 0),))),
    ("empty-work", "Append"): _after(_FILLED, BeginUnit((Append(0, EMPTY),))),
    ("prefill-beyond-prompt", "Prefill"): _after(_ADMITTED, BeginUnit((Prefill(0, 5),))),
    ("backend-absent", "Prefill"): _after(_ADMITTED, BeginUnit((Prefill(0, 1, backend=0),))),
    ("backend-absent", "Append"): _after(_FILLED, BeginUnit((Append(0, _ONE, backend=1),))),
    ("backend-negative", "Prefill"): _after(
        _ADMITTED, BeginUnit((Prefill(0, 1, backend=-1),)), _with_backend()
    ),
    ("backend-negative", "Append"): _after(
        _FILLED, BeginUnit((Append(0, _ONE, backend=-1),)), _with_backend()
    ),
    ("backend-ahead", "Prefill"): _after(_ADMITTED, BeginUnit((Prefill(0, 1, backend=2),)), _with_backend()),
    ("backend-ahead", "Append"): _after(
        _FILLED, BeginUnit((Append(0, _ONE, backend=2),)), _with_backend("draft")
    ),
    ("accepted-unselected", "EndUnit"): _after(_IN_FLIGHT, EndUnit(1, accepted=((1, 1),))),
    ("accepted-repeated", "EndUnit"): _after(_IN_FLIGHT, EndUnit(1, accepted=((0, 1), (0, 1)))),
    ("accepted-of-a-prompt", "EndUnit"): _after(
        (*_ADMITTED, BeginUnit((Prefill(0, 4),))), EndUnit(0, accepted=((0, 4),))
    ),
    ("accepted-out-of-range", "EndUnit"): _after(_IN_FLIGHT, EndUnit(1, accepted=((0, 2),))),
    ("accepted-by-an-abort", "EndUnit"): _after(_IN_FLIGHT, EndUnit(1, commit=False, accepted=((0, 1),))),
    ("lead-beyond-limit", "Append"): _after(
        _FILLED, BeginUnit((Append(0, _ONE, backend=5),)), _with_backend()
    ),
    ("empty-prompt", "Submit"): _after((), Submit(EMPTY, 1)),
    ("empty-prompt", "Lookup"): _after((), Lookup(EMPTY)),
    ("span-places", "Submit"): _after((), Submit(run(0, 0, 4), 1, spans=(TokenSpan(3, 2, "image"),))),
    ("span-places", "Lookup"): _after((), Lookup(run(0, 0, 4), spans=(TokenSpan(3, 2, "image"),))),
    ("span-names", "Submit"): _after((), Submit(run(0, 0, 4), 1, spans=(TokenSpan(1, 2),))),
    ("span-names", "Lookup"): _after((), Lookup(run(0, 0, 4), spans=(TokenSpan(1, 2),))),
    ("negative-growth", "Submit"): _after((), Submit(run(0, 0, 4), -1)),
    ("negative-growth", "Fork"): _after(_FILLED, Fork(0, 4, -1)),
    ("fork-position", "Fork"): _after(_FILLED, Fork(0, 5, 1)),
    ("truncate-position", "Truncate"): _after(_FILLED, Truncate(0, 5)),
    ("beyond-limit", "Append"): _after(_FILLED, BeginUnit((Append(0, _FIVE),))),
    ("beyond-context", "Submit"): _after((), Submit(run(0, 0, 4), 13)),
    ("beyond-context", "Fork"): _after(_FILLED, Fork(0, 4, 13)),
    ("beyond-pool", "Submit"): _after((), Submit(run(0, 0, 4), 5), _config(capacity=2)),
    ("beyond-pool", "Fork"): _after(_FILLED, Fork(0, 4, 5), _config(capacity=2)),
    ("session-busy", "Fork"): _after(_FILLED, Fork(0, 4, 1, session="a")),
    ("session-busy", "TryAdmit"): _after((*_ADMITTED, Submit(_ONE, 1, session="a")), TryAdmit(1)),
    ("no-row", "Fork"): _after(_FILLED, Fork(0, 4, 1), _config(rows=1)),
    ("no-row", "TryAdmit"): _after((*_ADMITTED, Submit(_ONE, 1)), TryAdmit(1), _config(rows=1)),
    ("no-pages", "Fork"): _after(_FILLED, Fork(0, 4, 8), _config(capacity=3)),
    ("no-pages", "TryAdmit"): _after((*_ADMITTED, Submit(_FIVE, 1)), TryAdmit(1), _config(capacity=3)),
    ("no-pages", "Truncate"): _after(_SHARED, Truncate(1, 4), _config(capacity=2)),
    ("no-pages", "Restore"): _after(
        (*_DEMOTED, Submit(run(1, 0, 4), 4), Schedule()), Restore(0), _with_host(capacity=2)
    ),
    ("no-extent", "Demote"): _after(
        (Submit(run(0, 0, 8), 0), Schedule(), BeginUnit((Prefill(0, 8),)), EndUnit(0), Finish(0)),
        Demote(0),
        _with_host(host_pages=1),
    ),
}

#: Cells that only an engine without reservations can be in: it grants pages when a unit asks for them.
ON_DEMAND_CELLS: dict[tuple[str, str], Scenario] = {
    ("no-pages", "Prefill"): _after(
        (
            Submit(run(0, 0, 4), 0),
            Submit(run(1, 0, 4), 0),
            Schedule(),
            BeginUnit((Prefill(0, 4),)),
            EndUnit(0),
        ),
        BeginUnit((Prefill(1, 4),)),
        _config(capacity=1),
    ),
    ("no-pages", "Append"): _after(
        (
            Submit(run(0, 0, 4), 4),
            Submit(run(1, 0, 4), 4),
            Schedule(),
            BeginUnit((Prefill(0, 4), Prefill(1, 4))),
            EndUnit(0),
        ),
        BeginUnit((Append(0, _ONE),)),
        _config(capacity=2),
    ),
}

#: One scenario for each row, the first of its cells, for engines whose admission reserves the worst case.
SCENARIOS: dict[str, Scenario] = {row: CELLS[row, operation] for row, operation in reversed(CELLS)}
