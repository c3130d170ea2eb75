"""Forks and cuts in a history: what is shared, copied, returned and reserved anew (DESIGN 4.5, 4.6)."""

from __future__ import annotations

from dataclasses import replace

from kvcrucible.contract import history, operations
from kvcrucible.contract.semantics import State
from kvcrucible.invariants.history import facts as judge
from kvcrucible.invariants.history.checkpoints import unmark
from kvcrucible.invariants.history.index import head
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder, Page
from kvcrucible.invariants.history.room import make_room, require_all_used, short
from kvcrucible.invariants.history.rows import activate


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
        ledger.touch(holder)
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
    unmark(ledger, holder, line.position)
    copies = []
    for pool, frontier in enumerate(holder.frontiers):
        if frontier > line.position:
            copies += _cut_pool(ledger, holder, pool, line)
    require_copies(ledger, copies, line.copies, what)
    _forget(ledger, holder, line.position)


def cut_need(ledger: Ledger, holder: Holder, position: int, firm: bool = False) -> list[int]:
    """Return the pages that a cut takes of each pool: the regrowth of shared pages, and a copy of a shared cut page.

    ``firm``: once all that may be released is.  Without reservations, what the cut frees at once counts against it.
    """
    need = []
    for pool, frontier in enumerate(holder.frontiers):
        found = 0
        if frontier > position:
            keep, inside = ledger.needed(position, pool), position % ledger.page_size[pool]
            held = holder.pages[pool]
            for page in held[keep:]:
                is_shared = (page.firm if firm else page.references) > 1
                if ledger.reserves:
                    found += is_shared
                elif not is_shared:
                    found -= page.stamp not in ledger.outstanding
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
