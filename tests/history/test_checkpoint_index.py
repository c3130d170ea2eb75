"""The checker's index of checkpoints against a plain comparison with each; what has ended leaves no trace in it."""

from __future__ import annotations

import random

import pytest

from kvcrucible.contract.operations import DEFAULT_IDENTITY, Identity
from kvcrucible.contract.tokens import Run, canonical, common_prefix, count
from kvcrucible.invariants.history.index import CheckpointIndex, extend, head
from kvcrucible.invariants.history.index import common_prefix as shared

IDENTITIES = (DEFAULT_IDENTITY, Identity(tenant_salt="b"))


def tokens(draw: random.Random) -> tuple[Run, ...]:
    """Return a short sequence over few sources, so that prefixes meet, end inside runs and go on."""
    runs = [(draw.randint(0, 1), draw.randint(0, 2), draw.randint(1, 4)) for _ in range(draw.randint(1, 4))]
    return canonical(runs)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_hit_is_the_longest_common_prefix(seed: int) -> None:
    draw, index = random.Random(seed), CheckpointIndex()
    alive: dict[int, tuple[tuple[Run, ...], Identity]] = {}
    for number in range(300):
        made, identity = tokens(draw), draw.choice(IDENTITIES)
        if draw.random() < 0.6 or not alive:
            alive[number] = made, identity
            index.insert(number, list(made), count(made), identity)
        else:
            gone = draw.choice(list(alive))
            del alive[gone]
            index.remove(gone)
        barred = set(draw.sample(list(alive), len(alive) // 4))
        prompt = tokens(draw)
        lengths = {
            one: common_prefix(prompt, told)
            for one, (told, whose) in alive.items()
            if whose == identity and one not in barred
        }
        longest = max(lengths.values(), default=0)
        due = [one for one, length in lengths.items() if length == longest] if longest else []
        length, members = index.best(list(prompt), identity, lambda one, barred=barred: one not in barred)  # type: ignore[misc]
        assert length == longest
        assert [one for one in members if one not in barred] == due


@pytest.mark.parametrize("seed", range(6))
def test_what_has_ended_leaves_no_trace(seed: int) -> None:
    """After any comings and goings the index holds what one holds that has only ever had the rest."""
    draw, index = random.Random(seed), CheckpointIndex()
    made = [tokens(draw) for _ in range(60)]
    for number, one in enumerate(made):
        index.insert(number, list(one), count(one), DEFAULT_IDENTITY)
    order = list(range(60))
    draw.shuffle(order)
    for left in range(59, -1, -1):
        index.remove(order[left])
        fresh = CheckpointIndex()
        for number in sorted(order[:left]):
            fresh.insert(number, list(made[number]), count(made[number]), DEFAULT_IDENTITY)
        assert index.entries == fresh.entries
    assert index.entries == 0


def test_lists_of_runs_are_cut_compared_and_extended_as_tokens_are() -> None:
    draw = random.Random(1)
    for _ in range(200):
        left, right = tokens(draw), tokens(draw)
        assert shared(list(left), list(right)) == common_prefix(left, right)
        length = draw.randint(0, count(left))
        assert count(canonical(head(list(left), length))) == length
        joined = list(left)
        grown = extend(joined, list(right))
        assert tuple(joined) == canonical([*left, *right])
        assert grown == len(joined) - len(left)
