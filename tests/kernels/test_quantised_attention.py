"""Attention over every profile and both plane orders: the oracle is asked about what the codec stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvcrucible.contract.profiles import PROFILES, PlaneOrder

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("backend")]

every_profile = pytest.mark.parametrize("profile", PROFILES)
every_order = pytest.mark.parametrize("order", PlaneOrder)

#: Contexts and queries: page boundaries and their neighbours, decode, prefill and padding in one batch.
CONTEXTS, QUERIES = [1, 4, 5, 17, 12, 0], [1, 4, 2, 1, 7, 1]


@every_profile
@every_order
@pytest.mark.parametrize("seed", [0, 1])
def test_ragged_batches_stay_within_the_budget(
    make_batch: Callable[..., Any], profile: str, order: PlaneOrder, seed: int
) -> None:
    batch = make_batch(
        CONTEXTS,
        QUERIES,
        head_dim=256,
        profile=profile,
        plane_order=order.value,
        seed=seed,
        kv_heads=2 + seed,
    )
    out, lse = batch.run()
    assert batch.misfit(out, lse) == []
    assert batch.misfit(*batch.run(causal=False), causal=False) == []


@every_profile
def test_neither_page_ids_nor_plane_order_nor_stale_bytes_change_a_bit(
    make_batch: Callable[..., Any], profile: str
) -> None:
    blocks = sum(-(-context // 4) for context in CONTEXTS)
    results = [
        make_batch(
            CONTEXTS,
            QUERIES,
            head_dim=256,
            profile=profile,
            plane_order=order.value,
            order=ids,
            poison=poison,
        ).run()
        for order in PlaneOrder
        for ids, poison in (
            (list(range(blocks)), float("nan")),
            ([page + 3 for page in range(blocks)], 1e30),
            (list(reversed(range(blocks))), 0.0),
        )
    ]
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


@every_profile
def test_the_budget_sees_a_codec_that_rounds_another_way(
    make_batch: Callable[..., Any], profile: str
) -> None:
    """A judge that accepts everything would pass every test above: one code off by one is too much."""
    batch = make_batch([9], [1], head_dim=256, profile=profile)
    value = batch.storage.layer_view(0).value.codes
    pages = batch.storage.table_row(0)
    value.view(torch.uint8)[pages[0], :, 0] ^= 1 if PROFILES[profile].quantised else 64
    assert batch.misfit(*batch.run()) == [0]
