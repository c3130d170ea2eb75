"""Coverage goals about rounds of speculation: what is accepted, what is trimmed, how far a backend leads (0023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import Append, BeginUnit, EndUnit
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.fuzz.goals import BACKEND, SPECULATION, Seen, goal

_WITH_BACKEND = replace(SPECULATION, backend=True)
_LEADING = replace(SPECULATION, backend=True, leading=True)


@dataclass(frozen=True, slots=True)
class _Round:
    """What a unit that has ended did for a sequence of which fewer tokens were kept than written, in one pool."""

    sequence: int
    pool: int
    first: int
    written: int
    kept: int
    page_size: int

    @property
    def trimmed_pages(self) -> int:
        return pages_for(self.written, self.page_size) - pages_for(self.kept, self.page_size)


def _rounds(seen: Seen) -> Iterator[_Round]:
    """Yield, for each pool, what a committed unit kept of every sequence that it cut short."""
    assert isinstance(seen.operation, EndUnit)
    if not seen.done or not seen.operation.commit:
        return
    for owner, pool, first, last in seen.before.units[seen.operation.unit].work:
        space = seen.after.spaces.get((owner, pool))
        if owner in seen.after.sequences and space is not None and space.frontier < last:
            yield _Round(owner, pool, first, last, space.frontier, seen.after.pools[pool].page_size)


def _main(seen: Seen) -> Iterator[_Round]:
    return (one for one in _rounds(seen) if one.pool == 0)


@goal("accept-fewer", "a round keeps fewer tokens than it wrote", EndUnit, needs=SPECULATION)
def _fewer(seen: Seen) -> bool:
    return any(_main(seen))


@goal("accept-one-of-many", "a round keeps one token of at least three", EndUnit, needs=SPECULATION)
def _one(seen: Seen) -> bool:
    return any(one.kept - one.first == 1 and one.written - one.first > 2 for one in _main(seen))


@goal("accept-cuts-mid-page", "what is kept of a round ends inside a page", EndUnit, needs=SPECULATION)
def _mid_page(seen: Seen) -> bool:
    return any(one.kept % one.page_size for one in _main(seen))


@goal("accept-cuts-at-a-boundary", "what is kept of a round ends with a page", EndUnit, needs=SPECULATION)
def _boundary(seen: Seen) -> bool:
    return any(one.kept % one.page_size == 0 for one in _main(seen))


@goal(
    "accept-differs-by-row",
    "a round keeps all of one sequence and a part of another",
    EndUnit,
    needs=replace(SPECULATION, able=lambda able: able.speculates and able.works_per_unit != 1),
)
def _by_row(seen: Seen) -> bool:
    cut = {one.sequence for one in _main(seen)}
    return bool(cut) and len({owner for owner, _ in seen.outcome.value.frontiers} - cut) > 0  # type: ignore[union-attr]


@goal("trim-returns-main-pages", "a round gives pages of Main back", EndUnit, needs=SPECULATION)
def _trims_main(seen: Seen) -> bool:
    return any(one.trimmed_pages for one in _main(seen))


@goal("trim-returns-backend-pages", "a round gives pages of the backend back", EndUnit, needs=_WITH_BACKEND)
def _trims_backend(seen: Seen) -> bool:
    return any(one.pool == 1 and one.trimmed_pages for one in _rounds(seen))


@goal(
    "trim-in-one-pool",
    "a round gives pages back in one pool, and in the other cuts inside its last page",
    EndUnit,
    needs=_WITH_BACKEND,
)
def _trims_one(seen: Seen) -> bool:
    found: dict[int, list[bool]] = {}
    for one in _rounds(seen):
        found.setdefault(one.sequence, []).append(one.trimmed_pages > 0)
    return any(sorted(pages) == [False, True] for pages in found.values())


@goal(
    "append-after-a-partial-accept", "a unit writes where the last one was cut", BeginUnit, needs=SPECULATION
)
def _append_after(seen: Seen) -> bool:
    assert isinstance(seen.operation, BeginUnit)
    return seen.done and any(work.sequence in seen.trimmed for work in seen.operation.work)


@goal("accept-refused", "what cannot be accepted is refused", EndUnit, needs=SPECULATION)
def _refused(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    return bool(seen.operation.accepted) and seen.outcome.refusal is RefusalKind.BAD_ARGUMENT


# -- a backend ahead of Main -------------------------------------------------------------------------------------------


def _ahead(snapshot: Snapshot, unit: int) -> Iterator[tuple[int, int]]:
    """Yield each sequence of a unit in flight whose backend is written beyond Main, and up to where."""
    stops = {(owner, pool): last for owner, pool, _, last in snapshot.units[unit].work}
    for (owner, pool), last in stops.items():
        if pool == 1 and last > stops[owner, 0]:
            yield owner, last


def _leads(seen: Seen) -> Iterator[tuple[int, int]]:
    new = seen.after.units.keys() - seen.before.units.keys()
    return (one for unit in new for one in _ahead(seen.after, unit))


@goal("lead-of-its-own", "a backend runs ahead less far than it might", BeginUnit, needs=_LEADING)
def _lead(seen: Seen) -> bool:
    return any(last < seen.after.sequences[owner].limit for owner, last in _leads(seen))


@goal("lead-up-to-the-limit", "a backend runs ahead up to its sequence's limit", BeginUnit, needs=_LEADING)
def _lead_limit(seen: Seen) -> bool:
    limits = [(seen.after.sequences[owner].limit, last) for owner, last in _leads(seen)]
    return any(last == limit < seen.setting.max_context for limit, last in limits)


@goal("lead-up-to-the-context", "a backend runs ahead to the end of the context", BeginUnit, needs=_LEADING)
def _lead_context(seen: Seen) -> bool:
    return any(last == seen.setting.max_context for _, last in _leads(seen))


@goal(
    "lead-refused",
    "a backend would run ahead beyond its sequence's limit, with Main within it",
    BeginUnit,
    needs=_LEADING,
)
def _lead_refused(seen: Seen) -> bool:
    assert isinstance(seen.operation, BeginUnit)
    if seen.outcome.refusal is not RefusalKind.LIMIT_EXCEEDED or len(seen.before.pools) < 2:
        return False
    for work in seen.operation.work:
        active = seen.before.sequences.get(work.sequence)
        if active is not None and isinstance(work, Append) and work.backend is not None:
            main, backend = (seen.before.spaces[work.sequence, pool].frontier for pool in (0, 1))
            if main + work.count <= active.limit < backend + work.backend:
                return True
    return False


@goal(
    "lead-cut-of-a-kept-round",
    "a round keeps all of its tokens, and its backend's lead is cut",
    EndUnit,
    needs=_LEADING,
)
def _lead_cut(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    if not seen.done or not seen.operation.commit:
        return False
    cut = {one.sequence for one in _main(seen)}
    led = {owner for owner, _ in _ahead(seen.before, seen.operation.unit)}
    return bool((led & seen.after.sequences.keys()) - cut)


@goal(
    "abort-of-a-lead",
    "a round whose backend leads is aborted",
    EndUnit,
    needs=replace(_LEADING, able=lambda able: able.speculates and able.aborts),
)
def _lead_aborted(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    aborted = seen.done and not seen.operation.commit
    return aborted and any(_ahead(seen.before, seen.operation.unit))


@goal(
    "cancel-during-a-lead",
    "a sequence whose cancel was recorded ends with a round in which its backend led",
    EndUnit,
    needs=replace(_LEADING, operations=frozenset({"Cancel"})),
)
def _lead_cancelled(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    if not seen.done:
        return False
    led = (owner for owner, _ in _ahead(seen.before, seen.operation.unit))
    return any(seen.before.sequences[owner].cancel_recorded for owner in led)


@goal(
    "backend-behind-a-cut-round",
    "a round is cut and leaves the backend behind Main all the same",
    EndUnit,
    needs=_WITH_BACKEND,
)
def _behind(seen: Seen) -> bool:
    assert isinstance(seen.operation, EndUnit)
    return any(
        (space := seen.after.spaces.get((one.sequence, 1))) is not None and space.frontier < one.kept
        for one in _main(seen)
    )


@goal(
    "refused-ahead",
    "a backend that may not run ahead would",
    BeginUnit,
    needs=replace(BACKEND, able=lambda able: bool(able.backends - {"mtp"})),
)
def _refused_ahead(seen: Seen) -> bool:
    assert isinstance(seen.operation, BeginUnit)
    if seen.outcome.refusal is not RefusalKind.BAD_ARGUMENT or seen.setting.backend != "draft":
        return False
    spaces = seen.before.spaces
    return any(
        work.backend is not None
        and (work.sequence, 1) in spaces
        and spaces[work.sequence, 1].frontier + work.backend > spaces[work.sequence, 0].frontier + work.count
        for work in seen.operation.work
    )
