"""Admissions in a history: the candidates in their order, who waits and why (DESIGN 4.8, 4.9; decisions 0003, 0013)."""

from __future__ import annotations

from dataclasses import replace

from kvcrucible.contract import history, operations
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import AdmissionMode, WaitingKind
from kvcrucible.contract.semantics import Facts, State
from kvcrucible.invariants.history import facts as judge
from kvcrucible.invariants.history.candidates import Candidate, candidates, missing_below
from kvcrucible.invariants.history.checkpoints import unmark
from kvcrucible.invariants.history.index import common_prefix
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.passing import Passing
from kvcrucible.invariants.history.records import Holder
from kvcrucible.invariants.history.room import make_room, require_all_used, short, take_continuation
from kvcrucible.invariants.history.rows import activate
from kvcrucible.invariants.history.sharing import end_clean_copy, fork_need, require_copies, share_prefix
from kvcrucible.invariants.history.starts import give_up_copies, start_all


def admit(ledger: Ledger, line: history.Admit) -> None:
    """Judge one attempt to admit one request."""
    if line.refused is not None:
        name = _stated(line.sequence)
        judge.require(
            ledger, f"admission of {name}", [(operations.TryAdmit, _facts(ledger, name))], line.refused
        )
        return
    evicted, given_up = list(line.evicted), list(line.given_up)
    if (line.admission is None) == (line.wait is None):
        raise Broken("outcome", "an admit line has an admission or a wait, one of the two")
    if line.admission is not None:
        _admit(ledger, line.admission, evicted, given_up)
    if line.wait is not None:
        wait(ledger, line.wait, line.started, evicted, given_up)
    elif line.started:
        raise Broken("outcome", "transfers are started for a request that does not wait")
    require_all_used(evicted, "admission")
    require_all_used(given_up, "admission")


def schedule(ledger: Ledger, line: history.Schedule) -> None:
    """Judge one run through the queue."""
    if line.refused is not None:
        raise Broken("refusal-due", "schedule is never refused")
    evicted, given_up = list(line.evicted), list(line.given_up)
    passing: Passing | None = None
    for admission in line.admitted:
        if passing is None and _begins_to_pass(ledger, line, admission):
            assert line.wait is not None
            # Why the head waits is judged where it was tried: those who pass may take the last row.
            wait(ledger, line.wait, line.started, evicted, given_up)
            passing = Passing(ledger, ledger.queue[line.wait.sequence])
        _admit(ledger, admission, evicted, given_up, passing)
    if line.wait is not None and passing is None:
        wait(ledger, line.wait, line.started, evicted, given_up)
    elif line.wait is None and line.started:
        raise Broken("outcome", "transfers are started for a request that does not wait")
    require_all_used(evicted, "schedule")
    require_all_used(given_up, "schedule")
    if passing is not None:
        return
    if line.wait is not None:
        if ledger.shows_fifo and line.wait.why is WaitingKind.BEHIND_HEAD:
            raise Broken("admission-order", "schedule stops at the head of the queue, which is behind nobody")
    elif ledger.queue and ledger.shows_refusals and ledger.shows_fifo:
        raise Broken(
            "outcome", f"schedule ends without a word of {next(iter(ledger.queue))}, the head of the queue"
        )


def _begins_to_pass(ledger: Ledger, line: history.Schedule, told: history.Admission) -> bool:
    """Whether an admission is not that of the head, which the line says waits, and the engine lets requests pass."""
    if not ledger.shows_fifo or not ledger.header.lookahead or line.wait is None:
        return False
    head = next(iter(ledger.queue), None)
    return told.sequence in ledger.queue and head not in (told.sequence, None) and line.wait.sequence == head


