"""Text through the paged engine against the reference, on a tiny model, and what breaking the engine does to it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import tiny_model
import torch
import typer
from typer.testing import CliRunner

from kvcrucible.cli import generate as generate_command
from kvcrucible.cli import main, model
from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.model import paged_cache
from kvcrucible.engine.model.kv_cache import KvCache
from kvcrucible.engine.model.llama import LlamaDecoder
from kvcrucible.engine.model.paged_cache import PagedCache
from kvcrucible.engine.storage.torch_storage import TorchStorage
from kvcrucible.perf.generate import Comparison, Request, Runner, Sampler, compare, mid_page, write
from kvcrucible.perf.reference_cache import ReferenceCache

PROMPT = [7, 70, 30, 99, 12, 30, 200, 41, 5, 5, 77, 16]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generate") / "tiny.gguf"
    return tiny_model.write_model(path, tiny_model.random_weights())


@pytest.fixture(scope="module")
def decoder(model_file: Path) -> LlamaDecoder:
    return LlamaDecoder.load(model_file)


def paged_cache_for(
    decoder: LlamaDecoder, page_size: int = 16, tokens: int = 40, prompt: int = 12
) -> PagedCache:
    return PagedCache(decoder.config, page_size=page_size, max_positions=prompt + tokens, sequences=2)


def run(
    decoder: LlamaDecoder, page_size: int = 16, tokens: int = 40, **request: Any
) -> tuple[Comparison, PagedCache]:
    paged = paged_cache_for(decoder, page_size, tokens)
    sides = {"paged": Runner(decoder, paged), "reference": Runner(decoder, ReferenceCache(decoder.config))}
    heard: list[int] = []
    poison = partial(paged.fill_free_pages, math.nan)
    result = compare(sides, Request(PROMPT, tokens, **request), page_size, heard.append, poison)
    assert heard == result.tokens
    return result, paged


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1.5, seed=3)])
def test_paged_and_reference_agree(decoder: LlamaDecoder, page_size: int, sampler: Sampler) -> None:
    result, paged = run(decoder, page_size, sampler=sampler)
    assert result.held, result.disagreement
    assert len(result.tokens) == 40
    assert [(e.name, e.checked > 0) for e in result.exercises] == [
        ("paged: fork", True),
        ("reference: fork", True),
        ("paged: truncate", True),
        ("reference: truncate", True),
    ]
    assert paged.leased_pages == 0
    assert paged.engine.pools[0].free == paged.engine.pools[0].capacity
    assert paged.peak_pages >= 52 // page_size
    assert result.largest_logit_difference < 1e-3
    assert len(set(result.tokens)) > 3, "a model that repeats one token would agree about anything"


def test_the_noise_of_a_seed(decoder: LlamaDecoder) -> None:
    texts = [run(decoder, sampler=Sampler(temperature=1.5, seed=seed))[0].tokens for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_stops_at_a_stop_token(decoder: LlamaDecoder) -> None:
    whole = run(decoder)[0].tokens
    stop = whole[9]
    stopped = run(decoder, stop_ids=frozenset({stop}))[0]
    assert stopped.held
    assert stopped.tokens == whole[: whole.index(stop) + 1]


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6])
def test_short_texts(decoder: LlamaDecoder, tokens: int) -> None:
    result, paged = run(decoder, 16, tokens)
    assert result.held
    assert len(result.tokens) == tokens
    assert paged.leased_pages == 0


def test_one_token_after_one_has_nothing_to_exercise(decoder: LlamaDecoder) -> None:
    sides = {"reference": Runner(decoder, ReferenceCache(decoder.config))}
    result = compare(sides, Request([5], 1), 16, lambda token: None)
    assert [exercise.checked for exercise in result.exercises] == [0, 0]


def test_writing_alone_gives_the_same_text(decoder: LlamaDecoder) -> None:
    cache = paged_cache_for(decoder)
    heard: list[int] = []
    written = write(Runner(decoder, cache), Request(PROMPT, 40), heard.append)
    assert written == heard == run(decoder)[0].tokens
    assert cache.leased_pages == 0


def test_a_prompt_in_several_chunks(decoder: LlamaDecoder) -> None:
    prompt = [(7 * i) % 250 for i in range(150)]
    texts = []
    for cache in (paged_cache_for(decoder, 16, 5, 150), tiny_model.DenseCache()):
        texts.append(write(Runner(decoder, cache), Request(prompt, 5), lambda token: None))
    assert texts[0] == texts[1]


class Interrupted(Exception):
    """Stands for whatever may go wrong while a step is open."""


def _append_and_fail(step: KvCache) -> None:
    step.append(0, torch.ones(12, 2, 16), torch.ones(12, 2, 16))
    raise Interrupted


def test_an_error_in_a_step_commits_nothing(decoder: LlamaDecoder) -> None:
    for cache in (paged_cache_for(decoder), ReferenceCache(decoder.config)):
        sequence = cache.start(PROMPT, 40)
        with pytest.raises(Interrupted), cache.step([(sequence, PROMPT)]) as step:
            _append_and_fail(step)
        assert cache.length(sequence) == 0
        Runner(decoder, cache).feed([(sequence, PROMPT)])
        assert cache.length(sequence) == len(PROMPT)


@pytest.mark.parametrize(("position", "expected"), [(33, 33), (32, 31), (17, 17), (1, 1), (0, None)])
def test_mid_page(position: int, expected: int | None) -> None:
    assert mid_page(position, 16) == expected


# What a broken engine does: each of these must be noticed, or agreement means nothing.


def no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchStorage, "copy_columns", lambda *arguments: None)


def copy_short(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TorchStorage.copy_columns
    monkeypatch.setattr(
        TorchStorage, "copy_columns", lambda self, pool, a, b, columns: whole(self, pool, a, b, columns - 1)
    )


def write_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    append = TorchStorage.append
    monkeypatch.setattr(
        TorchStorage,
        "append",
        lambda self, layer, rows, starts, *rest: append(
            self, layer, rows, [max(s - 1, 0) for s in starts], *rest
        ),
    )


def read_one_short(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = paged_cache.paged_attention
    monkeypatch.setattr(
        paged_cache,
        "paged_attention",
        lambda q, view, rows, lengths, contexts: attend(
            q, view, rows, lengths, [max(length, n - 1) for length, n in zip(lengths, contexts, strict=True)]
        ),
    )


def truncate_to_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    truncate = Engine.truncate
    monkeypatch.setattr(
        Engine, "truncate", lambda self, sequence, position: truncate(self, sequence, position - 1)
    )


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        (no_copy, "paged: fork"),
        (copy_short, "paged: fork"),
        (write_elsewhere, "generation"),
        (read_one_short, "generation"),
        (truncate_to_boundary, "paged: truncate"),
    ],
)
def test_a_broken_engine_disagrees(
    decoder: LlamaDecoder,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    stage: str,
) -> None:
    fault(monkeypatch)
    result, _ = run(decoder)
    assert result.disagreement is not None
    assert result.disagreement.stage.startswith(stage)
    assert all(len(found) == 5 for found in result.disagreement.candidates.values())


# The command line.


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    generate_command.register(app)
    model.register(app)
    return CliRunner().invoke(app, list(arguments))


def test_compare_on_the_command_line(model_file: Path) -> None:
    done = invoke(
        "generate", "in the", "--model", str(model_file), "--tokens", "20", "--compare", "--page-size", "16"
    )
    assert done.exit_code == 0, done.output
    assert done.output.startswith("in the")
    assert "paged and reference agreed on 20 of 20 tokens" in done.output
    assert "paged: fork at position" in done.output
    assert "pages of 16" in done.output
    assert all(character == "\n" or character.isprintable() for character in done.output)


def test_compare_as_json(model_file: Path) -> None:
    done = invoke("generate", "in the", "--model", str(model_file), "--tokens", "20", "--compare", "--json")
    document = json.loads(done.output)
    assert done.exit_code == 0
    assert document["held"] is True
    assert (document["agreed"], document["compared"], document["pages_left"]) == (20, 20, 0)
    assert document["disagreement"] is None


def test_a_disagreement_on_the_command_line(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_copy(monkeypatch)
    arguments = (
        "generate",
        "in the",
        "--model",
        str(model_file),
        "--tokens",
        "40",
        "--compare",
        "--page-size",
        "16",
    )
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert "DISAGREEMENT in paged: fork at" in done.output
    assert "first run chose" in done.output
    done = invoke(*arguments, "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["disagreement"]["stage"].startswith("paged: fork")


def test_pages_that_stay_leased_are_a_violation(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Engine.finish
    monkeypatch.setattr(Engine, "finish", lambda self, sequence, retain: finish(self, sequence, True))
    done = invoke("generate", "in the", "--model", str(model_file), "--tokens", "20", "--compare")
    assert done.exit_code == 1
    assert "still leased" in done.output


def test_plain_generation_on_the_command_line(model_file: Path) -> None:
    plain = invoke("generate", "in the", "--model", str(model_file), "--tokens", "6", "--page-size", "16")
    assert plain.exit_code == 0
    assert "6 tokens, " in plain.output
    document = json.loads(
        invoke("generate", "in the", "--model", str(model_file), "--tokens", "6", "--json").output
    )
    assert len(document["tokens"]) == 6
    chat = invoke("generate", "hi", "--chat", "--model", str(model_file), "--tokens", "3", "--json")
    assert json.loads(chat.output)["prompt_tokens"] > 10


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("generate", "a", "--page-size", "5"), InputError, "use 16 or 64"),
        (("generate", ""), InputError, "prompt is empty"),
        (("generate", "a", "--temperature", "inf"), InputError, "finite"),
        (("generate", "a", "--tokens", "256"), InputError, "context of 256"),
        (("generate", "a\udcff"), InputError, "not valid UTF-8 at character 1"),
        (("generate", "a" * 200_001), InputError, "characters"),
        (("model", "path"), NotRunError, "model fetch"),
    ],
)
def test_refused_arguments(
    model_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    error: type[Exception],
    match: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    extra = ("--model", str(model_file)) if arguments[0] == "generate" else ()
    done = invoke(*arguments, *extra)
    assert isinstance(done.exception, error)
    assert match in str(done.exception)


def test_without_the_model_the_status_says_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(main, "GROUPS", ("generate", "model"))
    monkeypatch.setattr(sys, "argv", ["kvcrucible", "generate"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 5
    assert "kvcrucible model fetch" in capsys.readouterr().err


def test_model_info(model_file: Path) -> None:
    document = json.loads(invoke("model", "info", "--model", str(model_file), "--json").output)
    assert (document["layers"], document["kv_heads"], document["head_dim"]) == (2, 2, 16)
    assert document["kv_bytes_per_token"] == 2 * 4 * 2 * 2 * 16
    assert "kv heads" in invoke("model", "info", "--model", str(model_file)).output
