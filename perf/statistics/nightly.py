"""A nightly series of one metric, and what changed on the same night: the code, or the world around it.

A step in a code series is the code's only if nothing else stepped.  Two witnesses speak for the environment: a fact of
the machine's fingerprint that changed that night (a driver), and a *sentinel* series, of a program that never changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.origin import Origin, common_origin
from kvcrucible.perf.statistics.change_points import MAX_NIGHTS, ChangePoint, Search, find_change_points
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint
from kvcrucible.perf.statistics.significance import discoveries


@dataclass(frozen=True, slots=True)
class Night:
    """One night's figure: ``day`` counts days from any fixed one, ``revision`` names the code."""

    day: int
    value: float
    revision: str
    machine: MachineFingerprint


@dataclass(frozen=True, slots=True)
class NightlySeries:
    """One metric, night by night.  Raises :class:`InputError` for days that do not increase or values that are not

    positive and finite, :class:`MixedOriginsError` where simulated nights stand among measured ones.
    """

    metric: str
    nights: tuple[Night, ...]

    def __post_init__(self) -> None:
        days = [night.day for night in self.nights]
        if not days or len(days) > MAX_NIGHTS:
            raise InputError(f"{self.metric}: a series has 1 to {MAX_NIGHTS:,} nights")
        if any(later <= earlier for earlier, later in itertools.pairwise(days)):
            raise InputError(f"{self.metric}: days increase, one figure each")
        values = np.array([night.value for night in self.nights])
        if not (np.isfinite(values) & (values > 0)).all():
            raise InputError(f"{self.metric}: every night has a positive and finite value")
        common_origin((night.machine.origin for night in self.nights), self.metric)

    @property
    def origin(self) -> Origin:
        """Whether these nights were measured."""
        return self.nights[0].machine.origin

    def extend(self, nights: Iterable[Night]) -> NightlySeries:
        """Return the series with ``nights`` behind it; raises as the constructor does, and this one stays as it is."""
        return NightlySeries(self.metric, (*self.nights, *nights))

    def change_points(self, search: Search | None = None) -> tuple[ChangePoint, ...]:
        """Return the confirmed steps; ``at`` of each is an index into :attr:`nights`."""
        return find_change_points(np.array([night.value for night in self.nights]), search)

    def machine_changes(self) -> dict[int, tuple[str, ...]]:
        """Return day to what changed in the fingerprint since the night before."""
        return {
            later.day: earlier.machine.differences(later.machine)
            for earlier, later in zip(self.nights, self.nights[1:], strict=False)
            if earlier.machine != later.machine
        }


class Cause(StrEnum):
    """What a step is put down to."""

    CODE = "code"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class AttributedChange:
    """A step of ``metric`` on ``day``, and the witnesses of the environment within the tolerance; none for the code's.

    ``revisions``: the last before the step and the first of the new level.
    """

    metric: str
    day: int
    point: ChangePoint
    cause: Cause
    witnesses: tuple[str, ...]
    revisions: tuple[str, str]
    origin: Origin


def attribute(
    series: Sequence[NightlySeries],
    sentinels: Sequence[NightlySeries],
    search: Search | None = None,
    tolerance_days: int = 3,
    discovery_rate: float = 0.05,
) -> tuple[AttributedChange, ...]:
    """Return the changes of all ``series``, each put down to code or environment, in order of days.

    Over the steps of all code series, those that are no discovery at ``discovery_rate`` are dropped: a hundred series
    have a few steps by chance.  A step within ``tolerance_days`` of a sentinel's step or of a change of the machine is
    the environment's.  Raises :class:`MixedOriginsError` where some of it is simulated.
    """
    common_origin((one.origin for one in (*series, *sentinels)), "series that are compared")
    found = [(one, point) for one in series for point in one.change_points(search)]
    if not found:
        return ()
    events = [
        (sentinel.nights[point.at].day, f"{sentinel.metric} changed by {point.change:+.1%}")
        for sentinel in sentinels
        for point in sentinel.change_points(search)
    ]
    kept = discoveries(
        np.array([point.p for _, point in found]), discovery_rate, max(len(series), len(found))
    )
    changes = []
    for (one, point), keep in zip(found, kept, strict=True):
        if not keep:
            continue
        day = one.nights[point.at].day
        facts = [(when, line) for when, lines in one.machine_changes().items() for line in lines]
        witnesses = tuple(what for when, what in (*facts, *events) if abs(when - day) <= tolerance_days)
        changes.append(
            AttributedChange(
                one.metric,
                day,
                point,
                Cause.ENVIRONMENT if witnesses else Cause.CODE,
                witnesses,
                (one.nights[point.at - 1].revision, one.nights[point.at].revision),
                one.origin,
            )
        )
    return tuple(sorted(changes, key=lambda change: (change.day, change.metric)))
