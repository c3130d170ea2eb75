"""The oracle against arithmetic done by hand, and the properties that attention has."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvcrucible.contract.errors import BadArgument

np = pytest.importorskip("numpy")

from kvcrucible.reference.attention import attention, error_budget  # noqa: E402
from kvcrucible.reference.rounding import to_bf16, to_fp32  # noqa: E402


def drawn(tokens: int, queries: int, seed: int = 0) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(queries, 4, 8)), *draw.normal(size=(2, tokens, 2, 8))


def test_two_positions_by_hand() -> None:
    q = np.array([[[2.0]]])
    k, v = np.array([[[0.0]], [[math.log(3) / 2]]]), np.array([[[10.0]], [[20.0]]])
    result = attention(q, k, v, np.array([1]))
    assert result.out[0, 0, 0] == pytest.approx((1 * 10 + 3 * 20) / 4)
    assert result.lse[0, 0] == pytest.approx(math.log(4))
    assert attention(q, k, v, np.array([1]), scale=2.0).lse[0, 0] == pytest.approx(math.log(1 + 9))


def test_query_heads_read_the_kv_head_of_their_group() -> None:
    q, k, v = drawn(5, 1)
    v[:, 0], v[:, 1] = 1.0, 2.0
    assert attention(q, k, v, np.array([4])).out[0, :, 0] == pytest.approx([1, 1, 2, 2])


def test_a_query_sees_up_to_its_own_position_and_no_further() -> None:
    q, k, v = drawn(6, 6)
    whole = attention(q, k, v, np.arange(6))
    for position in range(6):
        cut = slice(None, position + 1)
        alone = attention(q[position : position + 1], k[cut], v[cut], np.array([position]))
        assert (alone.out[0] == whole.out[position]).all()
        assert (alone.lse[0] == whole.lse[position]).all()


def test_a_query_that_sees_nothing() -> None:
    q, k, v = drawn(0, 1)
    result = attention(q, k, v, np.array([-1]))
    budget = error_budget(result, 4)
    assert not result.out.any()
    assert (result.lse == -np.inf).all()
    assert budget.admits(result, result.out, result.lse)
    assert not budget.admits(result, result.out + 1e-30, result.lse)
    assert not budget.admits(result, result.out, np.zeros_like(result.lse))


def test_two_parts_merge_by_their_log_sum_exps() -> None:
    q, k, v = drawn(9, 3)
    whole = attention(q, k, v, np.array([6, 7, 8]))
    cached = attention(q, k[:6], v[:6], np.full(3, 5))
    own = attention(q, k[6:], v[6:], np.arange(3))
    weights = [np.exp(part.lse - whole.lse)[..., None] for part in (cached, own)]
    assert weights[0] * cached.out + weights[1] * own.out == pytest.approx(whole.out, abs=1e-13)


def test_the_budget_grows_with_what_it_is_derived_from() -> None:
    q, k, v = drawn(64, 1)
    base = error_budget(attention(q, k, v, np.array([63])), 16)
    assert (error_budget(attention(q, k, v, np.array([63])), 1).out > base.out).all()
    assert (error_budget(attention(q * 10, k, v, np.array([63])), 16).lse > base.lse).all()
    assert (error_budget(attention(q, k, v, np.array([63])), 16, "bfloat16").out > base.out).all()
    assert base.out.max() < 1e-4


@pytest.mark.parametrize(
    ("positions", "heads"),
    [([5], 4), ([-2], 4), ([0, 1], 4), ([0], 3)],
    ids=["beyond", "before", "count", "heads"],
)
def test_what_is_no_attention_is_refused(positions: list[int], heads: int) -> None:
    q, k, v = drawn(5, 1)
    with pytest.raises(BadArgument):
        attention(q[:, :heads], k, v, np.array(positions))


def test_rounding_to_bfloat16_goes_to_nearest_even() -> None:
    unit = 2.0**-7
    given = np.array(
        [1 + unit / 2, 1 + 1.5 * unit, 1 + 0.5001 * unit, -1 - unit / 2, 0.0, -0.0, np.inf, 3.4e38, np.nan]
    )
    expected = np.array([1, 1 + 2 * unit, 1 + unit, -1, 0.0, -0.0, np.inf, np.inf, np.nan])
    stored = to_bf16(given)
    assert np.array_equal(stored, expected, equal_nan=True)
    assert (np.signbit(stored) == np.signbit(expected))[:-1].all()
    assert to_bf16(np.array(1 + unit / 2)).shape == ()
    assert to_fp32(np.array([1 + 2.0**-24, 1e39])).tolist() == [1.0, np.inf]
