"""Coverage goals: situations that a campaign has to have been in before its silence means anything.

Each goal is a name, a sentence and a predicate over one operation with what was there before and after.  Goals
judge the generator, not the engine: a goal that is never reached says that a region of inputs was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import pages_for
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    BeginUnit,
    Cancel,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Lookup,
    Submit,
    Truncate,
    TryAdmit,
    UnitEnded,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.operations import Schedule as ScheduleOperation
from kvcrucible.contract.planes import BACKENDS, LEADING
from kvcrucible.contract.tokens import count
from kvcrucible.fuzz import (
    coverage_backend,
    coverage_backfill,
    coverage_cache,
    coverage_host,
    coverage_media,
    coverage_room,
    coverage_speculation,
    coverage_tight,
)
from kvcrucible.fuzz.goals import (
    GOALS,
    HOST,
    NOTHING,
    PREFIX_CACHE,
    RETAINING,
    Goal,
    Needs,
    Seen,
    admissions,
    goal,
    observe,
    observe_queue,
    reached,
    simple,
)

#: Modules that register further goals as they are imported.
PARTS = (
    coverage_backend,
    coverage_backfill,
    coverage_cache,
    coverage_host,
    coverage_media,
    coverage_room,
    coverage_speculation,
    coverage_tight,
)

__all__ = ["GOALS", "Goal", "admissions", "observe", "observe_queue", "reached", "within_reach"]

#: Beside every operation, everything that a setting may have.
_ANY_BACKEND: tuple[str | None, ...] = (None, *BACKENDS)


def within_reach(
    goal: Goal,
    able: Capabilities,
    backends: Collection[str | None] = _ANY_BACKEND,
    hosts: Collection[bool] = (False, True),
) -> bool:
    """Say whether an engine can reach ``goal`` at all: it has one of the operations, and what else it takes.

    ``backends``: what the settings have beside Main; ``hosts``: whether they have a Host tier.
    """
    needs = goal.needs
    reachable = able.backends.intersection(filter(None, backends))
    if (needs.backend and not reachable) or (needs.leading and not reachable & LEADING):
        return False
    if needs.host and not (able.host and True in hosts):
        return False
    if needs.hostless and False not in hosts:
        return False
    has = bool(goal.after & able.operations) and needs.operations <= able.operations
    return has and needs.able(able)


# -- forks -------------------------------------------------------------------------------------------------------------


@goal(
    "fork-inside-shared-page-when-full",
    "fork inside a page that is shared while the pool has no free page",
    Fork,
)
def _fork_shared_full(seen: Seen) -> bool:
    fork = seen.operation
    assert isinstance(fork, Fork)
    inside = fork.position % seen.page_size != 0 and seen.references(fork.source, fork.position) > 1
    return inside and seen.before.pools[0].free == 0


@goal("fork-copies-a-tail", "fork at a position inside a page", Fork)
def _fork_tail(seen: Seen) -> bool:
    assert isinstance(seen.operation, Fork)
    return seen.done and seen.operation.position % seen.page_size != 0


@goal("fork-at-page-boundary", "fork at a page boundary: nothing is copied", Fork)
def _fork_boundary(seen: Seen) -> bool:
    assert isinstance(seen.operation, Fork)
    return seen.done and seen.operation.position % seen.page_size == 0


@goal("fork-of-a-fork", "fork a sequence whose first page is shared already", Fork)
def _fork_of_fork(seen: Seen) -> bool:
    assert isinstance(seen.operation, Fork)
    return seen.done and seen.references(seen.operation.source, 0) > 1


@goal("fork-of-a-continuation", "fork a retained sequence", Fork)
def _fork_continuation(seen: Seen) -> bool:
    assert isinstance(seen.operation, Fork)
    return seen.done and seen.operation.source in seen.before.continuations


@goal("fork-while-others-run", "fork while a unit over other rows is in flight", Fork)
def _fork_during_unit(seen: Seen) -> bool:
    return seen.done and bool(seen.before.units)


# -- cuts --------------------------------------------------------------------------------------------------------------


def _cut_of(seen: Seen) -> Truncate | None:
    """Return the truncation if it removed at least one token."""
    cut = seen.operation
    assert isinstance(cut, Truncate)
    space = seen.before.spaces.get((cut.sequence, 0))
    return cut if seen.done and space is not None and cut.position < space.frontier else None


def _cut_at(offset: int) -> Callable[[Seen], bool]:
    def predicate(seen: Seen) -> bool:
        cut = _cut_of(seen)
        return cut is not None and cut.position == offset

    return predicate


def _cut_near_page(offset: int) -> Callable[[Seen], bool]:
    def predicate(seen: Seen) -> bool:
        cut = _cut_of(seen)
        return cut is not None and cut.position == seen.page_size + offset

    return predicate


simple("cut-to-0", "cut to 0", _cut_at(0), Truncate)
simple("cut-to-1", "cut to 1", _cut_at(1), Truncate)
simple("cut-to-page-minus-1", "cut to one token below the first page boundary", _cut_near_page(-1), Truncate)
simple("cut-to-page", "cut to the first page boundary", _cut_near_page(0), Truncate)
simple("cut-to-page-plus-1", "cut to one token above the first page boundary", _cut_near_page(1), Truncate)


@goal("cut-below-a-shared-page", "cut a sequence below a page that others reference", Truncate)
def _cut_below_shared(seen: Seen) -> bool:
    cut = _cut_of(seen)
    if cut is None:
        return False
    keep = pages_for(cut.position, seen.page_size)
    pages = seen.before.spaces[cut.sequence, 0].pages[keep:]
    return any(seen.before.pages[page].references > 1 for page in pages)


@goal("cut-inside-a-shared-page", "cut inside a page that others reference: its columns are copied", Truncate)
def _cut_inside_shared(seen: Seen) -> bool:
    cut = _cut_of(seen)
    inside = cut is not None and cut.position % seen.page_size != 0
    return inside and cut is not None and seen.references(cut.sequence, cut.position) > 1


@goal(
    "cut-refused-for-regrowth", "a cut is refused because the shared pages cannot be reserved anew", Truncate
)
def _cut_refused(seen: Seen) -> bool:
    return seen.outcome.refusal is RefusalKind.DEVICE_CAPACITY


@goal("cut-releases-a-continuation", "a cut releases a continuation to reserve its regrowth", Truncate)
def _cut_evicts(seen: Seen) -> bool:
    return seen.done and bool(seen.outcome.evicted)


@goal("cut-drops-a-checkpoint", "a cut drops a checkpoint", Truncate)
def _cut_drops(seen: Seen) -> bool:
    return seen.done and len(seen.after.checkpoints) < len(seen.before.checkpoints)


@goal("cut-keeps-a-checkpoint", "a cut leaves a lower checkpoint of the same sequence in place", Truncate)
def _cut_keeps(seen: Seen) -> bool:
    cut = _cut_of(seen)
    return cut is not None and any(mark.owner == cut.sequence for mark in seen.after.checkpoints.values())


@goal("cut-during-prefill", "a cut ends an incomplete prefill", Truncate)
def _cut_prefill(seen: Seen) -> bool:
    cut = _cut_of(seen)
    if cut is None:
        return False
    return seen.before.sequences[cut.sequence].prompt > seen.before.spaces[cut.sequence, 0].frontier


# -- units and cancels -------------------------------------------------------------------------------------------------


@goal("cancel-between-units", "cancel an active sequence that is not in flight", Cancel)
def _cancel_idle(seen: Seen) -> bool:
    assert isinstance(seen.operation, Cancel)
    return seen.outcome.value is True and seen.operation.sequence in seen.before.sequences


@goal("cancel-during-a-unit", "cancel a selected row: recorded", Cancel)
def _cancel_in_flight(seen: Seen) -> bool:
    return seen.done and seen.outcome.value is False


@goal(
    "cancelled-beside-committed",
    "a unit ends with one row cancelled and another committed",
    EndUnit,
    needs=Needs(able=lambda able: able.works_per_unit != 1),
)
def _cancel_and_commit(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    ended = seen.outcome.value
    return (
        isinstance(ended, UnitEnded)
        and seen.operation.commit
        and bool(ended.cancelled)
        and bool(ended.frontiers)
    )


@goal(
    "abort-returns-pages",
    "an aborted unit gives new pages back to the reservation",
    EndUnit,
    needs=Needs(able=lambda able: able.aborts),
)
def _abort_pages(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    return (
        seen.done and not seen.operation.commit and seen.after.pools[0].leased < seen.before.pools[0].leased
    )


@goal("two-units-in-flight", "a second unit begins while one is in flight", BeginUnit)
def _two_units(seen: Seen) -> bool:
    return seen.done and len(seen.after.units) > 1


@goal("run-over-pages", "one run of appended tokens crosses two page boundaries", BeginUnit)
def _run_over_pages(seen: Seen) -> bool:
    return seen.done and any(
        stop // seen.page_size - start // seen.page_size > 1
        for unit in seen.after.units.values()
        for _, pool, start, stop in unit.work
        if pool == 0
    )


@goal("append-into-the-last-page", "a sequence reaches its limit exactly", EndUnit)
def _reaches_limit(seen: Seen) -> bool:
    return any(
        seen.after.spaces[owner, 0].frontier == state.limit
        for owner, state in seen.after.sequences.items()
        if owner in seen.before.sequences and seen.before.spaces[owner, 0].frontier < state.limit
    )


@goal("submit-during-a-unit", "submit while a unit is in flight", Submit)
def _submit_in_unit(seen: Seen) -> bool:
    return seen.done and bool(seen.before.units)


@goal("admit-during-a-unit", "admit while a unit is in flight", ScheduleOperation, TryAdmit)
def _admit_in_unit(seen: Seen) -> bool:
    return bool(seen.before.units) and bool(admissions(seen.outcome.value))


# -- admission and the cache -------------------------------------------------------------------------------------------


def _slack(pages: int) -> Callable[[Seen], bool]:
    return lambda seen: seen.slack == pages


for _pages, _word in ((-1, "one page more than"), (0, "exactly"), (1, "one page less than")):
    simple(
        f"capacity-at-demand{-_pages:+d}" if _pages else "capacity-at-demand",
        f"ask when {_word} the pages needed can be had",
        _slack(_pages),
        BeginUnit,
        Fork,
        ScheduleOperation,
        TryAdmit,
        Truncate,
    )

for _mode in AdmissionMode:
    simple(
        f"admit-{_mode.value}",
        f"admission by {_mode.value}",
        lambda seen, mode=_mode: any(one.mode is mode for one in admissions(seen.outcome.value)),  # type: ignore[misc]
        ScheduleOperation,
        TryAdmit,
        needs=NOTHING if _mode is AdmissionMode.COLD else PREFIX_CACHE,
    )

#: Reasons to wait that not every engine can have.
_WAITS = {
    WaitingKind.SESSION_BUSY: PREFIX_CACHE,
    WaitingKind.DEVICE_CAPACITY: Needs(able=lambda able: able.reserves),
    WaitingKind.RESTORING: HOST,
    WaitingKind.SINKING: HOST,
}

for _kind in WaitingKind:
    simple(
        f"wait-{_kind.value}",
        f"the request waits: {_kind.value}",
        lambda seen, kind=_kind: any(  # type: ignore[misc]
            isinstance(value, Waiting) and value.kind is kind
            for value in (seen.outcome.value, getattr(seen.outcome.value, "waiting", None))
        ),
        TryAdmit if _kind is WaitingKind.BEHIND_HEAD else ScheduleOperation,
        needs=_WAITS.get(_kind, NOTHING),
    )


@goal(
    "cut-source-after-release",
    "a source is cut and moved after others were released",
    ScheduleOperation,
    TryAdmit,
    needs=PREFIX_CACHE,
)
def _moved_after_release(seen: Seen) -> bool:
    modes = {one.mode for one in admissions(seen.outcome.value)}
    return AdmissionMode.MOVE_TRUNCATED in modes and bool(seen.outcome.evicted)


@goal(
    "hit-on-active-source",
    "admission forks a sequence that is still active",
    ScheduleOperation,
    TryAdmit,
    needs=PREFIX_CACHE,
)
def _hit_active(seen: Seen) -> bool:
    return any(one.source in seen.before.sequences for one in admissions(seen.outcome.value))


@goal("hit-inside-a-page", "a hit ends inside a page", ScheduleOperation, TryAdmit, needs=PREFIX_CACHE)
def _hit_inside(seen: Seen) -> bool:
    return any(one.hit % seen.page_size for one in admissions(seen.outcome.value))


@goal("hit-capped", "a prompt that is known whole hits all but its last token", Lookup)
def _hit_capped(seen: Seen) -> bool:
    assert isinstance(seen.operation, Lookup)
    hit = seen.outcome.value
    if not isinstance(hit, Hit) or hit.length != count(seen.operation.prompt) - 1:
        return False
    return seen.before.checkpoints[hit.checkpoint].frontier > hit.length


@goal("hit-under-collisions", "a lookup hits although all tokens hash alike", Lookup)
def _hit_collision(seen: Seen) -> bool:
    return isinstance(seen.outcome.value, Hit) and seen.setting.hash_bits == 0


@goal(
    "release-under-pressure",
    "admission releases a continuation to make room",
    ScheduleOperation,
    TryAdmit,
    needs=RETAINING,
)
def _evict(seen: Seen) -> bool:
    return bool(seen.outcome.evicted)


@goal(
    "released-while-borrowed",
    "a continuation is released while another holder keeps some of its pages",
    ScheduleOperation,
    TryAdmit,
    Fork,
    Truncate,
    needs=RETAINING,
)
def _evict_borrowed(seen: Seen) -> bool:
    gone = (page for owner in seen.outcome.evicted for page in seen.before.spaces[owner, 0].pages)
    return any(page in seen.after.pages for page in gone)


@goal(
    "retain-replaces-session",
    "a retained sequence replaces the continuation of its session",
    Finish,
    needs=RETAINING,
)
def _replaces(seen: Seen) -> bool:
    return seen.outcome.value is True and len(seen.after.continuations) <= len(seen.before.continuations)


@goal("retain-of-nothing", "retaining a sequence without a token discards it", Finish, needs=RETAINING)
def _retain_nothing(seen: Seen) -> bool:
    assert isinstance(seen.operation, Finish)
    return seen.done and seen.operation.retain and seen.outcome.value is False
