"""Copies that stay in the other tier, and the extents that they lie in: how long both live (decision 0013)."""

from __future__ import annotations

import pytest

from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    TransferOutcome,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import snapshot

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tier_bench import away, bench, kept  # noqa: E402

MOVED = TransferOutcome.MOVED


def test_clean_copies_end_where_their_page_changes() -> None:
    """A column committed beyond the coverage, a cut inside a page, and the end of a page each end one slot."""
    b = bench()
    e = b.engine
    source = kept(b, 14, session="s")
    for act in (e.demote, e.restore):
        act(source, keep=True)
        b.moved()
    request = e.submit(run(0, 0, 15), 5, session="s")
    assert e.schedule().admitted == (Admitted(request, AdmissionMode.MOVE, source, 14),)

    def clean() -> list[bool]:
        pages = e.sequences[request].spaces[0].pages
        return [page.replicas.at(Tier.HOST) is not None for page in pages]

    assert clean() == [True] * 4
    b.prefill(request)
    assert clean() == [True, True, True, False]
    e.truncate(request, 12)
    assert clean() == [True, True, True], "a cut between pages changes none that stays"
    e.truncate(request, 7)
    assert clean() == [True, False]
    b.append(request, 9)
    e.finish(request)
    e.demote(request)
    assert b.moved().outcome is MOVED
    b.check(request)
    assert e.work.pages_demoted == 4 + 4
    b.drain()


def test_a_page_on_both_tiers_ends_on_both() -> None:
    b = bench()
    sequence = kept(b)
    b.engine.demote(sequence, keep=True)
    b.moved()
    b.engine.release(sequence)
    assert counters(b.engine) == ((0, 0, 24),)
    b.drain()


def test_an_extent_lives_as_long_as_its_last_slot() -> None:
    b = bench()
    e = b.engine
    longer = kept(b, 16)
    shorter = e.fork(longer, 4, 0)
    e.finish(shorter)
    e.demote(longer)
    b.moved()
    e.release(longer)
    (extent,) = snapshot(e).extents.values()
    assert (extent.slots, extent.live, extent.size) == (4, (0,), 4 * 2048)
    b.check(shorter)
    e.release(shorter)
    assert snapshot(e).extents == {}


def test_the_arena_hands_over_what_it_takes_back() -> None:
    """As the harness does it: bytes of an ended extent are poisoned, and nobody misses them."""
    b = bench()
    e = b.engine
    assert e.host is not None
    e.host.arena.on_release = lambda offset, size: b.memory.fill(offset, size, 0xFF)
    first, second = away(b, 8), away(b, 8, source=1)
    e.release(first)
    e.restore(second)
    b.moved()
    assert set(b.memory.read(0, 4 * 2048)) == {0xFF}
    b.check(second)
