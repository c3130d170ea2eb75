"""States that come again are the same objects, in whichever snapshot and of whichever engine they are shown."""

from __future__ import annotations

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import PoolState, ReplicaState
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import drain

#: A pool of this many pages fills up page by page, and a page of it column by column.
STEPS = 1024


def states(page_size: int) -> tuple[list[PoolState], list[ReplicaState]]:
    """Return how the pool and the last page of a sequence look after each of ``STEPS`` units of one token."""
    planes = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), page_size)
    pool = PoolSpec("main", STEPS // page_size, page_size, (planes,))
    e = Engine(EngineConfig((pool,), STEPS, 1, HostSpec(1 << 20)))
    sequence = e.submit(run(0, 0, 1), STEPS - 1)
    e.schedule()
    pools, replicas = [], []
    for step in range(STEPS):
        e.end_unit(e.begin_unit([Append(sequence, run(1, step, 1)) if step else Prefill(sequence, 1)]))
        found, _ = drain(e)
        pools.append(found.pools[0])
        on_device = found.pages[max(found.pages)].on_device
        assert on_device is not None
        replicas.append(on_device)
    return pools, replicas


def test_a_pool_that_fills_up_again_shows_the_states_that_it_showed_before() -> None:
    (first, _), (again, _) = states(1), states(1)
    assert len(set(first)) == STEPS
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_a_page_that_fills_up_again_shows_the_replicas_that_it_showed_before() -> None:
    (_, first), (_, again) = states(STEPS), states(STEPS)
    assert len(set(first)) == STEPS
    assert all(one is other for one, other in zip(first, again, strict=True))
