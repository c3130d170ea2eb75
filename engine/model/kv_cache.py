"""What the decoder asks of a KV cache, and what the driver of a generation asks; no cache is named here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch


class KvCache(Protocol):
    """One execution step of a cache: the rows of T new tokens, those of each sequence together and in order.

    For two sequences that feed 3 tokens and 1, T = 4: rows 0 to 2 belong to the first.  The step knows
    the split and the positions; rotation has already been applied to queries and keys.
    """

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write ``keys`` and ``values``, float32 ``[T, Hkv, D]``, at the positions of this step.  Mutates the cache."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Return causal attention, float32 ``[T, Hq, D]``, of ``queries``, same shape, over everything up to
        each query's own position, which :meth:`append` has already written for this layer.  Scale
        1/sqrt(D).
        """


class SequenceCache(Protocol):
    """The sequences of one cache as a generation drives them.  A sequence is named by a number that is never reused."""

    def start(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        """Admit a sequence that will hold at most ``len(prompt) + max_new_tokens`` positions; it starts empty."""

    def step(self, feeds: Sequence[tuple[int, Sequence[int]]]) -> AbstractContextManager[KvCache]:
        """Open a step that feeds each named sequence its tokens; leaving it without error commits them."""

    def fork(self, sequence: int, position: int, max_new_tokens: int) -> int:
        """Return a new sequence with the first ``position`` positions of ``sequence``, and room for so many more."""

    def truncate(self, sequence: int, position: int) -> None:
        """Remove every position from ``position`` on."""

    def finish(self, sequence: int) -> None:
        """End the sequence and free what it alone holds."""

    def length(self, sequence: int) -> int:
        """Return the number of committed positions."""

    @property
    def peak_pages(self) -> int | None:
        """Most pages leased at once so far; ``None`` where the cache has no pages."""
