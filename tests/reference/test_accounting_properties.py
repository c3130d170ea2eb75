"""What holds for the accounting model after any operations at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig, PoolSpec, pages_for
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    Cancel,
    Checkpoint,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Identity,
    Lookup,
    Operation,
    Pin,
    Prefill,
    Release,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.tokens import EMPTY, concat, count, expand, prefix, run
from kvcrucible.reference.accounting import AccountingModel

PAGE = 4
IDENTITIES = (Identity(), Identity(adapter="other"))
SESSIONS = (None, None, "a", "b")

#: One drawn step: four numbers that choose an operation and its arguments among what there is.
Draw = tuple[int, int, int, int]
small = st.integers(0, 11)
draws = st.lists(st.tuples(st.integers(0, 99), small, small, small), min_size=20, max_size=50)
pools = st.builds(
    lambda capacity, backend: (PoolSpec("main", capacity, PAGE), *([backend] if backend else [])),
    st.integers(2, 8),
    st.none() | st.builds(PoolSpec, st.just("mtp"), st.integers(1, 12), st.sampled_from((2, 4, 8))),
)
configs = st.builds(
    lambda pools, pages, rows: EngineConfig(pools, pages * PAGE, rows),
    pools,
    st.integers(2, 5),
    st.integers(1, 4),
)


def pick(ids: list[int], number: int) -> int:
    """Return one of the ids, or one that may name nothing."""
    return ids[number % len(ids)] if ids else number


def kinds(model: AccountingModel) -> list[str]:
    """Return what makes sense now, the more promising more often."""
    idle = [name for name in model.sequences() if not model.in_flight(name)]
    enabled = ["odd", "submit"]
    if model.queue:
        enabled += ["schedule"] * 3 + ["admit"]
    if idle:
        enabled += ["run"] * 6 + [
            "begin",
            "fork",
            "fork",
            "truncate",
            "truncate",
            "checkpoint",
            "finish",
            "finish",
        ]
    if model.sequences():
        enabled += ["cancel"]
    if model.units:
        enabled += ["end"] * 3
    if model.continuations():
        enabled += ["submit-known"] * 4 + ["fork", "release", "pin"]
    return enabled


def operations(model: AccountingModel, draw: Draw) -> list[Operation]:
    """Turn a draw into operations: mostly legal ones, and some of the other sort."""
    number, a, b, c = draw
    able = model.capabilities.operations
    enabled = kinds(model)
    return [
        one for one in choose(model, enabled[number % len(enabled)], a, b, c) if type(one).__name__ in able
    ]


def choose(model: AccountingModel, kind: str, a: int, b: int, c: int) -> list[Operation]:
    """Return operations of a kind with arguments by number."""
    active = model.sequences()
    held = active + model.continuations()
    sequence = pick(active, a)
    match kind:
        case "submit":
            request = Submit(run(0, 0, a), b, SESSIONS[c % 4], c > 8, IDENTITIES[c % 7 == 6])
            return [request] if c == 0 else [request, Schedule()]
        case "submit-known":
            known = prefix(model.tokens(pick(held, a)), b * PAGE // 2) if held else EMPTY
            return [Submit(concat(known, run(1, c, 1)), b % 5, SESSIONS[a % 4], c % 2 == 0), Schedule()]
        case "schedule":
            return [Schedule()]
        case "admit":
            return [TryAdmit(pick(model.queue, a))]
        case "run" | "begin":
            if sequence not in active or model.in_flight(sequence):
                return []
            left = model.prompt_left(sequence)
            room = model.limit(sequence) - model.frontier(sequence)
            reach = model.reach(sequence)
            # With a backend: up to Main, nothing, or some of what it lacks.
            behind = reach[0] - reach[-1] + (min(left, b + 1) if left else min(b + 1, room))
            backend = None if len(reach) == 1 or c < 5 else min(behind, (c - 5) * 2)
            work = (
                Prefill(sequence, min(left, b + 1), backend)
                if left
                else Append(sequence, run(2, c, min(b + 1, room)), backend)
            )
            unit = BeginUnit((work,))
            if kind == "begin" or model.refusing_row(unit) is not None:
                return [unit]
            return [unit, EndUnit(model.books.next_unit, commit=c != 0)]
        case "end":
            return [EndUnit(pick(model.units, a), commit=b > 2)]
        case "fork":
            source = pick(held, a)
            at = model.frontier(source) - c % 5 if source in held else b
            return [Fork(source, at, b, SESSIONS[c % 4])]
        case "truncate":
            at = model.frontier(sequence) - b if sequence in active else b
            return [Truncate(sequence, at)]
        case "checkpoint":
            return [Checkpoint(sequence)]
        case "finish":
            return [Finish(sequence, retain=b > 1)]
        case "cancel":
            return [Cancel(pick(active + model.queue, a))]
        case "release":
            return [Release(pick(model.continuations(), a))]
        case "pin":
            return [Pin(pick(model.continuations(), a), pinned=b % 2 == 0)]
    return [
        [Truncate(a, b - 1), Fork(a, b, c - 1), Finish(a), Release(a), BeginUnit((Prefill(a, b), Prefill(c, 1)))][b % 5]
    ]  # fmt: skip


def played(
    config: EngineConfig,
    steps: list[Draw],
    after: Callable[[AccountingModel], None] = lambda model: None,
    capabilities: Capabilities | None = None,
) -> AccountingModel:
    """Play the steps on a new model; ``after`` looks at it after every operation."""
    model = AccountingModel(config, capabilities)
    for step in steps:
        for operation in operations(model, step):
            model.predict(operation)
            after(model)
    return model


def check_pool(model: AccountingModel, pool: int) -> None:
    """Hold one pool's lists of pages to what the contract says of them."""
    books, size = model.books, model.books.page_size[pool]
    assert min(books.counters[pool]) >= 0
    holders = Counter(page for entry in books.holders().values() for page in entry.pages[pool])
    assert len(holders) == books.leased(pool)
    for name, entry in books.holders().items():
        held, reach = entry.pages[pool], model.reach(name)[pool]
        private, shared = model.pages_of(name, pool)
        assert private + shared == len(held)
        # A page with two holders is full, so the shared ones are the first ones; a writer is alone on its page.
        assert all(holders[page] == 1 for page in held[reach // size :])
        assert all(holders[page] > 1 for page in held[:shared])
        if entry.unit is None:
            assert len(held) == pages_for(reach, size)
        if name in books.active and books.reserves:
            assert len(held) + model.reserved(name, pool) == pages_for(entry.limit, size)


def check_books(model: AccountingModel) -> None:
    """Hold the model to what the contract says of it, from its own lists of pages."""
    books = model.books
    for pool in books.pools:
        check_pool(model, pool)
    assert model.rows_free >= 0
    for entry in books.holders().values():
        assert entry.backend <= entry.frontier
    sessions = [entry.session for entry in books.active.values() if entry.session is not None]
    assert len(sessions) == len(set(sessions))
    for _, owner, frontier, tokens, identity in model.checkpoints:
        owned = books.holders()[owner]
        assert tokens == prefix(owned.tokens, frontier)
        assert identity == owned.identity


@settings(max_examples=150)
@given(configs, draws)
def test_books_add_up_after_every_operation(config: EngineConfig, steps: list[Draw]) -> None:
    played(config, steps, check_books)


@settings(max_examples=60)
@given(configs, draws, st.booleans())
def test_books_add_up_without_reservations(config: EngineConfig, steps: list[Draw], retains: bool) -> None:
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

    played(config, steps, check, capabilities)


@settings(max_examples=100)
@given(config=configs, steps=draws)
def test_a_refusal_or_a_wait_changes_nothing(
    config: EngineConfig, steps: list[Draw], describe: Callable[[AccountingModel], str]
) -> None:
    model = AccountingModel(config)
    for step in steps:
        for operation in operations(model, step):
            before, row = describe(model), model.refusing_row(operation)
            assert describe(model) == before, "asking changes nothing"
            assert isinstance(model.demand(operation), int | None)
            assert describe(model) == before, "asking changes nothing"
            outcome = model.predict(operation)
            assert outcome.counters == model.books.counters
            if row is not None:
                assert describe(model) == before
                assert outcome.evicted == ()
            if outcome.refusal is not None:
                assert row is not None
                assert row.kind is outcome.refusal


@settings(max_examples=100)
@given(configs, draws)
def test_with_reservations_a_hit_is_never_left_unused(config: EngineConfig, steps: list[Draw]) -> None:
    """A cold start takes at least what fork or move would take, so it is admitted only where nothing was found."""
    model = AccountingModel(config)
    for step in steps:
        for operation in operations(model, step):
            if isinstance(operation, Schedule):
                operation = TryAdmit(model.queue[0]) if model.queue else operation
            found = None
            if isinstance(operation, TryAdmit) and operation.sequence in model.queue:
                request = model.books.queued[operation.sequence]
                busy = frozenset(name for name in model.sequences() if model.in_flight(name))
                found = model.books.best_hit(request.prompt, request.identity, busy)
            value = model.predict(operation).value
            if isinstance(value, Admitted):
                assert (value.mode is AdmissionMode.COLD) == (found is None)
                assert value.hit == (found.length if found else 0)


@settings(max_examples=100)
@given(configs, draws)
def test_ending_everything_leaves_a_new_pool(config: EngineConfig, steps: list[Draw]) -> None:
    model = played(config, steps)
    for unit in model.units:
        model.predict(EndUnit(unit))
    for sequence in [*model.queue, *model.sequences()]:
        assert model.predict(Cancel(sequence)).value is True
    for continuation in model.continuations():
        model.predict(Pin(continuation, pinned=False))
        assert model.predict(Release(continuation)).refusal is None
    assert model.books.counters == tuple((0, 0, pool.capacity_pages) for pool in config.pools)
    assert model.rows_free == config.max_concurrency
    assert model.checkpoints == []


@settings(max_examples=100)
@given(configs, draws, small, small)
def test_hit_is_the_longest_common_prefix_token_by_token(
    config: EngineConfig, steps: list[Draw], which: int, more: int
) -> None:
    model = played(config, steps)
    held = model.sequences() + model.continuations()
    known = model.tokens(pick(held, which)) if held else EMPTY
    prompt = concat(prefix(known, count(known) - more // 3), run(1, more, more % 3))
    if count(prompt) == 0:
        return
    for identity in IDENTITIES:
        found: list[tuple[int, int, int]] = []
        wanted = list(expand(prompt))
        for checkpoint, owner, frontier, tokens, other in model.checkpoints:
            have = list(expand(tokens))
            assert len(have) == frontier
            length = 0
            while length < len(wanted) - 1 and length < len(have) and wanted[length] == have[length]:
                length += 1
            if other == identity and length:
                found.append((-length, checkpoint, owner))
        best = min(found, default=None)
        expected = None if best is None else Hit(best[2], best[1], -best[0])
        assert model.predict(Lookup(prompt, identity)).value == expected
