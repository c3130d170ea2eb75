"""Two pools by hand: one sequence with two frontiers, each pool with its own pages, tables and refusals."""

from __future__ import annotations

import pytest

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.errors import BadArgument, DeviceCapacity, LimitExceeded, WrongState
from kvcrucible.contract.operations import AdmissionMode, Admitted, Append, Hit, Prefill, Waiting, WaitingKind
from kvcrucible.contract.planes import Lifetime, PlaneSpec
from kvcrucible.contract.profiles import Geometry, PlaneOrder, storage_profile
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.storage.null import NullStorage


def engine(
    main: int = 16, backend: int = 16, size: int = 4, backend_size: int = 8, name: str = "mtp"
) -> Engine:
    pools = (PoolSpec("main", main, size), PoolSpec(name, backend, backend_size))
    return Engine(EngineConfig(pools, 64, 4))


def start(e: Engine, prompt: int, max_new: int, backend: int | None = None, **options: object) -> int:
    sequence = e.submit(run(0, 0, prompt), max_new, **options)  # type: ignore[arg-type]
    assert e.schedule().waiting is None
    write(e, Prefill(sequence, prompt - e.sequences[sequence].frontier, backend))
    return sequence


def write(e: Engine, work: Prefill | Append, commit: bool = True) -> None:
    e.end_unit(e.begin_unit([work]), commit)


def frontiers(e: Engine, sequence: int) -> list[int]:
    return [space.frontier for space in e.sequences[sequence].spaces]


def counters(e: Engine) -> list[tuple[int, int, int]]:
    return [(pool.leased, pool.reserved, pool.free) for pool in e.pools]


def test_a_bundle_is_promised_in_each_pool_by_its_own_page_size() -> None:
    e = engine()
    start(e, 10, 10, backend=0)
    assert counters(e) == [(3, 2, 11), (0, 3, 13)]


def test_the_backend_lags_and_catches_up_in_a_later_unit() -> None:
    e = engine()
    sequence = start(e, 10, 10, backend=3)
    assert frontiers(e, sequence) == [10, 3]
    write(e, Append(sequence, run(1, 0, 1), backend=8))
    assert frontiers(e, sequence) == [11, 11]
    assert (e.work.tokens_written, e.work.backend_tokens_written) == (11, 11)


def test_left_out_the_backend_follows_main() -> None:
    e = engine()
    sequence = start(e, 10, 10, backend=0)
    write(e, Append(sequence, run(1, 0, 2)))
    assert frontiers(e, sequence) == [12, 12]


@pytest.mark.parametrize("backend", [-1, 4])
def test_the_backend_neither_shrinks_nor_leads(backend: int) -> None:
    e = engine(name="draft")
    sequence = start(e, 10, 10, backend=8)
    before = counters(e)
    with pytest.raises(BadArgument):
        e.begin_unit([Append(sequence, run(1, 0, 1), backend=backend)])
    assert counters(e) == before


def test_main_alone_has_no_backend_to_write() -> None:
    e = Engine(EngineConfig((PoolSpec("main", 16, 4),), 64, 4))
    sequence = start(e, 4, 4)
    with pytest.raises(BadArgument, match="no speculative backend"):
        e.begin_unit([Append(sequence, run(1, 0, 1), backend=0)])


def test_an_abort_gives_back_in_each_pool() -> None:
    e = engine()
    sequence = start(e, 8, 16, backend=4)
    before = counters(e)
    write(e, Append(sequence, run(1, 0, 9)), commit=False)
    assert (counters(e), frontiers(e, sequence)) == (before, [8, 4])


def test_a_cut_above_the_backend_leaves_it_alone() -> None:
    e = engine()
    sequence = start(e, 12, 0, backend=5)
    space = e.sequences[sequence].spaces[1]
    page = space.pages[0]
    epoch = page.epoch
    e.truncate(sequence, 6)
    assert (frontiers(e, sequence), page.epoch) == ([6, 5], epoch)
    e.truncate(sequence, 2)
    assert (frontiers(e, sequence), page.epoch) == ([2, 2], epoch + 1)


def test_a_fork_takes_from_each_pool_what_it_has() -> None:
    e = engine()
    source = start(e, 12, 0, backend=9)
    copies = e.work.page_copies
    child = e.fork(source, 11, 5)
    assert frontiers(e, child) == [11, 9]
    assert [len(space.pages) for space in e.sequences[child].spaces] == [3, 2]
    assert e.work.page_copies == copies + 2
    assert e.sequences[child].spaces[1].pages[0] is e.sequences[source].spaces[1].pages[0]


def test_a_fork_of_an_empty_backend_starts_without_pages_there() -> None:
    e = engine()
    child = e.fork(start(e, 12, 0, backend=0), 8, 4)
    assert frontiers(e, child) == [8, 0]
    assert e.sequences[child].reservations[1].remaining == 2


def test_rows_are_the_same_in_every_table_and_cleared_in_each() -> None:
    e = engine()
    sequence = start(e, 12, 0)
    row = e.sequences[sequence].row
    assert [len(table.entries[row]) for table in e.tables] == [3, 2]
    e.finish(sequence, retain=False)
    assert [table.entries[row] for table in e.tables] == [[], []]


def test_what_can_be_found_ends_at_the_smallest_frontier() -> None:
    e = engine()
    sequence = start(e, 12, 0, backend=5)
    assert e.finish(sequence)
    assert e.lookup(run(0, 0, 40)) == Hit(sequence, 0, 5)


