"""``kvcrucible generate``: a real language model writes text through the paged cache."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvcrucible.cli.console import console, print_json, visible
from kvcrucible.cli.progress import spinner
from kvcrucible.contract.errors import ExitStatus, InputError

if TYPE_CHECKING:
    from kvcrucible.engine.model.tokenizer import ByteLevelTokenizer
    from kvcrucible.perf.generate import Comparison, Disagreement, Request

#: Longest prompt, in characters; far more than any context holds, and still quick to turn down.
MAX_PROMPT_CHARACTERS = 200_000
PAGE_SIZES = (16, 64)


def register(app: typer.Typer) -> None:
    """Add the ``generate`` command to ``app``."""
    app.command("generate")(generate)


def generate(
    prompt: str = typer.Argument("Once upon a time", help="Text to continue, or with --chat to answer."),
    tokens: int = typer.Option(
        64, "--tokens", min=1, help="Most tokens to write; the model may end earlier."
    ),
    compare: bool = typer.Option(
        False, "--compare", help="Run the contiguous reference beside it, token by token."
    ),
    page_size: int = typer.Option(64, "--page-size", help="Tokens in a page: 16 or 64."),
    chat: bool = typer.Option(False, "--chat", help="Take the prompt as a user's message."),
    temperature: float = typer.Option(0.0, "--temperature", min=0.0, help="0 takes the likeliest token."),
    seed: int = typer.Option(0, "--seed", min=0, max=2**32 - 1, help="Seed of the noise at a temperature."),
    threads: int = typer.Option(1, "--threads", min=1, max=256, help="Threads for the arithmetic."),
    model: Path | None = typer.Option(None, "--model", help="Another GGUF file of the Llama family."),
    as_json: bool = typer.Option(False, "--json", help="Write the result as JSON; no text is streamed."),
) -> None:
    """Write text with SmolLM2-135M-Instruct through the paged engine; with --compare, against the reference.

    With --compare the run also forks and cuts the sequence in the middle of a page. Status 1 on a disagreement.
    """
    from kvcrucible.cli.optional import require_file, require_modules
    from kvcrucible.engine.model.fetch import require_model

    if page_size not in PAGE_SIZES:
        raise InputError(f"--page-size {page_size}: use 16 or 64")
    if not math.isfinite(temperature):
        raise InputError(f"--temperature {temperature}: use a finite number from 0 on")
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        raise InputError(f"the prompt has {len(prompt):,} characters, more than {MAX_PROMPT_CHARACTERS:,}")
    if model is not None:
        require_file(model)
    require_modules("model", "numpy", "torch", "gguf", "tokenizers")
    path = model if model is not None else require_model()
    import torch

    from kvcrucible.engine.model.gguf_file import open_gguf
    from kvcrucible.engine.model.llama import LlamaDecoder
    from kvcrucible.engine.model.paged_cache import PagedCache
    from kvcrucible.engine.model.tokenizer import ByteLevelTokenizer
    from kvcrucible.perf.generate import Request, Runner, Sampler, write
    from kvcrucible.perf.generate import compare as compare_sides
    from kvcrucible.perf.reference_cache import ReferenceCache

    torch.set_num_threads(threads)
    file = open_gguf(path)
    tokenizer = ByteLevelTokenizer(file.metadata, path)
    request = Request(
        prompt=_prompt_ids(tokenizer, prompt, chat),
        tokens=tokens,
        stop_ids=tokenizer.stop_ids,
        sampler=Sampler(temperature, seed),
    )
    positions = len(request.prompt) + tokens
    if positions > file.config.context_tokens:
        raise InputError(
            f"{len(request.prompt)} prompt tokens and {tokens} more exceed the model's context of "
            f"{file.config.context_tokens}; use fewer"
        )
    with spinner("reading the weights"):
        decoder = LlamaDecoder.from_file(file)
    cache = PagedCache(file.config, page_size=page_size, max_positions=positions, sequences=2)
    paged = Runner(decoder, cache)
    text = _Text(tokenizer, quiet=as_json)
    if not chat:
        text.show(prompt)
    if compare:
        sides = {"paged": paged, "reference": Runner(decoder, ReferenceCache(file.config))}
        result = compare_sides(sides, request, page_size, text.push, partial(cache.fill_free_pages, math.nan))
        text.finish()
        left = cache.leased_pages if result.held else None
        _report_comparison(
            result, request, tokenizer, text.written, page_size, cache.peak_pages, left, as_json
        )
        if not result.held or left:
            raise typer.Exit(ExitStatus.VIOLATION)
        return
    written = write(paged, request, text.push)
    text.finish()
    if as_json:
        print_json(
            {
                "text": text.written,
                "tokens": written,
                "prompt_tokens": len(request.prompt),
                "ended_early": len(written) < tokens,
                "page_size": page_size,
                "peak_pages": cache.peak_pages,
                "tokens_per_second": {"paged": paged.tokens_per_second},
            }
        )
    else:
        print(
            f"{len(written)} tokens, {_rate(paged.tokens_per_second)}, peak {cache.peak_pages} pages of {page_size}"
        )


def _prompt_ids(tokenizer: ByteLevelTokenizer, prompt: str, chat: bool) -> list[int]:
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"the prompt is not valid UTF-8 at character {error.start}") from error
    ids = tokenizer.encode_chat(prompt) if chat else tokenizer.encode(prompt)
    if not ids:
        raise InputError("the prompt is empty; give at least one character")
    return ids


class _Text:
    """Shows text as tokens come, control characters spelled out, and keeps what was written."""

    def __init__(self, tokenizer: ByteLevelTokenizer, quiet: bool) -> None:
        self._stream, self._quiet, self._console = tokenizer.stream(), quiet, console()
        self.written = ""

    def push(self, token: int) -> None:
        """Take the next token."""
        self._add(self._stream.push(token))

    def finish(self) -> None:
        """Show what is incomplete, and end the line."""
        self._add(self._stream.finish())
        self.show("\n")

    def show(self, piece: str) -> None:
        """Show foreign text without taking it as written."""
        if piece and not self._quiet:
            self._console.out(visible(piece), end="", highlight=False)
            self._console.file.flush()

    def _add(self, piece: str) -> None:
        self.written += piece
        self.show(piece)


def _report_comparison(
    result: Comparison,
    request: Request,
    tokenizer: ByteLevelTokenizer,
    text: str,
    page_size: int,
    peak_pages: int,
    left: int | None,
    as_json: bool,
) -> None:
    """Say what the comparison came to; ``left`` is the number of pages still leased at the end."""
    agreed = len(result.tokens)
    compared = agreed if result.held or not _in_generation(result) else agreed + 1
    if as_json:
        print_json(
            {
                "held": result.held and not left,
                "text": text,
                "tokens": result.tokens,
                "prompt_tokens": len(request.prompt),
                "agreed": agreed,
                "compared": compared,
                "ended_early": result.held and agreed < request.tokens,
                "exercises": [
                    {"name": e.name, "detail": e.detail, "checked": e.checked} for e in result.exercises
                ],
                "disagreement": _disagreement_json(result.disagreement),
                "largest_logit_difference": result.largest_logit_difference,
                "page_size": page_size,
                "peak_pages": peak_pages,
                "pages_left": left,
                "tokens_per_second": result.tokens_per_second,
            }
        )
        return
    early = " (the model ended the text)" if result.held and agreed < request.tokens else ""
    print(f"paged and reference agreed on {agreed} of {compared} tokens{early}")
    for exercise in result.exercises:
        outcome = f"{exercise.checked} tokens came out again" if exercise.checked else "not exercised"
        print(f"{exercise.name} {exercise.detail}: {outcome}")
    for name, rate in result.tokens_per_second.items():
        print(f"{name}: {_rate(rate)}")
    print(
        f"peak {peak_pages} pages of {page_size}; largest logit difference {result.largest_logit_difference:.2g}"
    )
    if left:
        print(f"VIOLATION: {left} pages are still leased after every sequence has ended")
    if result.disagreement is not None:
        _print_disagreement(result.disagreement, tokenizer)


def _in_generation(result: Comparison) -> bool:
    return result.disagreement is not None and result.disagreement.stage == "generation"


def _print_disagreement(disagreement: Disagreement, tokenizer: ByteLevelTokenizer) -> None:
    def shown(token: int) -> str:
        return visible(f"{token} {tokenizer.decode([token])!r}")

    chosen = ", ".join(f"{name} chose {shown(token)}" for name, token in disagreement.chosen.items())
    print(f"DISAGREEMENT in {disagreement.stage} at position {disagreement.position}: {chosen}")
    for name, candidates in disagreement.candidates.items():
        print(f"  {name}: " + ", ".join(f"{shown(c.token)} {c.logit:.6f}" for c in candidates))


def _disagreement_json(disagreement: Disagreement | None) -> dict[str, Any] | None:
    if disagreement is None:
        return None
    return {
        "stage": disagreement.stage,
        "position": disagreement.position,
        "chosen": disagreement.chosen,
        "candidates": {
            # JSON has no NaN, and a read of unwritten memory gives one.
            name: [
                {"token": c.token, "logit": c.logit if math.isfinite(c.logit) else None} for c in candidates
            ]
            for name, candidates in disagreement.candidates.items()
        },
    }


def _rate(tokens_per_second: float | None) -> str:
    return "no decode step" if tokens_per_second is None else f"{tokens_per_second:.1f} tokens/s"
