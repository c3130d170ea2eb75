"""What the harness needs of an engine under test; one adapter per engine implements it.

An adapter translates and observes; it never repairs, retries or guesses.  What the engine cannot do or show is left
out of its :class:`~kvcrucible.contract.capabilities.Capabilities`, with the reason in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import Operation, Outcome
from kvcrucible.contract.snapshot import PageState, Snapshot, Touched

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvcrucible.fuzz.content import Rows


class EngineAdapter(Protocol):
    """One engine under test, owned by one example; dropped with it."""

    capabilities: Capabilities

    def execute(self, operation: Operation) -> Outcome:
        """Carry out one operation.  A refusal is an outcome; any other exception is the engine's own fault."""

    def snapshot(self) -> Snapshot:
        """Return all visible bookkeeping; the parts that the engine cannot fill stay empty."""

    def drain(self) -> tuple[Snapshot, Touched] | None:
        """Return what operations touched since the last call, None where the engine cannot tell."""


class PayloadAdapter(EngineAdapter, Protocol):
    """An engine whose rows can be written and read back, in each of its pools."""

    layers: int

    def write(self, sequence: int, start: int, layer: int, keys: Rows, values: Rows, pool: int = 0) -> None:
        """Queue the write of rows ``[n, Hkv, D]`` at positions from ``start`` of a sequence that a unit has
        selected.
        """

    def read(self, owner: int, layer: int, stop: int, pool: int = 0) -> tuple[Rows, Rows]:
        """Return the rows ``[stop, Hkv, D]`` of an active or retained sequence, each from where its page is visible;
        device effects have taken place.
        """

    def read_copy(self, page: PageState, layer: int, columns: int) -> tuple[Rows, Rows]:
        """Return the first ``columns`` rows ``[columns, Hkv, D]`` of a page's hidden replica; device effects have taken
        place.  Only asked of an engine with a Host tier.
        """

    def attend(
        self, owners: Sequence[int], layer: int, queries: Rows, pool: int = 0
    ) -> tuple[Rows, NDArray[np.float64]] | None:
        """Return the engine's own decode attention: (out ``[N, Hq, D]``, lse ``[N, Hq]``) of one query ``[N, Hq,
        D]`` at the last position that the pool has of each active owner.  None where the engine has no attention of its
        own.
        """

    def device_row(self, sequence: int, pool: int = 0) -> tuple[int, ...] | None:
        """Return the device's own block-table row with trailing holes cut off, None where there is none to read."""

    def poison(self, page: int, first: int, stop: int, value: float, pool: int = 0) -> None:
        """Queue a raw write of ``value`` into columns ``[first, stop)`` of a physical page of a pool."""

    def run_effects(self, count: int) -> int:
        """Let up to ``count`` queued device effects take place; return how many did."""

    def settle(self) -> None:
        """Let all device effects take place."""
