"""Sinking under pressure, engine and model in lock step: what sinks, what is given up, what yields (decision 0020)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcrucible.contract.capabilities import ALL_PARTS
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    CancelTransfer,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Operation,
    Outcome,
    Pin,
    Prefill,
    Progress,
    Restore,
    Schedule,
    Scheduled,
    Submit,
    TransferStarted,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import canonical, run
from kvcrucible.engine import host_room, relief
from kvcrucible.engine.host.slots import HostSlots
from kvcrucible.fuzz.adapters.paged import PagedAdapter
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Setting
from kvcrucible.invariants.violation import InvariantViolated

#: Eight pages of four tokens; a page takes 1024 bytes on Host, where four have room.
SMALL = Setting(capacity_pages=8, page_size=4, max_context=32, host_bytes=4096)
PAGE = SMALL.engine_config().main.page_bytes


class Story:
    """One example; :meth:`take` returns the last outcome, which is no refusal."""

    def __init__(self, setting: Setting = SMALL) -> None:
        self.lock = LockStep(replace(setting, host_bytes=4 * PAGE))
        self.units = 0

    def take(self, *operations: Operation) -> Outcome:
        outcome = Outcome()
        for operation in operations:
            found = self.lock.step(operation)
            assert found is not None
            outcome = found
        assert outcome.refusal is None, operations[-1]
        return outcome

    def kept(self, source: int, tokens: int) -> int:
        sequence = self.take(Submit(run(source, 0, tokens), 0)).value
        assert isinstance(sequence, int)
        unit = self.take(Schedule(), BeginUnit((Prefill(sequence, tokens),))).value
        assert isinstance(unit, int)
        assert self.take(EndUnit(unit), Finish(sequence)).value is True
        return sequence

    def ask(self, pages: int) -> int:
        sequence = self.take(Submit(run(99, 0, 4 * pages), 0)).value
        assert isinstance(sequence, int)
        return sequence

    def visible(self, owner: int) -> set[Tier]:
        pages = self.lock.snapshot.spaces[owner, 0].pages
        return {self.lock.snapshot.pages[page].visible for page in pages}


def to_host(transfer: int, continuation: int, pages: int, **made: tuple[int, ...]) -> TransferStarted:
    return TransferStarted(transfer, continuation, Tier.DEVICE, (pages,), **made)


def sinking(sequence: int, *started: TransferStarted) -> Scheduled:
    return Scheduled((), Waiting(sequence, WaitingKind.SINKING, started))


def cold(sequence: int) -> Scheduled:
    return Scheduled((Admitted(sequence, AdmissionMode.COLD),))


def test_continuations_sink_before_anybody_yields() -> None:
    s = Story()
    old, new = s.kept(1, 8), s.kept(2, 8)
    request = s.ask(6)
    assert s.take(Schedule()).value == sinking(request, to_host(0, old, 2))
    assert s.take(Schedule()).value == sinking(request), "until it is over"
    outcome = s.take(Progress(), Schedule())
    assert (outcome.value, outcome.evicted) == (cold(request), ())
    assert (s.visible(old), s.visible(new)) == ({Tier.HOST}, {Tier.DEVICE})
    s.lock.close()


def test_for_a_single_page_that_lacks_one_sinks() -> None:
    s = Story()
    old = s.kept(1, 8)
    request = s.ask(7)
    assert s.take(Schedule()).value == sinking(request, to_host(0, old, 2))
    outcome = s.take(Progress(), Schedule())
    assert (outcome.value, outcome.evicted) == (cold(request), ())
    s.lock.close()


def test_for_pages_that_one_pool_alone_lacks_somebody_sinks() -> None:
    s = Story(replace(SMALL, backend="mtp", backend_capacity_pages=16, backend_page_size=4))
    old = s.kept(1, 8)
    request = s.ask(7)
    outcome = s.take(Schedule())
    assert outcome.value == sinking(request, TransferStarted(0, old, Tier.DEVICE, (2, 2)))
    assert s.lock.snapshot.pools[1].free >= 7, "the other pool lacks nothing"
    s.lock.close()


def test_as_many_sink_as_are_needed_and_what_finds_no_room_on_host_yields() -> None:
    s = Story()
    first, second, third = s.kept(1, 8), s.kept(2, 8), s.kept(3, 8)
    request = s.ask(8)
    assert s.take(Schedule()).value == sinking(request, to_host(0, first, 2), to_host(1, second, 2))
    outcome = s.take(Progress(), Schedule())
    # The arena is full; the two on Host were used before the third, so they make way for it.
    assert outcome.value == sinking(request, to_host(2, third, 2, evicted=(first,)))
    assert outcome.evicted == (first,)
    assert s.take(Progress(), Schedule()).value == cold(request)
    assert sorted(s.lock.snapshot.continuations) == [second, third]
    s.lock.close()


def test_what_did_not_sink_is_released_instead() -> None:
    s = Story()
    old = s.kept(1, 8)
    request = s.ask(8)
    s.take(Schedule(), CancelTransfer(0))
    outcome = s.take(Progress(), Schedule())
    assert (outcome.value, outcome.evicted) == (cold(request), (old,))
    s.lock.close()


def test_a_pinned_continuation_does_not_sink() -> None:
    s = Story()
    pinned, other = s.kept(1, 8), s.kept(2, 8)
    request = s.ask(5)
    assert s.take(Pin(pinned), Schedule()).value == sinking(request, to_host(0, other, 2))
    s.lock.close()


def test_what_two_share_sinks_with_the_second_and_what_stays_keeps_its_pages() -> None:
    s = Story()
    base = s.kept(1, 8)
    child = s.take(Fork(base, 8, 0)).value
    assert isinstance(child, int)
    s.take(Finish(child))
    newest = s.kept(2, 4)
    request = s.ask(7)
    assert s.take(Schedule()).value == sinking(request, to_host(0, child, 2, beside=(base,)))
    assert s.take(Progress(), Schedule()).value == cold(request)
    assert (s.visible(base), s.visible(newest)) == ({Tier.HOST}, {Tier.DEVICE})
    s.lock.close()


def test_copies_on_device_are_given_up_first() -> None:
    s = Story()
    old, copied = s.kept(1, 8), s.kept(2, 8)
    s.take(Demote(copied, keep=True), Progress())
    request = s.ask(6)
    outcome = s.take(Schedule())
    assert (outcome.value, outcome.given_up, outcome.evicted) == (cold(request), (copied,), ())
    assert (s.visible(old), s.visible(copied)) == ({Tier.DEVICE}, {Tier.HOST})
    s.lock.close()


def test_copies_on_device_are_given_up_until_it_is_enough_and_all_are_told() -> None:
    """One after the other for one request, and for two that start in one call."""
    for wanted in ((7,), (6, 2)):
        s = Story()
        first, second = s.kept(1, 4), s.kept(2, 8)
        s.take(Demote(first, keep=True), Demote(second, keep=True), Progress())
        requests = [s.ask(pages) for pages in wanted]
        outcome = s.take(Schedule())
        assert (outcome.value, outcome.given_up, outcome.evicted) == (
            Scheduled(tuple(Admitted(one, AdmissionMode.COLD) for one in requests)),
            (first, second),
            (),
        )
        s.lock.close()


def test_no_more_copies_on_device_are_given_up_than_needed() -> None:
    """The first has just the page that lacks."""
    s = Story()
    first, second = s.kept(1, 4), s.kept(2, 8)
    s.take(Demote(first, keep=True), Demote(second, keep=True), Progress())
    request = s.ask(6)
    outcome = s.take(Schedule())
    assert (outcome.value, outcome.given_up, outcome.evicted) == (cold(request), (first,), ())
    s.lock.close()


def test_copies_on_host_make_way_for_what_sinks_and_its_own_are_not_copied_again() -> None:
    s = Story()
    newer = s.kept(1, 16)
    s.take(Demote(newer), Progress(), Restore(newer, keep=True), Progress())
    old = s.kept(2, 8)
    assert s.lock.snapshot.host is not None
    assert s.lock.snapshot.host.free == 0
    s.take(Pin(newer))
    request = s.ask(4)
    assert s.take(Schedule()).value == sinking(request, to_host(2, old, 2, given_up=(newer,)))
    s.take(Progress(), Schedule())
    s.take(Pin(newer, pinned=False))
    s.lock.close()


def test_who_does_not_show_its_extents_is_not_judged_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, built = PagedAdapter.snapshot, PagedAdapter.__init__

    def build(self: PagedAdapter, setting: Setting) -> None:
        built(self, setting)
        self.capabilities = replace(self.capabilities, snapshot_parts=ALL_PARTS - {"extents"})

    monkeypatch.setattr(PagedAdapter, "__init__", build)
    monkeypatch.setattr(PagedAdapter, "snapshot", lambda self: replace(shown(self), extents={}))
    monkeypatch.setattr(PagedAdapter, "drain", lambda self: None)
    test_copies_on_host_make_way_for_what_sinks_and_its_own_are_not_copied_again()


def test_copies_that_a_restore_goes_on_with_are_not_given_up_for_it() -> None:
    """The first page of what comes back has a copy on Device still, which another continuation has as well: without it
    the restore would take a page more than room was made for.
    """
    s = Story()
    back = s.kept(1, 8)
    beginning = s.take(Fork(back, 4, 0)).value
    assert isinstance(beginning, int)
    s.take(Finish(beginning), Demote(beginning, keep=True), Progress())
    s.take(Demote(back), Progress())
    other = s.kept(2, 4)
    s.take(Submit(run(3, 0, 24), 0), Schedule())
    assert s.lock.snapshot.pools[0].free == 0
    request = s.take(Submit(canonical([*run(1, 0, 8), (4, 0, 1)]), 0)).value
    assert isinstance(request, int)
    outcome = s.take(Schedule())
    assert outcome.given_up == ()
    assert outcome.value == sinking(request, to_host(2, other, 1))
    s.lock.close()


def test_what_failed_to_sink_keeps_nobody_else_from_sinking() -> None:
    """The first was tried for this request, so it yields; somebody has taken a page meanwhile, so that the second is
    needed, too.
    """
    s = Story()
    active = s.take(Submit(run(3, 0, 4), 0)).value
    assert isinstance(active, int)
    unit = s.take(Schedule(), BeginUnit((Prefill(active, 4),))).value
    assert isinstance(unit, int)
    s.take(EndUnit(unit))
    first, second = s.kept(1, 8), s.kept(2, 8)
    request = s.ask(5)
    assert s.take(Schedule()).value == sinking(request, to_host(0, first, 2))
    s.take(CancelTransfer(0), Fork(active, 4, 4), Progress())
    outcome = s.take(Schedule())
    assert (outcome.value, outcome.evicted) == (sinking(request, to_host(1, second, 2)), ())
    outcome = s.take(Progress(), Schedule())
    assert (outcome.value, outcome.evicted) == (cold(request), (first,))
    s.lock.close()


def with_copies_of_what_sinks() -> tuple[Story, int, int, int, int]:
    """Return a story whose next schedule lets the second of three continuations sink into a full Host tier: the copies
    there are of the first, which shares all of them with the second, and of the third; and the request.
    """
    s = Story()
    base = s.kept(1, 8)
    s.take(Demote(base), Progress(), Restore(base, keep=True), Progress())
    child = s.take(Fork(base, 8, 4)).value
    assert isinstance(child, int)
    unit = s.take(BeginUnit((Append(child, run(2, 0, 4)),))).value
    assert isinstance(unit, int)
    s.take(EndUnit(unit), Finish(child))
    third = s.kept(3, 8)
    s.take(Demote(third), Progress(), Restore(third, keep=True), Progress())
    assert s.lock.snapshot.host is not None
    assert s.lock.snapshot.host.free == 0
    return s, base, child, third, s.ask(6)


def test_only_who_has_copies_to_give_makes_way_on_host() -> None:
    s, base, child, third, request = with_copies_of_what_sinks()
    due = to_host(4, child, 3, beside=(base,), given_up=(third,))
    assert s.take(Schedule()).value == sinking(request, due)
    s.lock.close()


def test_copies_that_nobody_has_given_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    s, base, _, _, _ = with_copies_of_what_sinks()
    real = host_room._copies

    def copies(engine, sinks, protected):
        yield engine.cache.continuations[base], []
        yield from real(engine, sinks, protected)

    monkeypatch.setattr(host_room, "_copies", copies)
    with pytest.raises(InvariantViolated, match="given_up"):
        s.take(Schedule())


def test_room_on_host_that_was_not_lacking_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages sink where three have room, and a copy of another is given up for it all the same."""

    def story() -> None:
        s = Story()
        old, newer = s.kept(1, 8), s.kept(2, 4)
        s.take(Demote(newer), Progress(), Restore(newer, keep=True), Progress())
        request = s.ask(7)
        assert s.take(Schedule()).value == sinking(request, to_host(2, old, 2))

    story()
    real = HostSlots.fits_without

    def fits_without(slots, pages, ended):
        return bool(ended) and real(slots, pages, ended)

    monkeypatch.setattr(HostSlots, "fits_without", fits_without)
    with pytest.raises(
        InvariantViolated, match=r"cache-yields: Host room for transfer 2.*copies of \[1\] given up"
    ):
        story()


