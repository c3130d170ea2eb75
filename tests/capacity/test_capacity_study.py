"""The study remakes the figures of the source article exactly, and its parameters do what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcrucible.contract.errors import DeviceCapacity, InputError
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.perf import capacity_lengths
from kvcrucible.perf.capacity import (
    Scenario,
    article_scenario,
    power_of_two_at_least,
    recorded_scenario,
    study,
)
from kvcrucible.perf.capacity_lengths import DISTRIBUTIONS, drawn_lengths, recorded_lengths
from kvcrucible.perf.capacity_storage import storage_figures
from kvcrucible.perf.traces import TraceRequest
from kvcrucible.reference.allocation import Paged


def test_the_scenario_of_the_article() -> None:
    scenario = article_scenario()
    assert len(scenario.lengths) == 60
    assert sum(scenario.lengths) == 13_691
    assert round(sum(scenario.lengths) / 60) == 228
    assert max(scenario.lengths) == 593
    assert (scenario.offered, scenario.page_size, scenario.static_max_tokens) == (40, 16, 1_024)
    assert scenario.budget_slots == 8_528


def test_static_reservation_of_the_article() -> None:
    static = study(article_scenario()).static
    assert (static.offered, static.admitted, static.refused) == (60, 8, 52)
    assert (static.full.used_tokens, static.full.held_slots) == (1_603, 8_192)
    assert static.full.used_of_held == pytest.approx(0.1957, abs=5e-5)
    assert static.full.used_of_budget == pytest.approx(0.1880, abs=5e-5)


def test_dynamic_contiguous_of_the_article() -> None:
    contiguous = study(article_scenario()).contiguous
    assert (contiguous.admitted, contiguous.full.held_slots, contiguous.released) == (40, 8_496, 20)
    assert (contiguous.after.free_slots, contiguous.after.largest_grant_slots) == (4_810, 359)
    assert not contiguous.probe_admitted


def test_paged_of_the_article() -> None:
    figures = study(article_scenario())
    paged = figures.paged
    assert (paged.admitted, paged.refused, paged.released, paged.after.sequences) == (39, 1, 20, 19)
    assert paged.after.free_slots == 4_768
    assert paged.probe_admitted
    assert (figures.scenario.probe_tokens, figures.probe_pages) == (800, 50)
    assert (paged.after.waste_slots, paged.after.held_slots) == (101, 3_760)
    assert paged.after.waste_of_held == pytest.approx(0.0269, abs=5e-5)
    assert paged.after.used_of_held == pytest.approx(0.9731, abs=5e-5)
    assert paged.after.used_of_budget == pytest.approx(0.4291, abs=5e-5)
    assert max(paged.full.worst_waste_slots, paged.after.worst_waste_slots) <= 15
    assert figures.paged_against_static == pytest.approx(4.875)


def test_the_article_refuses_its_39th_request_and_admits_its_40th() -> None:
    scenario = article_scenario()
    paged = Paged(scenario.budget_slots, 16)
    for length in scenario.lengths[:38]:
        paged.admit(length)
    assert paged.pages_for(scenario.lengths[38]) == paged.free_pages + 13
    with pytest.raises(DeviceCapacity):
        paged.admit(scenario.lengths[38])
    paged.admit(scenario.lengths[39])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_lengths_depend_on_seed_and_distribution_and_on_nothing_else(distribution: str) -> None:
    lengths = drawn_lengths(7, distribution, 500)
    assert lengths == drawn_lengths(7, distribution, 500)
    assert lengths != drawn_lengths(8, distribution, 500)
    assert all(lengths != drawn_lengths(7, other, 500) for other in DISTRIBUTIONS if other != distribution)
    assert 32 <= min(lengths) <= max(lengths) <= 1_024


def test_every_parameter_changes_the_scenario() -> None:
    base = study(article_scenario())
    for other in (
        article_scenario(seed=1),
        article_scenario(distribution="bimodal"),
        article_scenario(page_size=64),
        article_scenario(static_max_tokens=600),
    ):
        assert study(other).strategies != base.strategies
    assert study(article_scenario(static_max_tokens=600)).paged == base.paged


def test_a_maximum_below_some_lengths_refuses_those() -> None:
    static = study(Scenario((10, 50, 10), 3, 16, 32, 1)).static
    assert (static.admitted, static.refused) == (2, 1)


def test_a_budget_without_a_region_or_a_page_admits_nothing() -> None:
    figures = study(article_scenario(page_size=1 << 20, static_max_tokens=1 << 20))
    for arm in (figures.static, figures.paged):
        assert (arm.admitted, arm.released, arm.probe_admitted, arm.full.used_of_held) == (0, 0, False, None)
    assert figures.paged_against_static is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: article_scenario(page_size=24), "page size 24"),
        (lambda: article_scenario(page_size=1 << 21), "at most"),
        (lambda: article_scenario(static_max_tokens=0), "static maximum 0"),
        (lambda: article_scenario(distribution="cauchy"), "gauss, uniform"),
        (lambda: article_scenario(seed=-1), "seed -1"),
        (lambda: Scenario((1, 0), 1, 16, 16, 1), "none below 1"),
        (lambda: Scenario((), 1, 16, 16, 1), "at least one"),
        (lambda: Scenario((1,), 2, 16, 16, 1), "2 of 1"),
        (lambda: Scenario((1,), 1, 16, 16, 0), "last request of 0"),
        (lambda: recorded_scenario(()), "no request"),
        (lambda: drawn_lengths(0, "gauss", 0), "0 lengths"),
    ],
)
def test_a_number_out_of_range_is_an_input_error_that_says_which(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_a_recorded_scenario_is_scaled_as_the_article_is() -> None:
    scenario = recorded_scenario(article_scenario().lengths)
    assert (scenario.offered, scenario.budget_slots) == (40, 8_528)
    assert (scenario.static_max_tokens, scenario.probe_tokens) == (1_024, 1_024)
    assert recorded_scenario([5]).offered == 1
    assert recorded_scenario([5], static_max_tokens=99).static_max_tokens == 99


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (1_024, 1_024), (1_025, 2_048)])
def test_power_of_two_at_least(number: int, power: int) -> None:
    assert power_of_two_at_least(number) == power


def test_recorded_lengths_are_prompt_and_output_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [TraceRequest(i, t, 10 * i + 1, i, None, None, None) for i, t in enumerate((2.0, 1.0, 2.0))]
    assert recorded_lengths(requests) == (12, 1, 23)
    monkeypatch.setattr(capacity_lengths, "MAX_STUDY_REQUESTS", 2)
    with pytest.raises(InputError, match="more than 2 requests"):
        recorded_lengths(requests)


def test_llama_2_70b_takes_327_680_bytes_a_token_by_its_planes() -> None:
    by_name = {figures.name: figures for figures in storage_figures(16)}
    assert set(by_name) == set(PROFILES)
    assert by_name["BF16"].bytes_per_token == 327_680
    assert by_name["BF16"].bytes_per_page == 16 * 327_680
    assert by_name["BF16"].pages_against is not None
    assert by_name["BF16"].pages_against["FP32"] == 2


def test_quantised_profiles_hold_the_published_multiples() -> None:
    """By the plane lists of DESIGN 4.2; one whose group does not divide the head dimension is told with its reason."""
    for head_dim in (128, 256):
        by_name = {figures.name: figures for figures in storage_figures(64, Geometry(80, 8, head_dim))}
        against = by_name["NVFP4-G16"].pages_against
        assert against is not None
        assert round(against["BF16"], 2) == 3.56
        assert round(against["INT8-G64"], 2) == 1.83
        assert ("FP8-E4M3FN-row256" in against) == (head_dim == 256)
        refusal = by_name["FP8-E4M3FN-row256"].refusal
        assert refusal is None if head_dim == 256 else "256" in (refusal or "")
