"""Sequences in a history: requests, forks, cuts, checkpoints, ends and continuations (DESIGN 4.5-4.9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvcrucible.contract import history, operations
from kvcrucible.contract.operations import DEFAULT_IDENTITY, Identity
from kvcrucible.contract.semantics import Facts, State
from kvcrucible.contract.tokens import Run
from kvcrucible.invariants.history import facts as judge
from kvcrucible.invariants.history.index import extend, head
from kvcrucible.invariants.history.ledger import Holder, Ledger, Page
from kvcrucible.invariants.history.outcome import Broken


def identity_of(fields: history.IdentityFields | None) -> Identity:
    """Return the identity that a line states."""
    return DEFAULT_IDENTITY if fields is None else fields.to_identity()


# -- requests ----------------------------------------------------------------------------------------------------------


def submit(ledger: Ledger, line: history.Submit) -> None:
    """Queue a request."""
    runs: list[Run] = []
    extend(runs, line.prompt)
    prompt = sum([run[2] for run in runs])
    facts = Facts(prompt=prompt, max_context=ledger.header.max_context, capacity_pages=tuple(ledger.capacity))
    facts = judge.new(ledger, facts, prompt + line.max_new, line.max_new)
    if not judge.require(ledger, "submit", [(operations.Submit, facts)], line.refused):
        return
    name = ledger.number("sequence", line.sequence)
    holder = Holder(
        name,
        runs,
        prompt,
        prompt + line.max_new,
        line.session,
        identity_of(line.identity),
        len(ledger.pools),
        line.consume,
    )
    ledger.holders[name] = ledger.queue[name] = holder
    ledger.charge(len(runs) + 1)


def activate(ledger: Ledger, holder: Holder, row: int | None) -> None:
    """Give an admitted or forked sequence its row and its session key; its state follows from its frontier."""
    holder.state = State.PREFILL if holder.frontiers[0] < holder.prompt else State.DECODE
    if ledger.shows_rows:
        if row is None or row >= ledger.header.max_concurrency:
            raise Broken(
                "row-unique", f"sequence {holder.id} gets row {row} of {ledger.header.max_concurrency}"
            )
        if row in ledger.rows:
            raise Broken(
                "row-unique", f"sequence {holder.id} gets row {row}, which sequence {ledger.rows[row]} has"
            )
        ledger.rows[row] = holder.id
        holder.row = row
    ledger.actives += 1
    if holder.session is not None:
        ledger.active_sessions[holder.session] = holder.id


def deactivate(ledger: Ledger, holder: Holder) -> None:
    """Take back row, session key and unused reservation of an active sequence."""
    ledger.touch(holder)
    ledger.close_reservation(holder)
    if holder.row is not None:
        del ledger.rows[holder.row]
        holder.row = None
    ledger.actives -= 1
    if holder.session is not None:
        del ledger.active_sessions[holder.session]


# -- making room -------------------------------------------------------------------------------------------------------


def make_room(
    ledger: Ledger, evicted: list[int], lacks: Callable[[], bool], protected: Holder | None, what: str
) -> None:
    """Release the next of ``evicted`` for as long as pages are lacking, and take them off the list (decision 0003)."""
    while lacks():
        if not evicted:
            raise Broken(
                "making-room", f"{what} takes more pages than are free, {ledger.free}, and releases nobody"
            )
        name = evicted.pop(0)
        victim = ledger.continuations.get(name)
        if victim is None or victim is protected or not may_release(victim):
            state = "no continuation" if victim is None else "protected, or without a Device page"
            raise Broken("making-room", f"{what} releases {name}, which is {state}")
        if ledger.shows_lru:
            first = next(
                kept for kept in ledger.continuations.values() if kept is not protected and may_release(kept)
            )
            if first is not victim:
                raise Broken(
                    "making-room", f"{what} releases {name} before {first.id}, which was used less recently"
                )
        drop_continuation(ledger, victim)


def require_all_used(evicted: list[int], what: str) -> None:
    """Raise where continuations were released though enough pages were free without them."""
    if evicted:
        raise Broken("making-room", f"{what} releases {evicted[0]} although enough pages are free")


def may_release(kept: Holder) -> bool:
    """Whether making room may release a continuation."""
    return not kept.firm and any(page.leased for held in kept.pages for page in held)


# -- forks and cuts ----------------------------------------------------------------------------------------------------


def fork(ledger: Ledger, line: history.Fork) -> None:
    """Start a child on the source's first tokens."""
    what = f"fork of {line.source} at {line.position}"
    source = ledger.holders.get(line.source)
    limit = line.position + line.max_new
    facts = judge.new(ledger, judge.about(ledger, line.source), limit, line.max_new)
    busy = line.session is not None and line.session in ledger.active_sessions
    facts = replace(facts, position=line.position, session_busy=busy)
    need: list[int] = []
    if source is not None and 1 <= line.position <= source.frontiers[0]:
        need = fork_need(ledger, source, limit, line.position)
        facts = judge.lacking(facts, need, judge.available(ledger, need, source))
    if not judge.require(ledger, what, [(operations.Fork, facts)], line.refused):
        return
    if source is None or not need:
        raise Broken("refusal-due", f"{what}: there is nothing to share")
    child = Holder(
        ledger.number("sequence", line.sequence),
        head(source.runs, line.position),
        line.position,
        limit,
        line.session,
        source.identity,
        len(ledger.pools),
    )
    evicted = list(line.evicted)
    make_room(ledger, evicted, lambda: short(ledger, need), source, what)
    require_all_used(evicted, what)
    ledger.holders[child.id] = child
    ledger.charge(len(child.runs) + 1)
    share_prefix(ledger, child, source, line.position, line)
    activate(ledger, child, line.row)