def wait(
    ledger: Ledger,
    told: history.Wait,
    started: list[history.Started],
    evicted: list[int],
    given_up: list[int],
) -> None:
    """Judge why a request waits, and carry out what was started for it."""
    name, why = told.sequence, told.why
    holder = ledger.queue.get(name)
    if holder is None:
        raise Broken("not-queued", f"{name} is said to wait, and is not queued")
    due, chosen = _due_wait(ledger, holder) if ledger.shows_refusals else (why, None)
    # Where hits are not shown, it is not known what the request lacks.
    need = _need(ledger, holder, chosen) if chosen is not None and ledger.shows_hits else None
    lacks = need is None or short(ledger, need)
    if need is not None and chosen is not None:
        give_up_copies(ledger, given_up, lambda: short(ledger, need), chosen.source, f"waiting of {name}")
        lacks = short(ledger, need)
    elif why is WaitingKind.RESTORING and ledger.shows_returns:
        due = why
    if why is WaitingKind.SINKING and started and lacks and due is not WaitingKind.BEHIND_HEAD:
        # What sinks first, and who yields, is the engine's choice.
        due = why
    if due is None:
        rule = "outcome"
        if why is WaitingKind.DEVICE_CAPACITY:
            by_count = not short(ledger, _need(ledger, holder, Candidate(AdmissionMode.COLD)))
            rule = "admission-by-count" if by_count else "cache-yields"
        raise Broken(rule, f"{name} waits, {why.value}, although it can be admitted")
    if due is not why:
        raise Broken("outcome", f"{name} waits, {why.value}; due: {due.value}")
    if started and chosen is None and ledger.shows_refusals and ledger.shows_hits:
        raise Broken("outcome", f"{name} waits, {why.value}: nothing is started for that")
    start_all(ledger, holder, started, evicted, chosen, need)


def _due_wait(ledger: Ledger, holder: Holder) -> tuple[WaitingKind | None, Candidate | None]:
    """Return the reason to wait that is due, None where the request can be admitted; and how it goes on then."""
    if ledger.shows_fifo and next(iter(ledger.queue)) != holder.id:
        return WaitingKind.BEHIND_HEAD, None
    row = judge.due_row([(operations.TryAdmit, _facts(ledger, holder.id))])
    if row is not None:
        return WaitingKind(row.kind.value), None
    if not holder.sinks.isdisjoint(ledger.transfers):
        return WaitingKind.SINKING, None
    # Where hits are not shown, which candidates there are cannot be told; one is always there.
    known = candidates(ledger, holder) if ledger.shows_hits else [Candidate(AdmissionMode.COLD)]
    chosen = next((one for one in known if _fits(ledger, holder, one)), None)
    if chosen is None:
        return WaitingKind.DEVICE_CAPACITY, None
    return (chosen.mode if isinstance(chosen.mode, WaitingKind) else None), chosen


def _stated(name: int | None) -> int:
    if name is None:
        raise Broken("outcome", "a refused admit line says which sequence was asked for")
    return name


def _facts(ledger: Ledger, name: int) -> Facts:
    holder = ledger.holders.get(name)
    busy = holder is not None and holder.session is not None and holder.session in ledger.active_sessions
    return replace(judge.about(ledger, name), session_busy=busy)


def _fits(ledger: Ledger, holder: Holder, one: Candidate) -> bool:
    """Whether a candidate fits once everyone who may be released is, its source left out."""
    if one.mode is AdmissionMode.MOVE_TRUNCATED and one.source is not None:
        need, back = _move_need(ledger, holder, one.source, one.hit, firm=True)
        there = [
            pages + more for pages, more in zip(judge.available(ledger, need, one.source), back, strict=True)
        ]
    else:
        need = _need(ledger, holder, one)
        there = judge.available(ledger, need, one.source)
    facts = judge.lacking(_facts(ledger, holder.id), need, there)
    return judge.due_row([(operations.TryAdmit, facts)]) is None


def _need(ledger: Ledger, holder: Holder, one: Candidate) -> list[int]:
    """Return the pages that a candidate takes of each pool, as things stand."""
    if one.mode is WaitingKind.RESTORING:
        bare = [page.pool for page in one.missing if not page.leased] if one.restores else []
        return [bare.count(pool) for pool in ledger.pools]
    if one.source is None:
        return [ledger.needed(holder.limit, pool) if ledger.reserves else 0 for pool in ledger.pools]
    if one.mode is AdmissionMode.FORK:
        return fork_need(ledger, one.source, holder.limit, one.hit)
    need, back = _move_need(ledger, holder, one.source, one.hit, firm=False)
    return [pages - more for pages, more in zip(need, back, strict=True)]


