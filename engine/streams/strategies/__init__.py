"""Strategies of the simulated device, one a file."""

from __future__ import annotations

from kvcrucible.engine.streams.strategies.exhaustive import Exhaustive
from kvcrucible.engine.streams.strategies.failing import Failing
from kvcrucible.engine.streams.strategies.in_order import InOrder
from kvcrucible.engine.streams.strategies.priority_change import PriorityChange
from kvcrucible.engine.streams.strategies.random_walk import RandomWalk
from kvcrucible.engine.streams.strategies.recorded import (
    Recording,
    Replaying,
    ScheduleDivergence,
    ScheduleEntry,
)
from kvcrucible.engine.streams.strategies.starving import Starving

__all__ = [
    "Exhaustive",
    "Failing",
    "InOrder",
    "PriorityChange",
    "RandomWalk",
    "Recording",
    "Replaying",
    "ScheduleDivergence",
    "ScheduleEntry",
    "Starving",
]
