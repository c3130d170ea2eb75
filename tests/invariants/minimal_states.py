"""For every id the smallest thing that breaks it: a state of a page or two, a step, an answer, or an engine's act.

Each entry returns what is said of the sound thing, which has to be nothing, and of the broken one, among which its id
has to be.  ``test_registry.py`` runs them all and wants one for each id.  The walks of ``test_checkers.py`` and
``test_host_checkers.py`` show that checkers fire in larger states, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from conftest import HOST_CONFIG
from firing import fired_in_full, fired_in_step
from snapshot_corruptions import put

from kvcrucible.contract import operations as ops
from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.snapshot import ReplicaState, Snapshot, Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import drain, snapshot
from kvcrucible.engine.streams import SimulatedDevice
from kvcrucible.engine.streams.strategies import InOrder
from kvcrucible.fuzz.campaign import Plan
from kvcrucible.fuzz.campaign import run as run_campaign
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.invariants.behaviour import admitted_by_count, cache_yielded, unchanged
from kvcrucible.invariants.checker import Checker
from kvcrucible.invariants.judgements import (
    ENGINE_FAULT,
    NOT_REPRODUCED,
    PREDICTED_OUTCOME,
    UNREPORTED_CHANGE,
)
from kvcrucible.invariants.monitor import Monitor
from kvcrucible.invariants.registry import INVARIANTS, checkers

#: What is said of the sound thing, and of the broken one.
Said = tuple[set[str], set[str]]

ONE = EngineConfig((PoolSpec("main", 8, 4),), max_context=32, max_concurrency=2)
TWO = EngineConfig((PoolSpec("main", 8, 4), PoolSpec("mtp", 8, 4)), max_context=32, max_concurrency=2)
HOST = EngineConfig((replace(HOST_CONFIG.pools[0], capacity_pages=8),), 32, 2, HostSpec(1024, 64))


# -- small sound states ------------------------------------------------------------------------------------------------


def written(config: EngineConfig = ONE, device: Any = None) -> Engine:
    """An engine with one sequence: six tokens in two pages, of which the second has two columns."""
    engine = Engine(config, device=device)
    engine.submit(run(1, 0, 6), 4)
    engine.schedule()
    engine.end_unit(engine.begin_unit([ops.Prefill(0, 6)]))
    return engine


def alone() -> Snapshot:
    """One sequence with a checkpoint."""
    engine = written()
    engine.checkpoint(0)
    return snapshot(engine)


def shared() -> Snapshot:
    """Two sequences that share a page."""
    engine = written()
    engine.fork(0, 4, 4)
    return snapshot(engine)


def flying() -> Snapshot:
    """One sequence in a unit that writes two more tokens."""
    engine = written()
    engine.begin_unit([ops.Append(0, run(2, 0, 2))])
    return snapshot(engine)


def both_pools() -> Snapshot:
    """One sequence in two pools."""
    return snapshot(written(TWO))


def moving() -> Snapshot:
    """A continuation on its way to Host."""
    engine = written(HOST)
    engine.finish(0)
    engine.demote(0)
    return snapshot(engine)


def away() -> Snapshot:
    """A continuation on Host."""
    engine = written(HOST)
    engine.finish(0)
    engine.demote(0)
    engine.progress()
    return snapshot(engine)


def retiring() -> Snapshot:
    """Two pages that wait for the unit that wrote them."""
    engine = written(HOST, SimulatedDevice(InOrder()))
    engine.finish(0, retain=False)
    return snapshot(engine)


# -- what breaks them --------------------------------------------------------------------------------------------------


def change(part: str, key: Any, **fields: Any) -> Callable[[Snapshot], Snapshot]:
    """Change fields of one entry."""
    return lambda sound: put(sound, part, key, replace(getattr(sound, part)[key], **fields))


def pool(index: int = 0, **fields: int) -> Callable[[Snapshot], Snapshot]:
    """Add to counters of a pool."""

    def broken(sound: Snapshot) -> Snapshot:
        pools = list(sound.pools)
        more = {name: getattr(pools[index], name) + by for name, by in fields.items()}
        pools[index] = replace(pools[index], **more)
        return replace(sound, pools=tuple(pools))

    return broken


def by_checker(
    name: str, sound: Callable[[], Snapshot], broken: Callable[[Snapshot], Snapshot]
) -> Callable[[], Said]:
    """Judge a state and its broken twin: in full, and as the step from one to the other, as far as its checker does."""

    def said() -> Said:
        before = sound()
        after = broken(before)
        checker = INVARIANTS[name].checker
        assert checker is not None
        sides: list[tuple[set[str], set[str]]] = []
        if checker.check is not Checker.check:
            sides.append((fired_in_full(before), fired_in_full(after)))
        if checker.is_local:
            sides.append((fired_in_step(before, before), fired_in_step(before, after)))
        assert sides
        # Every kind of check that the checker has must fire.
        return set().union(*[one for one, _ in sides]), set.intersection(*[other for _, other in sides])

    return said


def refused_but_changed() -> Said:
    before = alone()
    return _ids(unchanged(before, alone())), _ids(unchanged(before, pool(free=-1, leased=1)(before)))


def waits_beside_free_pages() -> Said:
    state = alone()
    due = admitted_by_count([state.pools[0].free + 1], True, state, "schedule")
    return _ids(due), _ids(admitted_by_count([state.pools[0].free], True, state, "schedule"))


def waits_beside_a_continuation() -> Said:
    engine = written()
    active = snapshot(engine)
    engine.finish(0)
    kept = snapshot(engine)
    everything = [ONE.main.capacity_pages]
    return (
        _ids(cache_yielded(everything, True, active, "schedule")),
        _ids(cache_yielded(everything, True, kept, "schedule")),
    )


def _ids(violations: Any) -> set[str]:
    return {one.invariant for one in violations}


# -- what shows in an engine's acts ------------------------------------------------------------------------------------

SMALL = Setting(capacity_pages=8, page_size=4, max_context=32, max_concurrency=2)
WRITE = (ops.Submit(run(1, 0, 6), 4), ops.Schedule(), ops.BeginUnit((ops.Prefill(0, 6),)), ops.EndUnit(0))


def by_harness(
    steps: tuple[Any, ...], owner: Any, name: str, wrong: Callable[..., Any], **setting: Any
) -> Callable[[], Said]:
    """Run an example on the engine, then on one of which a method is replaced: ``wrong`` is given the real one."""

    def said() -> Said:
        where = replace(SMALL, **setting)
        sound = _ids(violations_of(where, (*WRITE, *steps)))
        real = getattr(owner, name)
        with patch.object(owner, name, lambda *given, **named: wrong(real, *given, **named)):
            return sound, _ids(violations_of(where, (*WRITE, *steps)))

    return said


def copies_nothing(real: Any, engine: Engine, *given: Any) -> None:
    """Let a fork's tail be granted and its columns not be copied."""


