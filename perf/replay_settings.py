"""What a replay depends on beside its trace."""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.config import EngineConfig, PoolSpec


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Geometry of the engine and the rhythm of the replay.

    ``prefill_chunk`` and ``decode_run`` are the most tokens that one unit writes of a sequence; decode runs of a very
    long one grow with it (``kvcrucible.perf.replay.LONG_TOKENS``).  ``max_context`` None lets one sequence fill the
    pool.  ``full_every`` counts operations.
    """

    capacity_pages: int
    page_size: int = 64
    concurrency: int = 32
    prefill_chunk: int = 8192
    decode_run: int = 256
    max_context: int | None = None
    full_every: int = 10_000
    seed: int = 0

    def engine_config(self) -> EngineConfig:
        """Return the engine's geometry; raises ``BadArgument`` for one that no engine can have."""
        pool = PoolSpec("main", self.capacity_pages, self.page_size)
        return EngineConfig(
            (pool,), self.max_context or pool.capacity_pages * pool.page_size, self.concurrency
        )
