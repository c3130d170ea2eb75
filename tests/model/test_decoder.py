"""The decoder against an independent one: numpy, float64, halves of a head turned, weights in the published order."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import numpy as np
import tiny_model
import torch
from tiny_model import EPSILON, HEAD_DIM, HEADS, KV_HEADS, LAYERS, ROPE_BASE, DenseCache

from kvcrucible.engine.model.llama import LlamaDecoder

TOKENS = [5, 17, 250, 3, 3, 99, 261, 40, 12, 200, 7]


def naive_logits(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Every position's logits, the whole sequence at once, without a cache."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    count = len(tokens)

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gain

    def turn(x: np.ndarray) -> np.ndarray:
        half = HEAD_DIM // 2
        angle = np.arange(count)[:, None] * ROPE_BASE ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    x = w["token_embd.weight"][tokens]
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        h = norm(x, w[block + "attn_norm.weight"])
        q = turn((h @ w[block + "attn_q.weight"].T).reshape(count, HEADS, HEAD_DIM))
        k = turn((h @ w[block + "attn_k.weight"].T).reshape(count, KV_HEADS, HEAD_DIM))
        v = (h @ w[block + "attn_v.weight"].T).reshape(count, KV_HEADS, HEAD_DIM)
        out = np.zeros_like(q)
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS)
            scores = q[:, head] @ k[:, kv].T / np.sqrt(HEAD_DIM)
            scores[np.triu_indices(count, 1)] = -np.inf
            p = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
        x = x + out.reshape(count, -1) @ w[block + "attn_output.weight"].T
        h = norm(x, w[block + "ffn_norm.weight"])
        gate = h @ w[block + "ffn_gate.weight"].T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (h @ w[block + "ffn_up.weight"].T))
            @ w[block + "ffn_down.weight"].T
        )
    return norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> LlamaDecoder:
    path = tmp_path_factory.mktemp("decoder") / "tiny.gguf"
    return LlamaDecoder.load(tiny_model.write_model(path, tiny_model.random_weights()))


def run(decoder: LlamaDecoder, cache: DenseCache, feeds: list[tuple[int, list[int]]]) -> np.ndarray:
    """Logits of every row of one step."""
    tokens = [token for _, feed in feeds for token in feed]
    positions = [cache.length(seq) + i for seq, feed in feeds for i in range(len(feed))]
    with cache.step(feeds) as step:
        return decoder.forward(
            torch.tensor(tokens), torch.tensor(positions), step, torch.arange(len(tokens))
        ).numpy()


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 1, 6], [10, 1]])
def test_agrees_with_an_independent_decoder_however_it_is_fed(
    decoder: LlamaDecoder, chunks: list[int]
) -> None:
    expected = naive_logits(tiny_model.random_weights(), TOKENS)
    cache = DenseCache()
    sequence, at, parts = cache.start(TOKENS, 0), 0, []
    for chunk in chunks:
        parts.append(run(decoder, cache, [(sequence, TOKENS[at : at + chunk])]))
        at += chunk
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=2e-4)


def test_a_ragged_batch_gives_each_sequence_its_own_logits(decoder: LlamaDecoder) -> None:
    weights, other = tiny_model.random_weights(), [44, 45, 46, 47]
    cache = DenseCache()
    first, second = cache.start(TOKENS, 0), cache.start(other, 0)
    run(decoder, cache, [(first, TOKENS[:7])])
    got = run(decoder, cache, [(first, TOKENS[7:8]), (second, other)])
    np.testing.assert_allclose(got[0], naive_logits(weights, TOKENS)[7], atol=2e-4)
    np.testing.assert_allclose(got[1:], naive_logits(weights, other), atol=2e-4)


def test_a_head_of_its_own_is_used(tmp_path: Path) -> None:
    weights = tiny_model.random_weights()
    weights["output.weight"] = tiny_model.random_weights(1)["token_embd.weight"]
    decoder = LlamaDecoder.load(tiny_model.write_model(tmp_path / "head.gguf", weights))
    cache = DenseCache()
    got = run(decoder, cache, [(cache.start(TOKENS, 0), TOKENS)])
    np.testing.assert_allclose(got, naive_logits(weights, TOKENS), atol=2e-4)


def test_rotation_is_told_apart(decoder: LlamaDecoder) -> None:
    """The comparison above would be worth nothing if turning the wrong elements stayed within its tolerance."""
    weights = tiny_model.random_weights()
    swapped = {
        name: tiny_model.permuted(array, HEADS if name.endswith("attn_q.weight") else KV_HEADS)
        if name.endswith(("attn_q.weight", "attn_k.weight"))
        else array
        for name, array in weights.items()
    }
    assert np.abs(naive_logits(swapped, TOKENS) - naive_logits(weights, TOKENS)).max() > 0.05


@pytest.mark.parametrize(("token", "position"), [(-1, 0), (263, 0), (0, -1), (0, 256)])
def test_tokens_and_positions_outside_the_model(decoder: LlamaDecoder, token: int, position: int) -> None:
    cache = DenseCache()
    with cache.step([(cache.start([0], 0), [0])]) as step, pytest.raises(ValueError, match="outside"):
        decoder.forward(torch.tensor([token]), torch.tensor([position]), step, torch.tensor([0]))