def cuts_and_remembers_others(real: Any, engine: Engine, sequence: int, position: int) -> None:
    real(engine, sequence, position)
    engine.sequences[sequence].tokens = run(9, 0, position)


def pins_the_other_way(real: Any, engine: Engine, sequence: int, pinned: bool = True) -> None:
    real(engine, sequence, not pinned)


def explodes(real: Any, engine: Engine, *given: Any) -> None:
    raise ZeroDivisionError("of its own")


def not_reported() -> Said:
    """An entry changes between two full checks, and no step says so."""

    def judged(touch: bool) -> set[str]:
        engine, monitor = written(), Monitor(checkers())
        monitor.observe_full(snapshot(engine))
        drain(engine)
        engine.checkpoint(0)
        partial, touched = drain(engine)
        if touch:
            assert monitor.observe(partial, touched) == []
        return _ids(monitor.observe_full(snapshot(engine)))

    return judged(True), judged(False)


def fails_once() -> Said:
    """A campaign on an engine that raises at its first checkpoint and never again."""
    calls: list[str] = []

    def checkpoint(real: Any, engine: Engine, sequence: int) -> Any:
        calls.append("checkpoint")
        if len(calls) == 1:
            raise ZeroDivisionError("of its own")
        return real(engine, sequence)

    def campaign() -> set[str]:
        report = run_campaign(Plan(depths=(Depth.LEDGER,), examples=8, seed=11, steps=30))
        return set() if report.failure is None else _ids(report.failure.violations)

    sound, real = campaign(), Engine.checkpoint
    with patch.object(Engine, "checkpoint", lambda *given: checkpoint(real, *given)):
        return sound, campaign()


# -- what shows in a kernel's answers ----------------------------------------------------------------------------------


