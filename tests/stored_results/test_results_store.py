"""The store, with the same tests on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev

import pytest

pytest.importorskip("sqlalchemy", reason="needs the perf extra")
pytest.importorskip("scipy", reason="needs the perf extra")

import sqlalchemy as sa

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.history import benchmark
from kvcrucible.perf.history.database import open_database, writing
from kvcrucible.perf.history.schema import MIGRATIONS, blobs, bring_up_to_date, version_table
from kvcrucible.perf.history.store import Figure, Store
from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint

HERE = MachineFingerprint.of(Origin.MEASURED, {"machine": "here"})
THERE = MachineFingerprint.of(Origin.MEASURED, {"machine": "there"})
MADE_UP = MachineFingerprint.of(Origin.SIMULATED, {"machine": "here"})


def figure(value: float, metric: str = "decode/a", **more: object) -> Figure:
    return Figure(metric, "s", value, 3, **more)  # type: ignore[arg-type]


def test_a_run_comes_back_as_it_was_stored(url: str) -> None:
    raw = {"samples": [1.0, 2.0, 3.0], "rejected": [{"value": 9.0, "reason": "thermal slowdown"}]}
    with Store(url) as store:
        run = store.add_run(HERE, "abc", 1_000.5, [figure(2.0, raw=raw, rejected=1)], command="x y")
        found = store.series("decode/a", HERE)
        assert [(p.run, p.revision, p.started_s, p.value, p.samples, p.rejected) for p in found.points] == [
            (run, "abc", 1_000.5, 2.0, 3, 1)
        ]
        assert found.origin is Origin.MEASURED
        assert found.points[0].raw is not None
        assert store.raw(found.points[0].raw) == raw
        assert store.names() == (("decode/a", HERE, 1),)


def test_a_series_is_in_order_of_time_not_of_storing(url: str) -> None:
    with Store(url) as store:
        for day in (3, 1, 2):
            store.add_run(HERE, f"r{day}", float(day), [figure(float(day))])
        assert [point.value for point in store.series("decode/a", HERE).points] == [1.0, 2.0, 3.0]


def test_simulated_figures_never_join_measured_ones(url: str) -> None:
    with Store(url) as store:
        store.add_run(HERE, "a", 1.0, [figure(1.0)])
        store.add_run(MADE_UP, "a", 2.0, [figure(9.0)])
        store.add_run(THERE, "a", 3.0, [figure(5.0)])
        assert [point.value for point in store.series("decode/a", HERE).points] == [1.0]
        simulated = store.series("decode/a", MADE_UP)
        assert simulated.origin is Origin.SIMULATED
        assert [point.value for point in simulated.points] == [9.0]
        run = store.add_run(MADE_UP, "b", 4.0, [figure(10.0)])
        (compared,) = store.compare(run)
        assert (compared.before, compared.mean) == (1, 9.0)


def test_equal_raw_samples_are_stored_once(url: str) -> None:
    with Store(url) as store:
        for revision in "abc":
            store.add_run(HERE, revision, 1.0, [figure(1.0, raw=[1, 2, 3])])
        with store._engine.begin() as connection:
            assert connection.execute(sa.select(sa.func.count()).select_from(blobs)).scalar() == 1


def test_damaged_raw_samples_are_refused(url: str) -> None:
    with Store(url) as store:
        store.add_run(HERE, "a", 1.0, [figure(1.0, raw=list(range(100)))])
        name = store.series("decode/a", HERE).points[0].raw
        assert name is not None
        for data in (b"nonsense", b""):
            with writing(store._engine) as connection:
                connection.execute(blobs.update().values(data=data))
            with pytest.raises(InputError, match="damaged"):
                store.raw(name)
        with pytest.raises(InputError, match="no raw samples"):
            store.raw("0" * 64)


def test_a_comparison_has_the_moments_of_the_runs_before(url: str) -> None:
    values = [1e6 + one for one in (1.0, 4.0, 2.0, 8.0, 5.0)]
    with Store(url) as store:
        for number, value in enumerate(values):
            last = store.add_run(HERE, str(number), float(number), [figure(value), figure(7.0, "decode/b")])
        store.add_run(THERE, "x", 9.0, [figure(1e9)])
        first, second = store.compare(last)
        assert (first.metric, first.value, first.before) == ("decode/a", values[-1], 4)
        assert first.mean == pytest.approx(fmean(values[:-1]))
        assert first.deviation == pytest.approx(stdev(values[:-1]))
        assert (second.metric, second.mean, second.deviation) == ("decode/b", 7.0, 0.0)
        (short, _) = store.compare(last, history=2)
        assert short.mean == pytest.approx(fmean(values[2:4]))
        assert store.compare(1)[0].before == 0


@pytest.mark.parametrize(
    "figures",
    [
        [],
        [figure(1.0), figure(2.0)],
        [figure(math.nan)],
        [figure(1.0, "x" * 301)],
        [figure(1.0, raw=math.inf)],
    ],
)
def test_a_run_that_cannot_be_stored_leaves_nothing(url: str, figures: list[Figure]) -> None:
    with Store(url) as store:
        with pytest.raises(InputError):
            store.add_run(HERE, "a", 1.0, figures)
        assert store.names() == ()
        with pytest.raises(InputError, match="no run"):
            store.compare(1)


def test_a_series_keeps_its_unit(url: str) -> None:
    with Store(url) as store:
        store.add_run(HERE, "a", 1.0, [figure(1.0)])
        with pytest.raises(InputError, match="its series is in s"):
            store.add_run(HERE, "a", 1.0, [Figure("decode/a", "J", 1.0, 1)])


def test_an_old_store_is_brought_up_to_date_and_keeps_its_figures(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        bring_up_to_date(connection, MIGRATIONS[:1])
        for statement in (
            f"INSERT INTO machines VALUES (1, '{HERE.id}', 'MEASURED', '{{\"machine\": \"here\"}}')",
            "INSERT INTO series VALUES (1, 1, 'decode/a', 's')",
            "INSERT INTO runs VALUES (1, 1, 'old', 5.0, 'kvcrucible', '')",
            "INSERT INTO summaries VALUES (1, 1, 2.5, 3, NULL)",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()
    for _ in range(2):
        with Store(url) as store:
            (point,) = store.series("decode/a", HERE).points
            assert (point.value, point.rejected) == (2.5, 0)


def test_the_migrations_make_the_tables_that_the_code_uses(url: str) -> None:
    engine = open_database(url)
    inspector = sa.inspect(engine)
    for table in version_table.metadata.sorted_tables:
        there = {column["name"] for column in inspector.get_columns(table.name)}
        assert there == {column.name for column in table.columns}, table.name
        indices = {index["name"] for index in inspector.get_indexes(table.name)}
        assert {index.name for index in table.indexes} <= indices
    engine.dispose()


def test_a_newer_store_is_refused(url: str) -> None:
    engine = open_database(url)
    with writing(engine) as connection:
        connection.execute(version_table.insert().values(version=len(MIGRATIONS) + 1))
    engine.dispose()
    with pytest.raises(InputError, match="use a newer kvcrucible"):
        Store(url)


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """On SQLite, whose driver would commit each CREATE by itself."""

    def broken(connection: sa.Connection) -> None:
        connection.execute(sa.text("CREATE TABLE half (x INTEGER)"))
        raise RuntimeError("stopped")

    engine = open_database(f"sqlite:///{tmp_path}/s.sqlite")
    with pytest.raises(RuntimeError), writing(engine) as connection:
        bring_up_to_date(connection, (*MIGRATIONS, broken))
    assert "half" not in sa.inspect(engine).get_table_names()
    engine.dispose()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("nonsense", "not a database URL"),
        ("postgresql+psycopg://me:secret@127.0.0.1:1/x", "store postgresql"),
        ("nosuchthing://x", "store nosuchthing"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named_without_its_password(wrong: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Store(wrong)
    assert "secret" not in str(caught.value)


def test_the_two_questions_are_answered_by_the_keys(tmp_path: Path) -> None:
    """Verifies that no table is read whole; how long it takes, the slow benchmark says."""
    url = f"sqlite:///{tmp_path}/s.sqlite"
    benchmark.fill(url, 50, 40)
    engine = open_database(url)
    seen: list[tuple[str, tuple[object, ...]]] = []
    with Store(url) as store:
        sa.event.listen(store._engine, "before_cursor_execute", lambda *a: seen.append((a[2], a[3])) or None)
        store.series("made-up/3", benchmark.MACHINE)
        store.compare(39)
    with engine.begin() as connection:
        plans = [
            row[-1]
            for statement, values in seen
            if statement.startswith("SELECT")
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", tuple(values))
        ]
    engine.dispose()
    assert any("summaries" in plan or "PRIMARY KEY" in plan for plan in plans)
    assert not [plan for plan in plans if plan.startswith("SCAN summaries") or plan.startswith("SCAN runs")]


@pytest.mark.slow
def test_two_million_figures_on_sqlite(tmp_path: Path) -> None:
    found = benchmark.measure(f"sqlite:///{tmp_path}/s.sqlite", 1_500, 1_334)
    assert found.rows > 2_000_000
    assert found.held, found
