"""What holds for the accounting model after any operations at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from accounting_steps import IDENTITIES, Draw, configs, draws, new_model, pick, played, small, steps_of, take
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig, pages_for
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Cancel,
    EndUnit,
    Hit,
    Lookup,
    Pin,
    Progress,
    Progressed,
    Release,
    Schedule,
    TransferEnded,
    TransferOutcome,
    TryAdmit,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import EMPTY, concat, count, expand, prefix, run
from kvcrucible.reference.accounting import AccountingModel
from kvcrucible.reference.holdings import Entry
from kvcrucible.reference.pages import Page


def check_pool(model: AccountingModel, pool: int) -> None:
    """Hold one pool's lists of pages to what the contract says of them."""
    books, size = model.books, model.books.page_size[pool]
    assert min(books.counters[pool]) >= 0
    holders = Counter(page for entry in books.holders().values() for page in entry.pages[pool])
    carried = Counter(move.page for _, move in books.moves(pool))
    assert all(number == 1 for number in carried.values()), "a page is in one transfer"
    for name, entry in books.holders().items():
        held, reach = entry.pages[pool], model.reach(name)[pool]
        private, shared = model.pages_of(name, pool)
        assert private + shared == len(held)
        assert shared == sum(holders[page] + carried[page] > 1 for page in held)
        # A page with two holders is full, so the shared ones are the first ones; a writer is alone on its page.
        assert all(holders[page] == 1 for page in held[reach // size :])
        assert [holders[page] > 1 for page in held] == sorted(
            [holders[page] > 1 for page in held], reverse=True
        )
        if entry.unit is None:
            assert len(held) == pages_for(reach, size)
        if name in books.active:
            assert not carried[held[-1]] if held and reach % size else True
            assert all(page.visible is Tier.DEVICE for page in held)
            if books.reserves:
                assert len(held) + model.reserved(name, pool) == pages_for(entry.limit, size)
                assert len(entry.returned[pool]) <= model.reserved(name, pool)
    check_replicas(model, pool, holders)


def check_replicas(model: AccountingModel, pool: int, holders: Counter[Page]) -> None:
    """Count one pool's Device pages by where they come from, and hold every page to its replicas."""
    books = model.books
    assert all(page.has(page.visible) for page in holders)
    beside = 0
    for transfer, move in books.moves(pool):
        if holders[move.page]:
            assert move.page.visible is transfer.source
            assert move.fresh is not move.page.has(transfer.source.other)
        fresh = move.fresh and transfer.source is Tier.HOST
        beside += fresh + (move.page.device and not holders[move.page])
    assert books.leased(pool) == sum(page.device for page in holders) + beside + model.retiring(pool)
    waiting = [fence for entry in books.active.values() for fence in entry.returned[pool]]
    for fence in [*books.retiring[pool], *waiting]:
        assert fence & set(model.outstanding_units), "a page at rest waits for nothing"


def check_books(model: AccountingModel) -> None:
    """Hold the model to what the contract says of it, from its own lists of pages."""
    books, host = model.books, model.config.host
    for pool in books.pools:
        check_pool(model, pool)
    assert model.rows_free >= 0
    if host is None:
        assert (model.host_used_bytes, model.transfers()) == (0, [])
    else:
        assert 0 <= model.host_used_bytes <= host.capacity_bytes
        assert model.host_used_bytes % host.alignment_bytes == 0
    for entry in books.holders().values():
        assert entry.backend <= entry.frontier
    sessions = [entry.session for entry in books.active.values() if entry.session is not None]
    assert len(sessions) == len(set(sessions))
    for _, owner, frontier, tokens, identity in model.checkpoints:
        owned = books.holders()[owner]
        assert tokens == prefix(owned.tokens, frontier)
        assert identity == owned.identity


@settings(max_examples=100)
@given(configs, draws, st.booleans())
def test_books_add_up_after_every_operation(config: EngineConfig, drawn: list[Draw], immediate: bool) -> None:
    played(config, drawn, check_books, immediate=immediate)


@settings(max_examples=60)
@given(configs, draws, st.booleans(), st.booleans())
def test_books_add_up_without_reservations(
    config: EngineConfig, drawn: list[Draw], retains: bool, immediate: bool
) -> None:
    everything = Capabilities("on demand", reserves=False)
    operations = (
        everything.operations
        if retains
        else everything.operations - {"Fork", "Truncate", "Checkpoint", "Pin", "Release"}
    )
    capabilities = Capabilities("on demand", operations, reserves=False)

    def check(model: AccountingModel) -> None:
        check_books(model)
        assert not any(reserved for _, reserved, _ in model.books.counters)

    played(config, drawn, check, capabilities, immediate)


@settings(max_examples=60)
@given(config=configs, drawn=draws, immediate=st.booleans())
def test_a_refusal_or_a_wait_changes_nothing(
    config: EngineConfig,
    drawn: list[Draw],
    immediate: bool,
    describe: Callable[[AccountingModel], str],
) -> None:
    model = new_model(config, immediate=immediate)
    for draw in drawn:
        for step in steps_of(model, draw):
            before = describe(model)
            operation = Progress() if isinstance(step, Progressed) else step
            row = model.refusing_row(operation)
            assert describe(model) == before, "asking changes nothing"
            assert isinstance(model.demand(operation), int | None)
            assert describe(model) == before, "asking changes nothing"
            outcome = take(model, step)
            assert outcome.counters == model.books.counters
            if row is not None:
                assert describe(model) == before
                assert outcome.evicted == ()
            if outcome.refusal is not None:
                assert row is not None
                assert row.kind is outcome.refusal


@settings(max_examples=60)
@given(config=configs, drawn=draws, more=draws, immediate=st.booleans())
def test_copied_books_and_their_copies_go_their_own_ways(
    config: EngineConfig,
    drawn: list[Draw],
    more: list[Draw],
    immediate: bool,
    describe: Callable[[AccountingModel], str],
) -> None:
    model = played(config, drawn, immediate=immediate)
    twin = AccountingModel(config, immediate=immediate)
    twin.books = model.books.copy()
    known = describe(model)
    assert describe(twin) == known, "a copy is equal"
    for draw in more[:8]:
        for step in steps_of(twin, draw):
            take(twin, step)
    assert describe(model) == known, "and changes by itself"


@settings(max_examples=60)
@given(configs, draws, st.booleans())
def test_a_report_cut_in_pieces_says_what_is_possible(
    config: EngineConfig, drawn: list[Draw], immediate: bool
) -> None:
    model = played(config, drawn, immediate=immediate)
    units, transfers = tuple(model.books.ended), model.transfers()
    over = tuple(TransferEnded(name, TransferOutcome.MOVED) for name in transfers)
    backwards = model.predict_progress(Progressed(units[1:], over[:1])).value
    assert isinstance(backwards, Progressed)
    assert backwards.units == ()
    assert [told.transfer for told in backwards.transfers] == transfers[:1]
    rest = model.predict_progress(Progressed(units, over)).value
    assert isinstance(rest, Progressed)
    assert rest.units == units
    assert [told.transfer for told in rest.transfers] == transfers[1:]
    assert (model.outstanding_units, model.transfers()) == ((), [])
    assert all(model.retiring(pool) == 0 for pool in model.books.pools)
    check_books(model)


def _there(model: AccountingModel, request: Entry) -> Hit | None:
    """The best hit of which every page is on Device, of an owner that is in no unit."""
    barred = {name for name in [*model.sequences(), *model.continuations()] if model.in_flight(name)}
    while True:
        hit = model.books.best_hit(request.prompt, request.spans, request.identity, frozenset(barred))
        if hit is None or not any(model.books.missing(model.books.holders()[hit.source], hit.length)):
            return hit
        barred.add(hit.source)


@settings(max_examples=100)
@given(configs, draws)
def test_with_reservations_a_hit_is_never_left_unused(config: EngineConfig, drawn: list[Draw]) -> None:
    """A cold start takes at least what fork or move would take, so it is admitted only where no source was found.

    But for a source in a transfer: it is neither moved nor cut, and a cold start may do without a continuation that the
    fork protects.
    """
    model = new_model(config)
    for draw in drawn:
        for step in steps_of(model, draw):
            if isinstance(step, Schedule):
                step = TryAdmit(model.queue[0]) if model.queue else step
            found = None
            if isinstance(step, TryAdmit) and step.sequence in model.queue:
                request = model.books.queued[step.sequence]
                found = _there(model, request)
            carried = found is not None and model.in_transfer(found.source)
            value = take(model, step).value
            if isinstance(value, Admitted) and (value.mode is not AdmissionMode.COLD or not carried):
                assert (value.mode is AdmissionMode.COLD) == (found is None)
                assert value.hit == (found.length if found else 0)
                assert not (carried and value.mode is not AdmissionMode.FORK)


@settings(max_examples=100)
@given(configs, draws, st.booleans())
def test_ending_everything_leaves_a_new_pool(
    config: EngineConfig, drawn: list[Draw], immediate: bool
) -> None:
    model = played(config, drawn, immediate=immediate)
    for unit in model.units:
        model.predict(EndUnit(unit))
    for sequence in [*model.queue, *model.sequences()]:
        assert model.predict(Cancel(sequence)).value is True
    for continuation in model.continuations():
        model.predict(Pin(continuation, pinned=False))
        assert model.predict(Release(continuation)).refusal is None
    model.predict(Progress())
    assert model.books.counters == tuple((0, 0, pool.capacity_pages) for pool in config.pools)
    assert model.host_used_bytes == 0
    assert model.rows_free == config.max_concurrency
    assert model.checkpoints == []


@settings(max_examples=100)
@given(configs, draws, small, small)
def test_hit_is_the_longest_common_prefix_token_by_token(
    config: EngineConfig, drawn: list[Draw], which: int, more: int
) -> None:
    model = played(config, drawn)
    held = model.sequences() + model.continuations()
    known = model.tokens(pick(held, which)) if held else EMPTY
    prompt = concat(prefix(known, count(known) - more // 3), run(1, more, more % 3))
    if count(prompt) == 0:
        return
    for identity in IDENTITIES:
        found: list[tuple[int, bool, int, int]] = []
        wanted = list(expand(prompt))
        for checkpoint, owner, frontier, tokens, other in model.checkpoints:
            have = list(expand(tokens))
            assert len(have) == frontier
            length = 0
            while length < len(wanted) - 1 and length < len(have) and wanted[length] == have[length]:
                length += 1
            if other == identity and length:
                found.append((-length, not model.resident(owner), checkpoint, owner))
        best = min(found, default=None)
        expected = None if best is None else Hit(best[3], best[2], -best[0])
        assert model.predict(Lookup(prompt, identity)).value == expected