def test_copies_on_host_of_what_a_request_starts_from_stay() -> None:
    s = Story()
    source = s.kept(1, 16)
    s.take(Demote(source), Progress(), Restore(source, keep=True), Progress())
    other = s.kept(2, 8)
    request = s.take(Submit(run(1, 0, 17), 11)).value
    assert isinstance(request, int)
    outcome = s.take(Schedule())
    assert outcome.value == Scheduled((Admitted(request, AdmissionMode.FORK, source, 16),))
    assert outcome.evicted == (other,)
    s.lock.close()


def test_a_request_restores_what_sank_for_another() -> None:
    s = Story()
    kept = s.kept(1, 8)
    request = s.ask(8)
    s.take(Schedule(), Progress(), Schedule())
    s.take(Finish(request, retain=False))
    again = s.take(Submit(run(1, 0, 9), 0)).value
    assert isinstance(again, int)
    s.take(Schedule(), Progress())
    assert s.take(Schedule()).value == Scheduled((Admitted(again, AdmissionMode.FORK, kept, 8),))
    s.lock.close()


_sink = relief._sink


def _needless(engine, request, short, victims, protected):
    everyone = [kept for kept in engine.cache.continuations.values() if not kept.pinned]
    return _sink(engine, request, [9], everyone, protected)


def _pinned(engine, request, short, victims, protected):
    return _sink(engine, request, [9], list(engine.cache.continuations.values()), protected)


@pytest.mark.parametrize("spoiled", [_needless, _pinned])
def test_what_sinks_without_need_or_right_is_found(monkeypatch: pytest.MonkeyPatch, spoiled) -> None:
    """The request lacks one page."""

    def story() -> list[str]:
        s = Story()
        s.kept(1, 4)
        s.kept(2, 8)
        s.kept(3, 4)
        s.take(Pin(0))
        s.ask(5)
        try:
            s.take(Schedule())
        except InvariantViolated as found:
            return [one.invariant for one in found.violations]
        return []

    assert story() == []
    monkeypatch.setattr(relief, "_sink", spoiled)
    assert "cache-yields" in story()


def test_room_on_host_is_made_only_where_the_extents_then_fit() -> None:
    """What would not fit in the whole arena releases nobody there."""
    s = Story()
    away = s.kept(1, 4)
    s.take(Demote(away), Progress())
    large = s.kept(2, 20)
    request = s.ask(8)
    outcome = s.take(Schedule())
    assert (outcome.value, outcome.evicted) == (cold(request), (large,))
    assert away in s.lock.snapshot.continuations
    s.lock.close()
