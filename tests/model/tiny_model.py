"""A tiny model file of the Llama family, written with the library's own writer, and a dense cache to decode it over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

LAYERS, EMBEDDING, HEADS, KV_HEADS, FFN, CONTEXT = 2, 64, 4, 2, 96, 256
HEAD_DIM = EMBEDDING // HEADS
ROPE_BASE, EPSILON = 10_000.0, 1e-5
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n")]


def byte_characters() -> list[str]:
    """The 256 characters of byte-level tokens, found without the code under test."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def vocabulary() -> list[str]:
    return [*CONTROL, *byte_characters(), *("".join(pair) for pair in MERGES)]


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights in the published order of rows: rotation turns the halves of a head against each other."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1.0 + 0.1 * rng.standard_normal(EMBEDDING)).astype(np.float32)

    weights = {"token_embd.weight": matrix(len(vocabulary()), EMBEDDING), "output_norm.weight": norm()}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        weights |= {
            f"{block}.attn_norm.weight": norm(),
            f"{block}.attn_q.weight": matrix(HEADS * HEAD_DIM, EMBEDDING) * 3,
            f"{block}.attn_k.weight": matrix(KV_HEADS * HEAD_DIM, EMBEDDING) * 3,
            f"{block}.attn_v.weight": matrix(KV_HEADS * HEAD_DIM, EMBEDDING) * 3,
            f"{block}.attn_output.weight": matrix(EMBEDDING, HEADS * HEAD_DIM) * 3,
            f"{block}.ffn_norm.weight": norm(),
            f"{block}.ffn_gate.weight": matrix(FFN, EMBEDDING),
            f"{block}.ffn_up.weight": matrix(FFN, EMBEDDING),
            f"{block}.ffn_down.weight": matrix(EMBEDDING, FFN),
        }
    return weights


def permuted(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head as conversion to GGUF does: halves become adjacent pairs."""
    return matrix.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(matrix.shape)


def write_model(
    path: Path,
    weights: dict[str, np.ndarray],
    *,
    architecture: str = "llama",
    quantised: Sequence[str] = (),
    overrides: dict[str, Any] | None = None,
) -> Path:
    """Write ``weights`` (published order) as GGUF; ``overrides`` replaces integers of the metadata by name."""
    sizes = {
        "block_count": LAYERS,
        "embedding_length": EMBEDDING,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "feed_forward_length": FFN,
        "context_length": CONTEXT,
        "rope.dimension_count": HEAD_DIM,
    } | (overrides or {})
    writer = GGUFWriter(path, architecture)
    for name, value in sizes.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{name}", value)
        elif value is not None:
            writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", ROPE_BASE)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", EPSILON)
    writer.add_string("general.license", "none")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(vocabulary()) - len(CONTROL)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(CONTROL.index("<|im_end|>"))
    for name, array in weights.items():
        stored = array
        if name.endswith("attn_q.weight"):
            stored = permuted(array, HEADS)
        elif name.endswith("attn_k.weight"):
            stored = permuted(array, KV_HEADS)
        if name in quantised:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass
class _DenseStep:
    """Rows of one step over plain per-sequence tensors; attention row by row, nothing clever."""

    cache: DenseCache
    feeds: list[tuple[int, int]]

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._each(layer, keys, values)

    def _each(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        row = 0
        for sequence, count in self.feeds:
            held = self.cache.rows[sequence]
            held[layer] = (
                torch.cat((held[layer][0], keys[row : row + count])),
                torch.cat((held[layer][1], values[row : row + count])),
            )
            row += count

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        out, row = torch.empty_like(queries), 0
        for sequence, count in self.feeds:
            keys, values = self.cache.rows[sequence][layer]
            group = queries.shape[1] // keys.shape[1]
            for index in range(count):
                seen = keys.shape[0] - count + index + 1
                for head in range(queries.shape[1]):
                    scores = keys[:seen, head // group] @ queries[row, head] / queries.shape[2] ** 0.5
                    out[row, head] = scores.softmax(0) @ values[:seen, head // group]
                row += 1
        return out


class DenseCache:
    """The test double of a ``SequenceCache``: one growing tensor per sequence and layer."""

    peak_pages = None

    def __init__(self, layers: int = LAYERS, kv_heads: int = KV_HEADS, head_dim: int = HEAD_DIM) -> None:
        self._empty = torch.zeros(0, kv_heads, head_dim)
        self._layers = layers
        self.rows: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._next = 0

    def start(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        return self._add([(self._empty, self._empty)] * self._layers)

    def _add(self, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> int:
        self._next += 1
        self.rows[self._next] = rows
        return self._next

    @contextmanager
    def step(self, feeds: Sequence[tuple[int, Sequence[int]]]) -> Iterator[_DenseStep]:
        yield _DenseStep(self, [(sequence, len(tokens)) for sequence, tokens in feeds])

    def fork(self, sequence: int, position: int, max_new_tokens: int) -> int:
        return self._add([(k[:position].clone(), v[:position].clone()) for k, v in self.rows[sequence]])

    def truncate(self, sequence: int, position: int) -> None:
        self.rows[sequence] = [(k[:position], v[:position]) for k, v in self.rows[sequence]]

    def finish(self, sequence: int) -> None:
        del self.rows[sequence]

    def length(self, sequence: int) -> int:
        return self.rows[sequence][0][0].shape[0]
