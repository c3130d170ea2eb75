"""An entry's copy has everything that the entry has, and nothing of it that could be changed through the other."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

from kvcrucible.contract.operations import DEFAULT_IDENTITY
from kvcrucible.contract.tokens import run
from kvcrucible.reference.holdings import Entry


def test_a_copy_leaves_no_field_out_and_mixes_none_up() -> None:
    entry = Entry(run(1, 0, 3), 4, "a session", replace(DEFAULT_IDENTITY))
    for number, one in enumerate(fields(Entry), start=100):
        if one.name not in ("pages", "returned") and one.default is not MISSING:
            setattr(entry, one.name, number)  # of no field's type, but told apart from every other
    entry.pages, entry.returned = [[]], [[]]
    copied = entry.copy(lambda page: page)
    assert copied == entry
    assert copied.pages[0] is not entry.pages[0]
    assert copied.returned[0] is not entry.returned[0]
