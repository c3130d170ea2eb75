"""How a sequence becomes active: admission of the queue's head, a fork by name, and what every start does (DESIGN 4.5,
4.8, 4.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcrucible.contract.errors import BadArgument, DeviceCapacity, HostGeometry, Refusal, WrongState
from kvcrucible.contract.operations import AdmissionMode, Admitted, Identity, Waiting, WaitingKind
from kvcrucible.contract.tokens import Tokens, prefix
from kvcrucible.engine import admission, guards, relief, returning
from kvcrucible.engine.admission import Plan
from kvcrucible.engine.bundle import start_bundle
from kvcrucible.engine.records import Request, Sequence
from kvcrucible.engine.room import Room, make_room

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


def admit_head(engine: Engine, request: Request) -> Admitted | Waiting:
    """Admit the head of the queue, or say why it waits; then nothing has changed but what it waits for has begun.

    It waits, too, where pages or extents that can be had by count are refused all the same.
    """
    try:
        return _admit(engine, request)
    except (DeviceCapacity, HostGeometry):
        return Waiting(request.sequence, WaitingKind.DEVICE_CAPACITY)


def _admit(engine: Engine, request: Request) -> Admitted | Waiting:
    blocked = _blocked(engine, request)
    if blocked is not None:
        return Waiting(request.sequence, blocked)
    if relief.sinking(engine, request):
        return Waiting(request.sequence, WaitingKind.SINKING)
    found = returning.source_of(engine, request)
    if isinstance(found, Waiting):
        return found
    plan = _plan(engine, request, found)
    if plan is None:
        return Waiting(request.sequence, WaitingKind.DEVICE_CAPACITY)
    with Room(engine) as room:
        waiting = relief.relieve(engine, room, request, plan.need, plan.dropped, plan.source_id)
        return _start(engine, request, plan) if waiting is None else waiting


def admit_at_once(engine: Engine, request: Request) -> Admitted | None:
    """Admit a request from behind the head if it can start now, None where it would have to wait; then nothing has
    changed.

    Nothing comes back from Host for it, and nothing sinks: what is in its way is released, as for a fork.
    """
    if _blocked(engine, request) is not None:
        return None
    found = returning.source_of(engine, request, at_once=True)
    plan = None if isinstance(found, Waiting) else _plan(engine, request, found)
    if plan is None:
        return None
    asked = f"admit sequence {request.sequence}"
    try:
        with make_room(engine, asked, plan.need, plan.dropped, plan.source_id):
            return _start(engine, request, plan)
    except DeviceCapacity:
        return None


def fork(engine: Engine, source: int, position: int, max_new: int, session: str | None) -> int:
    """Start a child of ``source``, as :meth:`Engine.fork` says; return its id."""
    asked = f"fork sequence {source} at {position}"
    engine.require_known(source)
    if source in engine.queue:
        raise WrongState(asked, "it is queued", "admit it first")
    guards.require_resident(source, engine.cache.away, asked)
    holder = engine.holder(source)
    if isinstance(holder, Sequence):
        guards.require_idle(holder, asked)
    if not 1 <= position <= holder.frontier:
        raise BadArgument(
            asked, f"its committed frontier is {holder.frontier}", "fork at a committed position from 1 on"
        )
    guards.require_growth(max_new)
    limit = position + max_new
    guards.require_placeable(limit, engine.config.max_context, engine.pools)
    guards.require_session(session, engine.active_sessions, asked)
    guards.require_row(engine.rows.free_rows, asked)
    need = admission.fork_need(holder.spaces, engine.pools, limit, position)
    plan = Plan(AdmissionMode.FORK, need, (), holder, source, position)
    with make_room(engine, asked, need, protected=source):
        child = engine.next_number
        activate(
            engine, child, prefix(holder.tokens, position), holder.identity, session, position, plan, limit
        )
    return engine.number()


def _blocked(engine: Engine, request: Request) -> WaitingKind | None:
    session = request.submit.session
    if session is not None and session in engine.active_sessions:
        return WaitingKind.SESSION_BUSY
    return None if engine.rows.free_rows else WaitingKind.NO_ROW


def _plan(engine: Engine, request: Request, found: returning.Source | None) -> Plan | None:
    hit, source = (None, None) if found is None else found
    return admission.plan(engine.cache, engine.pools, request, hit, source)


def _start(engine: Engine, request: Request, plan: Plan) -> Admitted:
    """Take the request out of the queue and start it by ``plan``, for which the room is there."""
    submit = request.submit
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
    del engine.queue[request.sequence]
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
    """Carry out ``plan`` for a new active sequence: reserve, share or take over pages, lease a row, map it.

    Raises what a failing promise or grant is refused with, and then nothing has changed.
    """
    before, engine.acted = engine.acted, True
    try:
        bundle = start_bundle(
            engine.pools, engine.ledger, engine.cache, sequence, plan, limit, engine.copy_columns
        )
    except Refusal:
        engine.acted = before
        raise
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
