"""Invariants that wait for a part of the engine, each with what it waits for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Later:
    """An invariant without a checker yet: its id, the section that it comes from, and why it cannot be judged now."""

    id: str
    source: str
    reason: str


_REPLICAS = "Host replicas and transfers do not exist yet: a page has its device lease and nothing else"

LATER: tuple[Later, ...] = (
    Later("host-conservation", "4.4", "There is no Host arena yet whose bytes could be added up."),
    Later(
        "recycle-fenced",
        "4.3, 4.7",
        "Effects run in one ordered stream, so no page is fenced or retiring yet.",
    ),
    Later("one-visible-replica", "4.4", f"{_REPLICAS}, so the visible one is given."),
    Later("replica-valid", "4.4", f"{_REPLICAS}, so no hidden copy can go stale."),
    Later("transfer-pinned", "4.4, 4.14.13", f"{_REPLICAS}, so nothing has to be pinned."),
    Later("publish-order", "4.4, 4.7", f"{_REPLICAS}, so visibility never moves."),
)
