"""What an operation does to the accounting model's books, once it is due.

Each act counts pages before and after, and asserts that the change is what the formulas of ``contract.counters`` say
(where admission reserves: the formulas presume it).  Nothing here is refused and nothing asks whether pages suffice.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcrucible.contract.counters import (
    Change,
    admit_change,
    end_change,
    materialise,
    release,
    retire_change,
    trim_change,
    truncate_change,
)
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    EndUnit,
    Fork,
    Hit,
    Prefill,
    Truncate,
    UnitEnded,
    Work,
)
from kvcrucible.contract.tokens import count, prefix, span
from kvcrucible.reference.books import Books
from kvcrucible.reference.holdings import Counters, Entry, UnitWork
from kvcrucible.reference.labels import cut
from kvcrucible.reference.pages import Page


def expect(books: Books, before: Counters, changes: Iterable[Change]) -> None:
    """Assert that each pool's counters have changed as its formula says."""
    for entry in books.active.values():
        for pool, fences in enumerate(entry.returned):
            assert books.reservation(entry, pool) >= len(fences), (pool, entry)
    counted = books.count_again()
    if not books.reserves:
        return
    for pool, (old, new, change) in enumerate(zip(before, counted, changes, strict=True)):
        due = (old[0] + change.leased, old[1] + change.reserved, old[2] + change.free)
        assert new == due, f"pool {pool}: counted {new}, {due} by the formula: {old} with {change}"


def fenced(books: Books, pages: Iterable[Page]) -> int:
    """How many of the pages are not at rest: these retire where the others become free."""
    return sum([not books.is_at_rest(page.touched) for page in pages])


def begin(books: Books, work: tuple[Work, ...]) -> int:
    """Freeze the rows of ``work`` and lease what they are about to write; return the new unit."""
    before, new = books.about_to_change(), [0 for _ in books.pools]
    unit, books.next_unit = books.next_unit, books.next_unit + 1
    works: list[UnitWork] = []
    for one in work:
        entry = books.active[one.sequence]
        end = entry.frontier + one.count
        tokens = span(entry.prompt, entry.frontier, end) if isinstance(one, Prefill) else one.tokens
        backend = end if one.backend is None else entry.backend + one.backend
        works.append(UnitWork(one.sequence, tokens, backend))
        entry.unit = unit
        for pool, stop in zip(books.pools, (end, backend), strict=False):
            new[pool] += books.grow(entry, pool, stop)
    books.units[unit] = tuple(works)
    expect(books, before, map(materialise, new))
    return unit


def end_unit(books: Books, operation: EndUnit) -> UnitEnded:
    """Commit or abort every row of a unit; a row whose cancel was recorded is aborted and dropped.

    Of a row that is committed, what is not accepted goes the way of an aborted one (0023).
    From here on the unit is outstanding, so what it gives back is not at rest.
    """
    frontiers: list[tuple[int, int]] = []
    cancelled: list[int] = []
    unit, accepted = operation.unit, dict(operation.accepted)
    works = books.units.pop(unit)
    books.ended.append(unit)
    for page in [page for work in works for held in books.active[work.sequence].pages for page in held]:
        page.touched = (page.touched | {unit}) & books.outstanding
    for work in works:
        entry = books.active[work.sequence]
        entry.unit = None
        stops = (entry.frontier + count(work.tokens), work.backend)
        if operation.commit and not entry.cancelled:
            books.commit(entry, work, prefix(work.tokens, accepted.get(work.sequence, count(work.tokens))))
        before = books.about_to_change()
        for pool, reach in enumerate(books.reach(entry)):
            books.return_beyond(entry, pool, books.pages(reach, pool))
        expect(books, before, map(trim_change, stops, books.reach(entry), books.page_size))
        if entry.cancelled:
            end(books, work.sequence)
            cancelled.append(work.sequence)
        else:
            frontiers.append((work.sequence, entry.frontier))
    return UnitEnded(tuple(frontiers), tuple(cancelled))


def fork(books: Books, operation: Fork) -> int:
    """Start a child on the source's first tokens; return it."""
    before, position = books.about_to_change(), operation.position
    source = books.holders()[operation.source]
    child = books.new_sequence()
    tokens = prefix(source.tokens, position)
    books.active[child] = Entry(
        prompt=tokens,
        limit=position + operation.max_new,
        session=operation.session,
        identity=source.identity,
        spans=cut(source.spans, position),
        tokens=tokens,
        backend=min(position, source.backend),
        pages=books.shared_by_fork(source, position),
    )
    books.stamp(operation.source)
    _expect_fork(books, before, books.active[child])
    return child


def _expect_fork(books: Books, before: Counters, child: Entry) -> None:
    changes = []
    for pool, reach in enumerate(books.reach(child)):
        full, tail = divmod(reach, books.page_size[pool])
        changes.append(admit_change(books.pages(child.limit, pool), full, tail > 0))
    expect(books, before, changes)


