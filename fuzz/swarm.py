"""What the raw loop draws once for a seed, before its first step (swarm testing, decision 0027).

A generator that always may do everything seldom does much of one thing: what a pool is like that nothing was ever
released from, it hardly ever sees.  So every seed goes without some operations and rules, weighs the others as it
likes, and has a setting of its own, in one seed of four a corner: pools of a single page, or full ones.  Of the seeds
with a Host tier, half take one journey between the tiers again and again: each of them needs several things to come
together, which what is drawn evenly over all journeys seldom brings about (no Host copy made way in 164 such seeds).

Nothing of a seed depends on what another one did or found: seeds are independent, which is what a bound on what they
did not find rests on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.fuzz.journeys import JOURNEYS
from kvcrucible.fuzz.ruling import Rule
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.strategies import Choices, Strategy

#: Operations that a seed may go without; without the others (submit, schedule, units) hardly anything happens at all.
OMITTABLE: tuple[str, ...] = (
    "Truncate",
    "Checkpoint",
    "Finish",
    "Cancel",
    "Release",
    "Fork",
    "Pin",
    "Lookup",
    "TryAdmit",
    "Demote",
    "Restore",
    "CancelTransfer",
)

#: How many of them: mostly none or a few, now and then most of them.
_OMITTED = (0, 0, 1, 1, 2, 3, 5, 8)

#: How often a rule is drawn; one rule in six never is.
_WEIGHTS = (0, 1, 1, 2, 4, 8)

#: Least and most rules of a seed, in parts of what is asked for.
_LENGTHS = (1.0, 1.0, 0.5, 0.25)

#: The rule that takes journeys, and one in how many rules it is at least, where it is offered and one is favoured.
_JOURNEY, _FAVOURED_SHARE = "journey", 6

#: Journeys that a seed may favour. One in four favours what needs most to come together: copies in the other tier, an
#: arena that is full, and a request for all that there is.
_FAVOURED = (*JOURNEYS, *["sink-under-pressure"] * 3)


class Corner(StrEnum):
    """What else is extreme about a seed."""

    NONE = "none"
    FULL = "full"  # A first sequence is entitled to every page, or to all but one or two.
    ONE_PAGE = "one-page"  # Every pool has a single page.
    ONE_ROW = "one-row"  # One sequence at a time.


_CORNERS = (*[Corner.NONE] * 9, Corner.FULL, Corner.ONE_PAGE, Corner.ONE_ROW)


@dataclass(frozen=True, slots=True)
class Swarm:
    """What one seed is like.

    ``without``: operations that it never takes.  ``weights``: of each rule, by name, 0 for one that it never draws.
    ``rules``: how many it draws.  ``spare_pages``: with ``Corner.FULL``, how many pages are left beside the ballast.
    ``favoured``: journeys that it mostly takes when it takes one.
    """

    seed: int
    setting: Setting
    without: tuple[str, ...]
    weights: tuple[tuple[str, int], ...]
    rules: int
    corner: Corner = Corner.NONE
    spare_pages: int = 0
    favoured: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self) | {
            "setting": self.setting.to_plain(),
            "weights": dict(self.weights),
            "corner": self.corner.value,
        }


def draw_swarm(
    seed: int,
    choices: Choices,
    settings: Strategy[Setting],
    rules: Sequence[Rule],
    capabilities: Capabilities,
    most: int,
) -> Swarm:
    """Return what a seed is like; ``most``: rules that it draws at most."""
    setting = settings.draw(choices)
    corner = choices.one_of(_CORNERS)
    weights = {one.name: choices.one_of(_WEIGHTS) for one in rules}
    if not any(weights.values()):
        weights = dict.fromkeys(weights, 1)
    favoured: tuple[str, ...] = ()
    # What a favoured journey is offered for is not left out.
    needs = frozenset[str]().union(*(one.needs for one in rules if one.name == _JOURNEY))
    takes_journeys = setting.host_bytes is not None and needs <= capabilities.operations
    if takes_journeys and choices.one_of((True, False)):
        favoured = (choices.one_of(_FAVOURED),)
        weights[_JOURNEY] = max(weights[_JOURNEY], sum(weights.values()) // (_FAVOURED_SHARE - 1))
    left = [
        name for name in OMITTABLE if name in capabilities.operations and not (favoured and name in needs)
    ]
    without = []
    for _ in range(min(choices.one_of(_OMITTED), len(left))):
        without.append(left.pop(choices.integer(0, len(left) - 1)))
    return Swarm(
        seed,
        _cornered(replace(setting, page_order_seed=choices.integer(0, 99)), corner),
        tuple(sorted(without)),
        tuple(weights.items()),
        max(1, int(most * choices.one_of(_LENGTHS))),
        corner,
        choices.one_of((0, 0, 1, 2)) if corner is Corner.FULL else 0,
        favoured,
    )


def _cornered(setting: Setting, corner: Corner) -> Setting:
    match corner:
        case Corner.ONE_PAGE:
            return replace(
                setting,
                capacity_pages=1,
                backend_capacity_pages=1,
                max_context=min(setting.max_context, setting.page_size),
            )
        case Corner.ONE_ROW:
            return replace(setting, max_concurrency=1)
    return setting
