"""What an operation does to the accounting model's books, once it is due.

Each act counts pages before and after, and asserts that the change is what the formulas of ``contract.semantics`` say
(where admission reserves: the formulas presume it).  Nothing here is refused and nothing asks whether pages suffice.
"""

from __future__ import annotations

from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Fork,
    Hit,
    Prefill,
    Truncate,
    UnitEnded,
    Work,
)
from kvcrucible.contract.semantics import (
    Change,
    admit_change,
    dematerialise,
    end_change,
    materialise,
    release,
    truncate_change,
)
from kvcrucible.contract.tokens import concat, prefix, span
from kvcrucible.reference.books import Books, Entry, UnitWork


def _expect(books: Books, before: tuple[int, int, int], change: Change) -> None:
    assert all(books.reservation(entry) >= 0 for entry in books.active.values())
    if books.reserves:
        after = books.counters
        found = Change(*(new - old for new, old in zip(after, before, strict=True)))
        assert found == change, f"counted {found}, the formula says {change}"


def begin(books: Books, work: tuple[Work, ...]) -> int:
    """Freeze the rows of ``work`` and lease what they are about to write; return the new unit."""
    before, new = books.counters, 0
    unit, books.next_unit = books.next_unit, books.next_unit + 1
    works: list[UnitWork] = []
    for one in work:
        entry = books.active[one.sequence]
        end = entry.frontier + one.count
        tokens = span(entry.prompt, entry.frontier, end) if isinstance(one, Prefill) else one.tokens
        works.append(UnitWork(one.sequence, tokens))
        entry.unit = unit
        new += books.grow(entry, end)
    books.units[unit] = tuple(works)
    _expect(books, before, materialise(new))
    return unit


def end_unit(books: Books, unit: int, commit: bool) -> UnitEnded:
    """Commit or abort every row of a unit; a row whose cancel was recorded is aborted and dropped."""
    frontiers: list[tuple[int, int]] = []
    cancelled: list[int] = []
    for work in books.units.pop(unit):
        entry = books.active[work.sequence]
        entry.unit = None
        if commit and not entry.cancelled:
            entry.tokens = concat(entry.tokens, work.tokens)
        before, held = books.counters, len(entry.pages)
        del entry.pages[books.pages(entry.frontier) :]
        _expect(books, before, dematerialise(held - len(entry.pages)))
        if entry.cancelled:
            end(books, work.sequence)
            cancelled.append(work.sequence)
        else:
            frontiers.append((work.sequence, entry.frontier))
    return UnitEnded(tuple(frontiers), tuple(cancelled))


def fork(books: Books, operation: Fork) -> int:
    """Start a child on the source's first tokens; return it."""
    before, position = books.counters, operation.position
    source = books.holders()[operation.source]
    child = books.new_sequence()
    tokens = prefix(source.tokens, position)
    books.active[child] = Entry(
        prompt=tokens,
        limit=position + operation.max_new,
        session=operation.session,
        identity=source.identity,
        tokens=tokens,
        pages=books.shared_by_fork(source, position),
    )
    books.stamp(operation.source)
    _expect_fork(books, before, books.active[child])
    return child


def _expect_fork(books: Books, before: tuple[int, int, int], child: Entry) -> None:
    full, tail = divmod(child.frontier, books.page_size)
    _expect(books, before, admit_change(books.pages(child.limit), full, tail > 0))


def truncate(books: Books, operation: Truncate) -> None:
    """Cut an active sequence; private pages return to its reservation, lost shared ones are reserved anew."""
    before = books.counters
    pages = books.active[operation.sequence].pages
    dropped = pages[books.pages(operation.position) :]
    shared = sum(map(books.is_shared, dropped))
    copied = books.cut(operation.sequence, operation.position)
    _expect(books, before, truncate_change(len(dropped) - shared, shared, copied))


def admit_cold(books: Books, sequence: int) -> Admitted:
    """Make the request active with nothing but its reservation."""
    before = books.counters
    entry = books.active[sequence] = books.queued.pop(sequence)
    _expect(books, before, admit_change(books.pages(entry.limit), 0, tail_copied=False))
    return Admitted(sequence, AdmissionMode.COLD)


def admit_by_fork(books: Books, sequence: int, hit: Hit) -> Admitted:
    """Make the request active on pages that the hit's owner keeps."""
    before = books.counters
    entry = books.active[sequence] = books.queued.pop(sequence)
    entry.tokens = prefix(entry.prompt, hit.length)
    entry.pages = books.shared_by_fork(books.holders()[hit.source], hit.length)
    books.stamp(hit.source)
    _expect_fork(books, before, entry)
    return Admitted(sequence, AdmissionMode.FORK, hit.source, hit.length)


def admit_by_move(books: Books, sequence: int, hit: Hit, mode: AdmissionMode) -> Admitted:
    """Cut the source to the hit (nothing is cut where the hit is its whole frontier) and give all that it has on."""
    before = books.counters
    pages = books.continuations[hit.source].pages
    beyond = pages[books.pages(hit.length) :]
    private = sum(not books.is_shared(page) for page in beyond)
    copied = books.cut(hit.source, hit.length)
    source = books.continuations.pop(hit.source)
    books.hand_over(hit.source, sequence)
    entry = books.active[sequence] = books.queued.pop(sequence)
    entry.tokens, entry.pages = source.tokens, source.pages
    kept = len(entry.pages) - copied
    _expect(books, before, release(private) + admit_change(books.pages(entry.limit), kept, copied))
    return Admitted(sequence, mode, hit.source, hit.length)


def retain(books: Books, sequence: int) -> bool:
    """Keep an active sequence as a continuation if it has a token; return whether it was kept."""
    if books.active[sequence].frontier == 0:
        end(books, sequence)
        return False
    before, unused = books.counters, books.reservation(books.active[sequence])
    entry = books.continuations[sequence] = books.active.pop(sequence)
    books.mark(sequence)
    books.stamp(sequence)
    _expect(books, before, end_change(0, unused, retained=True))
    for other, older in list(books.continuations.items()):
        if other != sequence and entry.session is not None and older.session == entry.session:
            end(books, other)
    return True


def end(books: Books, sequence: int) -> None:
    """Drop a queued, active or retained sequence with all that it alone holds."""
    before = books.counters
    unused = books.reservation(books.active[sequence]) if sequence in books.active else 0
    entry = books.entry(sequence)
    assert entry is not None, sequence
    exclusive = sum(not books.is_shared(page) for page in entry.pages)
    books.drop(sequence)
    _expect(books, before, end_change(exclusive, unused, retained=False))
