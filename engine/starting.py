"""How a sequence becomes active: admission of the queue's head, and what every start does (DESIGN 4.8, 4.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcrucible.contract.operations import Admitted, Identity, Waiting, WaitingKind
from kvcrucible.contract.tokens import Tokens
from kvcrucible.engine import admission, relief, returning
from kvcrucible.engine.admission import Plan
from kvcrucible.engine.bundle import start_bundle
from kvcrucible.engine.records import Request, Sequence

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


def admit_head(engine: Engine, request: Request) -> Admitted | Waiting:
    """Admit the head of the queue, or say why it waits; then nothing has changed but what it waits for has begun."""
    submit = request.submit
    if submit.session is not None and submit.session in engine.active_sessions:
        return Waiting(request.sequence, WaitingKind.SESSION_BUSY)
    if not engine.rows.free_rows:
        return Waiting(request.sequence, WaitingKind.NO_ROW)
    if relief.sinking(engine, request):
        return Waiting(request.sequence, WaitingKind.SINKING)
    found = returning.source_of(engine, request)
    if isinstance(found, Waiting):
        return found
    hit, source = found if found is not None else (None, None)
    plan = admission.plan(engine.cache, engine.pools, request, hit, source)
    if plan is None:
        return Waiting(request.sequence, WaitingKind.DEVICE_CAPACITY)
    waiting = relief.relieve(engine, request, plan.need, plan.dropped, plan.source_id)
    if waiting is not None:
        return waiting
    del engine.queue[request.sequence]
    activate(
        engine,
        request.sequence,
        submit.prompt,
        submit.identity,
        submit.session,
        request.prompt,
        plan,
        request.limit,
    )
    return Admitted(request.sequence, plan.mode, plan.source_id, plan.hit)


def activate(
    engine: Engine,
    sequence: int,
    tokens: Tokens,
    identity: Identity,
    session: str | None,
    prompt: int,
    plan: Plan,
    limit: int,
) -> None:
    """Carry out ``plan`` for a new active sequence: reserve, share or take over pages, lease a row, map it."""
    bundle = start_bundle(
        engine.pools, engine.ledger, engine.cache, sequence, plan, limit, engine.copy_columns
    )
    row = engine.rows.lease(sequence)
    engine.sequences[sequence] = Sequence(
        sequence,
        tokens,
        identity,
        session,
        prompt,
        limit,
        row,
        bundle.spaces,
        bundle.reservations,
        admission.entitlement(engine.pools, limit),
        bundle.marks,
    )
    for table, space in zip(engine.tables, bundle.spaces, strict=True):
        table.publish(row, 0, space.devices())
    if session is not None:
        engine.active_sessions[session] = sequence
    engine.work.tokens_hit += plan.hit
    engine.touch(engine.sequences[sequence])
