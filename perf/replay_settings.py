"""What a replay depends on beside its trace."""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.config import LRU, EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import Geometry, storage_profile

#: What a page is counted as where there is a Host tier: keys and values in BF16 of 32 layers with 8 KV heads of 128,
#: 131,072 bytes a token.  Nothing is stored; the figures in bytes are in proportion for any other model.
HOST_GEOMETRY, HOST_PROFILE = Geometry(32, 8, 128), "BF16"


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Geometry of the engine and the rhythm of the replay.

    ``prefill_chunk`` and ``decode_run`` are the most tokens that one unit writes of a sequence; decode runs of a very
    long one grow with it (``kvcrucible.perf.replay.LONG_TOKENS``).  ``max_context`` None lets one sequence fill the
    pool.  ``full_every`` counts operations.  ``host_pages``: pages that the Host tier has room for, 0 for none.
    ``policy``: who yields first.  ``lookahead``: requests behind a head that waits that one ``schedule`` looks at, to
    let those pass that cannot delay it (decision 0021); 0: nobody passes.
    """

    capacity_pages: int
    page_size: int = 64
    concurrency: int = 32
    prefill_chunk: int = 8192
    decode_run: int = 256
    max_context: int | None = None
    full_every: int = 10_000
    seed: int = 0
    host_pages: int = 0
    policy: str = LRU
    lookahead: int = 0

    def engine_config(self) -> EngineConfig:
        """Return the engine's geometry; raises ``BadArgument`` for one that no engine can have."""
        planes = PlaneSpec(storage_profile(HOST_PROFILE), HOST_GEOMETRY, self.page_size, "main")
        pool = PoolSpec("main", self.capacity_pages, self.page_size, (planes,) if self.host_pages else ())
        host = HostSpec(self.host_pages * pool.page_bytes) if self.host_pages else None
        context = self.max_context or pool.capacity_pages * pool.page_size
        return EngineConfig((pool,), context, self.concurrency, host, self.policy, self.lookahead)
