"""Sound snapshots to judge and to corrupt: a random walk on the engine, with full snapshots around each step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import Refusal
from kvcrucible.contract.operations import Append, Prefill, Work
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Snapshot, Touched
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.engine.streams import SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk

#: Two pools, so that counters are vectors; few pages, so that eviction and sharing are frequent.
CONFIG = EngineConfig((PoolSpec("main", 24, 4), PoolSpec("mtp", 20, 8)), max_context=64, max_concurrency=5)


def _planes(frontier: str, page_size: int) -> tuple[PlaneSpec, ...]:
    return (PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 4), page_size, frontier),)


#: The same with a Host tier of few pages, so that extents do not always fit.
HOST_CONFIG = replace(
    CONFIG,
    pools=tuple(replace(pool, planes=_planes(pool.name, pool.page_size)) for pool in CONFIG.pools),
    host=HostSpec(4096, 64),
)


@dataclass(frozen=True, slots=True)
class WalkStep:
    """One operation: full snapshots before and after, and the engine's own report of what it touched."""

    before: Snapshot
    after: Snapshot
    partial: Snapshot
    touched: Touched


class Walker:
    """Draws operations that mean something in the engine's present state, refusals included."""

    def __init__(self, seed: int, host: bool = False) -> None:
        self.random = random.Random(seed)
        self.device = SimulatedDevice(RandomWalk(seed)) if host else None
        self.engine = Engine(HOST_CONFIG if host else CONFIG, device=self.device)
        self.written = 100

    def steps(self, count: int) -> Iterator[WalkStep]:
        """Yield ``count`` steps, refused ones too."""
        before = snapshot(self.engine)
        for _ in range(count):
            if self.device is not None:
                self.device.run(self.random.randint(0, 6))
            with suppress(Refusal):
                self._operate()
            partial, touched = drain(self.engine)
            after = snapshot(self.engine)
            yield WalkStep(before, after, partial, touched)
            before = after

    def _operate(self) -> None:
        engine, pick = self.engine, self.random
        known = [*engine.sequences, *engine.cache.continuations, *engine.queue]
        target = pick.choice(known) if known else 0
        active = engine.sequences.get(target) or engine.cache.continuations.get(target)
        frontier = active.frontier if active is not None else 5
        choices: list[tuple[int, Callable[[], object]]] = [
            (1, self._submit),
            (3, engine.schedule),
            (6, self._begin),
            (4, self._end),
            (3, lambda: engine.fork(target, pick.randint(1, max(1, frontier)), pick.randint(0, 8))),
            (2, lambda: engine.truncate(target, pick.randint(0, frontier))),
            (1, lambda: engine.checkpoint(target)),
            (2, lambda: engine.finish(target, pick.random() < 0.7)),
            (0.7, lambda: engine.cancel(target)),
            (0.4, lambda: engine.release(target)),
            (0.4, lambda: engine.pin(target, pick.random() < 0.2)),
        ]
        if self.device is not None:
            kept = pick.choice(list(engine.cache.continuations) or [0])
            transfers = [*snapshot(engine).transfers] or [0]
            choices += [
                (3, lambda: engine.demote(kept, pick.random() < 0.4)),
                (3, lambda: engine.restore(kept, pick.random() < 0.4)),
                (0.7, lambda: engine.cancel_transfer(pick.choice(transfers))),
                (4, engine.progress),
            ]
        (chosen,) = pick.choices([action for _, action in choices], [weight for weight, _ in choices])
        chosen()

    def _submit(self) -> None:
        pick = self.random
        prompt = run(pick.randrange(3), 0, pick.randint(1, 20))
        self.engine.submit(
            prompt, pick.randint(0, 12), pick.choice([None, "a", "b", "c"]), pick.random() < 0.3
        )

    def _begin(self) -> None:
        idle = [key for key, record in self.engine.sequences.items() if record.unit is None]
        chosen = self.random.sample(idle, min(len(idle), self.random.randint(1, 3)))
        self.engine.begin_unit([self._work(sequence) for sequence in chosen])

    def _work(self, sequence: int) -> Work:
        record = self.engine.sequences[sequence]
        left = record.prompt - record.frontier
        most = left if record.prefilling else max(1, min(6, record.limit - record.frontier))
        count = self.random.randint(1, most)
        behind = record.frontier - record.spaces[1].frontier
        backend = self.random.choice([None, None, self.random.randint(0, behind + count)])
        if backend is not None and not record.prefilling and self.random.random() < 0.4:
            # Ahead of Main, as an MTP pool may be inside a unit.
            backend = self.random.randint(0, record.limit - record.spaces[1].frontier)
        if record.prefilling:
            return Prefill(sequence, count, backend)
        self.written += 1
        return Append(sequence, run(self.written, 0, count), backend)

    def _end(self) -> None:
        if not self.engine.units:
            return
        unit = self.random.choice(list(self.engine.units))
        commit, accepted = self.random.random() < 0.8, []
        for part in self.engine.units[unit].parts:
            if commit and isinstance(part.work, Append) and self.random.random() < 0.5:
                accepted.append((part.sequence, self.random.randint(1, part.work.count)))
        self.engine.end_unit(unit, commit, accepted)


@pytest.fixture
def walk() -> Callable[[int, int], Iterator[WalkStep]]:
    """A function of seed and number of steps."""
    return lambda seed, count: Walker(seed).steps(count)


@pytest.fixture
def host_walk() -> Callable[[int, int], Iterator[WalkStep]]:
    """The same on an engine with a Host tier and a device that lags and reorders."""
    return lambda seed, count: Walker(seed, host=True).steps(count)