def test_nothing_is_kept_where_the_backend_is_empty() -> None:
    e = engine()
    sequence = start(e, 12, 0, backend=0)
    with pytest.raises(WrongState):
        e.checkpoint(sequence)
    assert e.finish(sequence) is False
    assert counters(e) == [(0, 0, 16), (0, 0, 16)]


@pytest.mark.parametrize(
    ("backend", "mode", "hit"), [(12, AdmissionMode.MOVE, 12), (5, AdmissionMode.FORK, 5)]
)
def test_move_needs_a_hit_that_is_the_whole_of_every_pool(
    backend: int, mode: AdmissionMode, hit: int
) -> None:
    e = engine()
    first = start(e, 12, 0, backend=backend)
    e.finish(first)
    second = e.submit(run(0, 0, 20), 0, consume=True)
    assert e.schedule().admitted == (Admitted(second, mode, first, hit),)
    assert frontiers(e, second) == [hit, hit]


def test_a_moved_source_is_cut_to_the_hit_in_the_pool_that_stands_above() -> None:
    e = engine(main=5)
    first = start(e, 12, 0, backend=5)
    e.finish(first)
    second = e.submit(run(0, 0, 20), 0, consume=True)
    assert e.schedule().admitted == (Admitted(second, AdmissionMode.MOVE_TRUNCATED, first, 5),)
    assert frontiers(e, second) == [5, 5]
    assert counters(e) == [(2, 3, 0), (1, 2, 13)]


def test_a_request_waits_for_the_pool_that_is_short_and_nothing_is_released_in_vain() -> None:
    e = engine(backend=3)
    kept = start(e, 4, 0)
    e.finish(kept)
    start(e, 15, 0, identity=e.cache.continuations[kept].identity.__class__("other"))
    waiting = e.submit(run(5, 0, 9), 8)
    assert e.schedule().waiting == Waiting(waiting, WaitingKind.DEVICE_CAPACITY)
    assert list(e.cache.continuations) == [kept]


def test_room_is_made_until_every_pool_has_enough() -> None:
    e = engine(backend=2)
    kept = start(e, 4, 0)
    e.finish(kept)
    wanted = e.submit(run(5, 0, 9), 0)
    assert [one.sequence for one in e.schedule().admitted] == [wanted]
    assert e.evicted == [kept]


def test_the_backend_alone_can_refuse() -> None:
    with pytest.raises(LimitExceeded, match="pool mtp"):
        engine(backend=2).submit(run(0, 0, 20), 0)
    e = engine(backend=3)
    source = start(e, 8, 0)
    with pytest.raises(DeviceCapacity):
        e.fork(source, 1, 17)


def test_checkpoints_follow_a_cut_in_the_pool_where_the_page_changed() -> None:
    """A cut at 12 lies in Main's page 3 and in the backend's page 1, where the checkpoint at 10 ends."""
    e = engine()
    sequence = start(e, 10, 10)
    e.checkpoint(sequence)
    write(e, Append(sequence, run(1, 0, 6)))
    (mark,) = e.sequences[sequence].marks
    assert mark.epochs == (0, 0)
    e.truncate(sequence, 13)
    assert mark.epochs == (0, 1)


def test_one_storage_for_each_pool() -> None:
    config = EngineConfig((PoolSpec("main", 4, 4), PoolSpec("draft", 4, 4)), 16, 2)
    storages = [NullStorage(), NullStorage()]
    e = Engine(config, storages)
    sequence = e.submit(run(0, 0, 8), 0)
    e.schedule()
    write(e, Prefill(sequence, 8, backend=4))
    assert [storage.table_writes for storage in storages] == [2, 1]
    with pytest.raises(BadArgument, match="1 storages"):
        Engine(config, NullStorage())


def test_an_engine_has_main_and_one_backend_at_most() -> None:
    with pytest.raises(BadArgument, match="kind of pool"):
        PoolSpec("eagle")
    with pytest.raises(BadArgument, match="two speculative backends"):
        EngineConfig((PoolSpec("main"), PoolSpec("mtp"), PoolSpec("draft")))
    with pytest.raises(BadArgument, match="Main"):
        EngineConfig((PoolSpec("mtp"),))


def planes(**changes: object) -> PlaneSpec:
    plain: dict[str, object] = {
        "profile": storage_profile("BF16"),
        "geometry": Geometry(2, 2, 64),
        "page_size": 16,
        "frontier": "draft",
        "order": PlaneOrder.HEAD_MAJOR,
    }
    return PlaneSpec(**{**plain, **changes})  # type: ignore[arg-type]


def test_planes_that_agree_with_their_pool_are_taken() -> None:
    pool = PoolSpec("draft", 8, 16, (planes(), planes(profile=storage_profile("INT8-G64"))))
    assert pool.order is PlaneOrder.HEAD_MAJOR
    assert PoolSpec("mtp").order is PoolSpec("main").order is PlaneOrder.PAGE_MAJOR


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"page_size": 64}, "pages of other size"),
        ({"frontier": "main"}, "another frontier"),
        ({"lifetime": Lifetime.SEQUENCE}, "another lifetime"),
        ({"order": PlaneOrder.PAGE_MAJOR}, "another order"),
    ],
)
def test_planes_that_differ_are_refused_when_the_pool_is_built(
    change: dict[str, object], reason: str
) -> None:
    with pytest.raises(BadArgument, match=reason):
        PoolSpec("draft", 8, 16, (planes(), planes(**change)))
