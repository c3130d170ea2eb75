"""The acceptance campaign: every combination of pools, storage profile and Host tier, each in a process of its own.

A configuration holds only where its campaign reported so.  A child that falls over, hangs or leaves no report is lost,
and lost is not held.  Ordered pairs of operations are required of all configurations together.

Does not verify: coverage goals of each configuration, which no configuration need reach alone; they are required of all
together.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.errors import ExitStatus
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.fuzz.cores import usable_cores
from kvcrucible.fuzz.coverage import GOALS, within_reach
from kvcrucible.fuzz.keeping import write_json
from kvcrucible.fuzz.pairs import Pair, missing, pair_name, pair_of

#: What an engine can consist of, with the backend's pool that stands beside Main.
POOLS: dict[str, str | None] = {"main": None, "main+mtp": "mtp", "main+draft": "draft"}

#: Names of having a Host tier.
HOSTS: dict[str, bool] = {"off": False, "on": True}

#: Fewest examples of one configuration for its silence to count.
LEAST_EXAMPLES = 200

#: Seconds after which a configuration counts as hung, for each example that it is to run: many times what one takes.
SECONDS_PER_EXAMPLE = 10.0

#: Further campaigns, at most, by which a matrix that held looks for pairs and goals that it has missed.
MOST_FURTHER = 12

#: Name of the file that keeps what has been found so far.
KEPT = "matrix.json"

#: Seconds between two looks for children that an interruption has to end.
_SECONDS_BETWEEN_LOOKS = 0.2

#: Characters of a lost child's last words that are kept.
_LAST_WORDS = 2_000


@dataclass(frozen=True, slots=True)
class Configuration:
    """One cell of the matrix."""

    pools: str
    profile: str
    host: str

    @property
    def name(self) -> str:
        """How reports show it."""
        return f"{self.pools} {self.profile} host {self.host}"


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """What to run: ``examples`` and at most ``steps`` rules each, in every configuration, at payload depth.

    ``out``: folder for reproductions, and for what has been found so far (``KEPT``), which is written again whenever a
    configuration is through.  Configuration number i takes the seed ``seed`` + i.
    """

    examples: int = LEAST_EXAMPLES
    steps: int = 60
    seed: int = 0
    out: Path | None = None
    configurations: tuple[Configuration, ...] = field(
        default_factory=lambda: tuple(
            Configuration(pools, profile, host) for host in HOSTS for pools in POOLS for profile in PROFILES
        )
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """What became of one configuration; ``report`` is its campaign's, None where it was lost.

    ``further``: this is another campaign of a configuration, for pairs and goals that all of them had missed.
    """

    configuration: Configuration
    seed: int
    status: ExitStatus
    seconds: float
    report: dict[str, Any] | None = None
    note: str = ""
    further: bool = False

    @property
    def held(self) -> bool:
        """Whether its campaign ran to its end and found nothing."""
        return self.status is ExitStatus.HELD


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """All configurations, in the order of the plan, then what ran for pairs and goals that these had missed.

    ``interrupted``: somebody ended the run before its end.
    """

    plan: MatrixPlan
    cells: tuple[Cell, ...]
    interrupted: bool = False

    def held(self, *, further: bool) -> tuple[int, int]:
        """Return how many configurations held, or how many further campaigns, and how many there are."""
        held = [cell.held for cell in self.cells if cell.further is further]
        return sum(held), len(held)

    @property
    def short(self) -> bool:
        """Whether a campaign had too few examples for its silence to count, whatever the others reached."""
        return any(cell.report is None or cell.report["examples"] < LEAST_EXAMPLES for cell in self.cells)

    @property
    def pairs(self) -> Counter[Pair]:
        """Ordered pairs over all configurations."""
        found: Counter[Pair] = Counter()
        for cell in self.cells:
            found.update(
                {pair_of(name): times for name, times in (cell.report or {}).get("pairs", {}).items()}
            )
        return found

    def missing_pairs(self) -> list[Pair]:
        """Return the possible pairs that no configuration reached."""
        return missing(self.pairs, Capabilities("paged"), self._hosts())

    def missed_goals(self) -> list[str]:
        """Return the coverage goals within reach that no configuration reached."""
        found: Counter[str] = Counter()
        for cell in self.cells:
            found.update((cell.report or {}).get("goals", {}))
        backends = {POOLS[cell.configuration.pools] for cell in self.cells}
        able = Capabilities("paged")
        due = [name for name, goal in GOALS.items() if within_reach(goal, able, backends, self._hosts())]
        return [name for name in due if not found[name]]

    def status(self) -> ExitStatus:
        """Return the exit status: 0 only where every configuration held and no pair and no goal is missing."""
        statuses = {cell.status for cell in self.cells}
        if ExitStatus.VIOLATION in statuses:
            return ExitStatus.VIOLATION
        if self.interrupted:
            return ExitStatus.INTERRUPTED
        for worst in (ExitStatus.INTERNAL, ExitStatus.NOT_RUN):
            if worst in statuses:
                return worst
        if not all(cell.held for cell in self.cells):
            return ExitStatus.INCONCLUSIVE
        incomplete = self.short or self.missing_pairs() or self.missed_goals()
        return ExitStatus.INCONCLUSIVE if incomplete else ExitStatus.HELD

    def _hosts(self) -> set[bool]:
        return {HOSTS[cell.configuration.host] for cell in self.cells}


def run_matrix(
    plan: MatrixPlan, jobs: int = 1, on_done: Callable[[Cell], None] | None = None
) -> MatrixReport:
    """Run every configuration, at most ``jobs`` and no more than this process has cores at a time.

    Where all held and a pair or a goal is missing, configurations that have every pool and tier run again under further
    seeds, ``MOST_FURTHER`` times at most, until none is; not where the plan is too short to hold anyway.

    ``on_done`` is called as each is through, in whatever order.  Interruption ends the children, too, and returns what
    was found until then: what was not begun counts as not run.  Raises ``InputError`` where ``plan.out`` cannot be
    written.
    """
    children: set[subprocess.Popen[str]] = set()
    interrupted = False
    cells = [
        _not_run(configuration, plan.seed + number)
        for number, configuration in enumerate(plan.configurations)
    ]
    _keep(plan, cells)
    pool = ThreadPoolExecutor(max(1, min(jobs, usable_cores())))
    running: dict[Future[Cell], int] = {}
    try:
        for number, cell in enumerate(cells):
            running[pool.submit(run_cell, plan, cell.configuration, cell.seed, children)] = number
        for done in as_completed(running):
            cells[running[done]] = done.result()
            _keep(plan, cells)
            if on_done is not None:
                on_done(done.result())
        widest = [one for one in plan.configurations if HOSTS[one.host] and POOLS[one.pools] is not None]
        for number in range(MOST_FURTHER if widest else 0):
            report = MatrixReport(plan, tuple(cells))
            if report.short or not all(cell.held for cell in cells):
                break
            if not (report.missing_pairs() or report.missed_goals()):
                break
            cells.append(_not_run(widest[number % len(widest)], plan.seed + len(cells), further=True))
            # In a thread as well, so that an interruption finds its child among those to be ended.
            future = pool.submit(run_cell, plan, cells[-1].configuration, cells[-1].seed, children)
            running[future] = len(cells) - 1
            cells[-1] = replace(future.result(), further=True)
            _keep(plan, cells)
            if on_done is not None:
                on_done(cells[-1])
    except KeyboardInterrupt:
        interrupted = True
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        _end(running, children)
        pool.shutdown()
    for future, number in running.items():
        if not future.cancelled():
            cells[number] = replace(future.result(), further=cells[number].further)
    _keep(plan, cells, interrupted=interrupted)
    return MatrixReport(plan, tuple(cells), interrupted)


def _not_run(configuration: Configuration, seed: int, *, further: bool = False) -> Cell:
    return Cell(configuration, seed, ExitStatus.NOT_RUN, 0.0, None, "interrupted", further)


def _end(running: Iterable[Future[Cell]], children: set[subprocess.Popen[str]]) -> None:
    """Interrupt each child once and wait until all have ended, those included that a thread was just about to start."""
    told: set[subprocess.Popen[str]] = set()
    # What was cancelled before it began is done, and yet nothing that ``wait`` would ever return.
    while left := [future for future in running if not future.done()]:
        for child in children - told:
            # At a keyboard they have heard of it already; from elsewhere only this process has.
            child.send_signal(signal.SIGINT)
            told.add(child)
        wait(left, timeout=_SECONDS_BETWEEN_LOOKS)


def _keep(plan: MatrixPlan, cells: Sequence[Cell], *, interrupted: bool = False) -> None:
    if plan.out is not None:
        write_json(plan.out / KEPT, matrix_to_plain(MatrixReport(plan, tuple(cells), interrupted)))


def run_cell(
    plan: MatrixPlan, configuration: Configuration, seed: int, children: set[subprocess.Popen[str]]
) -> Cell:
    """Run one configuration's campaign in a child process, which is among ``children`` as long as it runs."""
    began = time.perf_counter()
    with subprocess.Popen(
        command(plan, configuration, seed), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        children.add(child)
        try:
            out, err = child.communicate(timeout=SECONDS_PER_EXAMPLE * plan.examples)
        except subprocess.TimeoutExpired:
            child.kill()
            seconds = time.perf_counter() - began
            return Cell(configuration, seed, ExitStatus.INTERNAL, seconds, None, "it did not end in time")
        finally:
            children.discard(child)
    return judged(configuration, seed, child.returncode, out, err, time.perf_counter() - began)


def command(plan: MatrixPlan, configuration: Configuration, seed: int) -> Sequence[str]:
    """Return the command line of one configuration: what somebody would type to run it alone."""
    options = {
        "--depth": "payload",
        "--pools": configuration.pools,
        "--profile": configuration.profile,
        "--host": configuration.host,
        "--examples": str(plan.examples),
        "--steps": str(plan.steps),
        "--seed": str(seed),
    }
    if plan.out is not None:
        options["--out"] = str(plan.out)
    words = [word for option in options.items() for word in option]
    return [sys.executable, "-m", "kvcrucible", "fuzz", *words, "--no-goals", "--json"]


def judged(
    configuration: Configuration, seed: int, returncode: int, stdout: str, stderr: str, seconds: float
) -> Cell:
    """Return what a child's end says; without a report of its own it is lost, whatever its status."""
    words = stderr.strip()[-_LAST_WORDS:]
    statuses = {status.value: status for status in ExitStatus}
    try:
        report = json.loads(stdout)
        violated = report["failure"] is not None
    except (ValueError, KeyError, TypeError):
        status = ExitStatus.NOT_RUN if returncode == ExitStatus.NOT_RUN else ExitStatus.INTERNAL
        return Cell(configuration, seed, status, seconds, None, words or f"status {returncode}, no report")
    status = statuses.get(returncode, ExitStatus.INTERNAL)
    if violated != (status is ExitStatus.VIOLATION):
        return Cell(configuration, seed, ExitStatus.INTERNAL, seconds, report, "status and report disagree")
    return Cell(configuration, seed, status, seconds, report, words)


def matrix_to_plain(report: MatrixReport) -> dict[str, Any]:
    """Return the report as JSON-ready data."""
    return {
        "format": "kvcrucible.fuzz-matrix/1",
        "status": report.status().value,
        "configurations_held": report.held(further=False)[0],
        "further_campaigns": report.held(further=True)[1],
        "examples": sum((cell.report or {}).get("examples", 0) for cell in report.cells),
        "steps": sum((cell.report or {}).get("steps", 0) for cell in report.cells),
        "pairs": {pair_name(pair): times for pair, times in sorted(report.pairs.items())},
        "pairs_missing": [pair_name(pair) for pair in report.missing_pairs()],
        "goals_missed": report.missed_goals(),
        "configurations": [
            {
                "pools": cell.configuration.pools,
                "profile": cell.configuration.profile,
                "host": cell.configuration.host,
                "seed": cell.seed,
                "further": cell.further,
                "status": cell.status.value,
                "seconds": round(cell.seconds, 1),
                "note": cell.note,
                "report": cell.report,
            }
            for cell in report.cells
        ],
    }