@contextmanager
def _kernels(name: str, wrong: Callable[..., Any]) -> Iterator[Any]:
    from kvcrucible.fuzz.kernels import checks

    real, calls = getattr(checks.api, name), []

    def called(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return wrong(real, len(calls), *given, **named)

    with patch.object(checks.api, name, called):
        yield checks


def by_kernel(kernel: str, profile: str, name: str, wrong: Callable[..., Any]) -> Callable[[], Said]:
    """Judge one small case on plain torch, then with a kernel's answer spoilt."""

    def said() -> Said:
        pytest.importorskip("torch")
        from kvcrucible.fuzz.kernels.cases import Case
        from kvcrucible.fuzz.kernels.cells import Cell

        cell = Cell(kernel, profile, "page-major", "1")
        case = Case(cell, (6,), (1,), 4, 1, 1, 64, "float32", "nan", 1, 1, 0, False)
        with _kernels(name, lambda real, call, *given, **named: real(*given, **named)) as checks:
            sound = _ids(checks.check(case, "torch", "cpu"))
        with _kernels(name, wrong) as checks:
            return sound, _ids(checks.check(case, "torch", "cpu"))

    return said


def far_off(real: Any, call: int, *given: Any, **named: Any) -> Any:
    out, lse = real(*given, **named)
    return out + 1, lse


def last_bit(which: int) -> Callable[..., Any]:
    """Let one of the calls, which differ in page ids and then in stale bytes, end in another last bit."""

    def wrong(real: Any, call: int, *given: Any, **named: Any) -> Any:
        out, lse = real(*given, **named)
        return (out.nextafter(out + 1), lse) if call == which else (out, lse)

    return wrong


def half_as_much_again(
    real: Any, call: int, view: Any, rows: Any, starts: Any, counts: Any, k: Any, v: Any
) -> Any:
    return real(view, rows, starts, counts, k * 1.5, v)


FIRES: dict[str, Callable[[], Said]] = {
    "pool-conservation": by_checker("pool-conservation", alone, pool(free=-1)),
    "lease-unique": by_checker("lease-unique", alone, change("pages", 1, device=0)),
    "stale-handle-refused": by_checker("stale-handle-refused", alone, change("pages", 0, generation=0)),
    "refcount-exact": by_checker("refcount-exact", alone, change("pages", 0, references=2)),
    "host-conservation": by_checker(
        "host-conservation",
        away,
        lambda sound: replace(sound, host=replace(sound.host, used=sound.host.used + 64)),
    ),
    "no-leak-at-quiescence": by_checker(
        "no-leak-at-quiescence", lambda: snapshot(Engine(ONE)), pool(leased=1, free=-1)
    ),
    "recycle-fenced": by_checker(
        "recycle-fenced",
        retiring,
        lambda sound: put(
            sound, "pages", 9, replace(alone().pages[0], page=9, device=next(iter(sound.retiring))[1])
        ),
    ),
    "one-visible-replica": by_checker("one-visible-replica", away, change("pages", 0, visible=Tier.DEVICE)),
    "replica-valid": by_checker(
        "replica-valid",
        away,
        lambda sound: change("pages", 0, on_host=replace(sound.pages[0].on_host, coverage=3))(sound),
    ),
    "transfer-pinned": by_checker(
        "transfer-pinned", moving, change("pages", 0, on_device=ReplicaState(0, 4, 0))
    ),
    "publish-order": by_checker("publish-order", moving, change("pages", 0, visible=Tier.HOST)),
    "single-writer": by_checker("single-writer", shared, change("pages", 1, references=2)),
    "shared-immutable": by_checker("shared-immutable", shared, change("pages", 0, epoch=1)),
    "cow-isolation": by_harness((ops.Fork(0, 5, 4),), Engine, "copy_columns", copies_nothing),
    "protected-prefix": by_checker("protected-prefix", alone, change("checkpoints", 0, columns=(1,))),
    "frontier-bounds": by_checker("frontier-bounds", alone, change("pages", 1, committed=1)),
    "frontier-visibility": by_checker("frontier-visibility", flying, change("spaces", (0, 0), provisional=7)),
    "token-exact-truncation": by_harness(
        (ops.Truncate(0, 3),), Engine, "truncate", cuts_and_remembers_others
    ),
    "exact-prefix-identity": by_checker(
        "exact-prefix-identity", alone, change("findable", 0, tokens=run(9, 0, 6))
    ),
    "backend-not-ahead": by_checker("backend-not-ahead", both_pools, change("spaces", (0, 1), frontier=7)),
    "table-mirror": by_checker("table-mirror", alone, change("rows", (0, 0), entries=(1, 0))),
    "row-unique": by_checker("row-unique", shared, change("sequences", 1, row=0)),
    "unit-frozen": by_checker("unit-frozen", flying, change("units", 1, frozen=((0, 0, (0,)),))),
    "completion-guarantee": by_checker("completion-guarantee", alone, change("sequences", 0, reserved=(0,))),
    "admission-by-count": waits_beside_free_pages,
    "bundle-atomic": by_checker(
        "bundle-atomic", both_pools, lambda sound: put(sound, "spaces", (0, 1), None)
    ),
    "refusal-atomic": refused_but_changed,
    "cache-yields": waits_beside_a_continuation,
    "pool-isolation": by_checker("pool-isolation", both_pools, change("pages", 0, pool=1)),
    "kernel-oracle": by_kernel("decode", "FP32", "paged_attention", far_off),
    "mapping-invariance": by_kernel("decode", "FP32", "paged_attention", last_bit(2)),
    "no-stale-read": by_kernel("decode", "FP32", "paged_attention", last_bit(5)),
    "codec-exact": by_kernel("append", "INT8-G64", "append", half_as_much_again),
    ENGINE_FAULT: by_harness((ops.Checkpoint(0),), Engine, "checkpoint", explodes),
    PREDICTED_OUTCOME: by_harness((ops.Finish(0), ops.Pin(0)), Engine, "pin", pins_the_other_way),
    UNREPORTED_CHANGE: not_reported,
    NOT_REPRODUCED: fails_once,
}
