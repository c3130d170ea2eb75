"""A snapshot serialises to data that its schema accepts, and comes back equal."""

from __future__ import annotations

import json

import jsonschema
import pytest

from kvcrucible.contract.capabilities import ALL_PARTS
from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.planes import ORDERS, PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Snapshot, Tier, from_plain, schema, to_plain
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.streams import SimulatedDevice


@pytest.fixture
def busy() -> Snapshot:
    """A state in which every part of a snapshot holds something: a Host tier, and a device that lags behind."""
    geometry = Geometry(1, 1, 4)
    pools = tuple(
        PoolSpec(name, 24, 16, (PlaneSpec(PROFILES["FP32"], geometry, 16, name, order=ORDERS[name]),))
        for name in ("main", "draft")
    )
    device = SimulatedDevice()
    e = Engine(EngineConfig(pools, 128, 4, HostSpec(1 << 16)), device=device)

    def start(source: int, tokens: int, max_new: int, session: str | None = None) -> int:
        sequence = e.submit(run(source, 0, tokens), max_new, session)
        e.schedule()
        e.end_unit(e.begin_unit([Prefill(sequence, tokens)]))
        return sequence

    first = start(0, 30, 20, "s")
    e.checkpoint(first)
    child = e.fork(first, 20, 10)
    e.finish(first)
    moving = start(3, 20, 0)
    e.finish(moving)
    away = start(4, 20, 0)
    e.finish(away)
    e.demote(away, keep=True)
    device.synchronize()
    e.progress()
    e.demote(moving)
    e.cancel(start(5, 20, 0))
    e.begin_unit([Append(child, run(1, 0, 3))])
    e.submit(run(2, 0, 100), 28)
    return snapshot(e)


def test_every_part_is_filled(busy: Snapshot) -> None:
    assert all(getattr(busy, part) for part in ALL_PARTS)
    assert {page.visible for page in busy.pages.values()} == set(Tier)
    assert any(page.in_transfer for page in busy.pages.values())


def test_round_trip_through_json_and_schema(busy: Snapshot) -> None:
    plain = json.loads(json.dumps(to_plain(busy)))
    jsonschema.Draft202012Validator(schema()).validate(plain)
    assert from_plain(plain) == busy


def test_the_schema_refuses_what_is_missing_or_of_another_kind(busy: Snapshot) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    for part in to_plain(busy):
        broken = to_plain(busy)
        del broken[part]
        assert not validator.is_valid(broken), part
    broken = to_plain(busy)
    broken["pages"][0]["device"] = "7"
    assert not validator.is_valid(broken)
