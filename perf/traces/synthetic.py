"""Traces of our own: where no recorded one is at hand, and for tests that need a known shape."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces.request import TraceRequest

#: Sessions that are open at a time; the oldest makes room. Bounds what a generator keeps.
_OPEN_SESSIONS = 32

#: Chance that a request continues an open session instead of starting one.
_CONTINUES = 0.6

#: Tokens that a user adds in one turn, and that the model answers: geometric with these means.
_MEAN_TURN_TOKENS, _MEAN_OUTPUT_TOKENS = 120, 180

#: Mean seconds between arrivals.
_MEAN_GAP_S = 0.5


@dataclass(slots=True)
class _Session:
    """The last request of a conversation: its tokens with the answer, and the ids of its whole blocks."""

    last_id: int
    length_tokens: int
    whole_blocks: list[int]


def synthetic_trace(
    seed: int,
    requests: int,
    *,
    block_size: int = 64,
    system_prompts: int = 4,
    system_tokens: int = 512,
    max_prompt_tokens: int = 8_192,
) -> Iterator[TraceRequest]:
    """Yield ``requests`` requests in order of arrival, the same for the same arguments.

    Sessions start with one of ``system_prompts`` texts of ``system_tokens`` tokens (rounded down to whole blocks, so
    that the sharing is of whole blocks) and go on by turns: a later prompt is the earlier one, its answer and a new
    turn, and names the earlier request as ``parent``.  A session ends where its next prompt would pass
    ``max_prompt_tokens``.  Ids of blocks and requests count from 0; the partial last block has an id too, its own.
    Raises :class:`InputError` for a number out of range.
    """
    for name, value in (
        ("requests", requests),
        ("block_size", block_size),
        ("system_prompts", system_prompts),
        ("max_prompt_tokens", max_prompt_tokens),
    ):
        if value < 1:
            raise InputError(f"a synthetic trace with {name} = {value}: use 1 or more")
    if seed < 0 or system_tokens < 0:
        raise InputError(
            f"a synthetic trace with seed {seed} and {system_tokens} system tokens: use 0 or more"
        )
    return _generate(
        random.Random(seed), requests, block_size, system_prompts, system_tokens, max_prompt_tokens
    )


def _generate(
    draw: random.Random, requests: int, block_size: int, prompts: int, system_tokens: int, most_tokens: int
) -> Iterator[TraceRequest]:
    system_blocks = min(system_tokens, most_tokens - 1) // block_size
    next_block = prompts * system_blocks
    sessions: list[_Session] = []
    arrival_s = 0.0
    for ordinal in range(requests):
        turn = _geometric(draw, _MEAN_TURN_TOKENS)
        session = _chosen(draw, sessions)
        if session is not None and session.length_tokens + turn > most_tokens:
            sessions.remove(session)
            session = None
        parent = session.last_id if session else None
        if session is None:
            first = int(draw.random() * prompts) * system_blocks
            shared = list(range(first, first + system_blocks))
            session = _Session(ordinal, system_blocks * block_size, shared)
            sessions.append(session)
            del sessions[:-_OPEN_SESSIONS]
        prompt_tokens = min(session.length_tokens + turn, most_tokens)
        begun = -(-prompt_tokens // block_size)
        new = begun - len(session.whole_blocks)
        ids = (*session.whole_blocks, *range(next_block, next_block + new))
        next_block += new
        output_tokens = _geometric(draw, _MEAN_OUTPUT_TOKENS)
        yield TraceRequest(ordinal, arrival_s, prompt_tokens, output_tokens, ids, block_size, parent)
        session.last_id, session.length_tokens = ordinal, prompt_tokens + output_tokens
        session.whole_blocks = list(ids[: prompt_tokens // block_size])
        # Rounded so that the text of a written trace reads back as the same number.
        arrival_s = round(arrival_s + draw.expovariate(1 / _MEAN_GAP_S), 6)


def _chosen(draw: random.Random, sessions: list[_Session]) -> _Session | None:
    if not sessions or draw.random() >= _CONTINUES:
        return None
    return sessions[int(draw.random() * len(sessions))]


def _geometric(draw: random.Random, mean: int) -> int:
    """Return 1 or more, ``mean`` on average or close to it, never more than 20 times it."""
    return min(20 * mean, 1 + int(draw.expovariate(1 / mean)))


def write_trace(
    path: str | os.PathLike[str], requests: Iterable[TraceRequest], *, compress: bool = False
) -> None:
    """Write ``requests`` to a new file in the normalised form, gzip where ``compress``.

    The same requests give the same bytes.  Raises :class:`InputError` where the file exists or cannot be
    written; nothing is overwritten.
    """
    try:
        file = io.BufferedWriter(io.FileIO(path, "xb"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); give a new name") from None
    with file:
        # No time stamp and no name in the gzip header: they would differ from run to run.
        target = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if compress else file
        with io.TextIOWrapper(target, encoding="utf-8", newline="\n") as text:
            text.writelines(json.dumps(_plain(request), allow_nan=False) + "\n" for request in requests)


def _plain(request: TraceRequest) -> dict[str, object]:
    return {
        "t": request.arrival_s,
        "in": request.prompt_tokens,
        "out": request.output_tokens,
        "blocks": request.block_ids,
        "block_size": request.block_size,
        "parent": request.parent,
        "id": request.id,
    }
