"""The naive cache: rows stay with their sequence whatever happens to its relatives."""

from __future__ import annotations

from typing import Any

import pytest

from kvcrucible.contract.errors import BadArgument, Refusal, StaleHandle, WrongState
from kvcrucible.contract.profiles import Geometry

np = pytest.importorskip("numpy")

from kvcrucible.reference.attention import attention  # noqa: E402
from kvcrucible.reference.contiguous import ContiguousCache  # noqa: E402
from kvcrucible.reference.rounding import to_bf16  # noqa: E402


def rows_of(tokens: int, seed: int = 0) -> tuple[Any, Any]:
    k, v = np.random.default_rng(seed).normal(size=(2, tokens, 2, 3))
    return k, v


def filled(tokens: int = 5, **options: Any) -> ContiguousCache:
    cache = ContiguousCache(Geometry(2, 2, 3), **options)
    cache.open("a")
    for layer in (0, 1):
        cache.append("a", layer, *rows_of(tokens, seed=layer))
    return cache


def test_appends_follow_one_another() -> None:
    cache, (k, v) = filled(), rows_of(2, seed=9)
    cache.append("a", 1, k, v)
    assert (cache.rows("a", 1)[0] == np.concatenate([rows_of(5, seed=1)[0], k])).all()
    assert (len(cache.rows("a", 0)[0]), cache.length("a")) == (5, 5)


@pytest.mark.parametrize("position", [0, 3, 5])
def test_a_fork_and_its_source_part_ways(position: int) -> None:
    cache = filled()
    cache.fork("a", "b", position)
    k, v = rows_of(5, seed=0)
    cache.append("b", 0, *rows_of(1, seed=4))
    cache.truncate("a", 1)
    assert (cache.rows("b", 0)[0][:position] == k[:position]).all()
    assert (cache.rows("b", 0)[1][:position] == v[:position]).all()
    assert (cache.rows("a", 0)[0] == k[:1]).all()
    cache.drop("a")
    assert len(cache.rows("b", 0)[0]) == position + 1


def test_what_the_caller_does_to_its_arrays_afterwards_changes_nothing() -> None:
    cache = ContiguousCache(Geometry(1, 2, 3))
    cache.open(1)
    k, v = rows_of(2)
    before = k.copy()
    cache.append(1, 0, k, v)
    k[:] = 0
    cache.rows(1, 0)[0][:] = 7
    assert (cache.rows(1, 0)[0] == before).all()


def test_rows_read_as_they_are_stored() -> None:
    k, _ = rows_of(5, seed=0)
    assert (filled(store=to_bf16).rows("a", 0)[0] == to_bf16(k)).all()
    assert (filled().rows("a", 0)[0] == k).all()


def test_attention_goes_through_the_oracle() -> None:
    cache, q = filled(), np.random.default_rng(3).normal(size=(2, 4, 3))
    expected = attention(q, *rows_of(5, seed=1), np.array([3, 4]))
    assert (cache.attend("a", 1, q, np.array([3, 4])).out == expected.out).all()


def test_refusals_change_nothing() -> None:
    cache = filled()
    refused: list[tuple[type[Refusal], Any]] = [
        (StaleHandle, lambda: cache.truncate("b", 0)),
        (WrongState, lambda: cache.open("a")),
        (WrongState, lambda: cache.fork("a", "a", 1)),
        (BadArgument, lambda: cache.fork("a", "b", 6)),
        (BadArgument, lambda: cache.truncate("a", -1)),
        (BadArgument, lambda: cache.append("a", 0, rows_of(2)[0], rows_of(3)[1])),
    ]
    for kind, call in refused:
        with pytest.raises(kind):
            call()
    assert (cache.rows("a", 0)[0] == rows_of(5, seed=0)[0]).all()
    cache.drop("a")
    with pytest.raises(StaleHandle):
        cache.rows("a", 0)
