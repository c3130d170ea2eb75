"""The capacity study: three allocation strategies on the same lengths and the same budget (DESIGN 8).

The budget is what the first ``offered`` lengths need, token for token, and a little slack.  Each strategy is filled,
then every second of its sequences ends, oldest first, and one long request (the *probe*) asks to come in:

    static reservation    is offered all the lengths, to show how few of them it takes
    contiguous, paged     are offered the first ``offered`` only: those that the budget was made for

A refused length does not stop the filling: the next one is tried.  So the article's paged arm refuses its 39th request
and admits its 40th.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcrucible.contract.errors import BadArgument, InputError, Refusal
from kvcrucible.contract.profiles import check_page_size
from kvcrucible.perf.capacity_lengths import drawn_lengths
from kvcrucible.reference.allocation import ContiguousFirstFit, Handle, Paged, StaticReservation, Strategy

#: The article's scenario: how many lengths, for how many of them the budget is made, and the request at the end.
LENGTHS, OFFERED, PROBE_TOKENS = 60, 40, 800

#: Slots of the budget beyond what the offered lengths need: two of the article's pages.
SLACK_SLOTS = 32

#: Largest page and longest static maximum, in tokens: beyond any engine, and short of numbers that overflow a table.
MAX_PAGE_SIZE, MAX_STATIC_TOKENS = 1 << 20, 1 << 31


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a study depends on.  Raises :class:`InputError` for a number outside its range.

    ``lengths`` in tokens, at least one, each at least 1.  ``offered`` of them make the budget.  ``static_max_tokens``
    is one region of the static reservation; a longer sequence is refused there.  ``probe_tokens`` asks to come in at
    the end.
    """

    lengths: tuple[int, ...]
    offered: int
    page_size: int
    static_max_tokens: int
    probe_tokens: int

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise InputError("the study needs at least one length, and none below 1 token")
        if not 1 <= self.offered <= len(self.lengths):
            raise InputError(f"{self.offered} of {len(self.lengths)} lengths offered: use 1 to all of them")
        try:
            check_page_size(self.page_size)
        except BadArgument as error:
            raise InputError(f"page size {self.page_size}: {error.found}; {error.remedy}") from None
        if self.page_size > MAX_PAGE_SIZE:
            raise InputError(f"page size {self.page_size}: use at most {MAX_PAGE_SIZE}")
        if not 1 <= self.static_max_tokens <= MAX_STATIC_TOKENS:
            raise InputError(f"static maximum {self.static_max_tokens}: use 1 to {MAX_STATIC_TOKENS} tokens")
        if self.probe_tokens < 1:
            raise InputError(f"a last request of {self.probe_tokens} tokens: use 1 or more")

    @property
    def budget_slots(self) -> int:
        """What the offered lengths need and the slack."""
        return sum(self.lengths[: self.offered]) + SLACK_SLOTS


def article_scenario(
    seed: int = 42, distribution: str = "gauss", page_size: int = 16, static_max_tokens: int = 1_024
) -> Scenario:
    """Return the scenario of the source article, or with other parameters one of its shape.

    The lengths do not depend on ``static_max_tokens``, so that different maxima meet the same load.
    """
    return Scenario(
        drawn_lengths(seed, distribution, LENGTHS), OFFERED, page_size, static_max_tokens, PROBE_TOKENS
    )


