"""Makes a failing seed of the raw loop small: fewer rules, a plainer setting, plainer arguments, then fewer steps.

Rules say "the second live sequence" where steps say "sequence 5", so a rule can go without changing what those behind
it mean.  What is tried is run again in full (every check after every operation), and counts as the same failure where
it breaks the same invariant first.  The steps that are left are minimised one by one, as every campaign's are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvcrucible.contract.config import LRU
from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.fuzz.campaign import Failure
from kvcrucible.fuzz.driver import FirstFailure
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.minimise import alike, minimise, rerun
from kvcrucible.fuzz.raw import Call, Conditions, RawDriver, SeedFailure, attempt
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.steps import Step
from kvcrucible.fuzz.swarm import Swarm
from kvcrucible.invariants.judgements import NOT_REPRODUCED
from kvcrucible.invariants.violation import Violation

#: Runs that shrinking may take.  A run of what is left takes milliseconds, so that this is some ten seconds at most.
MAX_RUNS = 2_000

#: Plainer values of a setting's fields, the plainest first.
_PLAINER: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("host_bytes", (None,)),
    ("lagging", (False,)),
    ("backend", (None,)),
    ("fail_every", (0,)),
    ("lookahead", (0,)),
    ("policy", (LRU,)),
    ("hash_bits", (None,)),
    ("schedule", ("in-order",)),
    ("page_order_seed", (0,)),
    ("page_size", (4, 16)),
    ("backend_page_size", (4, 16)),
    ("max_concurrency", (1, 2)),
    ("capacity_pages", (1, 2, 3, 4)),
    ("profile", ("FP32",)),
    ("poison", ("nan",)),
)


@dataclass(slots=True)
class _Smallest:
    """The smallest failing example so far."""

    swarm: Swarm
    calls: tuple[Call, ...]
    first: FirstFailure


def shrink(failure: SeedFailure, conditions: Conditions) -> Failure:
    """Return the failure as a campaign reports one, minimal; runs nothing of other seeds.

    One that does not fail again comes back with all of its steps, and says so.
    """
    strict = replace(conditions, full_every=1, goals_every=1)
    runs = _Runs(strict)
    seen = failure.first
    again = runs.run(failure.swarm, failure.calls)
    if again is None:
        note = Violation(
            NOT_REPRODUCED, "the same rules did not fail again with every check after every operation"
        )
        return replace(as_seen(failure), violations=(*seen.violations, note))
    smallest = _Smallest(failure.swarm, failure.calls, again)
    before = None
    while before != (smallest.swarm, smallest.calls) and runs.left > 0:
        before = (smallest.swarm, smallest.calls)
        _drop_calls(smallest, runs)
        _plainer_setting(smallest, runs)
        _plainer_arguments(smallest, runs)
    found = smallest.first
    steps, violations = minimise(found.setting, found.log, found.violations)
    setting, steps, violations = _plainest(found.setting, steps, violations)
    return replace(as_seen(failure), setting=setting, steps=steps, violations=violations)


def as_seen(failure: SeedFailure) -> Failure:
    """Return the failure as a campaign reports one, with all of its steps."""
    seen = failure.first
    return Failure(
        seen.setting, seen.log, seen.violations, seen.examples, seen.steps_before, first_seen=seen.violations
    )


def _plainest(
    setting: Setting, steps: tuple[Step, ...], violations: tuple[Violation, ...]
) -> tuple[Setting, tuple[Step, ...], tuple[Violation, ...]]:
    """Return the example in a plainer setting: a rule may have needed what none of the steps that are left needs."""
    for name, values in _PLAINER:
        for value in values:
            if getattr(setting, name) == value or _is_larger(value, getattr(setting, name)):
                break
            plainer = _with(setting, name, value)
            again = rerun(plainer, steps)
            if again is not None and alike(again.violations, violations):
                setting, steps, violations = plainer, again.steps, again.violations
                break
    return setting, steps, violations


class _Runs:
    """Runs calls again; counts how many times that may still be done."""

    def __init__(self, conditions: Conditions) -> None:
        self.left = MAX_RUNS
        self._conditions = conditions

    def run(self, swarm: Swarm, calls: tuple[Call, ...]) -> FirstFailure | None:
        """Return how the calls fail, None where they hold or make no sense."""
        self.left -= 1

        def drive(driver: RawDriver) -> None:
            for call in calls:
                if call.rule.offered(driver):
                    call.rule.function(driver, **call.arguments)

        try:
            return attempt(swarm, self._conditions, Tally(), drive)
        except (KeyError, ValueError, IndexError):
            # A rule that relies on what one before it has made.
            return None
        except (InputError, NotRunError):
            # An engine of somebody else's need not be had in every setting.
            return None

    def take(self, smallest: _Smallest, swarm: Swarm, calls: tuple[Call, ...]) -> bool:
        """Try something smaller, and keep it if it fails in the same way."""
        if self.left <= 0:
            return False
        found = self.run(swarm, calls)
        if found is None or not alike(found.violations, smallest.first.violations):
            return False
        smallest.swarm, smallest.calls, smallest.first = swarm, calls, found
        return True


def _drop_calls(smallest: _Smallest, runs: _Runs) -> None:
    """Drop runs of calls, long ones first, from the end."""
    size = max(1, len(smallest.calls) // 2)
    while True:
        end = len(smallest.calls)
        while end > 0:
            start = max(0, end - size)
            calls = smallest.calls[:start] + smallest.calls[end:]
            if not runs.take(smallest, smallest.swarm, calls) and runs.left <= 0:
                return
            end = start
        if size == 1:
            return
        size //= 2


def _plainer_setting(smallest: _Smallest, runs: _Runs) -> None:
    for name, values in _PLAINER:
        for value in values:
            setting = smallest.swarm.setting
            if getattr(setting, name) == value or _is_larger(value, getattr(setting, name)):
                break
            swarm = replace(smallest.swarm, setting=_with(setting, name, value))
            if runs.take(smallest, swarm, smallest.calls):
                break


def _is_larger(value: object, than: object) -> bool:
    return isinstance(value, int) and isinstance(than, int) and value > than


def _with(setting: Setting, name: str, value: Any) -> Setting:
    """Return a setting with another value; what means nothing without the old one goes with it."""
    values = {name: value}
    match name:
        case "host_bytes":
            values["fail_every"] = 0
        case "lagging":
            values |= {"schedule": "in-order", "schedule_seed": 0}
        case "backend":
            values |= {"backend_capacity_pages": 8, "backend_page_size": 16}
        case "policy":
            values["policy_seed"] = 0
        case "page_size":
            # As many pages a sequence as before.
            values["max_context"] = max(1, setting.max_context * value // setting.page_size)
    return replace(setting, **values)


def _plainer_arguments(smallest: _Smallest, runs: _Runs) -> None:
    for index in range(len(smallest.calls)):
        for name in smallest.calls[index].arguments:
            for value in _plainer(smallest.calls[index], name):
                call = smallest.calls[index]
                plainer = Call(call.rule, {**call.arguments, name: value})
                calls = (*smallest.calls[:index], plainer, *smallest.calls[index + 1 :])
                if runs.take(smallest, smallest.swarm, calls) or runs.left <= 0:
                    break


def _plainer(call: Call, name: str) -> Iterator[Any]:
    """Yield values of an argument that are plainer than the one it has, the plainest first."""
    plain = call.rule.arguments[name].simplest()
    value = call.arguments[name]
    if value == plain:
        return
    yield plain
    if isinstance(value, list):
        yield from (value[:size] for size in range(max(1, len(plain)), len(value)))
