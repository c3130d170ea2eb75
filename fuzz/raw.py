"""One seed of the raw loop: the rules of every campaign, drawn from a seeded generator and not by Hypothesis.

What is drawn and how it is judged is the same (:mod:`kvcrucible.fuzz.every_rule`, :mod:`kvcrucible.fuzz.lockstep`);
what is left out is what makes Hypothesis shrink and remember, which costs more than the steps themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import OPERATIONS, Outcome, Schedule, Submit
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.driver import FirstFailure, Recorder
from kvcrucible.fuzz.every_rule import EveryRule
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.ruling import Rule, rules_of
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.fuzz.strategies import SeededChoices, Strategy, integers
from kvcrucible.fuzz.swarm import Corner, Swarm, draw_swarm
from kvcrucible.invariants.violation import InvariantViolated

#: Rules by name, in an order that no process changes.
RULES: tuple[Rule, ...] = rules_of(EveryRule)

#: How many times a rule is drawn that is not offered, before it is looked for among those that are.
_ATTEMPTS = 8

_KINDS: dict[type, str] = {kind: kind.__name__ for kind in OPERATIONS}

#: Is told of each step of a seed once it has been judged; an outcome for operations alone.
Observer: TypeAlias = Callable[[LockStep, Step, Outcome | None], None]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all seeds of one run have in common.

    ``most_rules``: that a seed draws at most.  ``full_every``: operations from one full look to the next
    (:class:`kvcrucible.fuzz.lockstep.LockStep`).  ``goals_every``: coverage goals are asked of one seed in so many.
    """

    settings: Strategy[Setting]
    capabilities: Capabilities
    most_rules: int = 60
    full_every: int = 16
    goals_every: int = 8


@dataclass(frozen=True, slots=True)
class Call:
    """A rule with the arguments that were drawn for it."""

    rule: Rule
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SeedFailure:
    """A seed that failed: what it was like, the rules that it had called, the last one included, and what was seen."""

    swarm: Swarm
    calls: tuple[Call, ...]
    first: FirstFailure


class RawDriver(EveryRule):
    """One seed: the driver without what it goes without."""

    def __init__(
        self, swarm: Swarm, conditions: Conditions, tally: Tally, observe: Observer | None = None
    ) -> None:
        self.capabilities, self.tally, self.recorder = conditions.capabilities, tally, Recorder()
        self._supported = conditions.capabilities.operations.difference(swarm.without)
        self._without, self.favoured = frozenset(swarm.without), swarm.favoured
        self._observe = observe
        goals = swarm.seed % conditions.goals_every == 0
        self.lock = self.recorder.begin(swarm.setting, tally, conditions.full_every, goals=goals)

    @property
    def supported(self) -> frozenset[str]:
        """Names of the operations that this seed takes."""
        return self._supported

    def take(self, *steps: Step) -> None:
        """Take steps; those of operations that the seed goes without are left out, as if the engine had none."""
        for step in steps:
            if _KINDS.get(type(step)) in self._without:
                continue
            outcome = self.take_one(step)
            if self._observe is not None:
                self._observe(self.lock, step, outcome)


def ballast(driver: RawDriver, spare: int) -> None:
    """Start a sequence that is entitled to all pages of the tightest pool but ``spare``."""
    setting = driver.lock.setting
    whole = setting.placeable_tokens - spare * setting.page_size
    if whole > 0:
        driver.take(Submit(run(0, 950, 1), whole - 1), Schedule())


#: What a seed with ``Corner.FULL`` begins with.
BALLAST = Rule("ballast", ballast, {"spare": integers(0, 2)})


def draw_seed(seed: int, conditions: Conditions) -> tuple[Swarm, SeededChoices]:
    """Return what a seed is like, and the choices from which its steps are drawn."""
    choices = SeededChoices(seed)
    swarm = draw_swarm(
        seed, choices, conditions.settings, RULES, conditions.capabilities, conditions.most_rules
    )
    return swarm, choices


def run_seed(
    seed: int, conditions: Conditions, tally: Tally, observe: Observer | None = None
) -> SeedFailure | None:
    """Run one seed to its end, everything ended and judged; return its failure, None where it held.

    Counts into ``tally``.  ``observe`` is not told of the operations that end what is alive at last.
    """
    return run_drawn(*draw_seed(seed, conditions), conditions, tally, observe)


def run_drawn(
    swarm: Swarm,
    choices: SeededChoices,
    conditions: Conditions,
    tally: Tally,
    observe: Observer | None = None,
) -> SeedFailure | None:
    """Run a seed of which :func:`draw_seed` has just drawn what it is like; else as :func:`run_seed`."""
    calls: list[Call] = []
    first = attempt(swarm, conditions, tally, lambda driver: _drive(driver, swarm, choices, calls), observe)
    return None if first is None else SeedFailure(swarm, tuple(calls), first)


def attempt(
    swarm: Swarm,
    conditions: Conditions,
    tally: Tally,
    drive: Callable[[RawDriver], None],
    observe: Observer | None = None,
) -> FirstFailure | None:
    """Start a driver, let ``drive`` drive it, and end everything; return the failure, None where all held."""
    driver = None
    try:
        driver = RawDriver(swarm, conditions, tally, observe)
        drive(driver)
        driver.teardown()
    except InvariantViolated as found:
        if driver is not None and driver.recorder.first is not None:
            return driver.recorder.first
        return FirstFailure(swarm.setting, (), found.violations, tally.examples + 1, tally.steps)
    return None


def _drive(driver: RawDriver, swarm: Swarm, choices: SeededChoices, calls: list[Call]) -> None:
    if swarm.corner is Corner.FULL:
        calls.append(Call(BALLAST, {"spare": swarm.spare_pages}))
        ballast(driver, swarm.spare_pages)
    weights = dict(swarm.weights)
    rules = [one for one in RULES if weights[one.name]]
    marks = list(accumulate(weights[one.name] for one in rules))
    for _ in range(swarm.rules):
        drawn = _rule(driver, rules, marks, choices)
        if drawn is not None:
            calls.append(Call(drawn, drawn.draw(choices)))
            drawn.function(driver, **calls[-1].arguments)


def _rule(
    driver: RawDriver, rules: Sequence[Rule], marks: Sequence[int], choices: SeededChoices
) -> Rule | None:
    """Draw one of the rules that are offered, by their weights; None where none of this seed's is."""
    most = marks[-1] - 1
    for _ in range(_ATTEMPTS):
        drawn = rules[bisect_right(marks, choices.integer(0, most))]
        if drawn.offered(driver):
            return drawn
    offered = [one for one in rules if one.offered(driver)]
    return choices.one_of(offered) if offered else None
