"""The naive cache: every sequence has arrays of its own.  A fork clones them, a truncation slices them.

No pages, no sharing, no accounting; what a paged cache must be indistinguishable from.  Sequences are named
by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.errors import BadArgument, StaleHandle, WrongState
from kvcrucible.contract.profiles import Geometry
from kvcrucible.reference.attention import Array, Attention, attention
from kvcrucible.reference.rounding import keep


class ContiguousCache:
    """Keys and values of any number of sequences, each ``[length, Hkv, D]`` a layer, float64.

    ``store`` is what storing does to rows, of keys alone where ``store_values`` is given for values
    (``codecs.storing`` by profile and side); rows read back are already stored.  An unknown sequence is a
    ``StaleHandle``, a known one opened again a ``WrongState``; refused calls change nothing.
    """

    def __init__(
        self,
        geometry: Geometry,
        store: Callable[[Array], Array] = keep,
        store_values: Callable[[Array], Array] | None = None,
    ) -> None:
        self.geometry, self._store_keys = geometry, store
        self._store_values = store if store_values is None else store_values
        self._sequences: dict[Hashable, list[tuple[Array, Array]]] = {}

    def open(self, sequence: Hashable) -> None:
        """Begin an empty sequence."""
        self._check_new(sequence)
        empty = np.zeros((0, self.geometry.kv_heads, self.geometry.head_dim))
        self._sequences[sequence] = [(empty, empty) for _ in range(self.geometry.layers)]

    def append(self, sequence: Hashable, layer: int, k: Array, v: Array) -> None:
        """Add the rows ``k``, ``v`` ``[n, Hkv, D]`` after those that ``layer`` has; the arrays are copied."""
        held = self._find(sequence)
        expected = (len(k), self.geometry.kv_heads, self.geometry.head_dim)
        if k.shape != expected or v.shape != expected:
            raise BadArgument(
                f"an append of k {k.shape}, v {v.shape}", f"rows of {expected[1:]}", "give equal shapes"
            )
        old_k, old_v = held[layer]
        held[layer] = (
            np.concatenate([old_k, self._store_keys(k)]),
            np.concatenate([old_v, self._store_values(v)]),
        )

    def fork(self, source: Hashable, child: Hashable, position: int) -> None:
        """Begin ``child`` as a clone of the first ``position`` positions of ``source``."""
        held = self._up_to(source, position)
        self._check_new(child)
        self._sequences[child] = held

    def truncate(self, sequence: Hashable, position: int) -> None:
        """Forget everything at and beyond ``position``."""
        self._sequences[sequence] = self._up_to(sequence, position)

    def drop(self, sequence: Hashable) -> None:
        """Forget the sequence; its name may be opened again."""
        self._find(sequence)
        del self._sequences[sequence]

    def length(self, sequence: Hashable) -> int:
        """Return the positions that every layer has."""
        return min(len(k) for k, _ in self._find(sequence))

    def rows(self, sequence: Hashable, layer: int) -> tuple[Array, Array]:
        """Return copies of ``k`` and ``v`` ``[length, Hkv, D]`` as stored."""
        k, v = self._find(sequence)[layer]
        return k.copy(), v.copy()

    def attend(self, sequence: Hashable, layer: int, q: Array, positions: NDArray[np.int64]) -> Attention:
        """Return the oracle's attention of ``q [T, Hq, D]`` standing at ``positions [T]``; see
        ``attention.attention``.
        """
        k, v = self._find(sequence)[layer]
        return attention(q, k, v, positions)

    def _find(self, sequence: Hashable) -> list[tuple[Array, Array]]:
        if sequence not in self._sequences:
            raise StaleHandle(f"sequence {sequence!r}", "no such sequence", "open it first")
        return self._sequences[sequence]

    def _check_new(self, sequence: Hashable) -> None:
        if sequence in self._sequences:
            raise WrongState(
                f"a new sequence {sequence!r}", "one of that name", "drop it first or use another name"
            )

    def _up_to(self, sequence: Hashable, position: int) -> list[tuple[Array, Array]]:
        held = self._find(sequence)
        if not 0 <= position <= self.length(sequence):
            raise BadArgument(
                f"position {position}", f"{self.length(sequence)} positions", "stay within the sequence"
            )
        return [(k[:position].copy(), v[:position].copy()) for k, v in held]
