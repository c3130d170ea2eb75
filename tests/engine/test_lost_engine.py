"""A failed effect on the compute stream ends the engine, and says so (decision 0013).

Verifies: ``progress`` raises ``EngineLost`` for a failing tail copy, table upload or write of a unit, naming the unit
where one ends behind it, and every operation after it does; no transfer is published in that call; failures on the copy
stream are none of this.  Errors that nobody has foreseen: test_stopped_half_done.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fake_cuda import fake_device

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import EngineLost, Refusal
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.storage.null import NullStorage
from kvcrucible.engine.streams import AnsweredStream, Device, EffectFailed, ImmediateDevice, SimulatedDevice

DEVICES = [ImmediateDevice, SimulatedDevice, fake_device]


def engine(device: Device) -> tuple[Engine, NullStorage, int]:
    """Return an engine with one active sequence of 10 tokens, in pages of 4, none of whose effects has failed."""
    storage = NullStorage()
    planes = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)
    config = EngineConfig((PoolSpec("main", 16, 4, (planes,)),), 64, 4, HostSpec(1 << 14))
    e = Engine(config, storage, device)
    sequence = e.submit(run(0, 0, 10), 10)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, 10)]))
    device.synchronize()
    e.progress()
    return e, storage, sequence


class BrokenStorage(NullStorage):
    """Its copies and uploads fail."""

    def copy_columns(self, *_: Any) -> None:
        raise EffectFailed("the copy engine has stopped")

    write_table = copy_columns


def failing(e: Engine, pool: int = 0) -> None:
    """Let the effects of a pool's storage fail from now on."""
    broken = BrokenStorage()
    e.storages[pool] = broken
    e.tables[pool]._storage = broken


def fork(e: Engine, sequence: int) -> str:
    e.fork(sequence, 10, 4)
    return "what was queued last"


def unit_with_a_new_page(e: Engine, sequence: int) -> str:
    unit = e.begin_unit([Append(sequence, run(1, 0, 4))])
    e.end_unit(unit)
    return f"the end of unit {unit}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("act", [fork, unit_with_a_new_page])
def test_a_failed_effect_is_told_and_nothing_is_carried_out_any_more(
    device: Callable[[], Device], act: Callable[[Engine, int], str]
) -> None:
    on = device()
    e, _, sequence = engine(on)
    failing(e)
    behind = act(e, sequence)
    if isinstance(on, SimulatedDevice):
        e.progress()  # Nothing has run, so nothing is known.
    on.synchronize()
    with pytest.raises(EngineLost, match=f"stream compute failed, up to {behind}: .*stopped; pages may lack"):
        e.progress()
    for again in (
        e.progress,
        e.schedule,
        partial(e.submit, run(0, 0, 1), 0),
        partial(e.fork, sequence, 1, 0),
        partial(e.begin_unit, [Append(sequence, run(2, 0, 1))]),
        partial(e.truncate, sequence, 0),
        partial(e.finish, sequence),
        partial(e.lookup, run(0, 0, 1)),
    ):
        with pytest.raises(EngineLost, match=behind):
            again()
    assert not issubclass(EngineLost, Refusal)


@pytest.mark.parametrize("device", DEVICES)
def test_a_failed_write_names_the_unit_behind_it(device: Callable[[], Device]) -> None:
    """The write comes from whoever computes, on the device's stream of that name."""
    on = device()
    e, _, sequence = engine(on)
    unit = e.begin_unit([Append(sequence, run(1, 0, 1))])
    on.stream("compute").submit(BrokenStorage().copy_columns)
    e.end_unit(unit)
    on.synchronize()
    with pytest.raises(EngineLost, match=f"the end of unit {unit}"):
        e.progress()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_lost_is_not_published(device: Callable[[], Device]) -> None:
    on = device()
    e, _, sequence = engine(on)
    e.finish(sequence)
    failing(e)
    e.fork(sequence, 10, 4)
    e.cancel(max(e.sequences))
    e.demote(sequence)
    on.synchronize()
    with pytest.raises(EngineLost, match="what was queued last"):
        e.progress()
    assert {page.visible for page in snapshot(e).pages.values()} == {Tier.DEVICE}


def test_what_succeeds_leaves_nothing_behind_to_be_asked() -> None:
    e, _, sequence = engine(SimulatedDevice())
    for _ in range(3):
        e.fork(sequence, 10, 0)
        e.progress()
    assert len(e.stream._open) == 3
    e.device.synchronize()
    e.progress()
    assert not e.stream._open


def test_nothing_is_recorded_where_nothing_was_queued() -> None:
    device = SimulatedDevice()
    stream = AnsweredStream(device.stream("compute"))
    stream.ask()
    assert not device.pending
    stream.submit(lambda: None)
    for _ in range(2):
        stream.ask()
        assert device.pending == 2, "one effect, and one event behind it"