def short(ledger: Ledger, need: list[int]) -> bool:
    """Whether some pool has fewer free pages than ``need``."""
    return not all(map(int.__le__, need, ledger.free))


def fork_need(ledger: Ledger, source: Holder, limit: int, position: int) -> list[int]:
    """Return the pages that a child takes of each pool: all but the full ones that it shares (DESIGN 4.14.4)."""
    need = []
    for pool, frontier in enumerate(source.frontiers):
        full, tail = divmod(min(position, frontier), ledger.page_size[pool])
        need.append(ledger.needed(limit, pool) - full if ledger.reserves else int(tail > 0))
    return need


def share_prefix(
    ledger: Ledger, child: Holder, source: Holder, position: int, line: history.Fork | history.Admission
) -> None:
    """Let the child hold the source's full pages below ``position`` and a copy of each partial tail."""
    copies = []
    for pool, frontier in enumerate(source.frontiers):
        stop = min(position, frontier)
        full, tail = divmod(stop, ledger.page_size[pool])
        shared = source.pages[pool][:full]
        ledger.share(shared)
        child.pages[pool] = shared
        if ledger.reserves:
            ledger.reserve(pool, ledger.needed(child.limit, pool) - full, f"sequence {child.id}")
        ledger.grant(child, pool, int(tail > 0), line.pages, line.generations)
        if tail:
            copies.append((pool, source.pages[pool][full].device, child.pages[pool][-1].device, tail))
        child.frontiers[pool] = stop
    require_copies(ledger, copies, line.copies, f"sequence {child.id}")
    if source.state is State.CONTINUATION:
        ledger.continuations.move_to_end(source.id)


def require_copies(
    ledger: Ledger, due: list[tuple[int, int, int, int]], told: list[history.Copy], who: str
) -> None:
    """Raise unless the copies are exactly those of the partial tails, with their committed columns."""
    if ledger.shows_copies and ledger.shows_pages and sorted(told) != sorted(due):
        raise Broken(
            "cow-isolation",
            f"{who}: copies (pool, from, to, columns) are {sorted(told)}, due: {sorted(due)}",
        )


