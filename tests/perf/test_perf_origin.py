"""Nothing that was made up ever stands beside what was measured: every place where figures come together refuses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("scipy", reason="needs the `perf` extra")

from perf_samples import MEASURED, NOW, SIMULATED, floor_of, pairs_of, run_of, thresholds

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.origin import MixedOriginsError, Origin, common_origin
from kvcrucible.perf.simulator.gpu import SimulatedClock, SimulatedGpu
from kvcrucible.perf.simulator.runs import paired_run
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint, this_machine
from kvcrucible.perf.statistics.gate import judge
from kvcrucible.perf.statistics.nightly import Night, NightlySeries, attribute
from kvcrucible.perf.statistics.samples import CountedWork


def nights(machine: MachineFingerprint, first_day: int = 0) -> tuple[Night, ...]:
    return tuple(Night(first_day + day, 1.0 + day / 100, f"r{day}", machine) for day in range(3))


MEASURED_PAIRS = pairs_of("time/a", 0.0, machine=MEASURED)
JOININGS: dict[str, Callable[[], object]] = {
    "two sides of a pair": lambda: replace(MEASURED_PAIRS, machine_head=SIMULATED),
    "pairs behind pairs": lambda: MEASURED_PAIRS.join(pairs_of("time/a", 0.0)),
    "nights behind nights": lambda: NightlySeries("m", nights(MEASURED)).extend(nights(SIMULATED, 9)),
    "nights of one series": lambda: NightlySeries("m", (*nights(SIMULATED), *nights(MEASURED, 9))),
    "a measured metric among simulated": lambda: judge(run_of(MEASURED_PAIRS), thresholds(), NOW),
    "a simulated count": lambda: judge(
        run_of(
            MEASURED_PAIRS,
            counted=(CountedWork("work/a", SIMULATED, (1,), (1,)),),
            unchanged=(pairs_of("time/u", 0.0, machine=MEASURED),),
            slowed=(pairs_of("time/s", 0.02, machine=MEASURED),),
            noise_floor=floor_of("time/a", machine=MEASURED),
        ),
        thresholds(),
        NOW,
    ),
    "a simulated noise floor": lambda: judge(
        run_of(
            MEASURED_PAIRS,
            unchanged=(pairs_of("time/u", 0.0, machine=MEASURED),),
            slowed=(pairs_of("time/s", 0.02, machine=MEASURED),),
            noise_floor=floor_of("time/a"),
        ),
        thresholds(),
        NOW,
    ),
    "a simulated sentinel": lambda: attribute(
        [NightlySeries("m", nights(MEASURED))], [NightlySeries("s", nights(SIMULATED))]
    ),
}


@pytest.mark.parametrize("joining", JOININGS)
def test_simulated_figures_never_join_measured_ones(joining: str) -> None:
    with pytest.raises(MixedOriginsError, match="never join"):
        JOININGS[joining]()


def test_the_same_joinings_work_for_figures_of_one_origin() -> None:
    for machine in (MEASURED, SIMULATED):
        pairs = pairs_of("time/a", 0.0, 6, machine=machine)
        assert pairs.join(pairs).pairs == 12
        series = NightlySeries("m", nights(machine)).extend(nights(machine, 9))
        assert series.origin is machine.origin
        assert attribute([series], [series]) == ()
    assert common_origin([Origin.MEASURED], "x") is Origin.MEASURED
    with pytest.raises(ValueError, match="no figures"):
        common_origin([], "x")


def test_pairs_of_another_metric_or_machine_do_not_join() -> None:
    other = MachineFingerprint.of(Origin.SIMULATED, {"machine": "another"})
    for later in (pairs_of("time/b", 0.0), pairs_of("time/a", 0.0, machine=other)):
        with pytest.raises(InputError, match="same metric on the same machines"):
            pairs_of("time/a", 0.0).join(later)


def test_whatever_the_simulator_gives_says_that_it_is_simulated() -> None:
    gpu = SimulatedGpu(SimulatedClock())
    timing, reading = gpu.run(1e8), gpu.read()
    assert timing.origin is reading.origin is gpu.fingerprint.origin is Origin.SIMULATED
    assert paired_run(gpu, "time/a", 6).origin is Origin.SIMULATED
    assert gpu.fingerprint.id.startswith("SIMULATED-")
    with pytest.raises(TypeError):
        type(reading)(1.0, 1.0, 1, 1.0, origin=Origin.MEASURED)  # type: ignore[call-arg]


def test_equal_facts_of_another_origin_are_another_machine() -> None:
    measured = MachineFingerprint.of(Origin.MEASURED, dict(SIMULATED.facts))
    assert measured != SIMULATED
    assert measured.id != SIMULATED.id
    assert SIMULATED.differences(measured) == ("origin: SIMULATED against MEASURED",)


def test_a_fingerprint_holds_stable_facts_only() -> None:
    assert this_machine() == this_machine()
    assert this_machine().origin is Origin.MEASURED
    assert this_machine({"driver": "580.1"}).differences(this_machine()) == ("driver: 580.1 against absent",)
    for facts in ({"clock_mhz": "1980"}, {"cpu": ""}, {"cpu": "x" * 201}, {}):
        with pytest.raises(InputError, match="fingerprint"):
            MachineFingerprint.of(Origin.MEASURED, facts)
    with pytest.raises(InputError, match="once"):
        MachineFingerprint(Origin.MEASURED, (("cpu", "a"), ("cpu", "b")))
