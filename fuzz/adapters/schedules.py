"""Who decides the order of device effects in an example: a strategy for each schedule that a setting can name."""

from __future__ import annotations

from collections.abc import Collection

from kvcrucible.contract.errors import InputError
from kvcrucible.engine.streams.strategies import InOrder, PriorityChange, RandomWalk, Starving
from kvcrucible.engine.streams.strategy import StepKind, Strategy
from kvcrucible.fuzz.setting import SCHEDULES

#: Events in a certain order that the priority strategy looks for; most faults of order need two or three.
PRIORITY_DEPTH = 4

#: About as many steps as an example's device takes: where priorities may change.
EXPECTED_STEPS = 120


def strategy_of(schedule: str, seed: int, compute: str, copies: Collection[str]) -> Strategy:
    """Return a new strategy; ``compute`` and ``copies`` name the engine's streams, those of copies between the tiers.

    Raises ``InputError`` for an unknown schedule.
    """
    match schedule:
        case "in-order":
            return InOrder()
        case "random-walk":
            return RandomWalk(seed)
        case "copies-starved":
            return Starving({(name, kind) for name in copies for kind in StepKind})
        case "compute-starved":
            return Starving({(compute, kind) for kind in StepKind})
        case "compute-silent":
            return Starving({(compute, StepKind.SIGNAL)})
        case "priority":
            return PriorityChange(seed, PRIORITY_DEPTH, EXPECTED_STEPS)
    raise InputError(f"unknown schedule {schedule!r:.40}; known: {', '.join(SCHEDULES)}")
