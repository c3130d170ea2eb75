"""A snapshot serialises to data that its schema accepts, and comes back equal."""

from __future__ import annotations

import json

import jsonschema
import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.snapshot import KEYED_PARTS, Snapshot, from_plain, schema, to_plain
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import snapshot


@pytest.fixture
def busy() -> Snapshot:
    """A state in which every part of a snapshot holds something."""
    e = Engine(EngineConfig((PoolSpec("main", 16, 16),), 128, 3))
    first = e.submit(run(0, 0, 30), 20, session="s")
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(first, 30)]))
    e.checkpoint(first)
    child = e.fork(first, 20, 10)
    e.finish(first)
    e.begin_unit([Append(child, run(1, 0, 3))])
    e.submit(run(2, 0, 100), 28)
    return snapshot(e)


def test_every_part_is_filled(busy: Snapshot) -> None:
    assert all(getattr(busy, part) for part in (*KEYED_PARTS, "pools", "queue", "free_pages"))


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
