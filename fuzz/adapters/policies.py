"""Policies of yielding for campaigns: those that the engine has, and a hostile one (decision 0020)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from kvcrucible.engine.policies import Policy
from kvcrucible.engine.records import Continuation
from kvcrucible.fuzz.setting import HOSTILE_POLICY, Setting


class Hostile:
    """Any order by seed, another one each time; it leaves some out, and names some twice or after they have gone.

    Nothing that an engine promises may depend on what a policy says.
    """

    name = HOSTILE_POLICY

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seen: list[Continuation] = []

    def order(self, offered: Iterable[Continuation]) -> Iterator[Continuation]:
        """Yield some of what is offered, in any order, and things that are not on offer."""
        named = [kept for kept in offered if self._random.random() < 0.9]
        named += self._random.sample(named, len(named) // 2)
        named += self._random.sample(self._seen, min(2, len(self._seen)))
        self._random.shuffle(named)
        yield from named

    def used(self, kept: Continuation) -> None:
        """Remember it for ever."""
        self._seen.append(kept)

    def yields(self, kept: Continuation) -> None:
        """Nothing."""

    def gone(self, kept: Continuation) -> None:
        """Nothing: it goes on naming what is gone."""


def policy_of(setting: Setting) -> Policy | None:
    """Return the policy of a setting, None for the one that its configuration names."""
    return Hostile(setting.policy_seed) if setting.policy == HOSTILE_POLICY else None
