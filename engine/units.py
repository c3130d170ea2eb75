"""Execution units: materialise, publish, freeze; then commit or abort (DESIGN 4.7, 4.14.11)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from kvcrucible.contract.errors import BadArgument, LimitExceeded, Refusal, RowInFlight, WrongState
from kvcrucible.contract.operations import Append, Prefill, Work
from kvcrucible.contract.tokens import concat
from kvcrucible.engine.records import Sequence, Unit, UnitPart

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


def check(engine: Engine, work: Seq[Work]) -> None:
    """Raise the refusal of highest precedence over all works; change nothing."""
    if not work:
        raise BadArgument("begin a unit", "no work", "select at least one sequence")
    found = [refusal for item in work for refusal in _refusals(engine, item, work)]
    if found:
        raise min(found, key=lambda refusal: refusal.kind.precedence)


def _refusals(engine: Engine, item: Work, work: Seq[Work]) -> Iterator[Refusal]:
    asked = f"write {item.count} positions of sequence {item.sequence}"
    try:
        record = engine.active(item.sequence, asked)
    except Refusal as refusal:
        yield refusal
        return
    frontier, prompt = record.frontier, record.prompt
    yield from _backend_refusals(record, item, asked)
    if isinstance(item, Prefill) and not record.prefilling:
        yield WrongState(asked, f"its prompt of {prompt} is complete", "append instead")
    if isinstance(item, Append) and record.prefilling:
        yield WrongState(asked, f"{prompt - frontier} tokens of its prompt are missing", "prefill them first")
    if record.unit is not None:
        yield RowInFlight(asked, f"unit {record.unit} has selected it", "end that unit first")
    if sum(other.sequence == item.sequence for other in work) > 1:
        yield BadArgument(asked, "the unit names it twice", "join the works")
    if item.count < 1:
        yield BadArgument(asked, "nothing to write", "write at least one position")
    if isinstance(item, Prefill) and frontier + item.count > prompt:
        yield BadArgument(asked, f"{prompt - frontier} tokens of its prompt are left", "prefill fewer")
    if isinstance(item, Append) and frontier + item.count > record.limit:
        yield LimitExceeded(
            asked, f"{record.limit - frontier} positions are left", "append fewer or submit with more"
        )


def _backend_refusals(record: Sequence, item: Work, asked: str) -> Iterator[Refusal]:
    wanted = item.backend
    if wanted is None:
        return
    asked = f"{asked}, {wanted} in the backend"
    if len(record.spaces) == 1:
        yield BadArgument(asked, "this engine has no speculative backend", "leave the number out")
    elif wanted < 0:
        yield BadArgument(asked, "fewer than none", "write at least 0 positions")
    elif record.spaces[1].frontier + wanted > record.frontier + item.count:
        room = record.frontier + item.count - record.spaces[1].frontier
        yield BadArgument(asked, f"{room} would bring it to where Main will stand", "write no more than that")


def _stops(record: Sequence, item: Work) -> tuple[int, ...]:
    """Return where each pool will stand after ``item`` (decision 0011)."""
    stop = record.frontier + item.count
    if len(record.spaces) == 1:
        return (stop,)
    return stop, stop if item.backend is None else record.spaces[1].frontier + item.backend


def begin(engine: Engine, unit: int, work: Seq[Work]) -> Unit:
    """Grant the pages, publish the mappings and freeze the rows of checked ``work``."""
    parts: list[UnitPart] = []
    for item in work:
        record = engine.sequences[item.sequence]
        starts, stops = tuple([space.frontier for space in record.spaces]), _stops(record, item)
        for space, reservation, stop in zip(record.spaces, record.reservations, stops, strict=True):
            block = len(space.pages)
            granted = space.extend(engine.ledger, reservation, stop)
            if not granted:
                continue
            engine.work.allocator_calls += 1
            engine.work.pages_granted += len(granted)
            engine.tables[space.pool].publish(record.row, block, [page.device for page in granted])
        parts.append(UnitPart(record.sequence, starts, stops, item))
        record.unit = unit
        _touch(engine, record)
    frozen = []
    for part in parts:
        row = engine.sequences[part.sequence].row
        frozen += [(table.pool, row, table.freeze(row)) for table in engine.tables]
    return Unit(unit, tuple(parts), tuple(frozen))


def end(engine: Engine, unit: Unit, commit: bool) -> list[int]:
    """Thaw the rows, then commit or abort each part; return the sequences whose recorded cancel is now due."""
    # First, before anything else is submitted: the event is to stand right behind what the unit itself does.
    fence = engine.fences.end(unit.unit, engine.stream.record(f"the end of unit {unit.unit}"))
    for pool, row, _ in unit.frozen:
        engine.tables[pool].thaw(row)
    cancelled: list[int] = []
    for part in unit.parts:
        record = engine.sequences[part.sequence]
        record.unit = None
        for space in record.spaces:
            space.fence = fence
        _touch(engine, record)
        if commit and not record.cancel_recorded:
            for space, stop in zip(record.spaces, part.stops, strict=True):
                space.commit(engine.ledger, stop)
            record.tokens = concat(record.tokens, part.appended)
            engine.work.tokens_written += part.stops[0] - part.starts[0]
            engine.work.backend_tokens_written += sum(part.stops[1:]) - sum(part.starts[1:])
            continue
        for space, reservation in zip(record.spaces, record.reservations, strict=True):
            space.retract(engine.ledger, reservation)
            engine.tables[space.pool].cut(record.row, len(space.pages))
        if record.cancel_recorded:
            cancelled.append(part.sequence)
    return cancelled


def _touch(engine: Engine, record: Sequence) -> None:
    engine.touched.sequences.add(record.sequence)
    engine.touched.spaces.update((record.sequence, space.pool) for space in record.spaces)
