"""Coverage goals about the Host tier (decision 0013): what moves, what is refused, what happens to pages meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    Cancel,
    CancelTransfer,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Operation,
    Progress,
    Progressed,
    Release,
    Restore,
    Schedule,
    TransferEnded,
    TransferOutcome,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.snapshot import MoveState, PageState, Snapshot, Tier, TransferState
from kvcrucible.fuzz.goals import HOST, Needs, Seen, admissions, goal, in_transfer, pages_of, simple, takers


def _held_by_active(snapshot: Snapshot) -> set[int]:
    return {
        page
        for (owner, _), space in snapshot.spaces.items()
        if owner in snapshot.sequences
        for page in space.pages
    }


# -- refusals ----------------------------------------------------------------------------------------------------------


def _refused(kind: RefusalKind, where: Callable[[Seen], bool] = lambda seen: True) -> Callable[[Seen], bool]:
    return lambda seen: seen.outcome.refusal is kind and where(seen)


def _moved_owner(operation: Operation) -> int:
    assert isinstance(operation, Demote | Restore)
    return operation.continuation


def _on_a_continuation(seen: Seen) -> bool:
    return _moved_owner(seen.operation) in seen.before.continuations


simple(
    "move-of-nobody", "move a holder that is not there", _refused(RefusalKind.STALE_HANDLE), Demote, Restore
)
simple(
    "move-of-no-continuation",
    "move what is queued or active",
    _refused(RefusalKind.WRONG_STATE, lambda seen: not _on_a_continuation(seen)),
    Demote,
    Restore,
)
simple(
    "demote-of-nothing-movable",
    "demote a continuation of which nothing can move",
    _refused(RefusalKind.WRONG_STATE, _on_a_continuation),
    Demote,
    needs=HOST,
)
simple(
    "restore-of-nothing",
    "restore a continuation that has nothing on Host, or all of it in a transfer",
    _refused(RefusalKind.WRONG_STATE, _on_a_continuation),
    Restore,
    needs=HOST,
)
simple(
    "demote-without-host",
    "demote on an engine without a Host tier",
    _refused(RefusalKind.BAD_ARGUMENT),
    Demote,
    needs=Needs(hostless=True),
)
simple(
    "restore-too-large",
    "too few pages to restore",
    _refused(RefusalKind.DEVICE_CAPACITY),
    Restore,
    needs=HOST,
)
simple(
    "cancel-of-no-transfer", "cancel what is no transfer", _refused(RefusalKind.STALE_HANDLE), CancelTransfer
)


@goal("fork-of-demoted", "fork a continuation that is not resident", Fork, needs=HOST)
def _fork_demoted(seen: Seen) -> bool:
    assert isinstance(seen.operation, Fork)
    kept = seen.operation.source in seen.before.continuations
    return kept and seen.outcome.refusal is RefusalKind.WRONG_STATE


@goal("demote-does-not-fit", "the extents of a demotion need more bytes than are free", Demote, needs=HOST)
def _does_not_fit(seen: Seen) -> bool:
    return seen.outcome.refusal is RefusalKind.HOST_GEOMETRY and _extent_bytes(seen) > _free_bytes(
        seen.before
    )


@goal(
    "demote-into-holes",
    "enough bytes are free for a demotion, in holes that it does not fit",
    Demote,
    needs=HOST,
)
def _geometry(seen: Seen) -> bool:
    return seen.outcome.refusal is RefusalKind.HOST_GEOMETRY and _extent_bytes(seen) <= _free_bytes(
        seen.before
    )


def _free_bytes(snapshot: Snapshot) -> int:
    return 0 if snapshot.host is None else snapshot.host.free


def _extent_bytes(seen: Seen) -> int:
    """Return the bytes that the extents of a demotion take: of pages that can move and have no copy on Host."""
    config, active = seen.setting.engine_config(), _held_by_active(seen.before)
    assert config.host is not None
    total = 0
    for pool, spec in enumerate(config.pools):
        copied = [
            page
            for page in pages_of(seen.before, _moved_owner(seen.operation))
            if page.pool == pool and page.visible is Tier.DEVICE and not page.in_transfer
            if page.page not in active and page.on_host is None
        ]
        total += config.host.rounded(len(copied) * spec.page_bytes) if copied else 0
    return total


# -- starts ------------------------------------------------------------------------------------------------------------


def _started(seen: Seen) -> TransferState | None:
    value = seen.outcome.value
    return seen.after.transfers.get(value) if seen.done and isinstance(value, int) else None


@goal("demote-in-part", "a demotion moves some pages of a continuation and leaves others", Demote, needs=HOST)
def _part(seen: Seen) -> bool:
    one = _started(seen)
    return one is not None and len(one.moves) < len(list(pages_of(seen.before, one.continuation)))


@goal(
    "demote-in-both-pools",
    "one demotion takes an extent in each of two pools",
    Demote,
    needs=Needs(backend=True, host=True),
)
def _both(seen: Seen) -> bool:
    one = _started(seen)
    return one is not None and {move.pool for move in one.moves if move.fresh} == {0, 1}


@goal("demote-of-shared-pages", "a page moves that two continuations hold", Demote, Restore, needs=HOST)
def _shared(seen: Seen) -> bool:
    one = _started(seen)
    return one is not None and any(seen.before.pages[move.page].references > 1 for move in one.moves)


@goal(
    "move-without-copy",
    "a transfer starts of which every page has a valid copy already",
    Demote,
    Restore,
    needs=HOST,
)
def _no_copy(seen: Seen) -> bool:
    one = _started(seen)
    return one is not None and not any(move.fresh for move in one.moves)


@goal("copy-in-part", "a transfer copies some pages and finds copies of others", Demote, Restore, needs=HOST)
def _some_copies(seen: Seen) -> bool:
    one = _started(seen)
    return one is not None and len({move.fresh for move in one.moves}) > 1


@goal("two-transfers", "a transfer starts while another is under way", Demote, Restore, needs=HOST)
def _two(seen: Seen) -> bool:
    return _started(seen) is not None and bool(seen.before.transfers)


@goal(
    "two-transfers-of-one-extent",
    "a transfer starts while another moves slots of the same extent",
    Demote,
    Restore,
    needs=HOST,
)
def _one_extent(seen: Seen) -> bool:
    one = _started(seen)
    others = {
        move.extent for other in seen.before.transfers.values() for move in other.moves if not move.dropped
    }
    return one is not None and any(move.extent in others for move in one.moves)


@goal("restore-makes-room", "a restore releases other continuations", Restore, needs=HOST)
def _restore_evicts(seen: Seen) -> bool:
    return seen.done and bool(seen.outcome.evicted)


# -- ends --------------------------------------------------------------------------------------------------------------


def _ends(seen: Seen) -> Iterator[tuple[TransferState, TransferEnded]]:
    """Yield each transfer that a ``progress`` ended, as it was before, and how it ended."""
    value = seen.outcome.value
    for ended in value.transfers if isinstance(value, Progressed) else ():
        yield seen.before.transfers[ended.transfer], ended


def _living(one: TransferState) -> list[MoveState]:
    return [move for move in one.moves if not move.dropped]


def _ended_with(
    outcome: TransferOutcome, where: Callable[[Seen, TransferState, TransferEnded], bool]
) -> Callable[[Seen], bool]:
    return lambda seen: any(
        ended.outcome is outcome and where(seen, one, ended) for one, ended in _ends(seen)
    )


for _outcome, _source in (
    (outcome, tier) for outcome in (TransferOutcome.MOVED, TransferOutcome.KEPT) for tier in Tier
):
    simple(
        f"{_outcome.value}-from-{_source.value}",
        f"a transfer from {_source.value} ends: {_outcome.value}",
        _ended_with(_outcome, lambda _, one, __, source=_source: one.source is source),  # type: ignore[misc]
        Progress,
        needs=HOST,
    )

_WHY: dict[str, tuple[str, Callable[[Seen, TransferState, TransferEnded], bool]]] = {
    "abandoned-cancelled": (
        "it was cancelled",
        lambda _, one, ended: one.cancelling and bool(_living(one)) and not ended.failed,
    ),
    "abandoned-failed": ("a copy failed", lambda _, one, ended: ended.failed and not one.cancelling),
    "abandoned-taken-up": (
        "an active sequence holds one of its pages",
        lambda seen, one, ended: (
            not one.cancelling
            and not ended.failed
            and any(move.page in _held_by_active(seen.before) for move in _living(one))
        ),
    ),
    "taken-up-in-the-backend": (
        "an active sequence holds pages of it, all in the backend",
        lambda seen, one, ended: (
            not one.cancelling
            and not ended.failed
            and {move.pool for move in _living(one) if move.page in _held_by_active(seen.before)} == {1}
            and any(move.pool == 0 for move in _living(one))
        ),
    ),
    "abandoned-empty": ("all its pages have ended", lambda _, one, __: not _living(one)),
}

for _name, (_reason, _where) in _WHY.items():
    simple(
        _name,
        f"a transfer is abandoned because {_reason}",
        _ended_with(TransferOutcome.ABANDONED, _where),
        Progress,
        needs=Needs(backend=_name == "taken-up-in-the-backend", host=True),
    )


@goal(
    "moved-without-the-dropped",
    "a transfer moves the pages that live on and frees those that have ended",
    Progress,
    needs=HOST,
)
def _with_dropped(seen: Seen) -> bool:
    return any(
        ended.outcome is not TransferOutcome.ABANDONED and len(_living(one)) < len(one.moves)
        for one, ended in _ends(seen)
    )


@goal(
    "published-without-copy",
    "pages become visible elsewhere although nothing was copied",
    Progress,
    needs=HOST,
)
def _published(seen: Seen) -> bool:
    return any(
        ended.outcome is not TransferOutcome.ABANDONED and not any(move.fresh for move in one.moves)
        for one, ended in _ends(seen)
    )


@goal("transfer-outlasts-progress", "a transfer is still under way after a look at it", Progress, needs=HOST)
def _outlasts(seen: Seen) -> bool:
    return bool(seen.before.transfers.keys() & seen.after.transfers.keys())


# -- meanwhile ---------------------------------------------------------------------------------------------------------


@goal("released-in-transfer", "a continuation is released while its pages move", Release, needs=HOST)
def _released(seen: Seen) -> bool:
    assert isinstance(seen.operation, Release)
    return seen.done and in_transfer(seen.before, seen.operation.continuation)


@goal(
    "session-replaced-in-transfer",
    "the next turn replaces a continuation whose pages move",
    Finish,
    needs=HOST,
)
def _replaced(seen: Seen) -> bool:
    gone = seen.before.continuations.keys() - seen.after.continuations.keys()
    return any(in_transfer(seen.before, owner) for owner in gone)


@goal("fork-from-a-transfer", "a source is forked while its pages move", Fork, Schedule, TryAdmit, needs=HOST)
def _fork_moving(seen: Seen) -> bool:
    if isinstance(seen.operation, Fork):
        return seen.done and in_transfer(seen.before, seen.operation.source)
    return any(
        one.mode is AdmissionMode.FORK and one.source is not None and in_transfer(seen.before, one.source)
        for one in admissions(seen.outcome.value)
    )


@goal(
    "move-denied-in-transfer",
    "a request that could take a continuation does not, because its pages move",
    Schedule,
    TryAdmit,
    needs=HOST,
)
def _move_denied(seen: Seen) -> bool:
    return any(
        in_transfer(seen.before, source) and one.mode is AdmissionMode.FORK for one, source in takers(seen)
    )


def _cut_pages(seen: Seen) -> list[PageState]:
    """Return the pages that a cut took from its sequence, as they were."""
    cut = seen.operation
    if not isinstance(cut, Truncate) or not seen.done:
        return []
    kept = {page.page for page in pages_of(seen.after, cut.sequence)}
    return [page for page in pages_of(seen.before, cut.sequence) if page.page not in kept]


@goal(
    "cut-loses-to-a-transfer",
    "a cut drops the last reference to a page that moves, and reserves it anew",
    Truncate,
    needs=HOST,
)
def _cut_last(seen: Seen) -> bool:
    return any(page.in_transfer and page.references == 1 for page in _cut_pages(seen))


@goal(
    "cut-held-up-by-a-transfer",
    "a cut is refused for want of pages that a transfer holds and nobody else",
    Truncate,
    needs=HOST,
)
def _cut_refused(seen: Seen) -> bool:
    assert isinstance(seen.operation, Truncate)
    return seen.outcome.refusal is RefusalKind.DEVICE_CAPACITY and any(
        page.in_transfer and page.references == 1 for page in pages_of(seen.before, seen.operation.sequence)
    )


@goal(
    "child-ends-in-transfer",
    "a sequence ends that was the last to hold a page that moves",
    Finish,
    Cancel,
    EndUnit,
    needs=HOST,
)
def _child_ends(seen: Seen) -> bool:
    gone = seen.before.pages.keys() - seen.after.pages.keys()
    return any(seen.before.pages[page].in_transfer for page in gone)


def _copy_ended(seen: Seen) -> bool:
    """Say whether a page that lives on has lost its copy."""
    lost = [
        page
        for page, state in seen.before.pages.items()
        if state.on_host is not None and state.on_device is not None and page in seen.after.pages
        if seen.after.pages[page].on_host is None
    ]
    return seen.done and bool(lost)


simple("copy-ends-by-append", "a committed write ends a page's clean copy", _copy_ended, EndUnit, needs=HOST)
simple("copy-ends-by-cut", "a cut ends a page's clean copy", _copy_ended, Truncate, needs=HOST)
