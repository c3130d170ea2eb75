"""Times the store's two questions on a store of many made-up figures, which are SIMULATED and say so."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from statistics import median

import sqlalchemy as sa

from kvcrucible.perf.history.database import open_database, writing
from kvcrucible.perf.history.schema import machines, runs, series, summaries
from kvcrucible.perf.history.store import Store
from kvcrucible.perf.origin import Origin
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint

#: The machine that all these figures are of.
MACHINE = MachineFingerprint.of(Origin.SIMULATED, {"machine": "store benchmark"})

#: Seconds that one series and one comparison may take.
SERIES_BOUND_S, COMPARE_BOUND_S = 0.020, 1.0


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """What was found: rows, their shape, seconds to fill, and medians of the two questions in seconds."""

    database: str
    rows: int
    series: int
    runs: int
    fill_s: float
    series_s: float
    compare_s: float

    @property
    def held(self) -> bool:
        """Whether both stayed below their bounds."""
        return self.series_s < SERIES_BOUND_S and self.compare_s < COMPARE_BOUND_S


def fill(url: str, series_count: int, run_count: int, seed: int = 0) -> None:
    """Add ``series_count × run_count`` figures to the empty store at ``url``, run by run as they would come."""
    engine = open_database(url)
    generator = random.Random(seed)
    with writing(engine) as connection:
        plain = MACHINE.to_plain()
        connection.execute(
            machines.insert().values(
                id=1, fingerprint=MACHINE.id, origin=plain["origin"], facts='{"machine": "store benchmark"}'
            )
        )
        connection.execute(
            series.insert(),
            [
                {"id": one, "machine": 1, "metric": f"made-up/{one}", "unit": "s"}
                for one in range(series_count)
            ],
        )
        connection.execute(
            runs.insert(),
            [
                {
                    "id": one,
                    "machine": 1,
                    "revision": f"{one:040x}",
                    "started_s": 86_400.0 * one,
                    "source": "made up",
                    "command": "",
                }
                for one in range(run_count)
            ],
        )
    for run in range(run_count):
        with writing(engine) as connection:
            connection.execute(
                summaries.insert(),
                [
                    {"series": one, "run": run, "value": generator.lognormvariate(0, 0.01), "samples": 20}
                    for one in range(series_count)
                ],
            )
    with writing(engine) as connection:
        if engine.dialect.name in ("sqlite", "postgresql"):
            connection.execute(sa.text("ANALYZE"))
    engine.dispose()


def measure(url: str, series_count: int, run_count: int, repeats: int = 7) -> StoreTimes:
    """Fill the empty store at ``url`` and time both questions; each repeat asks for another series."""
    started = time.perf_counter()
    fill(url, series_count, run_count)
    fill_s = time.perf_counter() - started
    one, all_of_them = [], []
    with Store(url) as store:
        for repeat in range(repeats):
            metric = f"made-up/{repeat * series_count // repeats}"
            started = time.perf_counter()
            found = store.series(metric, MACHINE)
            one.append(time.perf_counter() - started)
            assert len(found.points) == run_count
            started = time.perf_counter()
            compared = store.compare(run_count - 1)
            all_of_them.append(time.perf_counter() - started)
            assert len(compared) == series_count
    return StoreTimes(
        sa.make_url(url).get_backend_name(),
        series_count * run_count,
        series_count,
        run_count,
        fill_s,
        median(one),
        median(all_of_them),
    )
