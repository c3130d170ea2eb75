"""A continuation that has sunk while others hold its beginning on Device: why it may be asked to yield (decision 0020).

Verifies that it counts as long as it has a Device page, and in which order its turn comes; what sinks at all is in
tests/fuzz/test_sinking.py.
"""

from __future__ import annotations

import pytest

from kvcrucible.contract.config import COST_AWARE, LRU, EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine

PLANES = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)


def sunk_beside_another(policy: str) -> tuple[Engine, int, int]:
    """Return an engine of 8 pages of 4 tokens, with room for 2 on Host: the first continuation has its last two pages
    there and its first on Device, which it shares with the second, of three pages.
    """
    config = EngineConfig(
        (PoolSpec("main", 8, 4, (PLANES,)),),
        max_context=32,
        max_concurrency=2,
        host=HostSpec(2 * 512, 64),
        policy=policy,
    )
    e = Engine(config)
    first = e.submit(run(0, 0, 12), 0)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(first, 12)]))
    e.finish(first)
    second = e.fork(first, 4, 8)
    e.end_unit(e.begin_unit([Append(second, run(1, 0, 8))]))
    e.demote(first)
    e.progress()
    e.finish(second)
    pages = e.cache.continuations[first].spaces[0].pages
    assert [page.visible for page in pages] == [Tier.DEVICE, Tier.HOST, Tier.HOST]
    assert pages[0].references == 2
    return e, first, second


@pytest.mark.parametrize("policy", [LRU, COST_AWARE])
def test_it_yields_where_the_page_that_it_shares_is_needed(policy: str) -> None:
    """Released by itself it frees nothing on Device; left out, it would keep a page that this cold start needs."""
    e, first, second = sunk_beside_another(policy)
    request = e.submit(run(2, 0, 32), 0)
    assert [one.sequence for one in e.schedule().admitted] == [request]
    assert sorted(e.evicted) == [first, second]


def test_by_last_use_its_turn_comes_by_last_use() -> None:
    e, first, second = sunk_beside_another(LRU)
    e.submit(run(2, 0, 28), 0)
    e.schedule()
    assert e.evicted == [first, second]


def test_by_cost_what_frees_nothing_by_itself_comes_last_and_stays() -> None:
    e, first, second = sunk_beside_another(COST_AWARE)
    e.submit(run(2, 0, 28), 0)
    e.schedule()
    assert e.evicted == [second]
    assert list(e.cache.continuations) == [first]
