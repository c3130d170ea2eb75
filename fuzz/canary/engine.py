"""The canary as an engine: at ledger depth it loses count of a page, at payload depth an element of a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcrucible.contract.snapshot import Snapshot, Touched
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.fuzz.adapters.registry import ENGINES
from kvcrucible.fuzz.setting import Depth, Setting

#: Name of the canary where engines are named.
CANARY = "canary"


class Canary:
    """Our engine, wrong in one plain way that every judge has to see."""

    def __init__(self, setting: Setting) -> None:
        self.inner: Any = ENGINES["paged"](replace(setting, engine="paged"))
        self.capabilities = self.inner.capabilities
        self._ledger = setting.depth is Depth.LEDGER

    def __getattr__(self, name: str) -> Any:
        """Everything else is the engine's own."""
        return getattr(self.inner, name)

    def snapshot(self) -> Snapshot:
        """Return all visible bookkeeping; at ledger depth one leased page is counted nowhere."""
        found: Snapshot = self.inner.snapshot()
        return uncounted(found) if self._ledger else found

    def drain(self) -> tuple[Snapshot, Touched]:
        """Return what was touched, with the same pools."""
        found, touched = self.inner.drain()
        return (uncounted(found) if self._ledger else found), touched

    def read(self, owner: int, layer: int, stop: int, pool: int = 0) -> Any:
        """Return rows of which the last has a first element that was never written."""
        keys, values = self.inner.read(owner, layer, stop, pool)
        if stop:
            keys = keys.copy()
            keys[stop - 1, 0, 0] += 1
        return keys, values


def uncounted(found: Snapshot) -> Snapshot:
    """Return a snapshot whose pools count one leased page too few, where there is any."""
    return replace(
        found, pools=tuple([replace(pool, leased=max(0, pool.leased - 1)) for pool in found.pools])
    )


def canary(setting: Setting) -> EngineAdapter:
    """Return the canary for a setting."""
    built: Any = Canary(setting)
    adapter: EngineAdapter = built
    return adapter
