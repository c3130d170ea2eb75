"""Placement policies of the host arena, by name (DESIGN 4.4)."""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.contract.errors import InputError
from kvcrucible.engine.host.policies.best_fit import BestFit
from kvcrucible.engine.host.policies.first_fit import FirstFit
from kvcrucible.engine.host.policies.interface import PlacementPolicy
from kvcrucible.engine.host.policies.next_fit import NextFit
from kvcrucible.engine.host.policies.segregated import SegregatedFit

#: Every policy by its public name.
POLICIES: dict[str, Callable[[], PlacementPolicy]] = {
    "first-fit": FirstFit,
    "best-fit": BestFit,
    "next-fit": NextFit,
    "segregated-fit": SegregatedFit,
}

#: The policy of an arena that names none, chosen by measured fragmentation (decision 0012).
DEFAULT_POLICY = "best-fit"


def placement_policy(name: str) -> PlacementPolicy:
    """Return a new policy called ``name``; raises :class:`InputError` that lists the names there are."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise InputError(
            f"no placement policy is called {name!r}; use one of {', '.join(POLICIES)}"
        ) from None


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "BestFit",
    "FirstFit",
    "NextFit",
    "PlacementPolicy",
    "SegregatedFit",
    "placement_policy",
]
