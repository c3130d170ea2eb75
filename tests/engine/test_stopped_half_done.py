"""An error that nobody has foreseen changes nothing, or ends the engine, wherever it strikes (decision 0030).

Verifies by hand what was found wrong once, and the cases that drawn cells do not reach.  Every copy, effect and call of
a policy of small workloads fails in tests/nth_failure, copies by name in tests/host/test_transfer_failures.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from half_done import lost, unwell

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import BadArgument, DeviceCapacity, EngineLost
from kvcrucible.contract.operations import Prefill, WaitingKind
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.policies import LeastRecentlyUsed
from kvcrucible.engine.storage.null import NullStorage

PLANES = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)


def config(pages: int, host_pages: int = 0) -> EngineConfig:
    """Pages of 4 tokens; a page takes 512 bytes on Host."""
    host = HostSpec(512 * host_pages, 64) if host_pages else None
    return EngineConfig(
        (PoolSpec("main", pages, 4, (PLANES,)),), max_context=64, max_concurrency=4, host=host
    )


def kept(e: Engine, source: int, length: int) -> int:
    """Return a continuation of ``length`` tokens."""
    sequence = e.submit(run(source, 0, length), 0)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, length)]))
    e.finish(sequence)
    e.progress()
    return sequence


def copying(e: Engine, pack: Callable[..., None]) -> None:
    """Let copies to Host be what ``pack`` does."""
    assert e.host is not None
    e.host.memory = SimpleNamespace(pack=pack)  # type: ignore[assignment]


def refusing(*_: Any) -> None:
    raise BadArgument("a copy", "outside the memory", "stay within")


def test_an_error_that_nobody_has_foreseen_passes_through_and_ends_the_engine() -> None:
    """The fork needs the page of a retained sequence: what is half done is neither taken back nor gone on with."""
    e = Engine(EngineConfig((PoolSpec("main", 6, 4),), max_context=24, max_concurrency=4))
    kept = []
    for source in range(3):
        sequence = e.submit(run(source, 0, 7), 0)
        e.schedule()
        e.end_unit(e.begin_unit([Prefill(sequence, 7)]))
        e.finish(sequence)
        kept.append(sequence)

    class Unwell(NullStorage):
        def copy_columns(self, *_: Any) -> None:
            raise RuntimeError("something is unwell")

    e.storages[0] = Unwell()
    with pytest.raises(RuntimeError, match="unwell"):
        e.fork(kept[2], 7, 4)
    with pytest.raises(
        EngineLost, match="tail copy that could not be queued: something is unwell; pages may lack"
    ):
        e.fork(kept[2], 7, 4)


def sinking_into_room_made_on_host() -> tuple[Engine, int, int]:
    """Return an engine whose next admission gives up the Device copies of the first continuation, releases it to make
    room on Host, and sinks the second.
    """
    e = Engine(config(8, host_pages=2))
    first, second = kept(e, 1, 8), kept(e, 2, 8)
    e.demote(first, keep=True)
    e.progress()
    e.submit(run(3, 0, 32), 0)
    return e, first, second


def test_what_the_workload_is_meant_to_do() -> None:
    e, first, second = sinking_into_room_made_on_host()
    waiting = e.schedule().waiting
    assert waiting is not None
    assert waiting.kind is WaitingKind.SINKING
    assert ([one.continuation for one in waiting.started], e.given_up, e.evicted) == (
        [second],
        [first],
        [first],
    )


def test_a_copy_that_raises_once_host_room_was_made_ends_the_engine() -> None:
    """The copies that were given up belong to a continuation that is gone: taking them back leased pages to nobody."""
    e, first, _ = sinking_into_room_made_on_host()
    copying(e, unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.schedule()
    assert first not in e.cache.continuations
    assert e.pools[0].leased == sum(page.device >= 0 for page in e.ledger.live.values())
    lost(e, "schedule stopped half done: RuntimeError.*unwell")


def test_a_copy_that_raises_after_another_has_sunk_ends_the_engine() -> None:
    """The first transfer is under way, and nobody was told of it."""
    e = Engine(config(8, host_pages=4))
    kept(e, 1, 8), kept(e, 2, 8)
    e.submit(run(3, 0, 32), 0)
    taken = iter(range(1))

    def first_only(*_: Any) -> None:
        if next(taken, None) is None:
            unwell()

    copying(e, first_only)
    with pytest.raises(RuntimeError, match="unwell"):
        e.schedule()
    lost(e, "schedule stopped half done")


def test_an_error_behind_a_restore_on_demand_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head waits for what comes back to it, and nobody was told of the transfer once a request behind it failed."""
    e = Engine(replace(config(8, host_pages=2), lookahead=1))
    away = kept(e, 1, 8)
    e.demote(away)
    e.progress()
    e.submit(run(1, 0, 9), 0), e.submit(run(2, 0, 4), 0)
    monkeypatch.setattr("kvcrucible.engine.starting.admit_at_once", unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.schedule()
    assert e.host is not None
    assert list(e.host.under_way) == [1]
    lost(e, "schedule stopped half done")


class Unwell(LeastRecentlyUsed):
    """Raises as it is told of what it is to raise at."""

    def __init__(self, at: str) -> None:
        setattr(self, at, unwell)


@pytest.mark.parametrize("at", ["yields", "gone"])
def test_a_policy_that_raises_while_host_room_is_made_ends_the_engine(at: str) -> None:
    e, _, _ = sinking_into_room_made_on_host()
    setattr(e.cache.policy, at, unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.schedule()
    lost(e, "schedule stopped half done")


@pytest.mark.parametrize(
    "act",
    [
        lambda e, kept, active: e.fork(kept, 7, 4),
        lambda e, kept, active: e.finish(active),
    ],
    ids=["fork", "finish"],
)
def test_a_policy_that_raises_as_it_hears_of_a_use_ends_the_engine(act: Callable[..., object]) -> None:
    """References and copies stand, and half of what goes with them is missing."""
    e = Engine(config(8))
    one = kept(e, 1, 7)
    active = e.submit(run(2, 0, 4), 4)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(active, 4)]))
    e.cache.policy = Unwell("used")
    with pytest.raises(RuntimeError, match="unwell"):
        act(e, one, active)
    lost(e, "stopped half done")


