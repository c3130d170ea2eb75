"""Ordered pairs of operations: which kind directly followed which, both carried out.

A fault that shows only where one operation meets what another has just left needs that pair, so a campaign counts all
of them and names those that never came up.  Refused operations change nothing and count for nothing.

Does not verify: that every pair was tried in every state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeAlias

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import OPERATIONS, Operation

#: (name of the earlier operation, name of the one right after it).
Pair: TypeAlias = tuple[str, str]

#: Every kind of operation, in the order of the contract.
KINDS: tuple[str, ...] = tuple(kind.__name__ for kind in OPERATIONS)

ALL_PAIRS: tuple[Pair, ...] = tuple((first, second) for first in KINDS for second in KINDS)

#: Operations that only an engine with a Host tier carries out.
_OF_THE_HOST = frozenset({"Demote", "Restore", "CancelTransfer"})


class PairLog:
    """The pairs of one example, counted into ``counts``."""

    def __init__(self, counts: Counter[Pair]) -> None:
        self._counts = counts
        self._last: str | None = None

    def note(self, operation: Operation, *, refused: bool) -> None:
        """Note an operation; a refused one separates those around it."""
        name = None if refused else type(operation).__name__
        if name is not None and self._last is not None:
            self._counts[self._last, name] += 1
        self._last = name


def impossible(able: Capabilities, hosts: Collection[bool] = (False, True)) -> dict[Pair, str]:
    """Return the pairs that cannot be reached, each with its reason.  ``hosts``: whether settings have a Host tier.

    On an engine that can do everything there are none: whatever was carried out, some sequence, continuation or
    transfer can be there for each operation to be carried out next.
    """
    reasons: dict[Pair, str] = {}
    for pair in ALL_PAIRS:
        absent = [name for name in pair if name not in able.operations]
        hosted = [name for name in pair if name in _OF_THE_HOST]
        if absent:
            reasons[pair] = f"{able.engine} has no {absent[0]}"
        elif hosted and not (able.host and True in hosts):
            reasons[pair] = f"without a Host tier there is no {hosted[0]}"
    return reasons


def missing(counts: Counter[Pair], able: Capabilities, hosts: Collection[bool] = (False, True)) -> list[Pair]:
    """Return the possible pairs that never came up, in the order of the contract."""
    excused = impossible(able, hosts)
    return [pair for pair in ALL_PAIRS if not counts[pair] and pair not in excused]


def pair_name(pair: Pair) -> str:
    """Return a pair as reports show it."""
    return f"{pair[0]} > {pair[1]}"


def pair_of(name: str) -> Pair:
    """Return the pair that :func:`pair_name` shows as ``name``."""
    first, _, second = name.partition(" > ")
    return first, second
