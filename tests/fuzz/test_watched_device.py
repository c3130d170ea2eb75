"""The judge's own account of the device: what was submitted, what ran, what failed, what the host has been told."""

from __future__ import annotations

import pytest

from kvcrucible.contract.errors import InputError
from kvcrucible.engine.host.transfer import copy_label
from kvcrucible.engine.streams import ImmediateDevice, SimulatedDevice
from kvcrucible.engine.streams.strategy import Strategy
from kvcrucible.fuzz.adapters.schedules import strategy_of
from kvcrucible.fuzz.adapters.watched import WatchedDevice
from kvcrucible.fuzz.setting import SCHEDULES


def test_copies_are_known_once_an_event_behind_them_is_told() -> None:
    simulated = SimulatedDevice()
    device = WatchedDevice(simulated)
    copies = device.stream("copy")
    ran: list[int] = []
    for number in range(2):
        copies.submit(lambda number=number: ran.append(number), copy_label(7))  # type: ignore[misc]
    assert (device.copies(7), device.copies_known(7)) == ((2, 0), False)
    copies.record()
    simulated.run(2)
    assert (ran, device.copies(7), device.copies_known(7)) == ([0, 1], (0, 0), False)
    simulated.run(1)
    assert device.copies_known(7)


def test_a_transfer_without_copies_is_known() -> None:
    device = WatchedDevice(SimulatedDevice())
    assert (device.copies(3), device.copies_known(3)) == ((0, 0), True)


def test_every_second_copy_fails_in_turn_without_and_with_its_effect() -> None:
    device = WatchedDevice(ImmediateDevice(), fail_every=2)
    stream = device.stream("copy")
    ran: list[int] = []
    events = []
    for number in range(4):
        stream.submit(lambda number=number: ran.append(number), copy_label(number))  # type: ignore[misc]
        events.append(stream.record())
    assert ran == [0, 2, 3]
    assert [event.failure is not None for event in events] == [False, True, False, True]
    assert [device.copies(number) for number in range(4)] == [(0, 0), (0, 1), (0, 0), (0, 1)]


def test_effects_without_the_label_of_a_transfer_never_fail() -> None:
    device = WatchedDevice(ImmediateDevice(), fail_every=1)
    stream, ran = device.stream("compute"), []
    stream.submit(lambda: ran.append(1))
    assert stream.record().failure is None
    assert ran == [1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_has_a_strategy_that_runs_everything(schedule: str) -> None:
    def order(strategy: Strategy) -> list[str]:
        simulated = SimulatedDevice(strategy)
        ran: list[str] = []
        for number in range(4):
            for name in ("compute", "copy"):
                simulated.stream(name).submit(lambda text=f"{name} {number}": ran.append(text))  # type: ignore[misc]
                simulated.stream(name).record()
        simulated.synchronize()
        return ran

    first, second = (order(strategy_of(schedule, 5, "compute", ["copy"])) for _ in range(2))
    assert first == second
    assert len(first) == 8
    if schedule == "copies-starved":
        assert first[:4] == [f"compute {number}" for number in range(4)]


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(InputError, match="unknown schedule"):
        strategy_of("backwards", 0, "compute", ["copy"])
