"""Execution units in a history: what they are granted, commit and give back, and when they are done (DESIGN 4.7).

Most lines of a history are these, so what is clearly legal is told from the numbers at hand; everything else goes
through the rows of the semantics table, and a test holds the short way against them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcrucible.contract import history, operations
from kvcrucible.contract.semantics import Facts, State
from kvcrucible.invariants.history import facts as judge
from kvcrucible.invariants.history.index import extend
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.room import make_room, require_all_used, short
from kvcrucible.invariants.history.sequences import end
from kvcrucible.invariants.history.sharing import end_clean_copy

if TYPE_CHECKING:
    from kvcrucible.invariants.history.ledger import Ledger
    from kvcrucible.invariants.history.records import Holder


@dataclass(slots=True)
class Unit:
    """A unit in flight.  ``works``: each holder with where its pools will stand and the tokens that it appends.

    ``begun``: how many units had begun when it had.
    """

    begun: int
    works: list[tuple[Holder, list[int], history.Runs | None]]


def begin(ledger: Ledger, line: history.Begin) -> None:
    """Grant what the works write, and freeze their rows."""
    holders = ledger.holders
    works: list[tuple[Holder, list[int], history.Runs | None]] = []
    if line.refused is not None or not line.work:
        _require(ledger, line)
        if line.refused is not None:
            return
    if not ledger.reserves:
        _require(ledger, line)
        _make_room(ledger, line)
    elif line.evicted:
        require_all_used(line.evicted, "a unit")
    unit = ledger.number("unit", line.unit)
    page_size, two = ledger.page_size, len(ledger.page_size) > 1
    for work in line.work:
        holder = holders.get(work.sequence)
        append, backend = work.append, work.backend
        if append is None:
            count = work.prefill or 0
            legal = holder is not None and holder.state is State.PREFILL
        else:
            count = append[0][2] if len(append) == 1 else sum([run[2] for run in append])
            legal = holder is not None and holder.state is State.DECODE and work.prefill is None
        if holder is None or not legal or count < 1 or holder.unit is not None:
            _require(ledger, line, unit)
            raise Broken("outcome", f"work of {work.sequence} is a prefill or an append, one of the two")
        stop = holder.frontiers[0] + count
        stops = [stop]
        if two:
            stops.append(stop if backend is None else holder.frontiers[1] + backend)
        beyond = stop > (holder.prompt if append is None else holder.limit)
        most = holder.limit if ledger.leads and append is not None else stop
        if beyond or (backend is not None and not (two and holder.frontiers[1] <= stops[1] <= most)):
            _require(ledger, line, unit)
        for pool, there in enumerate(stops):
            due = -(-there // page_size[pool]) - len(holder.pages[pool])
            if due > 0 or work.pages:
                ledger.grant(holder, pool, max(due, 0), work.pages, work.generations)
        holder.unit = unit
        works.append((holder, stops, append))
    ledger.begun += 1
    ledger.units[unit] = Unit(ledger.begun, works)


def _require(ledger: Ledger, line: history.Begin, unit: int | None = None) -> None:
    """Judge a unit by the rows of the table; works that are under way by now in ``unit`` itself are not in flight."""
    named = [work.sequence for work in line.work]
    judged: list[tuple[type, Facts]] = []
    for work in line.work:
        facts = judge.about(ledger, work.sequence)
        holder = ledger.holders.get(work.sequence)
        count = (work.prefill or 0) if work.append is None else sum([run[2] for run in work.append])
        in_flight = facts.in_flight and (unit is None or (holder is not None and holder.unit != unit))
        facts = replace(
            facts,
            count=count,
            backend=work.backend,
            leads=ledger.leads and work.append is not None,
            repeated=named.count(work.sequence) > 1,
            in_flight=in_flight,
        )
        judged.append((operations.Prefill if work.append is None else operations.Append, facts))
    if not judged:
        judged.append((operations.BeginUnit, Facts(empty=True)))
    what = f"a unit over {len(named)} rows" if len(named) > 1 else f"a unit over {named}"
    if not ledger.reserves and judge.due_row(judged) is None:
        need = _need(ledger, line)
        there = judge.available(ledger, need)
        judged = [(kind, judge.lacking(facts, need, there)) for kind, facts in judged]
    judge.require(ledger, what, judged, line.refused)


def _need(ledger: Ledger, line: history.Begin) -> list[int]:
    """Return the pages that a unit takes of each pool, where nothing is reserved for it."""
    need = [0 for _ in ledger.pools]
    for work in line.work:
        holder = ledger.holders[work.sequence]
        count = (work.prefill or 0) if work.append is None else sum([run[2] for run in work.append])
        stop = holder.frontiers[0] + count
        for pool in ledger.pools:
            there = stop if not pool or work.backend is None else holder.frontiers[1] + work.backend
            need[pool] += max(0, ledger.needed(there, pool) - len(holder.pages[pool]))
    return need


def _make_room(ledger: Ledger, line: history.Begin) -> None:
    evicted, need = list(line.evicted), _need(ledger, line)
    make_room(ledger, evicted, lambda: short(ledger, need), None, "a unit")
    require_all_used(evicted, "a unit")


def finish(ledger: Ledger, line: history.End) -> None:
    """Commit or abort a unit, and end the rows whose cancel was recorded."""
    if line.unit not in ledger.units or line.refused is not None or line.accepted:
        judged = [(operations.EndUnit, facts) for facts in _end_facts(ledger, line)]
        if not judge.require(ledger, f"end of unit {line.unit}", judged, line.refused):
            return
    accepted = dict(line.accepted)
    unit = ledger.units.pop(line.unit)
    ledger.ends += 1
    ledger.ended.append((line.unit, ledger.ends))
    if ledger.shows_fences and not line.done:
        ledger.outstanding.add(ledger.ends)
        # What an earlier unit has touched and is still mapped, this one has touched too.
        for holder, _, _ in unit.works:
            holder.begun, holder.ended = unit.begun, ledger.ends
    frontiers: list[tuple[int, int]] = []
    cancelled: list[int] = []
    for holder, stops, append in unit.works:
        holder.unit = None
        if line.commit and not holder.cancelled:
            kept = _kept(holder, stops, accepted.get(holder.id))
            if append is not None:
                tokens = append if kept[0] == stops[0] else _first(append, kept[0] - holder.frontiers[0])
                ledger.charge(extend(holder.runs, tokens))
            elif kept[0] >= holder.prompt:
                holder.state = State.DECODE
            if ledger.has_host:
                _end_clean_copies(ledger, holder, kept)
            holder.frontiers = kept
            if kept != stops:
                _retract(ledger, holder)
        else:
            _retract(ledger, holder)
            if holder.cancelled:
                cancelled.append(holder.id)
                continue
        frontiers.append((holder.id, holder.frontiers[0]))
    for name in cancelled:
        end(ledger, ledger.holders[name])
    if line.frontiers is not None and line.frontiers != frontiers:
        raise Broken(
            "frontier-visibility",
            f"end of unit {line.unit}: frontiers are {line.frontiers}, due: {frontiers}",
        )
    if line.cancelled != cancelled:
        raise Broken("outcome", f"end of unit {line.unit}: cancelled are {line.cancelled}, due: {cancelled}")


def _end_facts(ledger: Ledger, line: history.End) -> list[Facts]:
    """Return what the table judges the end of a unit by: each entry of what is accepted."""
    unit = ledger.units.get(line.unit)
    known = Facts(unit_known=unit is not None, aborts=not line.commit)
    works = {} if unit is None else {holder.id: (holder, stops) for holder, stops, _ in unit.works}
    named = Counter([sequence for sequence, _ in line.accepted])
    found = []
    for sequence, tokens in line.accepted:
        facts = replace(known, accepts=True, count=tokens, repeated=named[sequence] > 1)
        if sequence in works:
            holder, stops = works[sequence]
            facts = replace(facts, state=holder.state, written=stops[0] - holder.frontiers[0])
        found.append(facts)
    return found or [known]


def _kept(holder: Holder, stops: list[int], accepted: int | None) -> list[int]:
    """Return where a unit that is committed leaves each pool: a backend at most where Main stands."""
    main = stops[0] if accepted is None else holder.frontiers[0] + accepted
    return [main] if len(stops) == 1 else [main, min(stops[1], main)]


def _first(runs: history.Runs, tokens: int) -> history.Runs:
    """Return the runs of the first ``tokens`` tokens."""
    found: history.Runs = []
    for source, start, length in runs:
        if tokens <= 0:
            break
        found.append((source, start, min(length, tokens)))
        tokens -= length
    return found


def _end_clean_copies(ledger: Ledger, holder: Holder, stops: list[int]) -> None:
    """End the Host copies of pages that gain columns."""
    for pool, (old, new) in enumerate(zip(holder.frontiers, stops, strict=True)):
        block, offset = divmod(old, ledger.page_size[pool])
        if new > old and offset:
            end_clean_copy(holder.pages[pool][block])


def _retract(ledger: Ledger, holder: Holder) -> None:
    """Give the pages beyond the frontiers back to the reservation."""
    for pool, frontier in enumerate(holder.frontiers):
        keep = ledger.needed(frontier, pool)
        held = holder.pages[pool]
        if len(held) > keep:
            ledger.touch(holder)
            beyond = held[keep:]
            del held[keep:]
            ledger.let_go(beyond, holder)


def done(ledger: Ledger, units: list[int]) -> None:
    """Take note of units whose effects are complete: those that ended first, in the order of their ends."""
    ends = []
    for name in units:
        if not ledger.ended or ledger.ended[0][0] != name:
            due = f"unit {ledger.ended[0][0]} is next" if ledger.ended else "none is left"
            raise Broken("recycle-fenced", f"progress reports unit {name}; {due}")
        ends.append(ledger.ended.popleft()[1])
    if ledger.outstanding:
        ledger.settle(ends)
