"""Writes text over one cache, or over two caches side by side, token against token.

Verifies: that the decoder over the paged engine chooses, at every step, the token that it chooses over the contiguous
reference; that a child forked in the middle of a page goes on as its parent did; that a sequence cut in the middle of a
page and fed again predicts what it predicted before, while a fork that shares its pages does too; that no page stays
leased.  Does not verify: the decoder's own arithmetic, which both sides share, nor logits beyond reporting the largest
difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from kvcrucible.engine.model.kv_cache import SequenceCache
from kvcrucible.engine.model.llama import LlamaDecoder

#: Prompt tokens fed in one step: bounds the activations, and makes long prompts cross several units.
PREFILL_CHUNK_TOKENS = 128
#: Most tokens that a forked child writes by itself.
FORK_TOKENS = 16
#: Tokens beyond a whole page that are cut and fed again, so that the cut reaches into a page that a fork shares.
CUT_BEYOND_PAGE = 4
#: Candidates shown of each side where two sides choose differently.
CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class Sampler:
    """Chooses a token from logits: the largest one, or at a temperature by noise that depends on seed and position.

    Because the noise depends on nothing else, two caches, and a fork and its parent, draw alike.
    """

    temperature: float = 0.0
    seed: int = 0

    def choose(self, logits: torch.Tensor, position: int) -> int:
        """Return the token for ``position`` from ``logits`` ``[vocabulary]``."""
        if self.temperature <= 0.0:
            return int(logits.argmax())
        generator = torch.Generator().manual_seed((self.seed << 24) + position)
        uniform = torch.rand(logits.shape, generator=generator, dtype=torch.float64).clamp_min(1e-300)
        return int((logits.double() / self.temperature - (-uniform.log()).log()).argmax())


class Runner:
    """A decoder over one cache.

    ``seconds`` is the time that ``decoded`` single-token steps took; feeding a prompt does not count.
    """

    def __init__(self, decoder: LlamaDecoder, cache: SequenceCache) -> None:
        self.decoder, self.cache = decoder, cache
        self.seconds, self.decoded = 0.0, 0

    def feed(self, feeds: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
        """Feed several sequences in one step and return every row's logits, ``[T, vocabulary]``.  Mutates the cache."""
        return self._feed(feeds, last_only=False)

    def generate(
        self, sequence: int, prompt: Sequence[int], sampler: Sampler
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Feed ``prompt``, then yield each next token with its logits for as long as the caller asks.

        The token last yielded is not fed until the next is asked for.
        """
        assert prompt, "there is nothing to predict from"
        first, *rest = [
            prompt[start : start + PREFILL_CHUNK_TOKENS]
            for start in range(0, len(prompt), PREFILL_CHUNK_TOKENS)
        ]
        logits = self._feed([(sequence, first)], last_only=True)
        for chunk in rest:
            logits = self._feed([(sequence, chunk)], last_only=True)
        position = self.cache.length(sequence)
        while True:
            token = sampler.choose(logits[-1], position)
            yield token, logits[-1]
            started = time.perf_counter()
            logits = self._feed([(sequence, [token])], last_only=True)
            self.seconds += time.perf_counter() - started
            self.decoded += 1
            position += 1

    @property
    def tokens_per_second(self) -> float | None:
        """Decode rate; ``None`` before the first decode step."""
        return self.decoded / self.seconds if self.seconds > 0 else None

    def _feed(self, feeds: Sequence[tuple[int, Sequence[int]]], *, last_only: bool) -> torch.Tensor:
        tokens = torch.tensor([token for _, fed in feeds for token in fed])
        positions = torch.cat(
            [torch.arange(len(fed)) + self.cache.length(sequence) for sequence, fed in feeds]
        )
        wanted = torch.tensor([len(tokens) - 1]) if last_only else torch.arange(len(tokens))
        with self.cache.step(feeds) as step:
            return self.decoder.forward(tokens, positions, step, wanted)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token and its logit."""

    token: int
    logit: float


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where two choices first differ, or logits are not finite: ``stage``, ``position`` of the token, the choices.

    ``candidates`` holds each side's likeliest tokens, likeliest first.
    """

    stage: str
    position: int
    chosen: dict[str, int]
    candidates: dict[str, list[Candidate]]


@dataclass(frozen=True, slots=True)
class Exercise:
    """What was done beside plain generation: ``checked`` tokens compared, none where it could not be done.

    ``detail`` says where, or why not.
    """

    name: str
    detail: str
    checked: int


@dataclass(slots=True)
class Comparison:
    """What a run over two caches came to.  ``tokens`` are those on which both agreed, in order."""

    tokens: list[int] = field(default_factory=list)
    disagreement: Disagreement | None = None
    exercises: list[Exercise] = field(default_factory=list)
    largest_logit_difference: float = 0.0
    tokens_per_second: dict[str, float | None] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether no two choices differed."""
        return self.disagreement is None


@dataclass(frozen=True, slots=True)
class Request:
    """What to write: ``prompt`` ids, at most ``tokens`` more, ending early after one of ``stop_ids``."""

    prompt: list[int]
    tokens: int
    stop_ids: frozenset[int] = frozenset()
    sampler: Sampler = Sampler()


def write(runner: Runner, request: Request, on_token: Callable[[int], None]) -> list[int]:
    """Generate over one cache, calling ``on_token`` as tokens come, and return them; frees the sequence."""
    sequence = runner.cache.start(request.prompt, request.tokens)
    written: list[int] = []
    for token, _ in runner.generate(sequence, request.prompt, request.sampler):
        written.append(token)
        on_token(token)
        if len(written) == request.tokens or token in request.stop_ids:
            break
    runner.cache.finish(sequence)
    return written


def compare(
    sides: dict[str, Runner],
    request: Request,
    page_size: int,
    on_token: Callable[[int], None],
    poison: Callable[[], None] = lambda: None,
) -> Comparison:
    """Generate over every cache of ``sides`` in lock step, then fork and cut in the middle of a page.

    Stops at the first disagreement.  ``on_token`` gets every token on which all agree; ``poison`` is called before each
    stage, to spoil what no sequence holds.  Frees its sequences where nothing disagreed; after a disagreement they are
    left as they were, for inspection.
    """
    poison()
    result = Comparison()
    sequences = {name: side.cache.start(request.prompt, request.tokens) for name, side in sides.items()}
    streams = [sides[name].generate(sequences[name], request.prompt, request.sampler) for name in sides]
    for choices in zip(*streams, strict=True):
        position = len(request.prompt) + len(result.tokens)
        logits = {name: row for name, (_, row) in zip(sides, choices, strict=True)}
        first = next(iter(logits.values()))
        difference = max(float((row - first).abs().max()) for row in logits.values())
        chosen = {name: token for name, (token, _) in zip(sides, choices, strict=True)}
        finite = all(bool(row.isfinite().all()) for row in logits.values())
        if len(set(chosen.values())) > 1 or not finite:
            result.disagreement = _disagreement("generation", position, chosen, logits)
            return result
        result.largest_logit_difference = max(result.largest_logit_difference, difference)
        token = choices[0][0]
        result.tokens.append(token)
        on_token(token)
        if len(result.tokens) == request.tokens or token in request.stop_ids:
            break
    # Taken before the exercises, whose steps are of other shapes.
    result.tokens_per_second = {name: side.tokens_per_second for name, side in sides.items()}
    text = [*request.prompt, *result.tokens]
    for exercise in (_fork, _cut):
        poison()
        outcomes = [
            exercise(name, side, sequences[name], text, request, page_size) for name, side in sides.items()
        ]
        for outcome in outcomes:
            if isinstance(outcome, Disagreement):
                result.disagreement = outcome
                return result
            result.exercises.append(outcome)
    for name, side in sides.items():
        side.cache.finish(sequences[name])
    return result


def mid_page(position: int, page_size: int) -> int | None:
    """Return the largest position from 1 to ``position`` that is no page boundary; ``None`` where there is none."""
    for candidate in range(position, 0, -1):
        if candidate % page_size:
            return candidate
    return None


def _fork(
    name: str, side: Runner, sequence: int, text: list[int], request: Request, page_size: int
) -> Exercise | Disagreement:
    """Fork in the middle of a page and let the child write on alone; it must write what its parent wrote."""
    frontier = len(text) - 1
    position = mid_page(max(1, frontier - FORK_TOKENS), page_size)
    if position is None or position >= frontier:
        return Exercise(f"{name}: fork", f"{frontier} positions are too few", 0)
    child = side.cache.fork(sequence, position, len(text) - position)
    known = max(len(request.prompt), position + 1)
    checked = 0
    stream = side.generate(child, text[position:known], request.sampler)
    for at, (token, logits) in zip(range(known, len(text)), stream, strict=False):
        if token != text[at] or not bool(logits.isfinite().all()):
            return _against(f"{name}: fork at {position}", at, text[at], token, logits)
        checked += 1
    side.cache.finish(child)
    return Exercise(f"{name}: fork", f"at position {position}", checked)


def _cut(
    name: str, side: Runner, sequence: int, text: list[int], request: Request, page_size: int
) -> Exercise | Disagreement:
    """Cut the sequence in the middle of a page, below a page that a fork shares, and feed both again in one step."""
    frontier = len(text) - 1
    cut = mid_page(max(1, frontier - page_size - CUT_BEYOND_PAGE), page_size)
    fork = mid_page(frontier - 1, page_size)
    if cut is None or fork is None:
        return Exercise(f"{name}: truncate", f"{frontier} positions are too few", 0)
    child = side.cache.fork(sequence, fork, len(text) - fork)
    side.cache.truncate(sequence, cut)
    logits = side.feed([(sequence, text[cut:frontier]), (child, text[fork:frontier])])
    checked = 0
    for row, at in enumerate([*range(cut + 1, frontier + 1), *range(fork + 1, frontier + 1)]):
        if at < len(request.prompt):
            continue
        token = request.sampler.choose(logits[row], at)
        if token != text[at] or not bool(logits[row].isfinite().all()):
            return _against(f"{name}: truncate to {cut}", at, text[at], token, logits[row])
        checked += 1
    side.cache.finish(child)
    return Exercise(
        f"{name}: truncate", f"to position {cut}, while a fork at position {fork} keeps the pages", checked
    )


def _against(stage: str, position: int, due: int, token: int, logits: torch.Tensor) -> Disagreement:
    return _disagreement(stage, position, {"first run": due, "again": token}, {"again": logits})


def _disagreement(
    stage: str, position: int, chosen: dict[str, int], logits: dict[str, torch.Tensor]
) -> Disagreement:
    candidates = {}
    for name, row in logits.items():
        values, tokens = row.topk(min(CANDIDATES, row.shape[0]))
        candidates[name] = [Candidate(int(t), float(v)) for t, v in zip(tokens, values, strict=True)]
    return Disagreement(stage, position, chosen, candidates)
