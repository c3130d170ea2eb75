"""Any legal choice of who yields is accepted, and a needless or a protected victim is found (decision 0020)."""

from __future__ import annotations

import pytest

from kvcrucible.contract.operations import (
    BeginUnit,
    EndUnit,
    Finish,
    Fork,
    Operation,
    Pin,
    Prefill,
    Schedule,
    Submit,
)
from kvcrucible.contract.tokens import run
from kvcrucible.engine.cache import ContextCache
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import SETTING_POLICIES, Setting
from kvcrucible.fuzz.steps import Step

#: Three continuations of two pages each in a pool of eight; one is pinned, and the last request lacks one page.
SMALL = Setting(capacity_pages=8, page_size=4, max_context=32)


def kept(name: int) -> list[Operation]:
    return [
        Submit(run(name, 0, 8), 0),
        Schedule(),
        BeginUnit((Prefill(name, 8),)),
        EndUnit(name),
        Finish(name),
    ]


STORY: list[Step] = [*kept(0), *kept(1), *kept(2), Pin(1), Submit(run(9, 0, 12), 0), Schedule()]


@pytest.mark.parametrize("policy", SETTING_POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_every_order_is_legal(policy, seed):
    setting = Setting(capacity_pages=8, page_size=4, max_context=32, policy=policy, policy_seed=seed)
    assert violations_of(setting, STORY) == ()


def _told(monkeypatch: pytest.MonkeyPatch, change) -> list[str]:
    choose = ContextCache.room

    def changed(self, short, dropped, protected):
        victims = choose(self, short, dropped, protected)
        return None if victims is None else change(self, victims)

    monkeypatch.setattr(ContextCache, "room", changed)
    return [one.invariant for one in violations_of(SMALL, STORY)]


def test_a_needless_victim_is_found(monkeypatch):
    def one_more(cache, victims):
        others = [one for one in cache.continuations.values() if one not in victims and not one.pinned]
        return [*victims, *(others[:1] if victims else [])]

    assert "cache-yields" in _told(monkeypatch, one_more)


def test_a_pinned_victim_is_found(monkeypatch):
    def pinned_first(cache, victims):
        return [one for one in cache.continuations.values() if one.pinned][: len(victims)]

    assert "cache-yields" in _told(monkeypatch, pinned_first)


def test_a_source_that_yields_to_its_own_fork_is_found(monkeypatch):
    choose = ContextCache.releasable
    monkeypatch.setattr(ContextCache, "releasable", lambda self, protected: choose(self, None))
    story = [*kept(0), *kept(1), *kept(2), Fork(0, 8, 16)]
    found = violations_of(SMALL, story)
    assert found
    assert {one.invariant for one in found} & {"cache-yields", "engine-fault"}
