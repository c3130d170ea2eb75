"""A float32 decoder of the Llama family over any KV cache.

Pre-norm blocks: RMSNorm, grouped-query attention with rotary positions, RMSNorm, SwiGLU; the output head
is the embedding unless the file has its own.  Rotation turns *adjacent* pairs of a head (elements 2i and
2i + 1): conversion to GGUF reorders the rows of the query and key matrices to that effect.  Turning
halves instead still gives text that looks plausible (perplexity 75 instead of 8 on a plain paragraph), so
a test pins it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch.nn import functional

from kvcrucible.engine.model.config import LlamaConfig
from kvcrucible.engine.model.gguf_file import FloatArray, GgufModel, open_gguf
from kvcrucible.engine.model.kv_cache import KvCache


class LlamaDecoder:
    """Weights and arithmetic; it keeps no state between calls, so that one decoder may serve many caches.

    Takes ownership of ``weights`` (float32, matrices ``[out, in]``).
    """

    def __init__(self, config: LlamaConfig, weights: dict[str, FloatArray]) -> None:
        self.config = config
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        self._embedding = tensors["token_embd.weight"]
        self._head = tensors.get("output.weight", self._embedding)
        self._output_norm = tensors["output_norm.weight"]
        self._blocks = [_Block(config, tensors, layer) for layer in range(config.layers)]
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        self._frequencies = config.rope_base**-exponents

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a decoder from a GGUF file; raises ``InputError`` (see :func:`open_gguf`)."""
        return cls.from_file(open_gguf(path))

    @classmethod
    def from_file(cls, model: GgufModel) -> Self:
        """Read the weights of an opened file."""
        return cls(model.config, model.weights())

    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: KvCache, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Feed T tokens of one or several sequences and return logits, float32 ``[N, vocabulary]``, for N of them.

        ``tokens`` and ``positions`` are int64 ``[T]``; ``wanted``, int64 ``[N]``, names rows of T.
        Example: sequences A (positions 0 to 2) and B (position 9) give positions ``[0, 1, 2, 9]``, and
        ``wanted = [2, 3]`` asks for the next token of each.  Mutates ``cache`` only.  Raises
        ``ValueError`` for a token or position outside the model.
        """
        self._check(tokens, positions)
        # In float64: at position 8,000 a float32 angle is off by 2e-4 already.
        angles = torch.outer(positions.double(), self._frequencies).unsqueeze(1)
        cosine, sine = angles.cos().float(), angles.sin().float()
        hidden = self._embedding[tokens]
        for block in self._blocks:
            hidden = block.forward(hidden, cosine, sine, cache)
        return functional.linear(self._norm(hidden[wanted]), self._head)

    def _norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, hidden.shape[-1:], self._output_norm, self.config.norm_epsilon)

    def _check(self, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        if tokens.shape != positions.shape or tokens.dim() != 1 or tokens.numel() == 0:
            raise ValueError(
                f"tokens {tuple(tokens.shape)} and positions {tuple(positions.shape)}: [T], T > 0, are due"
            )
        for name, values, limit in (
            ("token", tokens, self.config.vocabulary),
            ("position", positions, self.config.context_tokens),
        ):
            low, high = int(values.min()), int(values.max())
            if low < 0 or high >= limit:
                raise ValueError(f"{name}s from {low} to {high}, outside 0 to {limit - 1}")


class _Block:
    """One layer: its weights by role and its arithmetic."""

    def __init__(self, config: LlamaConfig, tensors: dict[str, torch.Tensor], layer: int) -> None:
        self._config, self._layer = config, layer
        self._attention_norm = tensors[f"blk.{layer}.attn_norm.weight"]
        self._query = tensors[f"blk.{layer}.attn_q.weight"]
        self._key = tensors[f"blk.{layer}.attn_k.weight"]
        self._value = tensors[f"blk.{layer}.attn_v.weight"]
        self._output = tensors[f"blk.{layer}.attn_output.weight"]
        self._ffn_norm = tensors[f"blk.{layer}.ffn_norm.weight"]
        self._gate = tensors[f"blk.{layer}.ffn_gate.weight"]
        self._up = tensors[f"blk.{layer}.ffn_up.weight"]
        self._down = tensors[f"blk.{layer}.ffn_down.weight"]

    def forward(
        self, hidden: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, cache: KvCache
    ) -> torch.Tensor:
        """Return the residual stream ``[T, embedding]`` after this layer; the cosines and sines are ``[T, 1, D/2]``."""
        config, rows = self._config, hidden.shape[0]
        x = functional.rms_norm(hidden, hidden.shape[-1:], self._attention_norm, config.norm_epsilon)
        queries = functional.linear(x, self._query).view(rows, config.heads, config.head_dim)
        keys = functional.linear(x, self._key).view(rows, config.kv_heads, config.head_dim)
        values = functional.linear(x, self._value).view(rows, config.kv_heads, config.head_dim)
        cache.append(self._layer, rotate_pairs(keys, cosine, sine), values)
        attended = cache.attend(self._layer, rotate_pairs(queries, cosine, sine))
        hidden = hidden + functional.linear(attended.reshape(rows, config.query_width), self._output)
        x = functional.rms_norm(hidden, hidden.shape[-1:], self._ffn_norm, config.norm_epsilon)
        gated = functional.silu(functional.linear(x, self._gate)) * functional.linear(x, self._up)
        return hidden + functional.linear(gated, self._down)


def rotate_pairs(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return ``heads`` ``[T, H, D]`` with each adjacent pair turned; the cosines and sines are ``[T, 1, D/2]``."""
    even, odd = heads[..., 0::2], heads[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)
