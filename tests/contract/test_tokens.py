"""Symbolic runs behave like the token lists that they stand for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.contract import tokens as t

runs = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 5), st.integers(0, 4)), max_size=6)
sequences = runs.map(t.canonical)


@given(runs)
def test_canonical_keeps_the_tokens_and_joins_every_neighbour(raw: list[t.Run]) -> None:
    joined = t.canonical(raw)
    assert list(t.expand(joined)) == [(s, v) for s, first, n in raw for v in range(first, first + n)]
    assert all(length > 0 for _, _, length in joined)
    assert not any(a[0] == b[0] and a[1] + a[2] == b[1] for a, b in pairwise(joined))


@given(sequences, sequences)
def test_equal_tokens_have_equal_runs(left: t.Tokens, right: t.Tokens) -> None:
    assert (left == right) == (list(t.expand(left)) == list(t.expand(right)))


@given(sequences, sequences)
def test_concat_is_list_concatenation(left: t.Tokens, right: t.Tokens) -> None:
    joined = t.concat(left, right)
    assert list(t.expand(joined)) == [*t.expand(left), *t.expand(right)]
    assert joined == t.canonical(joined)


@given(sequences, st.integers(-2, 30), st.integers(-2, 30))
def test_span_is_a_slice(tokens: t.Tokens, start: int, stop: int) -> None:
    expanded = list(t.expand(tokens))
    assert list(t.expand(t.span(tokens, start, stop))) == expanded[max(start, 0) : max(stop, 0)]


@given(sequences, sequences, st.integers(0, 10))
def test_common_prefix_counts_equal_leading_tokens(left: t.Tokens, right: t.Tokens, kept: int) -> None:
    right = t.concat(t.prefix(left, kept), right)
    pairs = list(zip(t.expand(left), t.expand(right), strict=False))
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    assert t.common_prefix(left, right) == equal


def test_literal_ids_that_count_up_become_one_run() -> None:
    assert t.literal([7, 8, 9, 3]) == ((t.LITERAL, 7, 3), (t.LITERAL, 3, 1))


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        t.canonical([(0, 0, -1)])


def test_token_at_stops_at_the_end() -> None:
    tokens = t.canonical([(0, 5, 2), (1, 0, 1)])
    assert [t.token_at(tokens, p) for p in range(3)] == [(0, 5), (0, 6), (1, 0)]
    for outside in (-1, 3):
        with pytest.raises(IndexError):
            t.token_at(tokens, outside)
