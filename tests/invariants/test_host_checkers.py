"""The rules of the Host tier are silent on a toy that keeps them, and each fires on its own corruptions."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from firing import fired_in_full, fired_in_step
from host_corruptions import HOST_CORRUPTIONS
from host_toy import Toy
from pool_corruptions import CORRUPTIONS
from snapshot_corruptions import put

from kvcrucible.contract.snapshot import Tier
from kvcrucible.invariants.checker import Checker
from kvcrucible.invariants.monitor import Monitor, differences
from kvcrucible.invariants.registry import CHECKERS, checkers
from kvcrucible.invariants.shadow import Shadow

STEPS = 400
TRIES = 15

#: Rules that the toy gives nothing to judge: it makes no checkpoints.
WITHOUT_PREMISE = {"protected-prefix", "exact-prefix-identity", "no-leak-at-quiescence"}


@pytest.fixture(scope="module")
def steps():
    """One walk of the toy, full snapshots before and after each step."""
    return list(Toy(5).steps(STEPS))


@pytest.mark.parametrize("seed", range(3))
def test_sound_runs_are_clean_and_not_vacuous(seed):
    monitor = Monitor(checkers())
    for number, (before, after) in enumerate(Toy(seed).steps(STEPS)):
        if number == 0:
            assert monitor.observe_full(before) == []
        assert monitor.observe(after, differences(before, after)) == []
        if number % 3 == 0:
            assert monitor.observe_full(after) == []
    rare = {name for name, tally in monitor.tallies.items() if tally.premises < 50}
    assert rare <= WITHOUT_PREMISE


@pytest.mark.parametrize("seed", range(3))
def test_sound_runs_of_the_engine_are_clean_fully_reported_and_not_vacuous(host_walk, seed):
    monitor = Monitor(checkers())
    for number, step in enumerate(host_walk(seed, 2 * STEPS)):
        if number == 0:
            assert monitor.observe_full(step.before) == []
        assert monitor.observe(step.partial, step.touched) == []
        if number % 3 == 0:
            assert monitor.observe_full(step.after) == []
    rare = {name for name, tally in monitor.tallies.items() if tally.premises < 10}
    assert rare <= {"no-leak-at-quiescence"}


def test_the_toy_does_all_that_the_rules_speak_of(steps):
    """What the corruptions and the agreement below rest on."""
    befores = [before for before, _ in steps]
    ended = [(b.transfers[k], a) for b, a in steps for k in b.transfers.keys() - a.transfers.keys()]
    published = [
        (t.source, t.keep)
        for t, after in ended
        for m in t.moves
        if m.page in after.pages and after.pages[m.page].visible is not t.source
    ]
    assert set(published) == {(tier, keep) for tier in Tier for keep in (True, False)}
    assert any(t.cancelling for t, _ in ended)
    assert any(m.dropped for s in befores for t in s.transfers.values() for m in t.moves)
    assert any(not m.fresh for s in befores for t in s.transfers.values() for m in t.moves)
    assert any(p.in_transfer and p.references > 1 for s in befores for p in s.pages.values())
    assert any(len(s.extents) > 2 and len(s.host_holes) > 1 for s in befores)
    assert any(s.retiring for s in befores)


@pytest.mark.parametrize("name", HOST_CORRUPTIONS)
def test_each_corruption_is_found_in_full_and_in_one_step(steps, name):
    invariant, corrupt = HOST_CORRUPTIONS[name]
    checker = next(c for c in CHECKERS if c.id == invariant)
    random, tried = Random(7), 0
    for _, after in steps:
        broken = corrupt(after, random)
        if broken is None:
            continue
        tried += 1
        if tried > TRIES:
            break
        if checker.check is not Checker.check:
            assert invariant in fired_in_full(broken)
        if checker.is_local:
            assert invariant in fired_in_step(after, broken)
    assert tried, "nothing was there to corrupt: the walk proves nothing"


@pytest.mark.parametrize("seed", range(4))
def test_step_checks_agree_with_full_checks_on_random_broken_steps(host_walk, seed):
    """On the toy, and once on the engine."""
    walk = Toy(50 + seed).steps(STEPS // 4)
    if seed == 0:
        walk = ((step.before, step.after) for step in host_walk(50, STEPS // 2))
    temporal = {c.id for c in CHECKERS if c.is_temporal}
    every = {**CORRUPTIONS, **HOST_CORRUPTIONS}
    random, compared = Random(seed), 0
    for before, after in walk:
        for name in random.sample(list(every), 20):
            broken = every[name][1](after, random)
            if broken is None:
                continue
            full = fired_in_full(replace(broken, free_pages=None, host_holes=None), local=True)
            stepwise = fired_in_step(before, broken)
            compared += 1
            assert full <= stepwise, f"{name}: the step check misses {full - stepwise}"
            assert stepwise - full <= temporal, f"{name}: only the step check sees {stepwise - full}"
    assert compared > 300


def test_a_lease_that_moves_as_another_holder_ends_is_found(steps):
    """The page's only touched space is the one that ended; the row that maps it belongs to another."""

    def held_by(state, owners):
        return {page for owner in owners for page in state.spaces[owner, 0].pages}

    for _, state in steps:
        for kept in state.continuations:
            both = held_by(state, [kept]) & held_by(state, state.sequences)
            if page := next((state.pages[p] for p in both if state.pages[p].references == 2), None):
                moved = replace(page, references=1, device=state.free_pages[0][0])
                after = put(put(state, "continuations", kept, None), "spaces", (kept, 0), None)
                after = put(after, "pages", page.page, moved)
                assert "table-mirror" in fired_in_step(state, after)
                return
    raise AssertionError("the walk has no such page")