def _move_need(
    ledger: Ledger, holder: Holder, source: Holder, hit: int, firm: bool
) -> tuple[list[int], list[int]]:
    """Return what the new owner of the source's pages takes once they are cut to ``hit``, and what the cut frees.

    ``firm``: once everyone who may be released is; the source itself is a holder that is not firm, or pinned.
    """
    need, back = [], []
    own = int(source.firm)
    for pool, frontier in enumerate(source.frontiers):
        keep, inside = ledger.needed(hit, pool), hit % ledger.page_size[pool]
        held = source.pages[pool]

        ended = loud = 0
        for page in held[keep:]:
            if not (page.firm - own if firm else page.references - 1):
                ended += page.leased
                loud += page.leased and page.stamp in ledger.outstanding
        cut = held[keep - 1]
        copied = frontier > hit and inside > 0 and (cut.firm - own if firm else cut.references - 1) > 0
        grown = ledger.needed(holder.limit, pool) - keep
        if ledger.reserves:
            # What is not at rest comes back to the reservation; only what that has no use for is not free now (0013).
            loud = max(0, loud - (copied and loud > 0) - grown)
        need.append((grown if ledger.reserves else 0) + copied)
        back.append(ended - loud)
    return need, back


# -- carrying out ------------------------------------------------------------------------------------------------------


def _admit(
    ledger: Ledger,
    told: history.Admission,
    evicted: list[int],
    given_up: list[int],
    passing: Passing | None = None,
) -> None:
    """Judge one admission, and carry it out; takes those who are released for it off ``evicted``, and those who lose
    copies off ``given_up``.  ``passing``: the head waits, and this request is let past it.
    """
    what = f"admission of {told.sequence}"
    row = judge.due_row([(operations.TryAdmit, _facts(ledger, told.sequence))])
    if row is not None:
        raise Broken(row.name, f"{what} was carried out; due: {_due(row.kind)}: {row.statement}")
    holder = ledger.queue[told.sequence]
    if passing is not None:
        passing.require(holder)
    elif ledger.shows_fifo and next(iter(ledger.queue)) != holder.id:
        raise Broken("admission-order", f"{what}, while {next(iter(ledger.queue))} heads the queue")
    if not holder.sinks.isdisjoint(ledger.transfers):
        raise Broken("outcome", f"{what}, while what sinks for it is on its way")
    chosen = _chosen(ledger, holder, told) if ledger.shows_hits else _claimed(ledger, holder, told)

    def lacks() -> bool:
        return short(ledger, _need(ledger, holder, chosen))

    give_up_copies(ledger, given_up, lacks, chosen.source, what)
    make_room(ledger, evicted, lacks, chosen.source, what)
    del ledger.queue[holder.id]
    if chosen.source is None:
        for pool in ledger.pools:
            if ledger.reserves:
                ledger.reserve(pool, ledger.needed(holder.limit, pool), f"sequence {holder.id}")
            ledger.grant(holder, pool, 0, told.pages, told.generations)
        require_copies(ledger, [], told.copies, what)
    elif chosen.mode is AdmissionMode.FORK:
        share_prefix(ledger, holder, chosen.source, chosen.hit, told)
    else:
        _take_over(ledger, holder, chosen.source, chosen.hit, told)
    activate(ledger, holder, told.row)


def _due(kind: RefusalKind) -> str:
    waits = kind.precedence >= RefusalKind.SESSION_BUSY.precedence
    return f"{'to wait' if waits else 'refused'}, {kind.value}"


