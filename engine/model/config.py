"""The few numbers that say what a decoder of the Llama family looks like."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Largest value accepted for each size: far above any model that this decoder could run, far below what
#: would exhaust memory before the shapes of the weights are checked.

MAX_LAYERS = 512
MAX_WIDTH = 1 << 16
MAX_CONTEXT_TOKENS = 1 << 20
MAX_VOCABULARY = 1 << 20


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Geometry and constants of one decoder; construction refuses what no decoder could have (``ValueError``).

    ``embedding``, ``ffn`` and ``head_dim`` count elements; query heads are grouped over ``kv_heads``.
    """

    layers: int
    embedding: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rope_base: float
    norm_epsilon: float
    context_tokens: int
    vocabulary: int

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise ValueError(f"{name} is {value}, outside 1 to {limit}")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} query heads do not divide into groups over {self.kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotation needs pairs")
        if not (math.isfinite(self.rope_base) and self.rope_base > 1.0):
            raise ValueError(f"the rotation base is {self.rope_base}, not a finite number above 1")
        if not (math.isfinite(self.norm_epsilon) and 0.0 < self.norm_epsilon < 1.0):
            raise ValueError(f"the norm's epsilon is {self.norm_epsilon}, not between 0 and 1")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def query_width(self) -> int:
        """Elements of all query heads of one token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key (or value) heads of one token."""
        return self.kv_heads * self.head_dim


_LIMITS = {
    "layers": MAX_LAYERS,
    "embedding": MAX_WIDTH,
    "heads": MAX_WIDTH,
    "kv_heads": MAX_WIDTH,
    "head_dim": MAX_WIDTH,
    "ffn": MAX_WIDTH,
    "context_tokens": MAX_CONTEXT_TOKENS,
    "vocabulary": MAX_VOCABULARY,
}
