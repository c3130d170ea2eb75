"""Sequence lengths for the capacity study: distributions by name, and the lengths of a recorded trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import InputError

if TYPE_CHECKING:
    from kvcrucible.perf.traces.request import TraceRequest

#: Shortest and longest length that a distribution gives; what it draws outside is moved to the nearer of the two.
SHORTEST_TOKENS, LONGEST_TOKENS = 32, 1_024

#: Most requests of a trace that a study keeps: each costs some 100 bytes in the lists of lengths and grants.
MAX_STUDY_REQUESTS = 2_000_000


def _gauss(draw: random.Random) -> float:
    """Return one length of the source article."""
    return draw.gauss(220, 160)


def _uniform(draw: random.Random) -> float:
    """Return any length with equal chance."""
    return SHORTEST_TOKENS + draw.random() * (LONGEST_TOKENS + 1 - SHORTEST_TOKENS)


def _lognormal(draw: random.Random) -> float:
    """Return mostly short lengths with a long tail, as chats have; the median is near 165."""
    return draw.lognormvariate(5.1, 0.8)


def _bimodal(draw: random.Random) -> float:
    """Return seven questions near 96 tokens for three documents near 700."""
    return draw.gauss(96, 32) if draw.random() < 0.7 else draw.gauss(700, 120)


#: Every distribution by its public name, the article's first.
DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "gauss": _gauss,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "bimodal": _bimodal,
}


def drawn_lengths(seed: int, distribution: str, count: int) -> tuple[int, ...]:
    """Return ``count`` lengths in tokens, the same for the same arguments.

    Raises :class:`InputError` for an unknown name, a seed below 0 or no length at all.
    """
    if distribution not in DISTRIBUTIONS:
        raise InputError(f"no distribution is called {distribution!r}; use one of {', '.join(DISTRIBUTIONS)}")
    if seed < 0:
        # The generator takes the absolute value: two seeds would silently be one.
        raise InputError(f"seed {seed}: use 0 or more")
    if count < 1:
        raise InputError(f"{count} lengths: use 1 or more")
    draw, one = random.Random(seed), DISTRIBUTIONS[distribution]
    return tuple(min(LONGEST_TOKENS, max(SHORTEST_TOKENS, int(one(draw)))) for _ in range(count))


def recorded_lengths(requests: Iterable[TraceRequest]) -> tuple[int, ...]:
    """Return prompt + output tokens of each request, in order of arrival; equal arrivals keep the order of the file.

    Raises :class:`InputError` beyond ``MAX_STUDY_REQUESTS``.
    """
    arrivals: list[tuple[float, int]] = []
    for request in requests:
        if len(arrivals) == MAX_STUDY_REQUESTS:
            raise InputError(f"more than {MAX_STUDY_REQUESTS} requests: study a part of the trace (--limit)")
        arrivals.append((request.arrival_s, request.prompt_tokens + request.output_tokens))
    arrivals.sort(key=lambda arrival: arrival[0])
    return tuple(length for _, length in arrivals)
