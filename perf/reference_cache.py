"""The contiguous reference as a cache for the decoder: float64 rows, one query and one head at a time.

Verifies: nothing itself; it is what the paged engine is held against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from kvcrucible.contract.profiles import Geometry
from kvcrucible.engine.model.config import LlamaConfig
from kvcrucible.reference.contiguous import ContiguousCache


class ReferenceCache:
    """A ``SequenceCache`` over :class:`ContiguousCache`; it has no pages and refuses no length."""

    peak_pages = None

    def __init__(self, config: LlamaConfig) -> None:
        self._cache = ContiguousCache(Geometry(config.layers, config.kv_heads, config.head_dim))
        self._next = 0

    def start(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        """Begin an empty sequence; both arguments say nothing that matters here."""
        sequence = self._name()
        self._cache.open(sequence)
        return sequence

    @contextmanager
    def step(self, feeds: Sequence[tuple[int, Sequence[int]]]) -> Iterator[_ReferenceStep]:
        """Let the caller append and attend; an error takes back what was appended."""
        parts = [(sequence, self.length(sequence), len(tokens)) for sequence, tokens in feeds]
        try:
            yield _ReferenceStep(self._cache, parts)
        except BaseException:
            for sequence, start, _ in parts:
                self._cache.truncate(sequence, start)
            raise

    def fork(self, sequence: int, position: int, max_new_tokens: int) -> int:
        """Clone the first ``position`` positions."""
        child = self._name()
        self._cache.fork(sequence, child, position)
        return child

    def truncate(self, sequence: int, position: int) -> None:
        """Slice to ``position``."""
        self._cache.truncate(sequence, position)

    def finish(self, sequence: int) -> None:
        """Forget the sequence."""
        self._cache.drop(sequence)

    def length(self, sequence: int) -> int:
        """Return the positions held."""
        return self._cache.length(sequence)

    def _name(self) -> int:
        self._next += 1
        return self._next


@dataclass(frozen=True, slots=True)
class _ReferenceStep:
    """One step: ``parts`` holds each sequence, its first new position and its number of new tokens."""

    cache: ContiguousCache
    parts: list[tuple[int, int, int]]

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Give each sequence its rows."""
        row = 0
        for sequence, _, count in self.parts:
            k, v = (part[row : row + count].numpy().astype(np.float64) for part in (keys, values))
            self.cache.append(sequence, layer, k, v)
            row += count

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Ask the oracle, sequence by sequence; the new tokens stand at the end of each."""
        outputs, row = [], 0
        for sequence, start, count in self.parts:
            q = queries[row : row + count].numpy().astype(np.float64)
            outputs.append(self.cache.attend(sequence, layer, q, np.arange(start, start + count)).out)
            row += count
        return torch.from_numpy(np.concatenate(outputs)).float()
