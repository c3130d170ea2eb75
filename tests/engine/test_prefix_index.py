"""The prefix index against brute force over all checkpoints, with hashes that collide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcrucible.contract.operations import Identity
from kvcrucible.contract.tokens import Tokens, canonical, common_prefix, prefix
from kvcrucible.engine.prefix import PrefixIndex

IDENTITIES = (Identity(), Identity(adapter="a"))
sequences = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(1, 3)), max_size=4).map(
    canonical
)
entries = st.lists(st.tuples(sequences, st.sampled_from(IDENTITIES)), max_size=8)
HASHES = {"python": hash, "4 bits": lambda token: hash(token) & 15, "all equal": lambda token: 0}


def longest(
    held: dict[int, tuple[Tokens, Identity]], tokens: Tokens, identity: Identity
) -> tuple[int, int] | None:
    found = [(common_prefix(own, tokens), -number) for number, (own, of) in held.items() if of == identity]
    length, number = max(found, default=(0, 0))
    return (length, -number) if length else None


@pytest.mark.parametrize("token_hash", HASHES.values(), ids=HASHES)
@given(
    inserted=entries, removed=st.sets(st.integers(0, 7)), query=sequences, excluded=st.sets(st.integers(0, 7))
)
def test_finds_what_brute_force_finds(
    token_hash: object,
    inserted: list[tuple[Tokens, Identity]],
    removed: set[int],
    query: Tokens,
    excluded: set[int],
) -> None:
    index = PrefixIndex(token_hash)  # type: ignore[arg-type]
    held = {number: entry for number, entry in enumerate(inserted) if entry[0]}
    for number, (tokens, identity) in held.items():
        index.insert(number, tokens, identity)
    for number in removed & held.keys():
        index.remove(number)
        del held[number]
    allowed = {number: entry for number, entry in held.items() if number not in excluded}
    for identity in IDENTITIES:
        assert index.longest(query, identity, excluded) == longest(allowed, query, identity)
        assert index.longest(query, identity) == longest(held, query, identity)
    assert {number: index.tokens(number) for number in index.checkpoints()} == held


def test_an_emptied_index_holds_no_nodes() -> None:
    index = PrefixIndex(lambda token: 0)
    tokens = canonical([(0, 0, 9), (1, 0, 4)])
    for number in range(9):
        index.insert(number, prefix(tokens, number + 3), Identity())
    for number in (4, 0, 8, 1, 7, 2, 6, 3, 5):
        index.remove(number)
    assert not index._roots
    assert len(index) == 0


def test_what_a_cut_edge_goes_on_with_is_found_behind_its_beginning_alone() -> None:
    """All tokens hash alike, so that only where the lower part hangs keeps it from being found at the root."""
    index = PrefixIndex(lambda token: 0)
    index.insert(0, ((0, 0, 9),), Identity())
    index.insert(1, ((0, 0, 4), (1, 0, 1)), Identity())
    assert index.longest(((0, 4, 5),), Identity()) is None
    assert index.longest(((0, 0, 9),), Identity()) == (9, 0)


def test_a_node_that_stays_forgets_the_first_tokens_that_lead_nowhere() -> None:
    index = PrefixIndex()
    index.insert(0, ((0, 0, 4),), Identity())
    stays = dict(index._roots[Identity()].children)
    for number in range(1, 9):
        index.insert(number, ((number, 0, 4),), Identity())
        index.remove(number)
    assert index._roots[Identity()].children == stays


def test_a_hit_may_end_inside_an_edge_and_inside_a_run() -> None:
    index = PrefixIndex()
    index.insert(0, ((0, 0, 100),), Identity())
    assert index.longest(((0, 0, 40), (1, 0, 5)), Identity()) == (40, 0)
