"""Execution units: materialise, publish, freeze; then commit or abort (DESIGN 4.7, 4.14.11).

A unit may be a round of speculation (decision 0023): a backend that may run ahead is written beyond where Main will
stand, and of what Main wrote only the accepted tokens are committed.  Whatever is not committed is trimmed: pages
wholly beyond a pool's new frontier go back to the reservation that they came from, bytes beyond it are stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple

from kvcrucible.contract.errors import (
    BadArgument,
    LimitExceeded,
    Refusal,
    RowInFlight,
    StaleHandle,
    WrongState,
)
from kvcrucible.contract.operations import Accepted, Append, Prefill, Work
from kvcrucible.contract.planes import LEADING
from kvcrucible.contract.tokens import concat, prefix
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.pool import Reservation
from kvcrucible.engine.records import Sequence, Unit, UnitPart
from kvcrucible.engine.space import AddressSpace

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


class _Grant(NamedTuple):
    """Pages that a unit has been granted, before they are mapped from logical block ``block`` on."""

    record: Sequence
    space: AddressSpace
    reservation: Reservation
    block: int
    granted: list[LogicalPage]


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
    leads = isinstance(item, Append) and engine.config.pools[-1].name in LEADING
    yield from _backend_refusals(record, item, asked, leads)
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


def _backend_refusals(record: Sequence, item: Work, asked: str, leads: bool) -> Iterator[Refusal]:
    wanted = item.backend
    if wanted is None:
        return
    asked = f"{asked}, {wanted} in the backend"
    if len(record.spaces) == 1:
        yield BadArgument(asked, "this engine has no speculative backend", "leave the number out")
        return
    if wanted < 0:
        yield BadArgument(asked, "fewer than none", "write at least 0 positions")
        return
    backend, stop = record.spaces[1].frontier, record.frontier + item.count
    if leads and backend + wanted > record.limit:
        room = record.limit - backend
        yield LimitExceeded(asked, f"{room} would bring it to the sequence's limit", "run less far ahead")
    if not leads and backend + wanted > stop:
        room = stop - backend
        yield BadArgument(asked, f"{room} would bring it to where Main will stand", "write no more than that")


def _stops(record: Sequence, item: Work) -> tuple[int, ...]:
    """Return where each pool will stand after ``item`` (decision 0011)."""
    stop = record.frontier + item.count
    if len(record.spaces) == 1:
        return (stop,)
    return stop, stop if item.backend is None else record.spaces[1].frontier + item.backend


def begin(engine: Engine, unit: int, work: Seq[Work]) -> Unit:
    """Grant the pages, publish the mappings and freeze the rows of checked ``work``.

    Raises what a failing grant raises, and then nothing has changed: all pages are granted before the first is mapped.
    """
    parts: list[UnitPart] = []
    grants: list[_Grant] = []
    for item in work:
        record = engine.sequences[item.sequence]
        starts, stops = tuple([space.frontier for space in record.spaces]), _stops(record, item)
        for space, reservation, stop in zip(record.spaces, record.reservations, stops, strict=True):
            block = len(space.pages)
            try:
                granted = space.extend(engine.ledger, reservation, stop)
            except Exception:
                for one in reversed(grants):
                    one.space.give_back(engine.ledger, one.reservation, len(one.granted))
                raise
            if granted:
                grants.append(_Grant(record, space, reservation, block, granted))
        parts.append(UnitPart(record.sequence, starts, stops, item))
    engine.acted = True
    for record, space, _, block, granted in grants:
        engine.work.allocator_calls += 1
        engine.work.pages_granted += len(granted)
        engine.tables[space.pool].publish(record.row, block, [page.device for page in granted])
    for part in parts:
        record = engine.sequences[part.sequence]
        record.unit = unit
        _touch(engine, record)
    frozen = []
    for part in parts:
        row = engine.sequences[part.sequence].row
        frozen += [(table.pool, row, table.freeze(row)) for table in engine.tables]
    return Unit(unit, tuple(parts), tuple(frozen))


def check_end(engine: Engine, unit: int, commit: bool, accepted: Seq[Accepted]) -> Unit:
    """Return the unit that is to end; raises ``StaleHandle`` or ``BadArgument`` and changes nothing."""
    found = engine.units.get(unit)
    if found is None:
        raise StaleHandle(f"end unit {unit}", f"in flight: {sorted(engine.units)}", "end a unit once")
    works = {part.sequence: part.work for part in found.parts}
    named = [sequence for sequence, _ in accepted]
    for sequence, tokens in accepted:
        asked = f"end unit {unit}, {tokens} tokens of sequence {sequence} accepted"
        work = works.get(sequence)
        if not commit:
            raise BadArgument(asked, "the unit is aborted", "commit it, or accept nothing")
        if work is None:
            raise BadArgument(asked, f"the unit has selected {list(works)}", "name one of these")
        if named.count(sequence) > 1:
            raise BadArgument(asked, "it is named twice", "name it once")
        if isinstance(work, Prefill):
            raise BadArgument(asked, "the unit prefills it", "leave it out: of a prompt everything is kept")
        if not 1 <= tokens <= work.count:
            raise BadArgument(asked, f"it wrote {work.count}", "accept at least 1 and at most all")
    return found


def end(engine: Engine, unit: Unit, commit: bool, accepted: Mapping[int, int]) -> list[int]:
    """Thaw the rows, then commit or abort each part; return the sequences whose recorded cancel is now due.

    ``accepted``: for sequences of which not everything is committed, the tokens that are (:func:`check_end`).
    """
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
            kept = _kept(part, accepted.get(part.sequence))
            for space, stop in zip(record.spaces, kept, strict=True):
                space.commit(engine.ledger, stop)
            record.tokens = concat(record.tokens, prefix(part.appended, kept[0] - part.starts[0]))
            engine.work.tokens_written += kept[0] - part.starts[0]
            engine.work.tokens_rejected += part.stops[0] - kept[0]
            engine.work.backend_tokens_written += sum(kept[1:]) - sum(part.starts[1:])
            if kept != part.stops:
                _trim(engine, record)
            continue
        _trim(engine, record)
        if record.cancel_recorded:
            cancelled.append(part.sequence)
    return cancelled


def _kept(part: UnitPart, accepted: int | None) -> tuple[int, ...]:
    """Return where each pool is committed to: a backend as far as it was written, never beyond Main."""
    main = part.stops[0] if accepted is None else part.starts[0] + accepted
    return main, *[min(stop, main) for stop in part.stops[1:]]


def _trim(engine: Engine, record: Sequence) -> None:
    """Give the pages wholly beyond each pool's frontier back to the pool's own reservation and unmap them."""
    for space, reservation in zip(record.spaces, record.reservations, strict=True):
        engine.work.pages_trimmed += space.retract(engine.ledger, reservation)
        engine.tables[space.pool].cut(record.row, len(space.pages))


def _touch(engine: Engine, record: Sequence) -> None:
    engine.touched.sequences.add(record.sequence)
    engine.touched.spaces.update((record.sequence, space.pool) for space in record.spaces)
