"""The store: runs with their figures and raw samples go in, series and comparisons come out."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.history.database import DEFAULT_URL, open_database, writing
from kvcrucible.perf.history.schema import blobs, machines, runs, series, summaries
from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint

#: Largest raw samples of one figure, in bytes of JSON.
MAX_RAW_BYTES = 64 << 20

#: Longest name of a metric, in characters.
MAX_METRIC_CHARACTERS = 300

#: Rows in one statement, below every database's limit of parameters.
_ROWS_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run: ``value`` in ``unit``, a summary of ``samples`` kept ones.

    ``raw`` is any JSON value with all samples, the ``rejected`` ones and their reasons and evidence included; None
    where a tool gave no samples.
    """

    metric: str
    unit: str
    value: float
    samples: int
    rejected: int = 0
    raw: Any = None


@dataclass(frozen=True, slots=True)
class Point:
    """One figure of a series as it is stored; ``raw`` names the samples for :meth:`Store.raw`, None for none."""

    run: int
    revision: str
    started_s: float
    value: float
    samples: int
    rejected: int
    raw: str | None


@dataclass(frozen=True, slots=True)
class Series:
    """A series: one metric on one machine, in order of time."""

    metric: str
    unit: str
    machine: MachineFingerprint
    points: tuple[Point, ...]

    @property
    def origin(self) -> Origin:
        """Whether all this was measured."""
        return self.machine.origin


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of a run beside the runs before it: their number, mean and standard deviation (None below two)."""

    metric: str
    unit: str
    value: float
    before: int
    mean: float | None
    deviation: float | None


class Store:
    """A store on one database; close it, or use it as a context manager.  One process may write while others read."""

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self._engine = open_database(url)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def add_run(
        self,
        machine: MachineFingerprint,
        revision: str,
        started_s: float,
        figures: Iterable[Figure],
        *,
        source: str = "kvcrucible",
        command: str = "",
    ) -> int:
        """Store a run with all its figures, or nothing; return its number.

        Every figure joins the series of its metric on ``machine``; a simulated machine is another machine, so simulated
        figures join simulated series alone.  Raises :class:`InputError` for a metric twice, a unit other than the
        series has, or a value that is not finite.
        """
        found = list(figures)
        names = [one.metric for one in found]
        if not found or len(set(names)) < len(names):
            raise InputError("a run has at least one figure, and each metric once")
        for one in found:
            _check(one)
        with writing(self._engine) as connection:
            machine_id = _machine(connection, machine)
            run_id = connection.execute(
                runs.insert().values(
                    machine=machine_id, revision=revision, started_s=started_s, source=source, command=command
                )
            ).inserted_primary_key[0]
            ids = _series_ids(connection, machine_id, found)
            rows = [
                {
                    "series": ids[one.metric],
                    "run": run_id,
                    "value": one.value,
                    "samples": one.samples,
                    "rejected": one.rejected,
                    "raw": None if one.raw is None else _put_raw(connection, one.raw),
                }
                for one in found
            ]
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                connection.execute(summaries.insert(), rows[start : start + _ROWS_AT_ONCE])
        return int(run_id)

    def raw(self, sha256: str) -> Any:
        """Return raw samples; raises :class:`InputError` where there are none by that name or they are damaged."""
        with self._engine.begin() as connection:
            row = connection.execute(
                sa.select(blobs.c.length, blobs.c.data).where(blobs.c.sha256 == sha256)
            ).one_or_none()
        if row is None:
            raise InputError(f"store: no raw samples {sha256[:80]}")
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(row.data, min(row.length, MAX_RAW_BYTES) + 1)
        except zlib.error:
            data = b""
        if len(data) != row.length or hashlib.sha256(data).hexdigest() != sha256:
            raise InputError(f"store: raw samples {sha256} are damaged")
        return json.loads(data)

    def names(self) -> tuple[tuple[str, MachineFingerprint, int], ...]:
        """Return metric, machine and number of figures of every series, by metric."""
        query = (
            sa.select(series.c.metric, machines.c.origin, machines.c.facts, sa.func.count(summaries.c.run))
            .join(machines, machines.c.id == series.c.machine)
            .join(summaries, summaries.c.series == series.c.id)
            .group_by(series.c.id, series.c.metric, machines.c.origin, machines.c.facts)
            .order_by(series.c.metric, series.c.id)
        )
        with self._engine.begin() as connection:
            rows = connection.execute(query).all()
        return tuple((metric, _fingerprint(origin, facts), count) for metric, origin, facts, count in rows)

    def series(self, metric: str, machine: MachineFingerprint) -> Series:
        """Return all figures of ``metric`` on ``machine`` in order of time; raises :class:`InputError` for none."""
        query = (
            sa.select(
                runs.c.id,
                runs.c.revision,
                runs.c.started_s,
                summaries.c.value,
                summaries.c.samples,
                summaries.c.rejected,
                summaries.c.raw,
                series.c.unit,
            )
            .select_from(series)
            .join(machines, machines.c.id == series.c.machine)
            .join(summaries, summaries.c.series == series.c.id)
            .join(runs, runs.c.id == summaries.c.run)
            .where(series.c.metric == metric, machines.c.fingerprint == machine.id)
        )
        with self._engine.begin() as connection:
            rows = connection.execute(query).all()
        if not rows:
            raise InputError(f"store: no figures of {metric[:200]} on machine {machine.id}")
        points = sorted((Point(*row[:-1]) for row in rows), key=lambda point: (point.started_s, point.run))
        return Series(metric, rows[0].unit, machine, tuple(points))

    def compare(self, run: int, history: int = 100) -> tuple[Compared, ...]:
        """Return every figure of ``run`` beside the same series in up to ``history`` runs before it, by metric.

        *Before* is in the order in which runs were stored, on the same machine.  Raises :class:`InputError` for a run
        that is not there.
        """
        with self._engine.begin() as connection:
            machine = connection.execute(sa.select(runs.c.machine).where(runs.c.id == run)).scalar()
            if machine is None:
                raise InputError(f"store: no run {run}")
            earlier = (
                sa.select(runs.c.id)
                .where(runs.c.machine == machine, runs.c.id < run)
                .order_by(runs.c.id.desc())
                .limit(history)
            ).subquery()
            first = connection.execute(sa.select(sa.func.min(earlier.c.id))).scalar()
            values = connection.execute(
                sa.select(series.c.id, series.c.metric, series.c.unit, summaries.c.value)
                .join(series, series.c.id == summaries.c.series)
                .where(summaries.c.run == run)
            ).all()
            before = {} if first is None else _moments(connection, run, first)
        return tuple(
            _compared(metric, unit, value, before.get(key))
            for key, metric, unit, value in sorted(values, key=lambda row: row[1])
        )


def _moments(connection: sa.Connection, run: int, first: int) -> Mapping[int, tuple[int, float, float]]:
    """Return series to number, mean and mean square distance *from the run's own value*, of the runs in [first, run).

    Distances from a value of the same size keep the digits that a difference of two large sums of squares would lose.
    """
    now, old = summaries.alias("now"), summaries.alias("old")
    apart = old.c.value - now.c.value
    query = (
        sa.select(now.c.series, sa.func.count(), sa.func.avg(apart), sa.func.avg(apart * apart))
        .join(old, (old.c.series == now.c.series) & (old.c.run >= first) & (old.c.run < run))
        .where(now.c.run == run)
        .group_by(now.c.series)
    )
    return {key: (count, mean, square) for key, count, mean, square in connection.execute(query)}


def _compared(metric: str, unit: str, value: float, before: tuple[int, float, float] | None) -> Compared:
    if before is None:
        return Compared(metric, unit, value, 0, None, None)
    count, apart, square = before
    spread = max(0.0, square - apart * apart) * count / (count - 1) if count > 1 else None
    return Compared(metric, unit, value, count, value + apart, None if spread is None else math.sqrt(spread))


def _check(figure: Figure) -> None:
    if not 0 < len(figure.metric) <= MAX_METRIC_CHARACTERS:
        raise InputError(f"a metric has 1 to {MAX_METRIC_CHARACTERS} characters")
    if not math.isfinite(figure.value):
        raise InputError(f"{figure.metric}: {figure.value} is not finite")


def _machine(connection: sa.Connection, machine: MachineFingerprint) -> int:
    found = connection.execute(sa.select(machines.c.id).where(machines.c.fingerprint == machine.id)).scalar()
    if found is None:
        plain = machine.to_plain()
        found = connection.execute(
            machines.insert().values(
                fingerprint=machine.id,
                origin=machine.origin.value,
                facts=json.dumps(plain["facts"], sort_keys=True),
            )
        ).inserted_primary_key[0]  # type: ignore[index]
    return int(found)


def _fingerprint(origin: str, facts: str) -> MachineFingerprint:
    return MachineFingerprint.of(Origin(origin), json.loads(facts))


def _series_ids(connection: sa.Connection, machine: int, figures: Sequence[Figure]) -> dict[str, int]:
    rows = connection.execute(
        sa.select(series.c.metric, series.c.id, series.c.unit).where(series.c.machine == machine)
    ).all()
    known = {metric: (key, unit) for metric, key, unit in rows}
    ids = {}
    for one in figures:
        key, unit = known.get(one.metric, (None, one.unit))
        if unit != one.unit:
            raise InputError(f"{one.metric}: in {one.unit}, but its series is in {unit}")
        if key is None:
            values = {"machine": machine, "metric": one.metric, "unit": one.unit}
            key = connection.execute(series.insert().values(values)).inserted_primary_key[0]  # type: ignore[index]
        ids[one.metric] = int(key)
    return ids


def _put_raw(connection: sa.Connection, raw: Any) -> str:
    try:
        data = json.dumps(raw, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise InputError(f"raw samples: {error}") from None
    if len(data) > MAX_RAW_BYTES:
        raise InputError(f"raw samples: more than {MAX_RAW_BYTES:,} bytes")
    name = hashlib.sha256(data).hexdigest()
    if connection.execute(sa.select(blobs.c.length).where(blobs.c.sha256 == name)).scalar() is None:
        connection.execute(blobs.insert().values(sha256=name, length=len(data), data=zlib.compress(data, 6)))
    return name