def truncate(books: Books, operation: Truncate) -> None:
    """Cut an active sequence; private pages return to its reservation, lost shared ones are reserved anew."""
    before = books.about_to_change()
    dropped = _beyond(books, books.active[operation.sequence], operation.position)
    copied = books.cut(operation.sequence, operation.position)
    changes = [
        truncate_change(len(private), shared, tail)
        for (private, shared), tail in zip(dropped, copied, strict=True)
    ]
    expect(books, before, changes)


def _beyond(books: Books, entry: Entry, position: int) -> list[tuple[list[Page], int]]:
    """Return, for each pool, the private pages that lie wholly beyond ``position``, and the number of shared ones."""
    found: list[tuple[list[Page], int]] = []
    for pool, held in enumerate(entry.pages):
        beyond = held[books.pages(position, pool) :]
        if not beyond:
            found.append(([], 0))
            continue
        private = [page for page in beyond if not books.is_shared(page, pool)]
        found.append((private, len(beyond) - len(private)))
    return found


def admit_cold(books: Books, sequence: int) -> Admitted:
    """Make the request active with nothing but its reservation."""
    before = books.about_to_change()
    entry = books.active[sequence] = books.queued.pop(sequence)
    changes = [admit_change(books.pages(entry.limit, pool), 0, tail_copied=False) for pool in books.pools]
    expect(books, before, changes)
    return Admitted(sequence, AdmissionMode.COLD)


def admit_by_fork(books: Books, sequence: int, hit: Hit) -> Admitted:
    """Make the request active on pages that the hit's owner keeps."""
    before = books.about_to_change()
    entry = books.active[sequence] = books.queued.pop(sequence)
    entry.tokens, entry.backend = prefix(entry.prompt, hit.length), hit.length
    entry.pages = books.shared_by_fork(books.holders()[hit.source], hit.length)
    books.stamp(hit.source)
    _expect_fork(books, before, entry)
    return Admitted(sequence, AdmissionMode.FORK, hit.source, hit.length)


def admit_by_move(books: Books, sequence: int, hit: Hit, mode: AdmissionMode) -> Admitted:
    """Cut the source to the hit (nothing is cut where the hit is its whole frontier) and give all that it has on.

    What the source loses goes to the reservation of the new sequence, as its own cut would; what that has no use for is
    free, or retires (0013).
    """
    before = books.about_to_change()
    # What of the source is on Host alone gives no page back.
    beyond = [
        [page for page in private if page.device]
        for private, _ in _beyond(books, books.continuations[hit.source], hit.length)
    ]
    entry = books.queued.pop(sequence)
    copied = books.cut(hit.source, hit.length, heir=entry if books.reserves else None)
    source = books.continuations.pop(hit.source)
    books.hand_over(hit.source, sequence)
    books.active[sequence] = entry
    entry.tokens, entry.backend, entry.pages = source.tokens, source.backend, source.pages
    changes = []
    for pool, tail in enumerate(copied):
        admission = admit_change(books.pages(entry.limit, pool), len(entry.pages[pool]) - tail, tail)
        retiring = books.shrink(entry, pool)
        changes.append(release(len(beyond[pool])) + retire_change(retiring) + admission)
    expect(books, before, changes)
    return Admitted(sequence, mode, hit.source, hit.length)


def retain(books: Books, sequence: int) -> bool:
    """Keep an active sequence as a continuation if every pool has a token; return whether it was kept."""
    if books.common(books.active[sequence]) == 0:
        end(books, sequence)
        return False
    before, unused = books.about_to_change(), _unused(books, sequence)
    entry = books.continuations[sequence] = books.active.pop(sequence)
    retiring = [len(fences) for fences in entry.returned]
    books.close_reservation(entry)
    books.mark(sequence)
    books.stamp(sequence)
    changes = [
        end_change(0, pages, retained=True) + retire_change(waiting)
        for pages, waiting in zip(unused, retiring, strict=True)
    ]
    expect(books, before, changes)
    for other, older in list(books.continuations.items()):
        if other != sequence and entry.session is not None and older.session == entry.session:
            end(books, other)
    return True


def end(books: Books, sequence: int) -> None:
    """Drop a queued, active or retained sequence with all that it alone holds; what is not at rest retires."""
    before, unused = books.about_to_change(), _unused(books, sequence)
    entry = books.entry(sequence)
    assert entry is not None, sequence
    exclusive = [[page for page in private if page.device] for private, _ in _beyond(books, entry, 0)]
    retiring = [
        fenced(books, pages) + len(fences) for pages, fences in zip(exclusive, entry.returned, strict=True)
    ]
    books.drop(sequence)
    changes = [
        end_change(len(pages), promised, retained=False) + retire_change(waiting)
        for pages, promised, waiting in zip(exclusive, unused, retiring, strict=True)
    ]
    expect(books, before, changes)


def _unused(books: Books, sequence: int) -> list[int]:
    """What each pool has promised the sequence beyond what it holds; nothing where it is not active."""
    entry = books.active.get(sequence)
    return [0 if entry is None else books.reservation(entry, pool) for pool in books.pools]