def test_every_rule_of_the_host_tier_has_several_corruptions():
    kinds = [invariant for invariant, _ in HOST_CORRUPTIONS.values()]
    step_alone = {"publish-order"}
    for checker in CHECKERS:
        if checker.needs_host and checker.id not in step_alone:
            assert kinds.count(checker.id) >= 3, checker.id


def test_the_shadow_follows_steps(steps):
    shadow = Shadow(steps[0][0])
    for before, after in steps:
        shadow.advance(shadow.step(after, differences(before, after)))
        fresh = Shadow(after)
        assert differences(shadow.state, after) == differences(after, after)
        assert shadow.state.host == after.host
        assert shadow._holders == fresh._holders
        for name in ("transfers_by_page", "transfers_by_device", "transfers_by_extent", "pages_by_extent"):
            assert getattr(shadow._places, name).ids == getattr(fresh._places, name).ids
        assert shadow._places.offsets == fresh._places.offsets


def test_a_step_does_not_look_at_pages_that_share_nothing_with_it(steps):
    """Writing one page of an engine full of transfers and extents brings neither them nor their pages into view."""
    before, after = next(
        (b, a)
        for b, a in steps
        if len(b.units) > len(a.units) and len(b.extents) > 2 and b.transfers and len(b.pages) > 15
    )
    step = Shadow(before).step(after, differences(before, after))
    assert len(step.after.pages) < len(after.pages) / 2
    assert len(step.after.extents) < len(after.extents)


@pytest.mark.parametrize(
    "change",
    [
        lambda holes: holes[1:],
        lambda holes: ((holes[0][0], holes[0][1] - 64), *holes[1:]),
        lambda holes: ((holes[0][0], 64), (holes[0][0] + 64, holes[0][1] - 64), *holes[1:]),
        lambda holes: (*holes, (64 * 40, 64)),
    ],
    ids=["lost", "short", "split", "beyond"],
)
def test_holes_are_judged_in_full_snapshots(steps, change):
    state = next(a for _, a in steps if len(a.host_holes) > 1 and a.host_holes[0][1] > 64)
    assert not fired_in_full(state)
    assert fired_in_full(replace(state, host_holes=change(state.host_holes))) == {"host-conservation"}


def test_a_retiring_page_and_the_place_of_a_transfer_are_not_free(steps):
    state = next(a for _, a in steps if a.retiring)
    (pool, device), _ = next(iter(state.retiring.items()))
    free = tuple((*f, device) if at == pool else f for at, f in enumerate(state.free_pages))
    assert fired_in_full(replace(state, free_pages=free)) == {"lease-unique", "recycle-fenced"}

    state = next(a for _, a in steps if a.transfers)
    move = next(iter(state.transfers.values())).moves[0]
    free = tuple((*f, move.device) if at == move.pool else f for at, f in enumerate(state.free_pages))
    assert fired_in_full(replace(state, free_pages=free)) == {"lease-unique", "recycle-fenced"}


def test_an_arena_never_changes_its_size(steps):
    state = steps[0][0]
    larger = replace(
        state, host=replace(state.host, capacity=state.host.capacity + 64, free=state.host.free + 64)
    )
    assert "host-conservation" in fired_in_step(state, larger)


