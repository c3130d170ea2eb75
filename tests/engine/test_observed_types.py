"""States that snapshots share are of the types that the engine has, whatever an equal one elsewhere was of."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from kvcrucible.engine import observe, observe_host


@pytest.mark.parametrize(
    ("shared", "arguments"),
    [
        (observe._pool, ("types", 1, 1, 0, 0, 1)),
        (observe_host._device_replica, (1, 1, 0)),
        (observe_host._totals, (1, 1, 0, 1)),
    ],
    ids=["pool", "replica", "totals"],
)
def test_what_is_equal_and_of_another_type_is_not_shared(shared: Any, arguments: tuple[Any, ...]) -> None:
    for kind in (int, float, bool):
        given = tuple(one if isinstance(one, str) else kind(one) for one in arguments)
        found = [type(one) for one in astuple(shared(*given))[: len(given)]]
        assert found == [type(one) for one in given]
