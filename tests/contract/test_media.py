"""Tokens with spans are equal exactly where a naive reading, position by position, says so (decision 0022)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.contract import media as m
from kvcrucible.contract import tokens as t

#: Few values, so that what must not be equal often nearly is; a digest that looks like a type, and the reverse.
NAMES = ("", "a", "b", "ab")

runs = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 3), st.integers(1, 4)), max_size=5)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[t.Tokens, tuple[m.TokenSpan, ...]]:
    """A prompt and spans in place."""
    tokens = t.canonical(draw(runs))
    size, at, spans = t.count(tokens), 0, []
    while at < size and draw(st.booleans()):
        start = draw(st.integers(at, size - 1))
        length = draw(st.integers(1, size - start))
        kind, digest = draw(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(any))
        spans.append(m.TokenSpan(start, length, kind, digest))
        at = start + length
    return tokens, tuple(spans)


def naive(tokens: t.Tokens, spans: tuple[m.TokenSpan, ...]) -> list[Any]:
    """What each position is: its plain token, and what it stands for."""
    told: list[Any] = [(token, None) for token in t.expand(tokens)]
    for one in spans:
        for offset in range(one.length):
            token, _ = told[one.start + offset]
            told[one.start + offset] = (token, (one.token_type, one.media, offset))
    return told


@given(prompts(), prompts())
def test_two_prompts_share_what_a_naive_comparison_says(
    left: tuple[t.Tokens, tuple[m.TokenSpan, ...]], right: tuple[t.Tokens, tuple[m.TokenSpan, ...]]
) -> None:
    first, second = naive(*left), naive(*right)
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    assert t.common_prefix(m.labelled(*left), m.labelled(*right)) == shared
    assert (m.labelled(*left) == m.labelled(*right)) == (first == second)


@given(prompts(), st.data())
def test_two_readings_of_the_same_tokens_share_what_a_naive_comparison_says(
    prompt: tuple[t.Tokens, tuple[m.TokenSpan, ...]], data: st.DataObject
) -> None:
    """The readings differ in one field of one span, if there is one."""
    tokens, spans = prompt
    if not spans:
        return
    index = data.draw(st.integers(0, len(spans) - 1))
    one = spans[index]
    names = data.draw(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(any))
    length = data.draw(st.integers(1, one.length))
    other = (*spans[:index], m.TokenSpan(one.start, length, *names), *spans[index + 1 :])
    pairs = enumerate(zip(naive(tokens, spans), naive(tokens, other), strict=True))
    due = next((at for at, (ours, theirs) in pairs if ours != theirs), t.count(tokens))
    assert t.common_prefix(m.labelled(tokens, spans), m.labelled(tokens, other)) == due


@given(prompts())
def test_labels_come_off_again_and_runs_stay_canonical(
    prompt: tuple[t.Tokens, tuple[m.TokenSpan, ...]],
) -> None:
    tokens, spans = prompt
    known = m.labelled(tokens, spans)
    assert m.plain(known) == tokens
    assert known == t.canonical(known)
    assert t.count(known) == t.count(tokens)


@given(prompts(), st.integers(0, 25))
def test_a_beginning_is_labelled_as_the_whole_is(
    prompt: tuple[t.Tokens, tuple[m.TokenSpan, ...]], length: int
) -> None:
    tokens, spans = prompt
    short = t.prefix(tokens, length)
    below = m.spans_below(spans, t.count(short))
    assert m.spans_in_place(below, t.count(short))
    assert m.labelled(short, below) == t.prefix(m.labelled(tokens, spans), length)
    assert m.labelled(short, spans) == m.labelled(short, below)


def test_an_item_of_counting_tokens_is_one_run() -> None:
    known = m.labelled(t.run(3, 0, 100), (m.TokenSpan(10, 80, "image", "d"),))
    assert known == ((3, 0, 10), (t.MediaSource("image", "d", 3, 10), 0, 80), (3, 90, 10))


@pytest.mark.parametrize(
    ("spans", "prompt", "due"),
    [
        ([], 0, True),
        ([(0, 4)], 4, True),
        ([(0, 2), (2, 2)], 4, True),
        ([(1, 4)], 4, False),
        ([(4, 1)], 4, False),
        ([(-1, 2)], 4, False),
        ([(0, 0)], 4, False),
        ([(0, -1)], 4, False),
        ([(2, 1), (0, 1)], 4, False),
        ([(0, 3), (2, 1)], 4, False),
        ([(0, 9), (9, 1)], 4, False),
    ],
)
def test_spans_are_in_order_apart_and_within(spans: list[tuple[int, int]], prompt: int, due: bool) -> None:
    assert m.spans_in_place([m.TokenSpan(*place, "image") for place in spans], prompt) == due


@pytest.mark.parametrize(
    ("kind", "digest", "due"),
    [
        ("image", "", True),
        ("", "d", True),
        ("", "", False),
        ("x" * m.MAX_TOKEN_TYPE, "y" * m.MAX_MEDIA, True),
        ("x" * (m.MAX_TOKEN_TYPE + 1), "", False),
        ("", "y" * (m.MAX_MEDIA + 1), False),
    ],
)
def test_a_span_has_a_name_of_bounded_length(kind: str, digest: str, due: bool) -> None:
    assert m.spans_named([m.TokenSpan(0, 1, kind, digest)]) == due
