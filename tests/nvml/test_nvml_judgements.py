"""What is made of records: energy, pairs that cannot be compared, processes behind other ids.  No library is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("scipy", reason="needs the perf extra")

from kvcrucible.perf.nvml.energy import NoEnergy, energy
from kvcrucible.perf.nvml.evidence import Evidence, Window, evidence
from kvcrucible.perf.nvml.perturbation import BOUND, Perturbation
from kvcrucible.perf.nvml.records import Edge, Header, Health, Reading, Record
from kvcrucible.perf.nvml.rejection import Reject, reject_pair, reject_sample
from kvcrucible.perf.nvml.values import reason_names
from kvcrucible.perf.origin import MixedOriginsError, Origin

S = 1_000_000_000


def header(**changes: object) -> Header:
    plain = Header(Origin.SIMULATED, {}, {}, False, "instant, GPU", S // 10, S // 100, None)
    return replace(plain, **changes)  # type: ignore[arg-type]


def reading(at_s: float, **changes: object) -> Reading:
    plain = Reading(int(at_s * S), 1000, 1500, 2600, 0, {"power cap": 0}, 300.0, 50, 60, 30)
    return replace(plain, **changes)  # type: ignore[arg-type]


def health(at_s: float, pids: tuple[int, ...] = ()) -> Health:
    return Health(int(at_s * S), 1 << 30, 1 << 37, pids, 0, 0, (0, 0, 0, 0))


def record(
    watts: float = 300.0, seconds: float = 10.0, period_s: float = 0.1, head: Header | None = None
) -> Record:
    edges = tuple(
        Edge(int(one * period_s * S), int(watts * 1000 * one * period_s))
        for one in range(int(seconds / period_s) + 1)
    )
    readings = tuple(reading(one / 10) for one in range(int(seconds * 10) + 1))
    return Record(head or header(), readings, edges, (health(0), health(seconds)), 0, 0, "")


@pytest.mark.parametrize(
    ("found", "stop_s", "reason"),
    [
        (record(), 10, None),
        (record(), 4, NoEnergy.SHORT),
        (record(period_s=0.5), 10, NoEnergy.FEW_UPDATES),
        (record(watts=200), 10, NoEnergy.DISAGREES),
        (record(watts=200, head=header(power_source="average of one second")), 10, None),
        (record(head=header(mig=True)), 10, NoEnergy.NOT_ATTRIBUTABLE),
        (replace(record(), edges=(), header=header(refused={"energy": "x"})), 10, NoEnergy.NOT_SUPPORTED),
        (replace(record(), edges=()), 10, NoEnergy.FEW_UPDATES),
    ],
)
def test_energy_counts_or_says_why_not(found: Record, stop_s: int, reason: NoEnergy | None) -> None:
    used = energy(found, 0, stop_s * S)
    assert used.reason is reason
    assert (used.watts is None) == (reason is not None)


def test_energy_goes_from_update_to_update() -> None:
    used = energy(record(period_s=0.1), int(0.05 * S), int(9.95 * S))
    assert used.seconds == pytest.approx(9.8)
    assert used.joules == pytest.approx(300 * 9.8)
    assert used.integrated_joules == pytest.approx(300 * 9.8)
    assert used.resolution == pytest.approx(0.01 / 9.8)


def test_a_counter_that_goes_back_is_never_a_figure() -> None:
    whole = record()
    back = replace(whole, edges=(*whole.edges[:40], Edge(whole.edges[40].at_ns, 5), *whole.edges[41:]))
    used = energy(back, 0, 10 * S)
    assert (used.joules, used.reason) == (None, NoEnergy.COUNTER_RESET)


def seen(own: tuple[int, ...], pids: tuple[int, ...], uses_gpu: bool = True) -> Evidence:
    found = replace(record(), health=(health(0, pids), health(1, pids)))
    return evidence(found, Window(0, S), own, uses_gpu)


@pytest.mark.parametrize(
    ("own", "pids", "uses_gpu", "foreign", "hidden"),
    [
        ((7,), (7,), True, 0, False),
        ((7,), (7, 8), True, 1, False),
        ((7,), (), True, 0, False),
        ((7,), (8,), False, 1, False),
        ((7,), (900,), True, 0, True),  # a container: ours is listed under the host's id
        ((7,), (900, 901), True, 1, True),
    ],
)
def test_foreign_processes(
    own: tuple[int, ...], pids: tuple[int, ...], uses_gpu: bool, foreign: int, hidden: bool
) -> None:
    found = seen(own, pids, uses_gpu)
    assert (found.foreign, found.foreign_hidden) == (foreign, hidden)
    assert bool(reject_sample(found)) == bool(foreign)


def test_clocks_are_means_over_time() -> None:
    readings = (reading(0.0, sm_mhz=1000), reading(0.1, sm_mhz=1000), reading(1.0, sm_mhz=2000))
    found = evidence(replace(record(), readings=readings), Window(0, S), ())
    assert found.sm_mhz == pytest.approx(0.1 * 1000 + 0.9 * 1500)
    assert found.cycles == pytest.approx(found.sm_mhz * 1e6)


def capped(share: float, start_c: int = 50, origin: Origin = Origin.SIMULATED) -> Evidence:
    readings = (reading(0.0, temperature_c=start_c), reading(1.0, counters={"power cap": int(share * S)}))
    return evidence(replace(record(), readings=readings, header=header(origin=origin)), Window(0, S), ())


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (capped(0.95), capped(0.97), set()),
        (capped(0.1), capped(0.5), {Reject.POWER_CAP_DIFFERS}),
        (capped(0.0, 50), capped(0.0, 53), set()),
        (capped(0.0, 50), capped(0.0, 54), {Reject.TEMPERATURE_DIFFERS}),
        (capped(0.5, 40), capped(0.0, 60), {Reject.POWER_CAP_DIFFERS, Reject.TEMPERATURE_DIFFERS}),
    ],
)
def test_a_power_cap_rejects_a_pair_only_where_the_sides_differ(
    base: Evidence, head: Evidence, expected: set[Reject]
) -> None:
    assert {one.reason for one in reject_pair(base, head)} == expected
    assert {one.reason for one in reject_pair(head, base)} == expected
    assert reject_sample(base) == ()


def test_a_simulated_side_is_no_partner_of_a_measured_one() -> None:
    with pytest.raises(MixedOriginsError):
        reject_pair(capped(0.0), capped(0.0, origin=Origin.MEASURED))


def test_a_window_without_readings_is_no_sample() -> None:
    found = evidence(replace(record(), readings=()), Window(0, S), ())
    assert {one.reason for one in reject_sample(found)} == {Reject.UNSEEN}


def test_masks_are_read_by_value() -> None:
    assert reason_names(0x204) == ("software power cap", "board limit")
    assert reason_names(0x400 | 0x8000) == ("reliability", "reason 0x8000")


@pytest.mark.parametrize(
    ("lower", "upper", "held"),
    [(-0.01, BOUND / 2, True), (-0.01, 0.01, None), (2 * BOUND, 0.01, False)],
)
def test_an_undecided_perturbation_is_no_pass(lower: float, upper: float, held: bool | None) -> None:
    assert Perturbation(Origin.SIMULATED, "x", 12, 0.0, lower, upper).held is held