def truncate(ledger: Ledger, line: history.Truncate) -> None:
    """Cut an active sequence, in every pool that stands above the position."""
    what = f"cut of {line.sequence} to {line.position}"
    holder = ledger.holders.get(line.sequence)
    facts = replace(judge.about(ledger, line.sequence), position=line.position)
    cuts = holder is not None and holder.active and 0 <= line.position < holder.frontiers[0]
    if holder is not None and cuts:
        need = cut_need(ledger, holder, line.position, firm=True)
        facts = judge.lacking(facts, need, judge.available(ledger, need))
    if not judge.require(ledger, what, [(operations.Truncate, facts)], line.refused):
        return
    evicted = list(line.evicted)
    if holder is None or not cuts:
        require_all_used(evicted, what)
        require_copies(ledger, [], line.copies, what)
        return
    make_room(ledger, evicted, lambda: short(ledger, cut_need(ledger, holder, line.position)), None, what)
    require_all_used(evicted, what)
    ledger.touch(holder)
    unmark(ledger, holder, line.position)
    copies = []
    for pool, frontier in enumerate(holder.frontiers):
        if frontier > line.position:
            copies += _cut_pool(ledger, holder, pool, line)
    require_copies(ledger, copies, line.copies, what)
    _forget(ledger, holder, line.position)


def cut_need(ledger: Ledger, holder: Holder, position: int, firm: bool = False) -> list[int]:
    """Return the pages that a cut takes of each pool: the regrowth of shared pages, and a copy of a shared cut page.

    ``firm``: once all that may be released is.  Without reservations, what the cut frees counts against it.
    """
    need = []
    for pool, frontier in enumerate(holder.frontiers):
        found = 0
        if frontier > position:
            keep, inside = ledger.needed(position, pool), position % ledger.page_size[pool]
            held = holder.pages[pool]
            for page in held[keep:]:
                is_shared = (page.firm if firm else page.references) > 1
                found += is_shared if ledger.reserves else is_shared - 1
            if inside:
                cut = held[keep - 1]
                found += (cut.firm if firm else cut.references) > 1
        need.append(found)
    return need


def _cut_pool(
    ledger: Ledger, holder: Holder, pool: int, line: history.Truncate
) -> list[tuple[int, int, int, int]]:
    """Cut an active sequence in one pool; return the copy of the cut page, if it was shared."""
    keep, inside = ledger.needed(line.position, pool), line.position % ledger.page_size[pool]
    held = holder.pages[pool]
    beyond = held[keep:]
    del held[keep:]
    regrowth = sum([page.references > 1 for page in beyond])
    copied = bool(inside) and held[-1].references > 1
    if ledger.reserves:
        # Pages that only it holds come back to the reservation first, so that a copy may be one of them.
        ledger.let_go(beyond, holder)
        ledger.reserve(pool, regrowth + copied, f"sequence {holder.id}")
    else:
        ledger.let_go(beyond)
    holder.frontiers[pool] = line.position
    if not copied:
        if inside:
            end_clean_copy(held[-1])
        ledger.grant(holder, pool, 0, line.pages, line.generations)
        return []
    old = held.pop()
    source = old.device
    ledger.grant(holder, pool, 1, line.pages, line.generations)
    ledger.let_go([old])
    return [(pool, source, held[-1].device, inside)]


def end_clean_copy(page: Page) -> None:
    """End a Host copy that is no longer what its page is."""
    if page.extent is not None:
        page.extent.drop()
        page.extent = None


def _forget(ledger: Ledger, holder: Holder, position: int) -> None:
    """Drop the tokens beyond ``position``, and what was left of the prompt there."""
    before = len(holder.runs)
    holder.runs = head(holder.runs, position)
    ledger.charge(len(holder.runs) - before)
    holder.prompt = min(holder.prompt, position)
    holder.state = State.PREFILL if holder.frontiers[0] < holder.prompt else State.DECODE


