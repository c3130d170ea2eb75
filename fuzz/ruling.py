"""What makes a method of the driver a rule: what its arguments are drawn from, and when it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kvcrucible.fuzz.strategies import Choices, Strategy

#: Attribute under which a method keeps its rule.
_RULE = "_kvcrucible_rule"

F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.  ``guards``: what must all be true of the driver for it to be offered; asked before it is drawn.

    ``needs``: names of the operations without which one of the guards never is.
    """

    name: str
    function: Callable[..., None]
    arguments: Mapping[str, Strategy[Any]]
    guards: tuple[Callable[[Any], bool], ...] = ()
    needs: frozenset[str] = frozenset()

    def offered(self, driver: object) -> bool:
        """Say whether every guard lets it through."""
        return all(guard(driver) for guard in self.guards)

    def draw(self, choices: Choices) -> dict[str, Any]:
        """Return an argument for each parameter."""
        return {name: strategy.draw(choices) for name, strategy in self.arguments.items()}


def rule(**arguments: Strategy[Any]) -> Callable[[F], F]:
    """Make a method a rule whose arguments are drawn from strategies."""

    def declare(function: F) -> F:
        setattr(function, _RULE, Rule(function.__name__, function, arguments))
        return function

    return declare


def precondition(guard: Callable[[Any], bool], needs: Iterable[str] = ()) -> Callable[[F], F]:
    """Offer a rule only where ``guard`` is true of the driver, for which it ``needs`` operations; stands above
    ``rule``.
    """

    def restrict(function: F) -> F:
        made: Rule = getattr(function, _RULE)
        setattr(function, _RULE, replace(made, guards=(*made.guards, guard), needs=made.needs.union(needs)))
        return function

    return restrict


def rules_of(driver: type) -> tuple[Rule, ...]:
    """Return the rules of a driver's class and of all that it inherits from, by name."""
    methods = (getattr(driver, name) for name in sorted(dir(driver)))
    return tuple([getattr(method, _RULE) for method in methods if hasattr(method, _RULE)])
