"""The self-test fails when the statistics are wrong: each planted fault misses a bound, and the true code keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("scipy", reason="needs the `perf` extra")

import numpy as np
from scipy import special

from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.perf.selftest import gate_checks
from kvcrucible.perf.selftest.figures import Figure, Status, exit_status
from kvcrucible.perf.selftest.run import CHECKS, selftest
from kvcrucible.perf.statistics import blocks, change_points, intervals, looks, significance

Plant = Callable[[pytest.MonkeyPatch], None]


def normal_quantiles(patch: pytest.MonkeyPatch) -> None:
    """Degrees of freedom forgotten."""

    def wrong(differences: Any, tail: float) -> Any:
        half_width = special.ndtri(1 - tail) * intervals.standard_error(differences)
        return differences.mean(axis=-1) - half_width, differences.mean(axis=-1) + half_width

    patch.setattr(intervals, "t_interval", wrong)


def one_degree_of_freedom_too_many(patch: pytest.MonkeyPatch) -> None:
    true = special.stdtrit
    patch.setattr(intervals.special, "stdtrit", lambda freedom, share: true(freedom + 1, share))


def deviation_of_a_population(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intervals, "standard_error", lambda rows: rows.std(axis=-1) / np.sqrt(rows.shape[-1]))


def unpaired(patch: pytest.MonkeyPatch) -> None:
    """Base of one block against head of another."""

    def wrong(base: Any, head: Any, higher_is_better: bool = False) -> Any:
        return np.log(np.roll(head, 1, axis=-1)) - np.log(base)

    patch.setattr(blocks, "log_ratios", wrong)


def no_multiplicity_control(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(significance, "discoveries", lambda p_values, rate, family=None: p_values <= rate)


def every_look_spends_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(looks, "levels", lambda rate, at: (rate,) * len(at))


def timings_pooled(patch: pytest.MonkeyPatch) -> None:
    """Every timing of every process taken for evidence of its own."""

    def wrong(base: Any, head: Any) -> Any:
        ratios = np.log(head) - np.log(base)
        return ratios.reshape(len(ratios), -1)

    patch.setattr(blocks, "differences_of_timings", wrong)


def base_always_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blocks, "head_first", lambda draw, series, pairs: np.zeros((series, pairs), dtype=bool))


def minimum_effect_forgotten(patch: pytest.MonkeyPatch) -> None:
    true = looks.look
    patch.setattr(looks, "look", lambda rows, effect, rates, **more: true(rows, 0.0 * effect, rates, **more))


def signs_turned(patch: pytest.MonkeyPatch) -> None:
    true = blocks.log_ratios
    patch.setattr(blocks, "log_ratios", lambda base, head, higher=False: -true(base, head, higher))


def nights_taken_for_independent(patch: pytest.MonkeyPatch) -> None:
    true = change_points._without_a_step

    def wrong(series: Any, nights: int) -> Any:
        left, rho = true(series, nights)
        return left, 0.0 * rho

    patch.setattr(change_points, "_without_a_step", wrong)


def place_not_paid_for(patch: pytest.MonkeyPatch) -> None:
    """The permutation test looks at the place that was found alone, as if it had been known before."""
    true, pinned = change_points._scan, {}

    def wrong(series: Any, nights: int) -> Any:
        largest, best = true(series, nights)
        if len(series) == 1:
            pinned["best"] = best
            return largest, best
        one = [edges[pinned["best"]] for edges in change_points._splits(series.shape[1] - 1, nights)]
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(change_points, "_splits", lambda length, nights: one)
            return change_points._largest(series[:, 1:], nights)

    patch.setattr(change_points, "_scan", wrong)


#: Fault, the check that has to catch it, and trials as a share of the default.
FAULTS: tuple[tuple[Plant, str, float], ...] = (
    (normal_quantiles, "coverage", 0.1),
    (one_degree_of_freedom_too_many, "coverage", 0.2),
    (deviation_of_a_population, "coverage", 0.1),
    (base_always_first, "coverage", 0.2),
    (timings_pooled, "processes", 0.1),
    (unpaired, "power", 0.02),
    (signs_turned, "power", 0.02),
    (no_multiplicity_control, "false-failures", 0.1),
    (every_look_spends_everything, "boundary", 0.1),
    (minimum_effect_forgotten, "boundary", 0.02),
    (nights_taken_for_independent, "change-points", 0.02),
    (place_not_paid_for, "change-points", 0.02),
)


@pytest.mark.parametrize(("plant", "check", "scale"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_a_planted_fault_misses_a_bound(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, check: str, scale: float
) -> None:
    monkeypatch.setattr(gate_checks, "RESAMPLES", 499)
    monkeypatch.setattr(change_points, "PERMUTATIONS", 199)
    plant(monkeypatch)
    figures = []
    for figure in selftest(0, (check,), scale):
        figures.append(figure)
        if figure.status is Status.MISSED:
            # Missed by more than chance: the whole Monte-Carlo interval lies outside.
            lower, upper = figure.monte_carlo
            low = 0.0 if figure.at_least is None else figure.at_least
            high = 1.0 if figure.at_most is None else figure.at_most
            if upper < low or lower > high:
                break
    else:
        pytest.fail("no bound was missed: " + "; ".join(f"{one.name} {one.rate:.2%}" for one in figures))
    assert exit_status(figures) is ExitStatus.VIOLATION


@pytest.mark.parametrize(
    ("check", "scale"), [("processes", 0.2), ("power", 0.02), ("boundary", 0.1), ("change-points", 0.02)]
)
def test_nothing_is_missed_where_nothing_is_planted(
    monkeypatch: pytest.MonkeyPatch, check: str, scale: float
) -> None:
    monkeypatch.setattr(change_points, "PERMUTATIONS", 199)
    figures = list(selftest(0, (check,), scale))
    assert figures
    for figure in figures:
        lower, upper = figure.monte_carlo
        assert figure.at_least is None or upper >= figure.at_least, figure.name
        assert figure.at_most is None or lower <= figure.at_most, figure.name


@pytest.mark.slow
def test_every_bound_is_held() -> None:
    figures = list(selftest())
    assert {figure.check for figure in figures} == {name for name in CHECKS if name != "processes"}
    assert [figure.name for figure in figures if figure.status not in (Status.HELD, Status.SHOWN)] == []
    assert exit_status(figures) is ExitStatus.HELD


def test_a_check_gives_the_same_figures_alone_and_again() -> None:
    first = list(selftest(3, ("boundary",), 0.01))
    assert first == list(selftest(3, ("processes", "boundary"), 0.01))[1:]
    assert first != list(selftest(4, ("boundary",), 0.01))


def test_arguments_that_mean_nothing_are_refused() -> None:
    for arguments, problem in (((0, ("sense",)), "sense"), ((0, (), 0.0), "scale"), ((-1,), "seed")):
        with pytest.raises(InputError, match=problem):
            list(selftest(*arguments))


@pytest.mark.parametrize(
    ("hits", "trials", "bounds", "status"),
    [
        (5, 1000, (None, 0.01), Status.UNRESOLVED),
        (5, 10_000, (None, 0.01), Status.HELD),
        (11, 1000, (None, 0.01), Status.MISSED),
        (0, 10, (None, 0.01), Status.UNRESOLVED),
        (0, 1000, (None, 0.01), Status.HELD),
        (950, 1000, (0.9, None), Status.HELD),
        (895, 1000, (0.9, None), Status.MISSED),
        (1000, 1000, (0.9, None), Status.HELD),
        (980, 1000, (0.93, 0.97), Status.MISSED),
        (500, 1000, (None, None), Status.SHOWN),
    ],
)
def test_a_bound_is_held_only_by_the_whole_interval(
    hits: int, trials: int, bounds: tuple[float | None, float | None], status: Status
) -> None:
    assert Figure("c", "n", hits, trials, *bounds).status is status


def test_the_monte_carlo_interval_is_that_of_clopper_and_pearson() -> None:
    from scipy import stats

    for hits, trials in ((0, 20), (3, 50), (50, 50), (480, 500)):
        due = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
        assert Figure("c", "n", hits, trials).monte_carlo == pytest.approx((due.low, due.high))


def test_the_exit_status_says_what_is_known() -> None:
    held, missed = Figure("c", "n", 0, 1000, at_most=0.01), Figure("c", "n", 20, 1000, at_most=0.01)
    open_, shown = Figure("c", "n", 0, 10, at_most=0.01), Figure("c", "n", 1, 2)
    assert exit_status([held, shown]) is ExitStatus.HELD
    assert exit_status([held, open_]) is ExitStatus.INCONCLUSIVE
    assert exit_status([missed, open_]) is ExitStatus.VIOLATION
    assert exit_status([shown]) is ExitStatus.INCONCLUSIVE
    assert exit_status([]) is ExitStatus.INCONCLUSIVE