# -- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoint(ledger: Ledger, line: history.Checkpoint) -> None:
    """Make what every pool has committed findable."""
    facts = judge.about(ledger, line.sequence)
    what = f"checkpoint of {line.sequence}"
    if not judge.require(ledger, what, [(operations.Checkpoint, facts)], line.refused):
        return
    own, is_new = mark(ledger, ledger.holders[line.sequence])
    if line.checkpoint is None:
        return
    told = ledger.told_marks.get(own)
    if told is None and not is_new and line.checkpoint <= ledger.last["checkpoint"]:
        # One that an earlier end made without a word of its number; nobody else may have that number.
        if line.checkpoint in ledger.told_marks.values():
            raise Broken("protected-prefix", f"{what} gives {line.checkpoint}, which is another's")
    elif told is None:
        ledger.number("checkpoint", line.checkpoint)
    elif told != line.checkpoint:
        raise Broken(
            "protected-prefix", f"{what} gives {line.checkpoint}; its frontier has checkpoint {told} already"
        )
    ledger.told_marks[own] = line.checkpoint


def mark(ledger: Ledger, holder: Holder) -> tuple[int, bool]:
    """Return the checkpoint at the smallest frontier, and whether it is new."""
    position = holder.common
    for own, frontier in holder.marks:
        if frontier == position:
            return own, False
    own, ledger.next_mark = ledger.next_mark, ledger.next_mark + 1
    holder.marks.append((own, position))
    ledger.owners_of_marks[own] = holder.id
    ledger.charge(1)
    if ledger.shows_hits:
        before = ledger.index.entries
        ledger.index.insert(own, head(holder.runs, position), position, holder.identity)
        ledger.charge(ledger.index.entries - before)
    return own, True


def unmark(ledger: Ledger, holder: Holder, position: int) -> None:
    """Drop the checkpoints beyond ``position``."""
    beyond = [own for own, frontier in holder.marks if frontier > position]
    if not beyond:
        return
    holder.marks = [one for one in holder.marks if one[1] <= position]
    before = ledger.index.entries
    for own in beyond:
        del ledger.owners_of_marks[own]
        ledger.told_marks.pop(own, None)
        if ledger.shows_hits:
            ledger.index.remove(own)
    ledger.charge(ledger.index.entries - before - len(beyond))


def lookup(ledger: Ledger, line: history.Lookup) -> None:
    """Judge what a prompt would hit."""
    runs: list[Run] = []
    extend(runs, line.prompt)
    prompt = sum([run[2] for run in runs])
    if not judge.require(ledger, "lookup", [(operations.Lookup, Facts(prompt=prompt))], line.refused):
        return
    if not ledger.shows_hits:
        return
    length, members = ledger.index.best(head(runs, prompt - 1), identity_of(line.identity), lambda own: True)
    own = None
    if length:
        found = list(members)
        resident = [one for one in found if not ledger.holders[ledger.owners_of_marks[one]].away]
        own = (resident or found)[0]
    source = None if own is None else ledger.owners_of_marks[own]
    told = (0, None) if line.hit is None else (line.hit.length, line.hit.source)
    if told != (length, source):
        raise Broken(
            "exact-prefix-identity",
            f"lookup finds {told[0]} tokens of {told[1]}; the longest common prefix is {length}, of {source}",
        )
    known = None if own is None else ledger.told_marks.get(own)
    if line.hit is not None and None not in (known, line.hit.checkpoint) and line.hit.checkpoint != known:
        raise Broken("exact-prefix-identity", f"lookup finds checkpoint {line.hit.checkpoint}; due: {known}")


# -- ends --------------------------------------------------------------------------------------------------------------


