"""Free pages and holes that an adapter declares and does not show are a fault: what they judge would be passed over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcrucible.contract.capabilities import ALL_PARTS
from kvcrucible.contract.operations import BeginUnit, Demote, EndUnit, Finish, Prefill, Schedule, Submit
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.adapters.paged import PagedAdapter
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import Setting

HOST = Setting(capacity_pages=5, host_bytes=1 << 16)
RETAINED = (Submit(run(0, 0, 4), 0), Schedule(), BeginUnit((Prefill(0, 4),)), EndUnit(0), Finish(0))


def leave_out(part: str, monkeypatch: pytest.MonkeyPatch, *, declared: bool) -> None:
    """Let our engine show None for ``part``."""
    shown, built = PagedAdapter.snapshot, PagedAdapter.__init__

    def build(self: PagedAdapter, setting: Setting) -> None:
        built(self, setting)
        if not declared:
            self.capabilities = replace(self.capabilities, snapshot_parts=ALL_PARTS - {part})

    monkeypatch.setattr(PagedAdapter, "__init__", build)
    monkeypatch.setattr(PagedAdapter, "snapshot", lambda self: replace(shown(self), **{part: None}))


@pytest.mark.parametrize(
    ("part", "setting", "words"),
    [
        ("free_pages", Setting(), "its free pages"),
        ("free_pages", HOST, "its free pages"),
        ("host_holes", HOST, "the holes of its Host tier"),
    ],
    ids=["free", "free-tiered", "holes"],
)
def test_what_is_declared_is_shown_before_the_first_step(
    part: str, setting: Setting, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(part, monkeypatch, declared=True)
    (found,) = violations_of(setting, [])
    assert found.invariant == "engine-fault"
    assert f"a Snapshot, and not one with {words}, which snapshot_parts has" in found.message


@pytest.mark.parametrize(
    ("part", "setting"),
    [("free_pages", HOST), ("host_holes", HOST), ("host_holes", Setting(capacity_pages=5))],
    ids=["free", "holes", "no-host"],
)
def test_what_is_not_declared_is_not_asked_for(
    part: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(part, monkeypatch, declared=setting.host_bytes is None)
    assert not violations_of(setting, RETAINED)


def test_who_demotes_shows_the_holes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an extent fits decides what a demotion answers."""
    leave_out("host_holes", monkeypatch, declared=False)
    (found,) = violations_of(HOST, [*RETAINED, Demote(0)])
    assert found.invariant == "engine-fault"
    assert "not one with the holes of its Host tier (" in found.message
