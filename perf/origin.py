"""Where a figure comes from: a machine, or the simulator of machines.

Simulated figures test the chain that judges measured ones, so they travel through the same types.  What keeps them
apart is here: origin belongs to the machine's fingerprint, everything that holds figures takes it from there, and
whatever brings figures together asks :func:`common_origin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from kvcrucible.contract.errors import InputError


class Origin(StrEnum):
    """Whether figures were measured or made up; the value is what every form, file and page shows."""

    MEASURED = "MEASURED"
    SIMULATED = "SIMULATED"


class MixedOriginsError(InputError):
    """Simulated figures were about to join measured ones; nothing was joined."""


def common_origin(origins: Iterable[Origin], what: str) -> Origin:
    """Return the one origin of all figures.

    Raises :class:`MixedOriginsError`, which names ``what`` was to be brought together, where there are two, and
    ``ValueError`` where there is none.
    """
    found = set(origins)
    if not found:
        raise ValueError(f"{what}: no figures")
    if len(found) > 1:
        raise MixedOriginsError(
            f"{what}: {Origin.SIMULATED} figures never join {Origin.MEASURED} ones; keep two of it"
        )
    return found.pop()
