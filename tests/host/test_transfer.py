"""Transfers: every phase with everything that can happen in it, every path, every failing copy, every small schedule.

Verifies: the table is what the design says, pair by pair; on every path each page has exactly one visible replica at
every moment, and at the end the other place is free or holds a valid clean copy; a transfer that comes to nothing
leaves no trace; no place comes back while an effect may touch it; what becomes visible has the right bytes in every
schedule.
Does not verify: that the engine moves the pages that it should.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transfer_bench import Bench

from kvcrucible.contract.errors import BadArgument, DeviceCapacity, HostGeometry, Refusal, WrongState
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.host.phases import TABLE, Phase, Trigger
from kvcrucible.engine.host.transfer import Transfer
from kvcrucible.engine.streams.strategies import (
    Exhaustive,
    Failing,
    InOrder,
    PriorityChange,
    RandomWalk,
    Starving,
)
from kvcrucible.engine.streams.strategy import EffectOutcome, StepKind, Strategy

#: What the design says, written down once more: one row for each phase, "-" where it is refused.
EXPECTED = """
              planned   reserved  copying    cancelling copied    verified  published moved kept abandoned
granted       reserved  -         -          -          -         -         -         -     -    -
refused       abandoned -         -          -          -         -         -         -     -    -
submitted     -         copying   -          -          -         -         -         -     -    -
completed     -         -         copied     abandoned  -         -         -         -     -    -
found-current -         -         -          -          verified  -         -         -     -    -
found-stale   -         -         -          -          abandoned abandoned -         -     -    -
publish       -         -         -          -          -         published -         -     -    -
release       -         -         -          -          -         -         moved     -     -    -
keep          -         -         -          -          -         -         kept      -     -    -
failed        -         -         abandoned  abandoned  -         -         -         -     -    -
cancel        abandoned abandoned cancelling cancelling abandoned abandoned published -     -    -
"""


def expected() -> dict[tuple[Phase, Trigger], Phase | None]:
    header, *rows = (line.split() for line in EXPECTED.strip().splitlines())
    assert header == [phase.value for phase in Phase]
    assert [row[0] for row in rows] == [trigger.value for trigger in Trigger]
    return {
        (Phase(phase), Trigger(row[0])): None if cell == "-" else Phase(cell)
        for row in rows
        for phase, cell in zip(header, row[1:], strict=True)
    }


def bench(
    strategy: Strategy | None = None, pages: int = 3, *, at: Tier = Tier.DEVICE, clean: bool = False
) -> Bench:
    """Return a bench whose pages are visible in ``at``; page 0 has a clean copy in the other tier where ``clean``."""
    made = Bench(InOrder())
    for number in range(pages):
        made.add(2 + number % 2)
    if at is Tier.HOST or clean:
        for page in made.pages:
            if at is Tier.HOST or page.page == 0:
                move(made, Tier.DEVICE, [page.page], keep=clean and page.page == 0)
    if at is Tier.DEVICE and clean:
        move(made, Tier.HOST, [0], keep=True)
    made.check_end()
    made.device.strategy = strategy or InOrder()
    return made


def transfer_of(
    made: Bench, source: Tier, pages: Iterable[int] | None = None, keep: bool = False
) -> Transfer:
    chosen = made.pages if pages is None else [made.pages[page] for page in pages]
    return Transfer(made, 7, source, chosen, keep_source=keep)


def move(made: Bench, source: Tier, pages: Iterable[int] | None = None, keep: bool = False) -> Transfer:
    """Start a transfer and let it run to its end."""
    transfer = transfer_of(made, source, pages, keep)
    transfer.start()
    finish(made, transfer)
    return transfer


def visible(transfer: Transfer) -> dict[int, Tier]:
    """Return where each page that lives on is visible."""
    return {page.page: page.replicas.visible for page in transfer.pages}


def ends(transfer: Transfer) -> list[object]:
    return [(move.page.page, move.source, move.destination) for move in transfer.moves]


def finish(made: Bench, transfer: Transfer) -> None:
    while not transfer.phase.is_final:
        made.check_moment(transfer)
        if not transfer.step():
            assert made.device.run(1), "the transfer waits for nothing"
    made.check_end()


def reach(phase: Phase) -> tuple[Bench, Transfer]:
    made = bench(clean=True)
    transfer = transfer_of(made, Tier.DEVICE)
    if phase is Phase.CANCELLING:
        transfer.start()
        transfer.cancel()
    elif phase is Phase.ABANDONED:
        transfer.cancel()
    elif phase is Phase.KEPT:
        transfer = move(made, Tier.DEVICE, keep=True)
    while transfer.phase is not phase:
        if not transfer.step():
            made.device.run(1)
    return made, transfer


@pytest.mark.parametrize(("phase", "trigger"), list(product(Phase, Trigger)))
def test_every_pair_of_phase_and_trigger(phase: Phase, trigger: Trigger) -> None:
    made, transfer = reach(phase)
    follows = expected()[phase, trigger]
    before = (made.digest(), transfer.phase, ends(transfer))
    if follows is None:
        with pytest.raises(WrongState):
            transfer._fire(trigger)
        assert (made.digest(), transfer.phase, ends(transfer)) == before
        return
    if trigger in (Trigger.GRANTED, Trigger.SUBMITTED):
        transfer.step()  # the port has to be asked as well
    else:
        if trigger in (Trigger.COMPLETED, Trigger.FAILED):
            made.device.synchronize()
        transfer._fire(trigger)
    assert transfer.phase is follows
    made.check_moment(transfer)
    finish(made, transfer)
    shown = Tier.HOST if transfer.phase in (Phase.MOVED, Phase.KEPT) else Tier.DEVICE
    assert visible(transfer) == {page.page: shown for page in made.pages}


def test_the_table_has_no_pair_beside_those() -> None:
    assert {pair: follows for pair, follows in expected().items() if follows is not None} == {
        pair: follows for pair, (follows, _) in TABLE.items()
    }


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.is_final])
def test_a_transfer_that_is_over_makes_no_step(phase: Phase) -> None:
    made, transfer = reach(phase)
    before = made.digest()
    assert not transfer.step()
    assert (made.digest(), transfer.phase) == (before, phase)


ACTIONS: dict[str, Callable[[Bench, Transfer], object]] = {
    "step": lambda made, transfer: transfer.step(),
    "time": lambda made, transfer: made.device.run(3),
    "cancel": lambda made, transfer: transfer.cancel(),
    "drop 0": lambda made, transfer: made.drop(made.pages[0], transfer),
    "drop 1": lambda made, transfer: made.drop(made.pages[1], transfer),
    "write 0": lambda made, transfer: made.write(made.pages[0], 1),
    "write 1": lambda made, transfer: made.write(made.pages[1], 3),
}


def walk(
    path: Iterable[str], at: Tier, keep: bool, clean: bool, strategy: Strategy | None = None
) -> Transfer:
    made = bench(strategy, 2, at=at, clean=clean)
    transfer = transfer_of(made, at, keep=keep)
    for action in path:
        if transfer.phase.is_final or (action[-1].isdigit() and not made.pages[int(action[-1])].alive):
            break
        ACTIONS[action](made, transfer)
        made.check_moment(transfer)
    finish(made, transfer)
    moved = transfer.phase in (Phase.MOVED, Phase.KEPT)
    assert set(visible(transfer).values()) <= {at.other if moved else at}
    assert set(visible(transfer)) == {page.page for page in made.pages if page.alive}
    for page in made.pages:
        hidden = page.replicas.hidden
        if page.alive and transfer.phase is Phase.MOVED:
            assert hidden is None
        if page.alive and transfer.phase is Phase.ABANDONED:
            assert hidden is None or (clean and page.page == 0)
    return transfer


@pytest.mark.parametrize("at", list(Tier))
def test_every_short_path_ends_with_one_visible_replica(at: Tier) -> None:
    """Every pair of actions in every phase, with and without a clean copy, moving and keeping."""
    ends = set()
    towards = ["step", "step", "time", "time", "step", "step", "step"]
    for steps in range(len(towards) + 1):
        for path in product(ACTIONS, repeat=2):
            for keep, clean in ((False, False), (True, False), (False, True)):
                ends.add(walk([*towards[:steps], *path], at, keep, clean).phase)
    assert ends == {Phase.MOVED, Phase.KEPT, Phase.ABANDONED}


@given(
    st.lists(st.sampled_from(["step", "step", *ACTIONS]), max_size=14),
    st.sampled_from(list(Tier)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1_000),
    st.sets(st.integers(1, 4), max_size=2),
)
def test_long_paths_with_failing_and_reordered_copies(
    path: list[str], at: Tier, keep: bool, clean: bool, seed: int, failing: set[int]
) -> None:
    walk(path, at, keep, clean, Failing(RandomWalk(seed), "copy", failing))


# -- what comes to nothing leaves no trace -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", list(Tier))
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("outcome", [EffectOutcome.FAIL_WITHOUT_EFFECT, EffectOutcome.FAIL_AFTER_EFFECT])
@pytest.mark.parametrize("failing", range(1, 5))
def test_whichever_copy_fails_everything_is_as_it_was(
    at: Tier, clean: bool, outcome: EffectOutcome, failing: int
) -> None:
    made = bench(Failing(InOrder(), "copy", {failing}, outcome), 4, at=at, clean=clean)
    before = made.digest()
    transfer = move(made, at)
    if clean and failing == 4:
        assert transfer.phase is Phase.MOVED, "only three pages have to be copied"
        return
    assert transfer.phase is Phase.ABANDONED
    assert transfer.failure is not None
    assert outcome.value in transfer.failure
    assert made.digest() == before


@pytest.mark.parametrize("phase", [p for p in Phase if not p.is_final and p is not Phase.PUBLISHED])
@pytest.mark.parametrize("at", list(Tier))
def test_a_cancel_in_any_phase_leaves_everything_as_it_was(phase: Phase, at: Tier) -> None:
    made = bench(at=at, clean=True)
    before = made.digest()
    transfer = transfer_of(made, at)
    while transfer.phase is not phase:
        if phase is Phase.CANCELLING and transfer.phase is Phase.COPYING:
            transfer.cancel()
        elif not transfer.step():
            made.device.run(1)
    transfer.cancel()
    finish(made, transfer)
    assert transfer.phase is Phase.ABANDONED
    assert made.digest() == before


@pytest.mark.parametrize(("at", "refusal"), [(Tier.DEVICE, HostGeometry), (Tier.HOST, DeviceCapacity)])
def test_a_destination_that_is_full_refuses_and_nothing_changes(at: Tier, refusal: type[Refusal]) -> None:
    made = bench(at=at)
    if at is Tier.DEVICE:
        made.slots.reserve([4])
    else:
        made.pool.reserve(4)
    before = made.digest()
    transfer = transfer_of(made, at)
    with pytest.raises(refusal):
        transfer.start()
    assert made.digest() == before
    assert transfer.phase is Phase.ABANDONED


@pytest.mark.parametrize("phase", [Phase.COPYING, Phase.COPIED, Phase.VERIFIED])
def test_a_page_that_an_active_sequence_takes_up_is_not_published(phase: Phase) -> None:
    made = bench(clean=True)
    before = made.digest()
    transfer = transfer_of(made, Tier.DEVICE)
    while transfer.phase is not phase:
        if not transfer.step():
            made.device.run(1)
    made.pages[1].taken_up = True
    finish(made, transfer)
    assert transfer.phase is Phase.ABANDONED
    assert made.digest() == before


def test_a_page_that_ended_meanwhile_may_be_in_use_as_it_likes() -> None:
    made = bench()
    transfer = transfer_of(made, Tier.DEVICE)
    transfer.start()
    made.pages[1].taken_up = True
    made.drop(made.pages[1], transfer)
    finish(made, transfer)
    assert transfer.phase is Phase.MOVED


@pytest.mark.parametrize("columns", [1, 4])
def test_a_page_that_changed_and_ended_meanwhile_keeps_no_other_from_being_published(columns: int) -> None:
    made = bench()
    transfer = transfer_of(made, Tier.DEVICE)
    transfer.start()
    made.write(made.pages[1], columns)
    made.drop(made.pages[1], transfer)
    finish(made, transfer)
    assert transfer.phase is Phase.MOVED
    assert visible(transfer) == {0: Tier.HOST, 2: Tier.HOST}


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("phase", [Phase.COPYING, Phase.COPIED, Phase.VERIFIED])
def test_a_page_that_changes_meanwhile_is_not_published(phase: Phase, columns: int) -> None:
    """One column more: the copy covers too little.  Four at once: the page was cut and has another epoch."""
    made = bench()
    transfer = transfer_of(made, Tier.DEVICE)
    while transfer.phase is not phase:
        if not transfer.step():
            made.device.run(1)
    made.write(made.pages[1], columns)
    phases = {transfer.phase}
    while not transfer.phase.is_final:
        if not transfer.step():
            made.device.run(1)
        phases.add(transfer.phase)
    assert Phase.PUBLISHED not in phases
    assert (Phase.VERIFIED in phases) == (phase is Phase.VERIFIED)
    made.check_end()
    assert transfer.phase is Phase.ABANDONED
    assert made.slots.live() == ()


def test_what_happened_since_planning_counts_at_the_start() -> None:
    made = bench(clean=True)
    first, second, third = (transfer_of(made, Tier.DEVICE, [0, 1]) for _ in range(3))
    made.write(made.pages[0], 1)  # ends the clean copy that was there when they were planned
    first.start()
    with pytest.raises(WrongState, match="in another transfer"):
        second.start()
    finish(made, first)
    with pytest.raises(WrongState, match="visible in host"):
        third.start()
    assert [t.phase for t in (first, second, third)] == [Phase.MOVED, Phase.ABANDONED, Phase.ABANDONED]
    made.check_end()


# -- ends stay where they are while effects may touch them -------------------------------------------------------------


def test_a_cancelled_transfer_holds_both_ends_until_its_copies_are_over() -> None:
    made = bench(Starving({("copy", StepKind.RUN), ("copy", StepKind.SIGNAL)}))
    transfer = transfer_of(made, Tier.DEVICE)
    transfer.start()
    transfer.cancel()
    made.drop(made.pages[0], transfer)
    assert not transfer.progress()
    assert (len(made.slots.live()), made.pool.leased) == (3, 3)
    made.check_moment(transfer)
    made.device.run(4)  # the signal of the event for which the copies wait, then the three copies
    assert not transfer.progress(), "the bytes have moved, the host has not been told"
    made.device.run(1)
    assert transfer.progress()
    made.check_end()
    assert (len(made.slots.live()), made.pool.leased) == (0, 2)
    assert visible(transfer) == {1: Tier.DEVICE, 2: Tier.DEVICE}


def round_trip(strategy: Strategy) -> None:
    """Write a page, demote it, use its device page for another, write, bring the first back; compare every byte."""
    made = Bench(strategy, device_pages=2, host_slots=2)
    first = made.add(2)
    made.write(first, 1)
    demoted = transfer_of(made, Tier.DEVICE)
    demoted.start()
    while not demoted.progress():
        made.check_moment(demoted)
        assert made.device.run(1)
    while made.retiring:
        assert made.device.run(1)
        made.collect()
    made.add(3)
    restored = transfer_of(made, Tier.HOST, [0])
    restored.start()
    while not restored.progress():
        made.check_moment(restored)
        assert made.device.run(1)
    assert first.replicas.visible is Tier.DEVICE
    made.check_end()


def test_a_page_comes_back_with_its_bytes_in_every_schedule() -> None:
    every = Exhaustive(4_000)
    for strategy in every:
        round_trip(strategy)
    assert every.complete
    for seed in range(30):
        round_trip(PriorityChange(seed, 3, 14))


def test_a_copy_that_does_not_wait_for_the_write_is_caught() -> None:
    """The checks above are not vacuous: with the wait taken out, some schedule brings back the wrong bytes."""

    class Careless(Bench):
        def copy(self, number, source, copies):  # type: ignore[no-untyped-def]
            self.copies.wait = lambda event: None  # type: ignore[method-assign]
            return super().copy(number, source, copies)

    def caught(strategy: Strategy) -> bool:
        made = Careless(strategy)
        made.add(2)
        try:
            move(made, Tier.DEVICE)
        except (AssertionError, KeyError):
            return True
        return False

    assert any(caught(strategy) for strategy in Exhaustive(100))


# -- what is refused before anything happens ---------------------------------------------------------------------------


def test_transfers_that_cannot_be_meant_are_refused() -> None:
    made = bench()
    for pages in ([], [0, 0]):
        with pytest.raises(BadArgument):
            transfer_of(made, Tier.DEVICE, pages)
    with pytest.raises(WrongState, match="visible in device"):
        transfer_of(made, Tier.HOST)
    running = transfer_of(made, Tier.DEVICE, [0])
    running.start()
    with pytest.raises(WrongState, match="in another transfer"):
        transfer_of(made, Tier.DEVICE)
    with pytest.raises(WrongState, match="start it once"):
        running.start()
    with pytest.raises(WrongState, match="free the page yourself"):
        running.drop(1)
    made.pages[2].committed += 1
    with pytest.raises(WrongState, match="stale"):
        transfer_of(made, Tier.DEVICE, [2])
    made.pages[2].committed -= 1
    finish(made, running)
    for call in (running.cancel, lambda: running.drop(0)):
        with pytest.raises(WrongState):
            call()