def recorded_scenario(
    lengths: Sequence[int], page_size: int = 16, static_max_tokens: int | None = None
) -> Scenario:
    """Return the scenario for a trace's lengths, scaled as the article's: the budget is made for two thirds of them.

    Without a given maximum, static reservation plans for the longest length, rounded up to a power of two.  The probe
    is the longest request that this plan allows.
    """
    if not lengths:
        raise InputError("no request to study")
    static = static_max_tokens if static_max_tokens is not None else power_of_two_at_least(max(lengths))
    offered = max(1, len(lengths) * OFFERED // LENGTHS)
    return Scenario(tuple(lengths), offered, page_size, static, static)


def power_of_two_at_least(number: int) -> int:
    """Return the smallest power of two that is not below ``number``, which is at least 1."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One moment of one strategy; all but ``sequences`` in slots, one token each.

    Waste is what is held and not used; ``worst_waste_slots`` is the most of it in one sequence.  A share is of one of
    two denominators, and both are given: what is *held*, and the whole *budget*.
    """

    sequences: int
    budget_slots: int
    held_slots: int
    used_tokens: int
    free_slots: int
    largest_grant_slots: int
    worst_waste_slots: int

    @property
    def waste_slots(self) -> int:
        """Slots held and not used."""
        return self.held_slots - self.used_tokens

    @property
    def used_of_held(self) -> float | None:
        """Share of the held slots that hold a token, 0 to 1; None where nothing is held."""
        return self.used_tokens / self.held_slots if self.held_slots else None

    @property
    def waste_of_held(self) -> float | None:
        """Share of the held slots that hold none, 0 to 1; None where nothing is held."""
        return self.waste_slots / self.held_slots if self.held_slots else None

    @property
    def used_of_budget(self) -> float:
        """Share of the whole budget that holds a token, 0 to 1."""
        return self.used_tokens / self.budget_slots


@dataclass(frozen=True, slots=True)
class StrategyFigures:
    """One strategy filled, then after every second sequence ended, then asked to take the probe."""

    name: str
    offered: int
    admitted: int
    refused: int
    full: Occupancy
    released: int
    after: Occupancy
    probe_admitted: bool


@dataclass(frozen=True, slots=True)
class CapacityStudy:
    """Every figure of one scenario."""

    scenario: Scenario
    static: StrategyFigures
    contiguous: StrategyFigures
    paged: StrategyFigures

    @property
    def strategies(self) -> tuple[StrategyFigures, ...]:
        """The three, in the order in which they are told."""
        return self.static, self.contiguous, self.paged

    @property
    def capacity_pages(self) -> int:
        """Whole pages in the budget."""
        return self.scenario.budget_slots // self.scenario.page_size

    @property
    def probe_pages(self) -> int:
        """Pages that the probe takes."""
        return -(-self.scenario.probe_tokens // self.scenario.page_size)

    @property
    def paged_against_static(self) -> float | None:
        """Sequences of the paged arm for each of the static one; None where static reservation takes none."""
        return self.paged.admitted / self.static.admitted if self.static.admitted else None


def study(scenario: Scenario) -> CapacityStudy:
    """Run the three strategies over ``scenario`` and return every figure; the same scenario gives the same ones."""
    budget, offered = scenario.budget_slots, scenario.lengths[: scenario.offered]
    probe = scenario.probe_tokens
    return CapacityStudy(
        scenario,
        _run("static", StaticReservation(budget, scenario.static_max_tokens), scenario.lengths, probe),
        _run("contiguous", ContiguousFirstFit(budget), offered, probe),
        _run("paged", Paged(budget, scenario.page_size), offered, probe),
    )


def _run(name: str, strategy: Strategy, lengths: Sequence[int], probe_tokens: int) -> StrategyFigures:
    admitted = sum(_admits(strategy, length) is not None for length in lengths)
    full = _occupancy(strategy)
    # The first, the third and so on: even-numbered when the admitted are counted from 0, as the article's program does.
    leaving = strategy.handles[::2]
    for handle in leaving:
        strategy.free(handle)
    after = _occupancy(strategy)
    probe_admitted = _admits(strategy, probe_tokens) is not None
    return StrategyFigures(
        name, len(lengths), admitted, len(lengths) - admitted, full, len(leaving), after, probe_admitted
    )


def _admits(strategy: Strategy, length_tokens: int) -> Handle | None:
    try:
        return strategy.admit(length_tokens)
    except Refusal:
        return None


def _occupancy(strategy: Strategy) -> Occupancy:
    handles = strategy.handles
    return Occupancy(
        len(handles),
        strategy.budget_slots,
        strategy.held_slots,
        strategy.used_tokens,
        strategy.free_slots,
        strategy.largest_grant_slots,
        max(map(strategy.waste_of, handles), default=0),
    )
