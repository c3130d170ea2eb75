"""Our engine at ledger depth, built so that everything that can fail passes a gate, and driven step by step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.operations import Cancel, EndUnit, Operation, Outcome, Pin, Progress, Release
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import execute
from kvcrucible.engine.host.replicas import ReplicatedPage
from kvcrucible.engine.host.tier import COPY_STREAMS
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.streams import ImmediateDevice, SimulatedDevice, UnitFences
from kvcrucible.engine.streams.interface import Effect
from kvcrucible.fuzz.adapters.paged import COMPUTE_STREAM, use_every_page_once
from kvcrucible.fuzz.adapters.policies import policy_of
from kvcrucible.fuzz.adapters.schedules import strategy_of
from kvcrucible.fuzz.nth_failure.failing import FailingDevice, FailingPool, FailingSlots, let_fail
from kvcrucible.fuzz.nth_failure.sites import Gate, Site
from kvcrucible.fuzz.setting import Setting, token_hash
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step
from kvcrucible.invariants.violation import Violation, mismatch


class Subject:
    """One engine; ``steps`` are taken at once, with the gate open."""

    def __init__(self, setting: Setting, steps: Sequence[Step] = ()) -> None:
        self.gate = Gate()
        self._simulated = (
            SimulatedDevice(
                strategy_of(setting.schedule, setting.schedule_seed, COMPUTE_STREAM, COPY_STREAMS.values())
            )
            if setting.lagging
            else None
        )
        self._device = FailingDevice(self.gate, self._simulated or ImmediateDevice(), self._goes_down)
        self.engine = Engine(
            setting.engine_config(),
            device=self._device,
            token_hash=token_hash(setting.hash_bits),
            policy=policy_of(setting),
            pool=self._pool,
        )
        if setting.page_order_seed:
            use_every_page_once(self.engine, Random(setting.page_order_seed))
        let_fail(self.gate, self.engine.cache.policy)
        host = self.engine.host
        if host is not None:
            host.slots = FailingSlots(self.gate, host.slots)
            self._in_use = host.in_use
            setattr(host, "in_use", self._taken_up)  # noqa: B010 - a method of this one object
        for step in steps:
            self.take(step)

    def take(self, step: Step) -> Outcome | None:
        """Take one step; returns the outcome of an operation.  Raises what the engine raises, refusals aside."""
        match step:
            case RunEffects(count):
                if self._simulated is not None:
                    self._simulated.run(count)
                return None
            case ReadBack():
                self.settle()
                return None
        return execute(self.engine, step)

    def operate(self, operation: Operation) -> Outcome:
        """Carry out an operation."""
        return execute(self.engine, operation)

    def snapshot(self) -> Snapshot:
        """Return all visible bookkeeping."""
        return snapshot(self.engine)

    def settle(self) -> None:
        """Let all device effects take place."""
        self._device.synchronize()

    def empty(self) -> list[Violation]:
        """End everything by public operations; return what is then not as it was at the start.  Mutates."""
        for unit in sorted(self.engine.units):
            self.operate(EndUnit(unit, commit=False))
        for sequence in sorted([*self.engine.queue, *self.engine.sequences]):
            self.operate(Cancel(sequence))
        for kept in sorted(self.engine.cache.continuations):
            self.operate(Pin(kept, pinned=False))
            self.operate(Release(kept))
        self.settle()
        self.operate(Progress())
        return not_initial(self.snapshot())

    # -- what passes the gate ------------------------------------------------------------------------------------------

    def _pool(self, spec: PoolSpec, fences: UnitFences) -> FailingPool:
        return FailingPool(self.gate, spec, fences)

    def _goes_down(self, effect: Effect) -> bool:
        host = self.engine.host
        return host is not None and isinstance(effect, partial) and effect.func == host.memory.pack

    def _taken_up(self, pages: Sequence[ReplicatedPage]) -> bool:
        """Answer for the engine, or say that an active sequence has taken the pages of a transfer up."""
        first: Any = pages[0] if pages else None
        assert first is None or isinstance(first, LogicalPage)
        transfer = None if first is None else first.transfer
        if transfer is not None and self.gate.fails(Site.PUBLICATION, transfer):
            return True
        return self._in_use(pages)


def not_initial(found: Snapshot) -> list[Violation]:
    """Return how an emptied engine differs from a new one: every pool and the arena have their initial free set."""
    violations: list[Violation] = []

    def require(what: str, is_: object, due: object) -> None:
        if is_ != due:
            violations.append(
                mismatch("no-leak-at-quiescence", f"{what} after everything has ended", is_, due)
            )

    for number, pool in enumerate(found.pools):
        require(f"counters of {pool.name}", found.counters[number], (0, 0, pool.capacity))
        assert found.free_pages is not None
        free = sorted(found.free_pages[number])
        require(f"free pages of {pool.name}", free, list(range(pool.capacity)))
    if found.host is not None:
        require("holes of the arena", found.host_holes, ((0, found.host.capacity),))
    for part in ("pages", "spaces", "sequences", "continuations", "checkpoints", "findable", "units"):
        require(part, sorted(getattr(found, part)), [])
    for part in ("transfers", "retiring", "extents"):
        require(part, sorted(getattr(found, part)), [])
    require("queue", found.queue, ())
    rows = sorted(key for key, row in found.rows.items() if row.sequence is not None or row.entries)
    require("rows in use", rows, [])
    return violations
