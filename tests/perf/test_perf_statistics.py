"""Intervals and tests against other people's, and against counting by hand."""

from __future__ import annotations

import itertools

import pytest

np = pytest.importorskip("numpy", reason="needs the `perf` extra")
stats = pytest.importorskip("scipy.stats", reason="needs the `perf` extra")

from kvcrucible.contract.errors import InputError  # noqa: E402
from kvcrucible.perf.statistics import blocks, intervals, looks, significance, spending  # noqa: E402
from kvcrucible.perf.statistics.looks import Decision  # noqa: E402
from kvcrucible.perf.statistics.thresholds import Plan, default_thresholds  # noqa: E402


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("pairs", [6, 12, 19])
def test_the_t_interval_is_that_of_scipy(draw: np.random.Generator, pairs: int) -> None:
    values = draw.standard_normal((5, pairs))
    lower, upper = intervals.interval(values, 0.025)
    for row, low, high in zip(values, lower, upper, strict=True):
        due = stats.ttest_1samp(row, 0).confidence_interval(0.95)
        assert (low, high) == pytest.approx((due.low, due.high))


def test_the_bootstrap_interval_is_that_of_scipy_at_its_wider_level(draw: np.random.Generator) -> None:
    skewed = draw.lognormal(size=(3, 40))
    lower, upper = intervals.bca_interval(skewed, 0.025, 60_000)
    widened = np.sqrt(40 / 39) * stats.t.ppf(0.975, 39)
    for row, low, high in zip(skewed, lower, upper, strict=True):
        due = stats.bootstrap(
            (row,),
            np.mean,
            method="BCa",
            confidence_level=2 * stats.norm.cdf(widened) - 1,
            n_resamples=60_000,
            rng=np.random.default_rng(1),
        ).confidence_interval
        width = due.high - due.low
        assert abs(low - due.low) < 0.02 * width
        assert abs(high - due.high) < 0.02 * width
        # Skewed to the right: the bootstrap reaches further up than down.
        assert high - row.mean() > row.mean() - low


def test_from_twenty_pairs_no_end_lies_inside_students(draw: np.random.Generator) -> None:
    values = draw.standard_t(3, (200, 20))
    lower, upper = intervals.interval(values, 0.025)
    student = intervals.t_interval(values, 0.025)
    bootstrap = intervals.bca_interval(values, 0.025)
    assert (lower == np.minimum(student[0], bootstrap[0])).all()
    assert (upper == np.maximum(student[1], bootstrap[1])).all()
    assert (lower < student[0]).any()


def test_an_interval_depends_on_the_pairs_alone(draw: np.random.Generator) -> None:
    values = draw.standard_normal((3, 24))
    together = intervals.interval(values, 0.01)
    alone = [intervals.interval(row, 0.01) for row in values]
    assert [float(one[0]) for one in alone] == pytest.approx(list(together[0]), rel=1e-12)


def test_rows_without_variation_have_intervals_without_width() -> None:
    for pairs in (6, 24):
        lower, upper = intervals.interval(np.full((2, pairs), 0.25), 0.025)
        assert list(lower) == pytest.approx([0.25, 0.25])
        assert list(upper) == pytest.approx([0.25, 0.25])


def test_the_sign_flip_test_counts_every_assignment(draw: np.random.Generator) -> None:
    values = draw.standard_normal((4, 7)) + 0.4
    for row, found in zip(values, significance.sign_flip_p(values), strict=True):
        sums = [float(np.dot(signs, row)) for signs in itertools.product((1, -1), repeat=7)]
        assert found == sum(one >= row.sum() - 1e-9 for one in sums) / 2**7
    assert significance.sign_flip_p(np.ones((1, 6)))[0] == 1 / 64


def test_the_drawn_sign_flip_test_is_close_to_the_exact_one(draw: np.random.Generator) -> None:
    values = 0.35 + draw.standard_normal((3, 20))
    for row, found in zip(values, significance.sign_flip_p(values), strict=True):
        due = stats.permutation_test(
            (row,),
            np.sum,
            permutation_type="samples",
            alternative="greater",
            n_resamples=20_000,
            vectorized=True,
            rng=np.random.default_rng(2),
        ).pvalue
        assert found == pytest.approx(due, abs=0.015)


def test_p_values_are_those_of_scipy(draw: np.random.Generator) -> None:
    values = draw.standard_normal((6, 9))
    due = stats.ttest_1samp(values, 0, axis=1, alternative="greater").pvalue
    assert significance.slower_p(values) == pytest.approx(due)
    assert list(significance.slower_p(np.array([[0.0] * 6, [1.0] * 6, [-1.0] * 6]))) == [1, 0, 1]


