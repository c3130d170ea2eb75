"""Drawn sequences of operations for the accounting model: what makes sense now, chosen by numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hypothesis import strategies as st
from model_talk import do, kept, typed_pool, write

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig, HostSpec
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Identity,
    Operation,
    Outcome,
    Pin,
    Prefill,
    Progressed,
    Release,
    Restore,
    Schedule,
    Submit,
    TransferEnded,
    TransferOutcome,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.tokens import EMPTY, concat, prefix, run
from kvcrucible.reference.accounting import AccountingModel

PAGE = 4
IDENTITIES = (Identity(), Identity(adapter="other"))
SESSIONS = (None, None, "a", "b")

#: An operation, or what an engine reports of a progress.
Step: TypeAlias = Operation | Progressed

#: One drawn step: four numbers that choose an operation and its arguments among what there is.
Draw = tuple[int, int, int, int]
small = st.integers(0, 11)
draws = st.lists(st.tuples(st.integers(0, 99), small, small, small), min_size=20, max_size=50)
pools = st.builds(
    lambda capacity, backend: (typed_pool("main", capacity, PAGE), *([backend] if backend else [])),
    st.integers(2, 8),
    st.none() | st.builds(typed_pool, st.just("mtp"), st.integers(1, 12), st.sampled_from((2, 4, 8))),
)
bare_configs = st.builds(
    lambda pools, pages, rows: EngineConfig(pools, pages * PAGE, rows),
    pools,
    st.integers(2, 5),
    st.integers(1, 4),
)
#: With a Host tier from two pages of Main to more than there is, and continuations to begin with (``new_model``).
host_configs = st.builds(
    lambda capacity, backend, host: EngineConfig(
        (typed_pool("main", capacity, PAGE), *([typed_pool("mtp", 8, 8)] if backend else [])), 24, 3, host
    ),
    st.integers(5, 10),
    st.booleans(),
    st.builds(HostSpec, st.sampled_from((256, 1024, 4096)), st.sampled_from((64, 256))),
)
configs = bare_configs | host_configs


def new_model(
    config: EngineConfig, capabilities: Capabilities | None = None, immediate: bool = True
) -> AccountingModel:
    """A new model; with a Host tier it has two continuations, which share two pages and have a tail each."""
    model = AccountingModel(config, capabilities, immediate)
    if config.host is not None and "Fork" in model.capabilities.operations:
        parent = kept(model, run(0, 0, 10), session="a")
        do(model, Fork(parent, 8, 3))
        write(model, Append(parent + 1, run(1, 0, 3)))
        do(model, Finish(parent + 1))
    return model


def pick(ids: list[int], number: int) -> int:
    """Return one of the ids, or one that may name nothing."""
    return ids[number % len(ids)] if ids else number


def kinds(model: AccountingModel) -> list[str]:
    """Return what makes sense now, the more promising more often."""
    idle = [name for name in model.sequences() if not model.in_flight(name)]
    enabled = ["odd", "submit"]
    if model.queue:
        enabled += ["schedule"] * 3 + ["admit"]
    if idle:
        enabled += ["run"] * 6 + [
            "begin",
            "fork",
            "fork",
            "truncate",
            "truncate",
            "checkpoint",
            "finish",
            "finish",
        ]
    if model.sequences():
        enabled += ["cancel"]
    if model.units:
        enabled += ["end"] * 3
    if model.continuations():
        enabled += ["submit-known"] * 4 + ["fork", "release", "pin"]
        if model.config.host is not None:
            enabled += ["demote"] * 6 + ["restore"] * 6
    if model.transfers():
        enabled += ["progress"] * 3 + ["cancel-transfer"]
    if model.books.ended:
        enabled += ["progress"] * 2
    return enabled


def steps_of(model: AccountingModel, draw: Draw) -> list[Step]:
    """Turn a draw into steps: mostly legal operations, and some of the other sort."""
    number, a, b, c = draw
    able = {*model.capabilities.operations, Progressed.__name__}
    enabled = kinds(model)
    return [
        one for one in choose(model, enabled[number % len(enabled)], a, b, c) if type(one).__name__ in able
    ]


def take(model: AccountingModel, step: Step) -> Outcome:
    """Let the model carry a step out."""
    return model.predict_progress(step) if isinstance(step, Progressed) else model.predict(step)


def report(model: AccountingModel, a: int, b: int, c: int) -> Progressed:
    """Some of what has ended and of what is under way; now and then something that is neither."""
    units = tuple(model.books.ended[: a % 4]) + ((99,) if b == 11 else ())
    over = [name for number, name in enumerate(model.transfers()) if (c >> number % 3) & 1]
    told = [TransferEnded(name, TransferOutcome.MOVED, failed=b in (0, name % 12)) for name in over]
    return Progressed(units, tuple(told))


def choose(model: AccountingModel, kind: str, a: int, b: int, c: int) -> list[Step]:
    """Return operations of a kind with arguments by number."""
    active = model.sequences()
    held = active + model.continuations()
    sequence = pick(active, a)
    match kind:
        case "submit":
            request = Submit(run(0, 0, a), b, SESSIONS[c % 4], c > 8, IDENTITIES[c % 7 == 6])
            return [request] if c == 0 else [request, Schedule()]
        case "submit-known":
            known = prefix(model.tokens(pick(held, a)), b * PAGE // 2 if a % 3 else 99) if held else EMPTY
            return [Submit(concat(known, run(1, c, 1)), b % 5, SESSIONS[a % 4], c % 2 == 0), Schedule()]
        case "schedule":
            return [Schedule()]
        case "admit":
            return [TryAdmit(pick(model.queue, a))]
        case "run" | "begin":
            if sequence not in active or model.in_flight(sequence):
                return []
            left = model.prompt_left(sequence)
            room = model.limit(sequence) - model.frontier(sequence)
            reach = model.reach(sequence)
            # With a backend: up to Main, nothing, or some of what it lacks.
            behind = reach[0] - reach[-1] + (min(left, b + 1) if left else min(b + 1, room))
            backend = None if len(reach) == 1 or c < 5 else min(behind, (c - 5) * 2)
            work = (
                Prefill(sequence, min(left, b + 1), backend)
                if left
                else Append(sequence, run(2, c, min(b + 1, room)), backend)
            )
            unit = BeginUnit((work,))
            if kind == "begin" or model.refusing_row(unit) is not None:
                return [unit]
            return [unit, EndUnit(model.books.next_unit, commit=c != 0)]
        case "end":
            return [EndUnit(pick(model.units, a), commit=b > 2)]
        case "fork":
            source = pick(held, a)
            at = model.frontier(source) - c % 5 if source in held else b
            return [Fork(source, at, b, SESSIONS[c % 4])]
        case "truncate":
            at = model.frontier(sequence) - b if sequence in active else b
            return [Truncate(sequence, at)]
        case "checkpoint":
            return [Checkpoint(sequence)]
        case "finish":
            return [Finish(sequence, retain=b > 1)]
        case "cancel":
            return [Cancel(pick(active + model.queue, a))]
        case "release":
            return [Release(pick(model.continuations(), a))]
        case "demote":
            kept = model.continuations()
            worth = [name for name in kept if model.movable(name)] if b > 1 else kept
            return [Demote(pick(worth, a), keep=c % 3 == 0)]
        case "restore":
            kept = model.continuations()
            worth = [name for name in kept if model.restorable(name)] if b > 1 else kept
            return [Restore(pick(worth, a), keep=c % 2 == 0)]
        case "cancel-transfer":
            return [CancelTransfer(pick(model.transfers(), a))]
        case "progress":
            return [report(model, a, b, c)]
        case "pin":
            return [Pin(pick(model.continuations(), a), pinned=b % 2 == 0)]
    if c > 8:
        return [[Demote(a), Restore(a), CancelTransfer(b)][b % 3]]
    return [
        [Truncate(a, b - 1), Fork(a, b, c - 1), Finish(a), Release(a), BeginUnit((Prefill(a, b), Prefill(c, 1)))][b % 5]
    ]  # fmt: skip


def played(
    config: EngineConfig,
    drawn: list[Draw],
    after: Callable[[AccountingModel], None] = lambda model: None,
    capabilities: Capabilities | None = None,
    immediate: bool = True,
) -> AccountingModel:
    """Play the drawn steps on a new model; ``after`` looks at it after each."""
    model = new_model(config, capabilities, immediate)
    for draw in drawn:
        for step in steps_of(model, draw):
            take(model, step)
            after(model)
    return model
