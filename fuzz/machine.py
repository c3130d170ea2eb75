"""The Hypothesis state machine for a campaign: the rules, bound to an engine's capabilities and a range of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as hypothesis_strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize
from hypothesis.stateful import precondition as hypothesis_precondition
from hypothesis.stateful import rule as hypothesis_rule

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.fuzz.driver import Recorder
from kvcrucible.fuzz.every_rule import EveryRule
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.ruling import Rule, rules_of
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.strategies import Built, Integers, Lists, SampledFrom, Strategy


def machine_class(
    settings: hypothesis_strategies.SearchStrategy[Setting],
    capabilities: Capabilities,
    tally: Tally,
    recorder: Recorder,
    favoured: tuple[str, ...] = (),
) -> type[RuleBasedStateMachine]:
    """Return a state machine over ``settings`` that asks for nothing beyond ``capabilities`` and counts into
    ``tally``; ``favoured``: journeys that it takes rather than others.
    """
    owner, rather = (capabilities, tally, recorder), favoured

    class Campaign(EveryRule, RuleBasedStateMachine):
        """One example: an engine and the reference in lock step."""

        capabilities, tally, recorder = owner
        favoured = rather

        @initialize(setting=settings)
        def begin(self, setting: Setting) -> None:
            self.lock = recorder.begin(setting, tally)

    for one in rules_of(EveryRule):
        setattr(Campaign, one.name, _native(one))
    return Campaign


def to_hypothesis(strategy: Strategy[Any]) -> hypothesis_strategies.SearchStrategy[Any]:
    """Return Hypothesis's own strategy of the same values, which shrinks towards the simplest."""
    match strategy:
        case SampledFrom((False, True)):
            return hypothesis_strategies.booleans()
        case SampledFrom((value,)):
            return hypothesis_strategies.just(value)
        case SampledFrom(options):
            return hypothesis_strategies.sampled_from(options)
        case Integers(low, high):
            return hypothesis_strategies.integers(low, high)
        case Lists(values, least, most):
            return hypothesis_strategies.lists(to_hypothesis(values), min_size=least, max_size=most)
        case Built(build, parts):
            return hypothesis_strategies.builds(build, *[to_hypothesis(part) for part in parts])
    raise AssertionError(f"no strategy of Hypothesis stands for {type(strategy).__name__}")


def _native(one: Rule) -> Any:
    # Of its overloads the checker cannot choose one by names that are not known until they are drawn.
    declare: Callable[..., Callable[[Callable[..., None]], Any]] = hypothesis_rule
    made = declare(**{name: to_hypothesis(drawn) for name, drawn in one.arguments.items()})(one.function)
    for guard in one.guards:
        made = hypothesis_precondition(guard)(made)
    return made