def test_discoveries_are_those_of_scipy(draw: np.random.Generator) -> None:
    for _ in range(50):
        p_values = draw.random(30) ** 3
        due = stats.false_discovery_control(p_values) <= 0.05
        assert (significance.discoveries(p_values, 0.05) == due).all()
    # Metrics that are not in the array count, as p-values of 1.
    padded = np.concatenate([p_values, np.ones(20)])
    assert (
        significance.discoveries(p_values, 0.2, family=50) == significance.discoveries(padded, 0.2)[:30]
    ).all()
    with pytest.raises(ValueError, match="family of 3"):
        significance.discoveries(p_values, 0.05, family=3)


def test_looks_spend_the_whole_error_and_no_more() -> None:
    levels = spending.levels(0.05, (6, 12, 24))
    assert sum(levels) == pytest.approx(0.05)
    assert list(levels) == sorted(levels)
    # Tabulated for this spending function, one-sided 0.025, half of the information: 0.00153.
    assert spending.spent(0.025, 0.5) == pytest.approx(0.001525, abs=2e-6)
    with pytest.raises(ValueError, match="between 0 and 1"):
        spending.spent(0.05, 1.5)


@pytest.mark.parametrize("wrong", [(), (5, 12), (6, 6), (12, 6)])
def test_a_plan_has_increasing_looks(wrong: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="increasing"):
        Plan(wrong, 0.05, 0.01)


def test_the_order_inside_blocks_is_random_and_even(draw: np.random.Generator) -> None:
    order = blocks.head_first(draw, 500, 13)
    assert set(order.sum(axis=1)) == {6}
    assert (np.abs(order.mean(axis=0) - 6 / 13) < 0.1).all()
    assert len({tuple(row) for row in order}) > 400


def test_one_number_stands_for_a_process() -> None:
    base = np.array([[1.0, 1.0, 9.0], [2.0, 2.0, 2.0]])
    head = np.array([[2.0, 2.0, 2.0], [2.0, 2.0, 99.0]])
    assert blocks.differences_of_timings(base, head) == pytest.approx([np.log(2), 0])
    assert blocks.differences_of_timings(base, head, higher_is_better=True) == pytest.approx([-np.log(2), 0])
    assert blocks.process_summary(base, 1.0) == pytest.approx([9, 2])


def test_a_look_says_what_is_true(draw: np.random.Generator) -> None:
    plan = default_thresholds().plan
    true = np.log1p([0.0, 0.05, -0.05, 0.01])
    found = 0.005 * draw.standard_normal((1, 4, 24)) + true[None, :, None]
    codes, used = looks.all_looks(found, np.log1p(0.01), plan)
    assert list(codes[0]) == [Decision.PASS, Decision.FAIL, Decision.IMPROVED, Decision.UNDECIDED]
    assert used[0, 3] == 24
    assert used[0, 1] < 24


def test_a_change_that_signs_do_not_confirm_stays_undecided() -> None:
    effect = np.log1p(0.01)
    # Against the minimum effect Student's p is 0.012; by signs it is 4/64: two pairs lie (just) on the other side.
    beyond = 0.02 * np.array([1.0, 1.0, 1.0, 1.0, -0.01, -0.01])
    plan = Plan((6,), 0.05, 0.05)
    assert intervals.t_interval(beyond, 0.05)[0] > 0
    assert significance.sign_flip_p(beyond) == 4 / 64
    codes, _ = looks.all_looks((effect + beyond)[None, None], effect, plan)
    assert codes[0, 0] == Decision.UNDECIDED
    codes, _ = looks.all_looks((effect + np.abs(beyond))[None, None], effect, plan)
    assert codes[0, 0] == Decision.FAIL


def test_what_seems_improved_waits_with_its_pass_for_more_pairs(draw: np.random.Generator) -> None:
    plan = default_thresholds().plan
    found = 0.015 * draw.standard_normal((1, 1, 24)) - 0.05
    first = looks.look(found[..., :6], np.log1p(0.01), looks.look_rates(plan)[0])
    assert first[0, 0] == Decision.UNDECIDED
    codes, used = looks.all_looks(found, np.log1p(0.01), plan)
    assert (codes[0, 0], used[0, 0]) == (Decision.IMPROVED, 12)
    # So clear that it is no slowdown that the first look would pass it; yet it is no improvement beyond the minimum.
    between = 0.0002 * draw.standard_normal((1, 1, 24)) - np.log1p(0.01) - 0.00001
    codes, used = looks.all_looks(between, np.log1p(0.01), plan)
    assert (codes[0, 0], used[0, 0]) == (Decision.PASS, 24)


def test_required_pairs_decide_nine_times_in_ten(draw: np.random.Generator) -> None:
    values = draw.standard_normal(12)
    values = 0.016 + 0.01 * (values - values.mean()) / values.std(ddof=1)
    pairs = looks.required_pairs(list(values), 0.01, 0.05)
    assert pairs is not None
    trials = 0.016 + 0.01 * draw.standard_normal((4_000, pairs))
    lower, _ = intervals.t_interval(trials, 0.05)
    assert (lower > 0.01).mean() == pytest.approx(0.9, abs=0.02)
    assert looks.required_pairs(list(values - values.mean() + 0.01), 0.01, 0.05) is None
