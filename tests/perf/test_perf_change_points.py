"""Change points on series whose steps are known, and the witnesses of the environment."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("scipy", reason="needs the `perf` extra")

import numpy as np
from perf_samples import SIMULATED

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.origin import Origin
from kvcrucible.perf.simulator.nights import autoregressive, with_step
from kvcrucible.perf.statistics.change_points import (
    Search,
    find_change_points,
    lag_one_autocorrelation,
    superiority,
)
from kvcrucible.perf.statistics.cross_check import CrossCheck, cross_check
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint
from kvcrucible.perf.statistics.nightly import Cause, Night, NightlySeries, attribute


def series(
    seed: int, nights: int = 120, rho: float = 0.2
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return autoregressive(np.random.default_rng(seed), 1, nights, rho, 0.01)


def test_a_step_is_found_where_it_is_and_as_large_as_it_is() -> None:
    (point,) = find_change_points(np.exp(with_step(series(1), 80, 0.05))[0])
    assert abs(point.at - 80) <= 1
    assert point.change == pytest.approx(0.05, abs=0.01)
    assert point.p <= 0.0075
    assert point.superiority > 0.95


def test_a_step_and_its_way_back_are_both_found() -> None:
    found = find_change_points(np.exp(with_step(with_step(series(2, 160), 60, 0.04), 90, -0.0385))[0])
    assert [abs(point.at - due) <= 2 for point, due in zip(found, (60, 90), strict=True)] == [True, True]
    assert found[0].change > 0 > found[1].change


def test_several_steps_are_found_in_order() -> None:
    logs = series(3, 240)
    for at in (60, 120, 180):
        logs = with_step(logs, at, 0.05)
    assert [round(point.at, -1) for point in find_change_points(np.exp(logs)[0])] == [60, 120, 180]


def test_an_improvement_is_a_change_too() -> None:
    (point,) = find_change_points(np.exp(with_step(series(4), 60, -0.05))[0])
    assert point.change == pytest.approx(-0.05, abs=0.01)


def test_the_answer_is_the_same_each_time_and_does_not_depend_on_the_unit() -> None:
    values = np.exp(with_step(series(5), 70, 0.03))[0]
    assert find_change_points(values) == find_change_points(values)
    assert [point.at for point in find_change_points(1000 * values)] == [
        point.at for point in find_change_points(values)
    ]


def test_small_steps_and_short_stretches_are_no_changes() -> None:
    quiet = series(6) / 10
    assert find_change_points(np.exp(with_step(quiet, 60, 0.008))[0]) == ()
    assert len(find_change_points(np.exp(with_step(quiet, 60, 0.008))[0], Search(minimum_effect=0.005))) == 1
    assert find_change_points(np.exp(with_step(quiet, 117, 0.05))[0]) == ()
    outlier = quiet.copy()
    outlier[0, 50] += 0.5
    assert find_change_points(np.exp(outlier)[0]) == ()


@pytest.mark.parametrize("nights", [1, 5, 13, 14, 30])
def test_short_and_constant_series_have_no_change(nights: int) -> None:
    assert find_change_points(np.full(nights, 2.5)) == ()
    assert find_change_points(np.exp(series(7, 30)[0, :nights])) == ()


def test_a_shift_without_noise_is_found() -> None:
    assert [point.at for point in find_change_points(np.array([1.0] * 20 + [1.1] * 20))] == [20]


@pytest.mark.parametrize("wrong", [[0.0] * 20, [1.0, float("nan")] * 10, [1.0] * 5_000, [[1.0]]])
def test_what_is_no_series_is_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="night"):
        find_change_points(np.array(wrong))


def test_a_step_hardly_moves_the_estimate_of_memory() -> None:
    for rho in (0.0, 0.5):
        plain = autoregressive(np.random.default_rng(8), 300, 200, rho, 0.01)
        stepped = with_step(plain, 100, 0.5)
        assert lag_one_autocorrelation(plain).mean() == pytest.approx(rho, abs=0.06)
        assert lag_one_autocorrelation(stepped).mean() == pytest.approx(rho, abs=0.08)


def test_superiority_counts_pairs_of_nights() -> None:
    assert superiority(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == 3.5 / 4
    assert superiority(np.array([3.0, 4.0]), np.array([1.0, 2.0])) == 1.0


def test_ruptures_agrees_on_a_plain_step() -> None:
    pytest.importorskip("ruptures", reason="needs the `perf` extra")
    values = np.exp(with_step(series(9, rho=0.0), 80, 0.05))[0]
    ours = tuple(point.at for point in find_change_points(values))
    assert cross_check(values, ours) == CrossCheck(ours, (), ())
    assert cross_check(values, ()).only_theirs == ours
    assert cross_check(values, (20, *ours)).only_ours == (20,)
    assert cross_check(np.ones(50), (3,)) == CrossCheck((), (3,), ())


# -- code and environment ----------------------------------------------------------------------------------------------

UPDATED = MachineFingerprint.of(Origin.SIMULATED, {"machine": "test", "driver": "2"})


def nightly(
    metric: str, logs: np.ndarray[tuple[int, int], np.dtype[np.float64]], driver_from: int = 999
) -> NightlySeries:
    return NightlySeries(
        metric,
        tuple(
            Night(day, float(np.exp(value)), f"r{day}", UPDATED if day >= driver_from else SIMULATED)
            for day, value in enumerate(logs[0])
        ),
    )


def test_a_step_of_the_code_alone_is_the_codes() -> None:
    (change,) = attribute(
        [nightly("decode", with_step(series(1), 80, 0.05))], [nightly("sentinel", series(11))]
    )
    assert change.cause is Cause.CODE
    assert change.witnesses == ()
    assert change.revisions == (f"r{change.day - 1}", f"r{change.day}")
    assert change.origin is Origin.SIMULATED


def test_a_step_on_the_night_of_a_new_driver_is_the_environments() -> None:
    (change,) = attribute([nightly("decode", with_step(series(1), 80, 0.05), driver_from=80)], [])
    assert change.cause is Cause.ENVIRONMENT
    assert change.witnesses == ("driver: absent against 2",)


def test_a_step_that_the_sentinel_takes_too_is_the_environments() -> None:
    sentinel = nightly("sentinel", with_step(series(11), 81, 0.05))
    changes = attribute(
        [nightly("decode", with_step(with_step(series(1, 160), 80, 0.05), 130, 0.05))], [sentinel]
    )
    assert [change.cause for change in changes] == [Cause.ENVIRONMENT, Cause.CODE]
    assert changes[0].witnesses[0].startswith("sentinel changed by +")


def test_a_series_is_in_order_and_positive() -> None:
    good = nightly("decode", series(1, 20))
    first, second, *rest = good.nights
    with pytest.raises(InputError, match="increase"):
        NightlySeries("m", (second, first))
    with pytest.raises(InputError, match="positive"):
        NightlySeries("m", (replace(first, value=-1.0), *rest))
    with pytest.raises(InputError, match="nights"):
        NightlySeries("m", ())
    assert good.extend(()) == good
