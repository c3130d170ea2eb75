"""An engine with a Host tier as it is built and as it is watched: what storages and host memory have to be, and what
snapshots say (decision 0013).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import drain, snapshot

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import GEOMETRY, bench, config  # noqa: E402


def test_storages_are_what_their_pools_declare() -> None:
    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    setting = config("draft")
    plain = {
        "profile": PROFILES["FP32"],
        "geometry": GEOMETRY,
        "page_size": 4,
        "order": PlaneOrder.HEAD_MAJOR,
    }
    main = TorchStorage(PROFILES["FP32"], GEOMETRY, 24, 4, 6, 16)
    for change in (
        {"profile": PROFILES["BF16"]},
        {"geometry": Geometry(1, 2, 16)},
        {"page_size": 8},
        {"order": PlaneOrder.PAGE_MAJOR},
    ):
        shape = plain | change
        order = shape.pop("order")
        draft = TorchStorage(
            capacity_pages=24, max_rows=6, max_blocks_per_row=16, pool=1, order=order, **shape
        )  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="pool draft with planes FP32"):
            Engine(setting, [main, draft])
    with pytest.raises(BadArgument, match="host memory of 64"):
        Engine(setting, host_memory=TorchHostMemory(64))


def test_a_host_memory_without_bytes_behind_real_planes_is_refused() -> None:
    """A restore would report success and bring back nothing."""
    b = bench("draft")
    with pytest.raises(BadArgument, match=r"storage holds planes, the host memory nothing.*TorchHostMemory"):
        Engine(b.engine.config, b.storages)
    Engine(replace(b.engine.config, host=None), b.storages)


def test_a_host_memory_with_bytes_behind_a_storage_without_planes_is_refused() -> None:
    """A demotion would fail half-way, with nothing to copy."""
    from kvcrucible.engine.storage.null import NullStorage

    b = bench("draft")
    with pytest.raises(BadArgument, match=r"pool 0.*storage holds nothing, the host memory real bytes"):
        Engine(b.engine.config, host_memory=b.memory)
    with pytest.raises(BadArgument, match=r"pool 1.*storage holds nothing"):
        Engine(b.engine.config, [b.storages[0], NullStorage()], host_memory=b.memory)
    Engine(b.engine.config)


def test_partial_snapshots_say_what_full_ones_do() -> None:
    """Every entry that differs between two full snapshots was touched, and shows as in the later one."""
    b = bench("mtp")
    e = b.engine
    drain(e)
    before = snapshot(e)

    def step(act: Callable[[], object]) -> None:
        nonlocal before
        act()
        partial, touched = drain(e)
        after = snapshot(e)
        for part in ("pages", "transfers", "retiring", "extents"):
            old, new, seen = getattr(before, part), getattr(after, part), getattr(partial, part)
            changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
            assert changed <= getattr(touched, part), part
            assert {key: seen[key] for key in changed if key in seen} == {
                key: new[key] for key in changed if key in new
            }
        assert (partial.pools, partial.host) == (after.pools, after.host)
        before = after

    sequence = b.start(14, session="s")
    for act in (
        lambda: e.finish(sequence),
        lambda: e.demote(sequence, keep=True),
        b.settle,
        lambda: e.restore(sequence, keep=True),
        b.settle,
        lambda: e.submit(run(0, 0, 15), 5, session="s"),
        e.schedule,
        lambda: b.prefill(1),
        lambda: e.truncate(1, 5),
        lambda: e.finish(1),
        lambda: e.demote(1),
        lambda: e.release(1),
        e.progress,
        b.settle,
    ):
        step(act)
    assert not before.pages
    b.drain()