def test_a_policy_that_raises_as_it_hears_of_a_release_ends_the_engine() -> None:
    """The continuation has left the cache, and its pages are nobody's."""
    e = Engine(config(8))
    one = kept(e, 1, 7)
    e.cache.policy = Unwell("gone")
    with pytest.raises(RuntimeError, match="unwell"):
        e.release(one)
    assert one not in e.cache.continuations
    lost(e, "release stopped half done")


def test_an_interrupt_ends_the_engine_wherever_it_strikes() -> None:
    e = Engine(config(8))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    e.cache.index.longest = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        e.lookup(run(0, 0, 4))
    # Nothing of it concerns the device.
    lost(e, r"lookup stopped half done: KeyboardInterrupt\(\); its books may be half done: drop the engine$")


def test_an_error_before_anything_was_done_changes_nothing() -> None:
    e = Engine(config(8))
    one = kept(e, 1, 7)
    before, longest = snapshot(e), e.cache.index.longest
    e.cache.index.longest = unwell  # type: ignore[method-assign,assignment]
    e.submit(run(1, 0, 8), 4)
    with pytest.raises(RuntimeError, match="unwell"):
        e.schedule()
    e.cache.index.longest = longest  # type: ignore[method-assign]
    e.cancel(1)
    assert snapshot(e) == before
    assert e.fork(one, 7, 4) == 2


def test_what_a_copy_is_refused_by_its_memory_is_no_refusal_of_the_operation() -> None:
    """A mistake of the engine's own would pass for an answer to its caller."""
    e = Engine(config(8, host_pages=4))
    one = kept(e, 1, 7)
    before = snapshot(e)
    copying(e, refusing)
    with pytest.raises(AssertionError, match="transfer 0: bad-argument: asked: a copy"):
        e.demote(one)
    assert snapshot(e) == before


def test_what_an_effect_is_refused_by_its_storage_ends_the_engine() -> None:
    e = Engine(config(8))
    one = kept(e, 1, 7)

    class Refusing(NullStorage):
        copy_columns = staticmethod(refusing)

    e.storages[0] = Refusing()
    with pytest.raises(EngineLost, match="tail copy that could not be queued: bad-argument"):
        e.fork(one, 7, 4)
    lost(e, "tail copy")


def test_copies_of_which_nobody_knows_whether_they_run_end_the_engine() -> None:
    """Their pages and slots are given back: whoever got them would be written over."""
    e = Engine(config(8, host_pages=4))
    one = kept(e, 1, 7)
    copies: Any = e.device.stream("to-host")
    copies.submit = copies.synchronize = unwell
    with pytest.raises(RuntimeError, match="unwell"):
        e.demote(one)
    lost(e, "copies of transfer 0 may still be under way")


@pytest.mark.parametrize("at", ["unmark_beyond", "restamp"])
def test_an_error_in_the_middle_of_a_cut_ends_the_engine(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing had to be released for the cut, and its pages have moved all the same."""
    e = Engine(config(8))
    sequence = e.submit(run(0, 0, 10), 0)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(sequence, 10)]))
    e.checkpoint(sequence)
    monkeypatch.setattr(e.cache, at, unwell)
    with pytest.raises(RuntimeError, match="unwell"):
        e.truncate(sequence, 5)
    lost(e, "truncate stopped half done")


def test_a_refusal_while_host_room_is_made_is_no_answer_and_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e, _, _ = sinking_into_room_made_on_host()
    monkeypatch.setattr(e.cache, "release", refusing)
    with pytest.raises(AssertionError, match="room on Host: bad-argument"):
        e.schedule()
    lost(e, "schedule stopped half done")


def test_a_promise_that_is_refused_leaves_an_engine_that_has_not_acted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that nobody has foreseen, behind a start that came to nothing, changes nothing either."""
    e = Engine(config(8))
    sequence = e.submit(run(0, 0, 4), 0)
    before = snapshot(e)

    def no_rows(*_: Any) -> None:
        raise DeviceCapacity("pages", "none", "wait")

    monkeypatch.setattr("kvcrucible.engine.starting.start_bundle", no_rows)
    assert e.schedule().waiting is not None
    assert not e.acted
    assert snapshot(e) == before
    monkeypatch.undo()
    assert [one.sequence for one in e.schedule().admitted] == [sequence]


def test_copies_of_several_that_were_given_up_in_vain_are_given_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two continuations lose their copies and a third, which has no room on Host, is released; then a promise is
    refused.
    """
    e = Engine(config(8, host_pages=3))
    first, second, third = kept(e, 1, 4), kept(e, 2, 8), kept(e, 3, 16)
    for one in (first, second):
        e.demote(one, keep=True)
    e.progress()
    request = e.submit(run(4, 0, 32), 0)
    before = snapshot(e)

    def no_rows(*_: Any) -> None:
        raise DeviceCapacity("pages", "none", "wait")

    monkeypatch.setattr("kvcrucible.engine.starting.start_bundle", no_rows)
    assert e.schedule().waiting is not None
    assert snapshot(e) == before
    monkeypatch.undo()
    assert [one.sequence for one in e.schedule().admitted] == [request]
    assert (e.given_up, e.evicted) == ([first, second], [third])
