"""When an engine has acted, and that an error in the middle of a call that has ends it (decision 0030).

Verifies calls that no policy and no copy can cut short: ``cancel``, ``checkpoint`` and ``progress``, in whose own books
something fails.  Others: test_stopped_half_done.py, test_units_cut_short.py.
"""

from __future__ import annotations

import pytest
from half_done import cut_short, unwell

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import StaleHandle
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.prefix import PrefixIndex
from kvcrucible.engine.residency import Residency


def with_one_sequence() -> tuple[Engine, int]:
    """Return an engine with a Host tier, and an active sequence of one page of 4 tokens and a checkpoint."""
    planes = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)
    e = Engine(EngineConfig((PoolSpec("main", 8, 4, (planes,)),), 16, 2, HostSpec(1 << 12)))
    sequence = e.submit(run(0, 0, 4), 4)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, 4)]))
    e.checkpoint(sequence)
    return e, sequence


def test_an_error_in_the_middle_of_a_cancel_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    e, sequence = with_one_sequence()
    monkeypatch.setattr(ContextCache, "unmark", unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.cancel(sequence)
    # Nobody has the sequence's page any more, and it is not free.
    assert sequence not in e.sequences
    assert e.pools[0].leased == 1
    cut_short(e, "cancel")


def test_an_error_in_the_middle_of_a_checkpoint_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    e, sequence = with_one_sequence()
    e.end_unit(e.begin_unit([Append(sequence, run(1, 0, 1))]))
    monkeypatch.setattr(PrefixIndex, "insert", unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.checkpoint(sequence)
    # The sequence has a mark that nothing finds, and that cannot be taken away.
    assert len(e.sequences[sequence].marks) == 2
    cut_short(e, "checkpoint")


def test_an_error_in_the_middle_of_progress_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    e, sequence = with_one_sequence()
    e.finish(sequence)
    transfer = e.demote(sequence)
    monkeypatch.setattr(Residency, "changed", unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.progress()
    # The page has moved, the transfer is over, and nobody was told of either, nor of the unit that is done.
    assert e.host is not None
    assert transfer not in e.host.under_way
    assert [page.visible for page in e.ledger.live.values()] == [Tier.HOST]
    assert e.fences.collect() == ()
    cut_short(e, "progress")


def test_a_call_has_acted_once_something_is_never_taken_back() -> None:
    e = Engine(EngineConfig((PoolSpec("main", 8, 4),), max_context=16, max_concurrency=2))
    assert not e.acted
    sequence = e.submit(run(0, 0, 4), 4)
    e.lookup(run(0, 0, 4))
    assert not e.acted
    e.schedule()
    assert e.acted
    with pytest.raises(StaleHandle):
        e.end_unit(0)
    assert not e.acted
    e.end_unit(e.begin_unit([Prefill(sequence, 4)]))
    assert e.acted
    e.lookup(run(0, 0, 4))
    assert not e.acted