def _chosen(ledger: Ledger, holder: Holder, told: history.Admission) -> Candidate:
    """Return the first candidate that fits; raises unless it is the one that the line tells."""
    for one in candidates(ledger, holder):
        if not _fits(ledger, holder, one):
            continue
        if isinstance(one.mode, WaitingKind):
            raise Broken("outcome", f"sequence {holder.id} is admitted; due: to wait, {one}")
        due = (one.mode, None if one.source is None else one.source.id, one.hit)
        if (told.mode, told.source, told.hit) == due:
            return one
        rule = "exact-prefix-identity" if (told.source, told.hit) != due[1:] else "candidate-order"
        found = f"{told.mode.value} of {told.source} at {told.hit}"
        raise Broken(rule, f"sequence {holder.id} is admitted by {found}; due: {one}")
    raise Broken("no-pages", f"sequence {holder.id} is admitted; no way to start it fits")


def _claimed(ledger: Ledger, holder: Holder, told: history.Admission) -> Candidate:
    """Return what the line tells, once it is known to be possible and true."""
    what = f"sequence {holder.id} is admitted by {told.mode.value} of {told.source} at {told.hit}"
    if told.mode is AdmissionMode.COLD:
        if told.source is not None or told.hit:
            raise Broken("outcome", f"{what}: a cold start has no source and no hit")
        return Candidate(AdmissionMode.COLD)
    source = ledger.holders.get(-1 if told.source is None else told.source)
    if source is None or source.state is State.QUEUED or source.unit is not None:
        raise Broken("exact-prefix-identity", f"{what}: that is nobody who may be a source now")
    findable = max((frontier for _, frontier in source.marks), default=0)
    if not 0 < told.hit <= min(findable, holder.prompt - 1):
        raise Broken(
            "exact-prefix-identity",
            f"{what}: {findable} positions of the source are findable, for a prompt of {holder.prompt}",
        )
    if missing_below(ledger, source, told.hit):
        raise Broken("one-visible-replica", f"{what}: pages of that are visible on Host")
    if ledger.shows_tokens:
        shared = common_prefix(holder.runs, source.runs) if holder.identity == source.identity else 0
        if told.hit > shared:
            raise Broken("exact-prefix-identity", f"{what}: the two share {shared} tokens")
    if told.mode is not AdmissionMode.FORK:
        moves = source.state is State.CONTINUATION and not source.moving
        whole = set(source.frontiers) == {told.hit}
        if not moves or (source.pinned if told.mode is AdmissionMode.MOVE_TRUNCATED else not whole):
            raise Broken("candidate-order", f"{what}: the source is not there to be taken over like this")
    return Candidate(told.mode, source, told.hit)


def _take_over(ledger: Ledger, holder: Holder, source: Holder, hit: int, told: history.Admission) -> None:
    """Pass the source's pages and checkpoints to the new sequence, cut to the hit."""
    take_continuation(ledger, source)
    unmark(ledger, source, hit)
    holder.marks = source.marks
    for own, _ in source.marks:
        ledger.owners_of_marks[own] = holder.id
    copies = []
    for pool, frontier in enumerate(source.frontiers):
        keep, inside = ledger.needed(hit, pool), hit % ledger.page_size[pool]
        held = source.pages[pool]
        promised = ledger.reserved[pool]
        ledger.forsake(source.id, held[keep:], source.firm, holder)
        promised = ledger.reserved[pool] - promised
        del held[keep:]
        if not source.firm:
            ledger.harden(held)
        for page in held:
            page.active += 1
            if page.keepers is not None:
                page.keepers.discard(source.id)
        holder.pages[pool] = held
        holder.frontiers[pool] = min(frontier, hit)
        copied = frontier > hit and inside > 0 and held[-1].references > 1
        if ledger.reserves:
            due = ledger.needed(holder.limit, pool) - keep + copied
            ledger.adjust_reservation(holder, pool, due - promised)
        if copied:
            old = held.pop()
            ledger.grant(holder, pool, 1, told.pages, told.generations)
            copies.append((pool, old.device, held[-1].device, inside))
            ledger.let_go([old])
        else:
            if frontier > hit and inside:
                end_clean_copy(held[-1])
            ledger.grant(holder, pool, 0, told.pages, told.generations)
        if ledger.reserves:
            ledger.retire_excess(holder, pool)
    require_copies(ledger, copies, told.copies, f"sequence {holder.id}")
    del ledger.holders[source.id]
    ledger.charge(-len(source.runs) - 1)
    source.state = State.GONE