def finish(ledger: Ledger, line: history.Finish) -> None:
    """End an active sequence, kept as a continuation or not."""
    what = f"finish of {line.sequence}"
    facts = judge.about(ledger, line.sequence)
    if not judge.require(ledger, what, [(operations.Finish, facts)], line.refused):
        return
    holder = ledger.holders[line.sequence]
    kept = line.retain and holder.common > 0
    if line.kept is not None and line.kept != kept:
        raise Broken(
            "outcome", f"{what}: kept is {line.kept}, with retain {line.retain} and {holder.common} positions"
        )
    if not kept:
        end(ledger, holder)
        return
    deactivate(ledger, holder)
    before = len(holder.runs)
    holder.runs = head(holder.runs, holder.frontiers[0])
    ledger.charge(len(holder.runs) - before)
    holder.state = State.CONTINUATION
    transfers = set()
    for held in holder.pages:
        for page in held:
            page.active -= 1
            if ledger.has_host:
                if page.keepers is None:
                    page.keepers = set()
                page.keepers.add(holder.id)
                if page.transfer is not None:
                    transfers.add(page.transfer.id)
    holder.moving = len(transfers)
    if not holder.moving:
        for held in holder.pages:
            ledger.soften(held)
    ledger.continuations[holder.id] = holder
    mark(ledger, holder)
    if holder.session is not None:
        replaced = ledger.kept_sessions.get(holder.session)
        ledger.kept_sessions[holder.session] = holder.id
        if replaced is not None:
            drop_continuation(ledger, ledger.continuations[replaced])


def end(ledger: Ledger, holder: Holder) -> None:
    """Drop a queued or active sequence with all that it alone holds."""
    if holder.state is State.QUEUED:
        del ledger.queue[holder.id]
    else:
        deactivate(ledger, holder)
        unmark(ledger, holder, -1)
        for pool, held in enumerate(holder.pages):
            ledger.let_go(held)
            holder.pages[pool] = []
    del ledger.holders[holder.id]
    ledger.charge(-len(holder.runs) - 1)
    holder.state = State.GONE


def cancel(ledger: Ledger, line: history.Cancel) -> None:
    """Drop a queued or active sequence, or record that its unit's end is to do so."""
    what = f"cancel of {line.sequence}"
    facts = judge.about(ledger, line.sequence)
    if not judge.require(ledger, what, [(operations.Cancel, facts)], line.refused):
        return
    holder = ledger.holders[line.sequence]
    done = holder.unit is None
    if line.done is not None and line.done != done:
        raise Broken(
            "unit-frozen" if line.done else "outcome",
            f"{what}: done is {line.done}, while it is {'not ' if done else ''}in flight",
        )
    if done:
        end(ledger, holder)
    else:
        holder.cancelled = True


def release(ledger: Ledger, line: history.Release) -> None:
    """Drop a continuation."""
    facts = judge.about(ledger, line.continuation)
    if judge.require(ledger, f"release of {line.continuation}", [(operations.Release, facts)], line.refused):
        drop_continuation(ledger, ledger.continuations[line.continuation])


def drop_continuation(ledger: Ledger, kept: Holder) -> None:
    """Drop a continuation with its checkpoints and all that it alone holds."""
    take_continuation(ledger, kept)
    unmark(ledger, kept, -1)
    for pool, held in enumerate(kept.pages):
        ledger.forsake(kept.id, held, kept.firm)
        kept.pages[pool] = []
    del ledger.holders[kept.id]
    ledger.charge(-len(kept.runs) - 1)
    kept.state = State.GONE


def take_continuation(ledger: Ledger, kept: Holder) -> None:
    """Take a continuation out of the cache; its pages and checkpoints are the caller's."""
    del ledger.continuations[kept.id]
    if kept.session is not None and ledger.kept_sessions.get(kept.session) == kept.id:
        del ledger.kept_sessions[kept.session]


def pin(ledger: Ledger, line: history.Pin) -> None:
    """Protect a continuation, or stop doing so."""
    facts = judge.about(ledger, line.continuation)
    if not judge.require(ledger, f"pin of {line.continuation}", [(operations.Pin, facts)], line.refused):
        return
    kept = ledger.continuations[line.continuation]
    with_change(ledger, kept, lambda: setattr(kept, "pinned", line.pinned))


def with_change(ledger: Ledger, kept: Holder, change: Callable[[], None]) -> None:
    """Change what protects a continuation, and bring what its pages are worth to others up to date."""
    before = kept.firm
    change()
    if kept.firm != before:
        for held in kept.pages:
            (ledger.harden if kept.firm else ledger.soften)(held)
