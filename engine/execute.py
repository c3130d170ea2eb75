"""Carries out the contract's operations on an engine and reports them as outcomes."""

from __future__ import annotations

from kvcrucible.contract.errors import Refusal
from kvcrucible.contract.operations import (
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Lookup,
    Operation,
    Outcome,
    Pin,
    Progress,
    Release,
    Restore,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
    Value,
)
from kvcrucible.engine.engine import Engine


def execute(engine: Engine, operation: Operation) -> Outcome:
    """Carry out ``operation``; a refusal becomes an outcome, anything else that is raised is the engine's own fault."""
    try:
        value = _call(engine, operation)
    except Refusal as refusal:
        return Outcome(None, refusal.kind, (), counters(engine))
    given_up = tuple(engine.given_up) if isinstance(operation, Schedule | TryAdmit) else ()
    return Outcome(value, None, tuple(engine.evicted), counters(engine), given_up)


def counters(engine: Engine) -> tuple[tuple[int, int, int], ...]:
    """Return (leased, reserved, free) per pool."""
    return tuple([(pool.leased, pool.reserved, pool.free) for pool in engine.pools])


def _call(engine: Engine, operation: Operation) -> Value:
    match operation:
        case Submit(prompt, max_new, session, consume, identity, spans):
            return engine.submit(prompt, max_new, session, consume, identity, spans)
        case TryAdmit(sequence):
            return engine.try_admit(sequence)
        case Schedule():
            return engine.schedule()
        case BeginUnit(work):
            return engine.begin_unit(work)
        case EndUnit(unit, commit, accepted):
            return engine.end_unit(unit, commit, accepted)
        case Fork(source, position, max_new, session):
            return engine.fork(source, position, max_new, session)
        case Truncate(sequence, position):
            engine.truncate(sequence, position)
        case Checkpoint(sequence):
            return engine.checkpoint(sequence)
        case Finish(sequence, retain):
            return engine.finish(sequence, retain)
        case Cancel(sequence):
            return engine.cancel(sequence)
        case Release(continuation):
            engine.release(continuation)
        case Pin(continuation, pinned):
            engine.pin(continuation, pinned)
        case Lookup(prompt, identity, spans):
            return engine.lookup(prompt, identity, spans)
        case Demote(continuation, keep):
            return engine.demote(continuation, keep)
        case Restore(continuation, keep):
            return engine.restore(continuation, keep)
        case CancelTransfer(transfer):
            engine.cancel_transfer(transfer)
        case Progress():
            return engine.progress()
    return None
