"""Transfers that an admission starts for the sake of a request that then waits (DESIGN 4.9; decision 0020)."""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.contract import history
from kvcrucible.contract.operations import WaitingKind
from kvcrucible.contract.semantics import extents_fit
from kvcrucible.contract.snapshot import Tier
from kvcrucible.invariants.history import transfers
from kvcrucible.invariants.history.candidates import Candidate, missing_below
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder, Page
from kvcrucible.invariants.history.room import drop_continuation, may_release
from kvcrucible.invariants.history.sharing import end_clean_copy


def start_all(
    ledger: Ledger,
    request: Holder,
    started: list[history.Started],
    evicted: list[int],
    chosen: Candidate | None,
    need: list[int] | None,
) -> None:
    """Judge and carry out what was started for ``request``; ``chosen``: what it waits for, None where not known.

    ``need``: the pages that it takes then, None where not known.
    """
    sinks = [one for one in started if one.source is Tier.DEVICE]
    restores = [one for one in started if one.source is Tier.HOST]
    if sinks and restores:
        raise Broken(
            "outcome", f"sequence {request.id} waits for what sinks and for what comes back, at once"
        )
    if (
        chosen is not None
        and chosen.mode is WaitingKind.RESTORING
        and chosen.source is not None
        and not sinks
    ):
        due = [(chosen.source.id, chosen.hit)] if chosen.restores else []
        told = [(one.continuation, one.positions) for one in restores]
        if told != due:
            raise Broken(
                "exact-prefix-identity",
                f"sequence {request.id} waits for restores of {told} (continuation, positions); due: {due}",
            )
    for one in restores:
        _restore(ledger, request, one, evicted)
    if sinks:
        _sink_all(ledger, request, sinks, chosen, need)


def _sink_all(
    ledger: Ledger,
    request: Holder,
    told: list[history.Started],
    chosen: Candidate | None,
    need: list[int] | None,
) -> None:
    """Judge and carry out what sinks: what may yield, while the pages that are free or on their way do not suffice."""
    source = None if chosen is None else chosen.source
    may_yield = {
        one.id
        for one in ledger.continuations.values()
        if one is not source and one.id in _named(told) and may_release(one)
    }
    there = list(ledger.free)
    for one in told:
        what = f"sinking of {one.continuation} for sequence {request.id}"
        if need is not None and all(map(int.__le__, need, there)):
            raise Broken("making-room", f"{what}, although enough pages are free or on their way")
        if one.continuation in request.sunk:
            raise Broken("making-room", f"{what}, which was tried before")
        kept = ledger.continuations.get(one.continuation)
        if kept is None or not {kept.id, *one.beside} <= may_yield:
            raise Broken("making-room", f"{what}: it, or one of those beside it, may not yield")
        holders = {kept.id, *one.beside}
        pages = [
            page
            for held in kept.pages
            for page in held
            if not page.on_host
            and page.transfer is None
            and not page.active
            and (page.keepers or set()) <= holders
        ]
        if not pages:
            raise Broken("making-room", f"{what}: none of its pages can move")
        _make_host_room(ledger, one, pages, source, what)
        transfers.sink(ledger, one, pages)
        request.sunk.add(kept.id)
        request.sinks.add(one.transfer)
        for page in pages:
            there[page.pool] += 1


def _named(told: list[history.Started]) -> set[int]:
    return {name for one in told for name in (one.continuation, *one.beside)}


def _make_host_room(
    ledger: Ledger, told: history.Started, pages: list[Page], source: Holder | None, what: str
) -> None:
    """Carry out what was given up and released on Host, while the extents for ``pages`` of one that sinks do not fit.

    Copies that are given up may have gone with those of another continuation; so one without any is no fault.
    """
    assert ledger.arena is not None, "without a Host tier nothing sinks"
    sinks = ledger.continuations[told.continuation]
    own = {page for held in sinks.pages for page in held}
    sizes = tuple([size for size in transfers.extents_due(ledger, pages) if size])

    def require_lack(act: str) -> None:
        if extents_fit(sizes, ledger.arena.holes() if ledger.arena is not None else ()):
            raise Broken("making-room", f"{what} {act}, although its extents of {list(sizes)} bytes fit")

    for name in told.given_up:
        require_lack(f"gives up Host copies of {name}")
        kept = ledger.continuations.get(name)
        if kept is None or kept is sinks or kept is source:
            raise Broken("making-room", f"{what} gives up Host copies of {name}, which is protected or gone")
        for held in kept.pages:
            for page in held:
                if not page.on_host and page.transfer is None and page not in own:
                    end_clean_copy(page)
    for name in told.evicted:
        require_lack(f"releases {name} on Host")
        kept = ledger.continuations.get(name)
        on_device = kept is not None and any(page.leased for held in kept.pages for page in held)
        if kept is None or kept is sinks or kept is source or kept.firm or on_device:
            raise Broken(
                "making-room",
                f"{what} releases {name} on Host, which is protected, in a transfer or on Device",
            )
        drop_continuation(ledger, kept)


def give_up_copies(
    ledger: Ledger, given_up: list[int], lacks: Callable[[], bool], source: Holder | None, what: str
) -> None:
    """Free the hidden Device copies of the next of ``given_up`` while pages are lacking; take them off the list."""
    while given_up and lacks():
        name = given_up.pop(0)
        kept = ledger.continuations.get(name)
        copies = (
            []
            if kept is None
            else [
                page
                for held in kept.pages
                for page in held
                if page.on_host and page.leased and page.transfer is None
            ]
        )
        if kept is None or kept is source or not may_release(kept) or not copies:
            raise Broken("making-room", f"{what} gives up Device copies of {name}, which has none to give")
        for page in copies:
            if not page.firm and page.stamp not in ledger.outstanding:
                ledger.yielding[page.pool] -= 1
            ledger.leave(page)


def _restore(ledger: Ledger, request: Holder, told: history.Started, evicted: list[int]) -> None:
    kept = ledger.continuations.get(told.continuation)
    pages = [] if kept is None else missing_below(ledger, kept, told.positions)
    if kept is None or not pages or any(page.transfer for page in pages):
        raise Broken(
            "outcome",
            f"a restore of {told.continuation} up to {told.positions} is started for sequence {request.id}: that is no "
            "continuation of which as much is on Host and in no transfer",
        )
    transfers.restore_hit(ledger, told, pages, evicted)
    request.tried.add(kept.id)
