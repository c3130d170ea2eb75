"""A restore that is stopped once what made room for it has begun to go ends the engine (decision 0030)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import EngineLost
from kvcrucible.contract.operations import Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.policies import LeastRecentlyUsed
from kvcrucible.engine.records import Continuation

PLANES = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)


class UnwellAtTheEnd(LeastRecentlyUsed):
    """Raises as it hears that one is gone."""

    def gone(self, kept: Continuation) -> None:
        raise RuntimeError(f"{kept.continuation} was dear to it")


def short_of_room() -> tuple[Engine, int]:
    """Return an engine whose Device pages another continuation has, and one on Host that cannot come back beside it."""
    pool, host = PoolSpec("main", 4, 4, (PLANES,)), HostSpec(2 * 512, 64)
    e = Engine(EngineConfig((pool,), max_context=16, max_concurrency=2, host=host))

    def kept(source: int, tokens: int) -> int:
        sequence = e.submit(run(source, 0, tokens), 0)
        e.schedule()
        e.end_unit(e.begin_unit([Prefill(sequence, tokens)]))
        assert e.finish(sequence)
        return sequence

    away = kept(1, 8)
    e.demote(away)
    e.progress()
    kept(2, 12)
    return e, away


def test_a_policy_that_raises_as_room_is_settled_ends_the_engine() -> None:
    """The transfer is under way, and who made room for it is half gone: nothing of it is taken back."""
    e, away = short_of_room()
    e.cache.policy = UnwellAtTheEnd()
    with pytest.raises(RuntimeError, match="dear"):
        e.restore(away)
    with pytest.raises(EngineLost, match="restore stopped half done"):
        e.progress()


def test_an_interrupt_reaches_the_caller_and_takes_nothing_back() -> None:
    """The pages that were given up are leased to the transfer by then, and nobody has given them back: taking them back
    would fail, hide the interrupt, and leave an engine that does not know that it is lost.
    """
    e, away = short_of_room()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    assert e.host is not None
    e.host.memory = SimpleNamespace(unpack=interrupted)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        e.restore(away)
    with pytest.raises(EngineLost, match="restore stopped half done: KeyboardInterrupt"):
        e.progress()
