"""Shared by the tests of the accounting model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcrucible.reference.accounting import AccountingModel
from kvcrucible.reference.pages import Extent, Page


def described(model: AccountingModel) -> str:
    """Everything that the model knows, in words; pages and extents are numbered in the order in which they are met."""
    numbers: dict[object, int] = {}
    books = model.books

    def number(thing: object) -> int:
        return numbers.setdefault(thing, len(numbers))

    def extent(one: Extent | None) -> object:
        return None if one is None else (number(one), one.pool, one.size_bytes)

    def page(one: Page) -> object:
        return number(one), one.device, extent(one.host), one.visible, one.version, sorted(one.touched)

    entries = [
        (name, kind, *(getattr(entry, slot) for slot in entry.__slots__ if slot not in ("pages", "returned")),
         [[page(one) for one in held] for held in entry.pages],
         [[sorted(fence) for fence in fences] for fences in entry.returned])
        for kind, entries in enumerate((books.queued, books.active, books.continuations))
        for name, entry in entries.items()
    ]  # fmt: skip
    transfers = [
        (name, one.continuation, one.source, one.keep, one.cancelled,
         [(page(move.page), move.pool, move.fresh, extent(move.extent), move.version, move.columns)
          for move in one.moves])
        for name, one in books.transfers.items()
    ]  # fmt: skip
    retiring = [[sorted(fence) for fence in fences] for fences in books.retiring]
    numbering = (books.next_sequence, books.next_mark, books.next_unit, books.next_transfer, books.clock)
    rest = (books.marks, books.units, books.ended, retiring, numbering, books.counters, books.host_used)
    return repr((entries, transfers, *rest))


@pytest.fixture(scope="session")
def describe() -> Callable[[AccountingModel], str]:
    return described
