"""A stale id says whether it has ended or was never given out: who holds it looks for another mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import StaleHandle
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
