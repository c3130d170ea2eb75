"""Coverage goals about what a Host tier and fences do to others: what is found, who is released, which pages wait."""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.media import labelled
from kvcrucible.contract.operations import (
    Cancel,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Lookup,
    Progress,
    Release,
    Restore,
    Schedule,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.contract.tokens import common_prefix, count
from kvcrucible.fuzz.goals import HOST, Needs, Seen, admissions, goal, in_transfer, pages_of, resident, simple

#: What an engine needs to have pages that wait for their fence.
_FENCES = Needs(frozenset({"Progress"}))

# -- what is found, and what makes room --------------------------------------------------------------------------------


@goal("lookup-hits-demoted", "the best hit is a continuation that is not resident", Lookup, needs=HOST)
def _hits_demoted(seen: Seen) -> bool:
    hit = seen.outcome.value
    return isinstance(hit, Hit) and not resident(seen.before, hit.source)


@goal(
    "lookup-prefers-resident",
    "of equal hits the resident one is taken, although its id is higher",
    Lookup,
    needs=HOST,
)
def _prefers(seen: Seen) -> bool:
    assert isinstance(seen.operation, Lookup)
    hit, lookup = seen.outcome.value, seen.operation
    if not isinstance(hit, Hit) or not resident(seen.before, hit.source):
        return False
    most = count(lookup.prompt) - 1
    for checkpoint, entry in seen.before.findable.items():
        if checkpoint >= hit.checkpoint or entry.identity != lookup.identity:
            continue
        equal = min(common_prefix(entry.tokens, labelled(lookup.prompt, lookup.spans)), most) == hit.length
        if equal and not resident(seen.before, seen.before.checkpoints[checkpoint].owner):
            return True
    return False


@goal(
    "admission-leaves-out-demoted",
    "a request starts from less than a demoted continuation has of it",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _leaves_out(seen: Seen) -> bool:
    for one in admissions(seen.outcome.value):
        prompt, identity = seen.prompts[one.sequence], seen.after.sequences[one.sequence].identity
        for checkpoint, entry in seen.before.findable.items():
            longer = min(common_prefix(entry.tokens, prompt), count(prompt) - 1) > one.hit
            demoted = not resident(seen.before, seen.before.checkpoints[checkpoint].owner)
            if longer and demoted and entry.identity == identity:
                return True
    return False


def _passed_over(why: Callable[[Snapshot, int], bool]) -> Callable[[Seen], bool]:
    """Return whether something is released although an older continuation is there, for the reason ``why``."""

    def predicate(seen: Seen) -> bool:
        kept = seen.before.continuations
        used = [kept[owner].last_use for owner in seen.outcome.evicted if owner in kept]
        older = [owner for owner, state in kept.items() if used and state.last_use < min(used)]
        return any(why(seen.before, owner) for owner in older if owner in seen.after.continuations)

    return predicate


for _name, _statement, _why in (
    ("room-passes-over-transfers", "in a transfer", in_transfer),
    (
        "room-passes-over-demoted",
        "without a page on Device",
        lambda snapshot, owner: all(page.device < 0 for page in pages_of(snapshot, owner)),
    ),
):
    simple(
        _name,
        f"room is made by releasing a continuation although an older one is there, {_statement}",
        _passed_over(_why),
        Schedule,
        TryAdmit,
        Fork,
        Truncate,
        Restore,
        needs=HOST,
    )

# -- fences ------------------------------------------------------------------------------------------------------------


@goal(
    "page-retires",
    "a page is given up while a unit that touched it is outstanding",
    Finish,
    Cancel,
    EndUnit,
    Release,
    needs=_FENCES,
)
def _retires(seen: Seen) -> bool:
    return len(seen.after.retiring) > len(seen.before.retiring)


@goal(
    "page-retires-at-a-transfer",
    "the end of a transfer gives up a page that an outstanding unit touched",
    Progress,
    needs=HOST,
)
def _retires_moved(seen: Seen) -> bool:
    return bool(seen.after.retiring.keys() - seen.before.retiring.keys())


@goal("page-retired", "a retiring page becomes free", Progress, needs=_FENCES)
def _retired(seen: Seen) -> bool:
    return bool(seen.before.retiring.keys() - seen.after.retiring.keys())


@goal(
    "room-short-of-retiring",
    "something waits or is refused for want of pages that are only retiring",
    Schedule,
    Fork,
    Truncate,
    Restore,
    needs=_FENCES,
)
def _short(seen: Seen) -> bool:
    waiting = getattr(seen.outcome.value, "waiting", None)
    wants = seen.outcome.refusal is RefusalKind.DEVICE_CAPACITY or waiting is not None
    return wants and seen.slack is not None and 0 < seen.slack <= len(seen.before.retiring)


@goal(
    "returned-page-retires",
    "a page that a cut or an abort gave back retires as its sequence ends",
    Finish,
    Cancel,
    EndUnit,
    needs=_FENCES,
)
def _returned(seen: Seen) -> bool:
    held = {(page.pool, page.device) for page in seen.before.pages.values()}
    return bool(seen.after.retiring.keys() - seen.before.retiring.keys() - held)
