"""An id that cannot be used says why: it has ended, was never given out, or names something in another state.

Who holds it looks for another mistake in each case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import StaleHandle, WrongState
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine

USES: list[Callable[[Engine, int], Any]] = [
    Engine.try_admit,
    Engine.checkpoint,
    Engine.finish,
    Engine.cancel,
    Engine.release,
    Engine.pin,
    lambda e, sequence: e.fork(sequence, 1, 1),
    lambda e, sequence: e.truncate(sequence, 0),
]


def test_an_id_that_has_ended_is_told_from_one_that_was_never_given_out() -> None:
    e = Engine(EngineConfig((PoolSpec("main", 8, 4),), max_context=16, max_concurrency=2))
    first, last = e.submit(run(0, 0, 4), 4), e.submit(run(1, 0, 4), 4)
    e.cancel(first)
    e.schedule()
    e.cancel(last)
    for use in USES:
        for ended in (first, last):
            with pytest.raises(StaleHandle, match=f"use sequence {ended}; found: it has ended"):
                use(e, ended)
        for unknown in (-1, last + 1, last + 2):
            with pytest.raises(StaleHandle, match=f"use sequence {unknown}; found: it was never given out"):
                use(e, unknown)
    # What was refused has taken no number.
    assert e.submit(run(0, 0, 4), 4) == last + 1


def test_an_id_of_another_state_says_which_it_is_and_what_comes_first() -> None:
    """Who is told that a queued request is a continuation would fork it, and be refused again."""
    e = Engine(EngineConfig((PoolSpec("main", 8, 4),), max_context=16, max_concurrency=2))
    kept, queued = e.submit(run(0, 0, 4), 0), e.submit(run(1, 0, 4), 4)
    e.try_admit(kept)
    e.end_unit(e.begin_unit([Prefill(kept, 4)]))
    e.finish(kept)
    for use in (
        Engine.checkpoint,
        Engine.finish,
        lambda e, sequence: e.truncate(sequence, 0),
        lambda e, sequence: e.begin_unit([Append(sequence, run(2, 0, 1))]),
    ):
        with pytest.raises(WrongState, match="it is queued; remedy: admit it first"):
            use(e, queued)
        with pytest.raises(WrongState, match="it is a continuation; remedy: fork it first"):
            use(e, kept)