def test_nothing_is_on_host_without_a_host_tier(steps):
    state = next(a for _, a in steps if any(p.visible is Tier.HOST for p in a.pages.values()))
    assert {"one-visible-replica", "host-conservation"} <= fired_in_full(replace(state, host=None))


def test_an_engine_at_rest_waits_for_no_transfer_and_no_fence(steps):
    (checker,) = [c for c in checkers() if c.id == "no-leak-at-quiescence"]
    state = next(a for _, a in steps if a.retiring)
    over = replace(state, sequences={}, continuations={}, units={}, transfers={})
    assert not checker.premise(over)
    assert list(checker.check(over)) == []
    assert checker.premise(replace(over, retiring={}))
    assert list(checker.check(replace(over, retiring={})))


# -- what only a step can show: transfers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"keep": True},
        {"continuation": 9_999},
        {"source": Tier.HOST},
        {"moves": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_transfer_stays_what_it_started_as(steps, change):
    state = next(
        a for _, a in steps if any(not t.keep and t.source is Tier.DEVICE for t in a.transfers.values())
    )
    transfer = next(t for t in state.transfers.values() if not t.keep and t.source is Tier.DEVICE)
    changed = put(state, "transfers", transfer.transfer, replace(transfer, **change))
    assert "transfer-pinned" in fired_in_step(state, changed)


@pytest.mark.parametrize("name", ["epoch", "coverage", "device", "slot", "generation"])
def test_a_transfer_keeps_its_places(steps, name):
    state = next(a for _, a in steps if a.transfers)
    transfer = next(iter(state.transfers.values()))
    move = replace(transfer.moves[0], **{name: getattr(transfer.moves[0], name) + 1})
    moves = (move, *transfer.moves[1:])
    changed = put(state, "transfers", transfer.transfer, replace(transfer, moves=moves))
    assert "transfer-pinned" in fired_in_step(state, changed)


def test_a_cancelled_transfer_stays_cancelled(steps):
    state = next(a for _, a in steps if any(t.cancelling for t in a.transfers.values()))
    transfer = next(t for t in state.transfers.values() if t.cancelling)
    changed = put(state, "transfers", transfer.transfer, replace(transfer, cancelling=False))
    assert "transfer-pinned" in fired_in_step(state, changed)
    assert fired_in_step(changed, state) == set(), "cancelling one is fine"


# -- what only a step can show: publication ----------------------------------------------------------------------------


def publication(steps, *, source=None, keep=None, pages=1, published=True, fresh=False):
    """The first step in which one transfer ends and, or not, publishes at least ``pages`` pages."""
    for before, after in steps:
        ended = [before.transfers[key] for key in before.transfers.keys() - after.transfers.keys()]
        if len(ended) != 1 or (source and ended[0].source is not source):
            continue
        (transfer,) = ended
        living = [m for m in transfer.moves if m.page in after.pages]
        moved = [m for m in living if after.pages[m.page].visible is not transfer.source]
        fits = (keep is None or transfer.keep is keep) and (not fresh or any(m.fresh for m in living))
        if fits and len(living) >= pages and bool(moved) is published:
            return before, after, transfer, living
    raise AssertionError("the walk has no such step")


def test_visibility_moves_only_when_a_transfer_ends(steps):
    _, state = next((b, a) for b, a in steps if any(p.on_host and p.on_device for p in a.pages.values()))
    page = next(p for p in state.pages.values() if p.on_host and p.on_device)
    assert "publish-order" in fired_in_step(
        state, put(state, "pages", page.page, replace(page, visible=page.visible.other))
    )


def test_all_pages_of_a_transfer_are_published_at_once(steps):
    before, after, transfer, living = publication(steps, keep=True, pages=2)
    assert fired_in_step(before, after) == set()
    page = after.pages[living[0].page]
    half = put(after, "pages", page.page, replace(page, visible=transfer.source))
    assert "publish-order" in fired_in_step(before, half)


def test_a_cancelled_transfer_publishes_nothing(steps):
    before, after, transfer, _ = publication(steps)
    marked = put(before, "transfers", transfer.transfer, replace(transfer, cancelling=True))
    assert fired_in_step(marked, after) == {"publish-order"}


def test_a_transfer_publishes_to_its_own_destination(steps):
    before, after, transfer, _ = publication(steps, keep=True)
    turned = put(before, "transfers", transfer.transfer, replace(transfer, source=transfer.source.other))
    assert "publish-order" in fired_in_step(turned, after)


def test_what_is_published_is_current_and_lies_where_it_was_copied(steps):
    before, after, _, living = publication(steps, source=Tier.DEVICE)
    page = after.pages[living[0].page]
    for change in (
        {"epoch": page.epoch + 1},
        {"coverage": page.committed - 1},
        {"slot": page.on_host.slot + 1},
    ):
        wrong = put(after, "pages", page.page, replace(page, on_host=replace(page.on_host, **change)))
        assert "publish-order" in fired_in_step(before, wrong), change


def test_the_source_is_freed_or_kept_as_was_asked(steps):
    for keep in (True, False):
        before, after, transfer, _ = publication(steps, source=Tier.HOST, keep=keep)
        other = put(before, "transfers", transfer.transfer, replace(transfer, keep=not keep))
        assert fired_in_step(other, after) == {"publish-order"}


def test_an_abandoned_transfer_leaves_no_copy(steps):
    before, after, _, living = publication(steps, source=Tier.DEVICE, published=False)
    fresh = next(m for m in living if m.fresh)
    page = after.pages[fresh.page]
    copy = replace(page.on_device, extent=fresh.extent, slot=fresh.slot)
    kept = put(after, "pages", page.page, replace(page, on_host=copy))
    assert "publish-order" in fired_in_step(before, kept)


def test_a_new_page_is_on_device(steps):
    before, after = next((b, a) for b, a in steps if a.pages.keys() - b.pages.keys())
    page = after.pages[min(after.pages.keys() - before.pages.keys())]
    born = replace(page, visible=Tier.HOST, on_host=replace(page.on_device, extent=1, slot=0))
    assert "publish-order" in fired_in_step(before, put(after, "pages", page.page, born))


# -- what only a step can show: fences and leases ----------------------------------------------------------------------


def test_a_fence_that_ends_gives_its_page_to_the_free_list(steps):
    before, after = next((b, a) for b, a in steps if b.retiring.keys() - a.retiring.keys())
    pool, device = min(before.retiring.keys() - after.retiring.keys())
    assert fired_in_step(before, after) == set()
    page = next(p for p in after.pages.values() if p.pool == pool and p.device >= 0)
    given = put(after, "pages", page.page, replace(page, device=device, generation=10**6))
    assert "recycle-fenced" in fired_in_step(before, given)


def test_no_page_is_taken_from_under_a_unit_in_flight(steps):
    state = next(a for _, a in steps if any(u.frozen[0][2] for u in a.units.values()))
    unit = next(u for u in state.units.values() if u.frozen[0][2])
    page = next(p for p in state.pages.values() if p.pool == 0 and p.device == unit.frozen[0][2][0])
    assert "recycle-fenced" in fired_in_step(state, put(state, "pages", page.page, None))
    free = next(iter(state.free_pages[0]))
    assert "recycle-fenced" in fired_in_step(
        state, put(state, "pages", page.page, replace(page, device=free))
    )


def test_a_free_page_is_in_no_frozen_row(steps):
    state = next(a for _, a in steps if any(u.frozen[0][2] for u in a.units.values()))
    unit = next(u for u in state.units.values() if u.frozen[0][2])
    free = ((*state.free_pages[0], unit.frozen[0][2][0]), *state.free_pages[1:])
    assert "recycle-fenced" in fired_in_full(replace(state, free_pages=free))


def test_a_lease_keeps_its_generation_when_it_passes_on(steps):
    """From a page to its fence, and from a restore to its page."""
    before, after = next((b, a) for b, a in steps if a.retiring.keys() - b.retiring.keys())
    place = min(after.retiring.keys() - before.retiring.keys())
    retiring = after.retiring[place]
    older = put(after, "retiring", place, replace(retiring, generation=retiring.generation - 1))
    assert "stale-handle-refused" in fired_in_step(before, older)

    before, after, _, living = publication(steps, source=Tier.HOST, fresh=True)
    page = after.pages[next(m.page for m in living if m.fresh)]
    other = put(after, "pages", page.page, replace(page, generation=page.generation + 1))
    assert "stale-handle-refused" in fired_in_step(before, other)


def test_a_page_that_comes_back_has_a_lease_of_its_own(steps):
    """Demoted and restored to the same place, under the generation that it had: an old handle would fit again."""
    monitor = Monitor(checkers())
    before, after, _, living = publication(steps, source=Tier.DEVICE, keep=False)
    monitor.observe_full(before)
    assert monitor.observe(after, differences(before, after)) == []
    old = before.pages[living[0].page]
    back = put(after, "pages", old.page, old)
    assert "stale-handle-refused" in {v.invariant for v in monitor.observe(back, differences(after, back))}
