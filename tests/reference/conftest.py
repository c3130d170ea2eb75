"""Shared by the tests of the accounting model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcrucible.reference.accounting import AccountingModel


def described(model: AccountingModel) -> str:
    """Everything that the model knows, in words; pages are numbered in the order in which they are met."""
    numbers: dict[object, int] = {}
    books = model.books
    entries = [
        (name, kind, *(getattr(entry, slot) for slot in entry.__slots__ if slot != "pages"),
         [[numbers.setdefault(page, len(numbers)) for page in held] for held in entry.pages])
        for kind, entries in enumerate((books.queued, books.active, books.continuations))
        for name, entry in entries.items()
    ]  # fmt: skip
    rest = (books.marks, books.units, books.next_sequence, books.next_mark, books.next_unit, books.clock)
    return repr((entries, *rest, books.counters))


@pytest.fixture(scope="session")
def describe() -> Callable[[AccountingModel], str]:
    return described
