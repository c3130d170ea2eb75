"""A small trace of branching conversations, in the shapes that real ones have."""

from __future__ import annotations

import random

import pytest

from kvcrucible.perf.replay_settings import ReplaySettings
from kvcrucible.perf.traces import TraceRequest

#: Tokens in a block of the small trace: no multiple of the page size, so that forks cut pages.
BLOCK = 40

#: Tokens of a prompt that the small pool cannot hold.
OVERSIZE = 1_000


def conversations(count: int, seed: int = 0) -> list[TraceRequest]:
    """Return ``count`` requests: most go on with an earlier conversation; some name no blocks, some write
    nothing, some are too large for the small pool.
    """
    chance = random.Random(seed)
    threads: list[list[int]] = []
    requests: list[TraceRequest] = []
    next_block = 1
    for number in range(count):
        thread = chance.choice(threads) if threads and chance.random() < 0.6 else [0]
        added = chance.randrange(1, 4)
        thread = [*thread, *range(next_block, next_block + added)]
        threads.append(thread)
        next_block += added
        # The next turn keeps the whole blocks of this one; a partial last block is this request's own.
        blocks, prompt = list(thread), len(thread) * BLOCK
        if chance.random() < 0.7:
            prompt -= chance.randrange(1, BLOCK)
            blocks[-1] = next_block
            next_block += 1
        named = chance.random() < 0.9
        if number % 50 == 49:
            named, prompt = False, OVERSIZE
        requests.append(
            TraceRequest(
                id=number,
                arrival_s=float(number // 3),
                prompt_tokens=prompt,
                output_tokens=chance.randrange(0, 60),
                block_ids=tuple(blocks) if named else None,
                block_size=BLOCK if named else None,
                parent=None,
            )
        )
    return requests


@pytest.fixture(scope="session")
def small_trace() -> list[TraceRequest]:
    return conversations(150)


@pytest.fixture
def small_settings() -> ReplaySettings:
    """A pool that a handful of the requests fills, so that nothing is left unexercised."""
    return ReplaySettings(
        capacity_pages=60, page_size=16, concurrency=4, prefill_chunk=64, decode_run=16, full_every=50
    )
