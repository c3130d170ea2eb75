"""The engines that exist for the sake of the judge, by name: ``kvcrucible fuzz --engine NAME`` takes them too, with
``--raw`` those that show what they do at ledger depth.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.fuzz.canary.engine import CANARY, canary
from kvcrucible.fuzz.cheaters.cheats import CHEATS
from kvcrucible.fuzz.cheaters.orders import ORDERS, honest
from kvcrucible.fuzz.setting import Setting

#: Their names.
JUDGES_OWN: tuple[str, ...] = (CANARY, *CHEATS, *ORDERS)


def judges_own(name: str) -> Callable[[Setting], EngineAdapter] | None:
    """Return what builds the engine called ``name``, None where it is none of these."""
    if name == CANARY:
        return canary
    if name in ORDERS:
        return honest
    return CHEATS[name].build if name in CHEATS else None
