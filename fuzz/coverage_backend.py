"""Coverage goals about a speculative backend beside Main: lag, catching up, and pools that are full by themselves."""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.media import labelled
from kvcrucible.contract.operations import (
    AdmissionMode,
    BeginUnit,
    Checkpoint,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Lookup,
    Schedule,
    Truncate,
    TryAdmit,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Snapshot, SpaceState
from kvcrucible.contract.tokens import common_prefix
from kvcrucible.fuzz.goals import BACKEND, Seen, goal, takers


def _reaches(snapshot: Snapshot, owner: int) -> tuple[SpaceState, SpaceState] | None:
    """Return the spaces of ``owner`` in Main and in the backend, None where it lacks one of them."""
    main, backend = snapshot.spaces.get((owner, 0)), snapshot.spaces.get((owner, 1))
    return None if main is None or backend is None else (main, backend)


def _lags(snapshot: Snapshot, owner: int, above: int = 0) -> bool:
    """Say whether the backend of ``owner`` stands above ``above`` and behind Main."""
    found = _reaches(snapshot, owner)
    return found is not None and above < found[1].frontier < found[0].frontier


# -- units -------------------------------------------------------------------------------------------------------------


@goal("backend-lags", "a unit leaves the backend of a sequence behind Main", EndUnit, needs=BACKEND)
def _unit_lags(seen: Seen) -> bool:
    moved = [owner for owner in seen.after.sequences if _lags(seen.after, owner)]
    return seen.done and any(not _lags(seen.before, owner) for owner in moved)


@goal(
    "backend-catches-up",
    "a unit brings a lagging backend up to Main, writing more there than in Main",
    EndUnit,
    needs=BACKEND,
)
def _catches_up(seen: Seen) -> bool:
    for owner in seen.after.sequences:
        found = _reaches(seen.after, owner)
        if found is not None and _lags(seen.before, owner) and found[0].frontier == found[1].frontier:
            return True
    return False


@goal("backend-left-out", "a unit writes nothing in a backend that has something", BeginUnit, needs=BACKEND)
def _left_out(seen: Seen) -> bool:
    return seen.done and any(
        pool == 1 and first == last > 0
        for unit in seen.after.units.values()
        for _, pool, first, last in unit.work
    )


@goal("abort-returns-backend-pages", "an aborted unit gives pages back in both pools", EndUnit, needs=BACKEND)
def _abort_both(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    pools = zip(seen.before.pools[:2], seen.after.pools[:2], strict=True)
    both = len(seen.after.pools) > 1 and all(new.leased < old.leased for old, new in pools)
    return seen.done and not seen.operation.commit and both


# -- cuts and forks ----------------------------------------------------------------------------------------------------


@goal(
    "cut-leaves-the-backend",
    "a cut takes from Main and leaves a lagging backend untouched",
    Truncate,
    needs=BACKEND,
)
def _cut_above(seen: Seen) -> bool:
    assert isinstance(seen.operation, Truncate)
    key = (seen.operation.sequence, 1)
    found = _reaches(seen.before, seen.operation.sequence)
    if not seen.done or found is None or not 0 < found[1].frontier <= seen.operation.position:
        return False
    return seen.operation.position < found[0].frontier and seen.after.spaces[key] == found[1]


@goal(
    "cut-of-a-lagging-backend", "a cut takes from both pools while the backend lags", Truncate, needs=BACKEND
)
def _cut_both(seen: Seen) -> bool:
    assert isinstance(seen.operation, Truncate)
    return seen.done and _lags(seen.before, seen.operation.sequence, above=seen.operation.position)


@goal(
    "cut-copies-in-one-pool",
    "a cut copies a shared page's columns in one pool and none in the other",
    Truncate,
    needs=BACKEND,
)
def _cut_copies(seen: Seen) -> bool:
    assert isinstance(seen.operation, Truncate)
    found = _reaches(seen.before, seen.operation.sequence)
    if not seen.done or found is None:
        return False
    at = seen.operation.position
    copied = []
    for space, pool in zip(found, seen.before.pools, strict=False):
        page = space.pages[at // pool.page_size] if at < space.frontier else None
        copied.append(
            page is not None and at % pool.page_size != 0 and seen.before.pages[page].references > 1
        )
    return copied[0] != copied[1]


@goal(
    "fork-beyond-the-backend",
    "fork at a position that the backend of the source does not have",
    Fork,
    needs=BACKEND,
)
def _fork_beyond(seen: Seen) -> bool:
    assert isinstance(seen.operation, Fork)
    found = _reaches(seen.before, seen.operation.source)
    return seen.done and found is not None and seen.operation.position > found[1].frontier


@goal(
    "fork-shares-in-one-pool",
    "fork that shares full pages in one pool and none in the other",
    Fork,
    needs=BACKEND,
)
def _fork_one_pool(seen: Seen) -> bool:
    assert isinstance(seen.operation, Fork)
    found = _reaches(seen.before, seen.operation.source)
    if not seen.done or found is None:
        return False
    full = [
        min(seen.operation.position, space.frontier) // pool.page_size
        for space, pool in zip(found, seen.before.pools, strict=False)
    ]
    return (full[0] == 0) != (full[1] == 0)


# -- what can be found -------------------------------------------------------------------------------------------------


@goal(
    "checkpoint-below-main",
    "a checkpoint stands at the frontier of a lagging backend",
    Checkpoint,
    needs=BACKEND,
)
def _checkpoint_below(seen: Seen) -> bool:
    assert isinstance(seen.operation, Checkpoint)
    return seen.done and _lags(seen.before, seen.operation.sequence)


@goal(
    "checkpoint-refused-for-the-backend",
    "nothing to keep: the backend has no position yet",
    Checkpoint,
    needs=BACKEND,
)
def _checkpoint_refused(seen: Seen) -> bool:
    assert isinstance(seen.operation, Checkpoint)
    found = _reaches(seen.before, seen.operation.sequence)
    refused = seen.outcome.refusal is RefusalKind.WRONG_STATE
    return refused and found is not None and found[0].frontier > 0 == found[1].frontier


@goal(
    "retain-of-an-empty-backend",
    "retaining discards: Main has positions and the backend has none",
    Finish,
    needs=BACKEND,
)
def _retain_empty(seen: Seen) -> bool:
    assert isinstance(seen.operation, Finish)
    found = _reaches(seen.before, seen.operation.sequence)
    kept = seen.operation.retain and seen.outcome.value is False
    return seen.done and kept and found is not None and found[0].frontier > 0 == found[1].frontier


@goal(
    "hit-capped-by-the-backend",
    "a prompt goes on as the source does, and hits only what its backend has",
    Lookup,
    needs=BACKEND,
)
def _hit_capped(seen: Seen) -> bool:
    assert isinstance(seen.operation, Lookup)
    hit = seen.outcome.value
    if not isinstance(hit, Hit) or not _lags(seen.before, hit.source):
        return False
    owner = seen.before.sequences.get(hit.source) or seen.before.continuations[hit.source]
    common = common_prefix(labelled(seen.operation.prompt, seen.operation.spans), owner.tokens)
    return hit.length == seen.before.spaces[hit.source, 1].frontier < common


@goal(
    "move-refused-by-lag",
    "a request may consume a continuation and cannot move it as it is, because the backend of that lags",
    Schedule,
    TryAdmit,
    needs=BACKEND,
)
def _move_refused(seen: Seen) -> bool:
    return any(
        _lags(seen.before, source)
        and one.hit == seen.before.spaces[source, 1].frontier
        and one.mode is not AdmissionMode.MOVE
        for one, source in takers(seen)
    )


# -- pools that are full by themselves ---------------------------------------------------------------------------------


def _wants(seen: Seen) -> bool:
    """Say whether the operation did not get its pages."""
    value = seen.outcome.value
    waiting = value if isinstance(value, Waiting) else getattr(value, "waiting", None)
    waits = isinstance(waiting, Waiting) and waiting.kind is WaitingKind.DEVICE_CAPACITY
    return waits or seen.outcome.refusal is RefusalKind.DEVICE_CAPACITY


def _full_alone(full: int) -> Callable[[Seen], bool]:
    """Return whether something is refused while pool ``full`` has no free page and the other has half of its own."""

    def predicate(seen: Seen) -> bool:
        pools = seen.after.pools
        if len(pools) < 2 or not _wants(seen):
            return False
        return pools[full].free == 0 and pools[1 - full].free >= pages_for(pools[1 - full].capacity, 2)

    return predicate


for _index, _name in enumerate(("main", "backend")):
    goal(
        f"{_name}-full-alone",
        f"something has to wait or is refused because the {_name} pool is full, and half of the other is free",
        Schedule,
        TryAdmit,
        Fork,
        Truncate,
        needs=BACKEND,
    )(_full_alone(_index))
