"""The real weights, where they have been fetched: perplexity tells right from plausible, and the command's promise."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import torch
import typer
from typer.testing import CliRunner

from kvcrucible.cli import generate as generate_command
from kvcrucible.contract.errors import CrucibleError
from kvcrucible.engine.model import llama
from kvcrucible.engine.model.fetch import is_intact, require_model
from kvcrucible.engine.model.gguf_file import open_gguf
from kvcrucible.engine.model.llama import LlamaDecoder
from kvcrucible.engine.model.paged_cache import PagedCache
from kvcrucible.engine.model.tokenizer import ByteLevelTokenizer
from kvcrucible.perf.generate import Runner

TEXT = (
    "The river rises in the hills to the north of the town and runs slowly through the valley before it reaches "
    "the sea. In spring the water is high and the meadows on both sides are flooded for several weeks. Farmers "
    "keep their animals on the higher ground until the grass is dry again. In summer children swim below the old "
    "bridge, and in the evening people walk along the bank."
)


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return require_model()
    except CrucibleError as error:
        pytest.skip(f"real model: {error}")


@pytest.fixture(scope="module")
def parts(path: Path) -> tuple[LlamaDecoder, ByteLevelTokenizer]:
    file = open_gguf(path)
    assert (file.config.layers, file.config.kv_heads, file.config.head_dim) == (30, 3, 64)
    return LlamaDecoder.from_file(file), ByteLevelTokenizer(file.metadata, path)


def perplexity(decoder: LlamaDecoder, ids: list[int]) -> float:
    cache = PagedCache(decoder.config, page_size=16, max_positions=len(ids), sequences=1)
    logits = Runner(decoder, cache).feed([(cache.start(ids, 0), ids)])
    return math.exp(float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))))


def turn_halves(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """The rotation that does not fit these weights, and still writes text that looks like text."""
    first, second = heads.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)


@pytest.mark.model
@pytest.mark.slow
def test_rotation_by_pairs_fits_the_weights(
    parts: tuple[LlamaDecoder, ByteLevelTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, tokenizer = parts
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    right = perplexity(decoder, ids)
    assert right < 30, f"perplexity {right:.1f} on a plain paragraph"
    monkeypatch.setattr(llama, "rotate_pairs", turn_halves)
    assert perplexity(decoder, ids) > 3 * right


@pytest.mark.model
@pytest.mark.slow
def test_the_command_on_the_real_model(path: Path) -> None:
    assert is_intact(path)
    app = typer.Typer()
    app.callback()(lambda: None)
    generate_command.register(app)
    arguments = [
        "generate",
        "The capital of France is",
        "--tokens",
        "12",
        "--compare",
        "--page-size",
        "16",
        "--json",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.output)
    assert document["held"] is True
    assert document["text"].startswith(" Paris")
