"""Runs many seeds of the raw loop, in processes where that is asked for, and reports what they did (decision 0027).

Seeds are independent: nothing that one does or finds changes what another draws.  So n seeds without a failure say,
with 95 % confidence, that fewer than about 3/n of the seeds *of this generator* fail; of other inputs they say nothing.
"""

from __future__ import annotations

import gc
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import count
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.contract.operations import OPERATIONS, Operation, Outcome
from kvcrucible.contract.planes import BACKENDS
from kvcrucible.contract.snapshot import PageState, to_plain
from kvcrucible.fuzz.adapters.external import depths_of, probe, use_engine
from kvcrucible.fuzz.cores import usable_cores
from kvcrucible.fuzz.coverage import GOALS, within_reach
from kvcrucible.fuzz.draws import LOOKAHEADS, settings_for
from kvcrucible.fuzz.lockstep import LockStep, Tally
from kvcrucible.fuzz.pairs import missing, pair_name
from kvcrucible.fuzz.raw import Conditions, SeedFailure, draw_seed, run_drawn, run_seed
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.source import source_commit
from kvcrucible.fuzz.species import Novelty, Species, of_pages, of_the_rest, species_of
from kvcrucible.fuzz.steps import Step, step_to_plain
from kvcrucible.invariants.judgements import NOT_REPRODUCED
from kvcrucible.invariants.violation import Violation

if TYPE_CHECKING:
    from kvcrucible.fuzz.campaign import Failure

#: Seeds that one process runs before it reports; even, so that pairs of seeds stay together.
BLOCK_SEEDS = 64

#: Seeds of a run unless told otherwise: a few minutes of one core.
DEFAULT_SEEDS = 3_000

#: Numerator of the 95 % upper bound on the share of failing seeds after n that held (the rule of three).
_RULE_OF_THREE = 3.0


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """What to run: ``seeds`` seeds from ``first_seed`` on, or without end where that is None, for ``seconds`` of the
    clock at most (None: no limit).

    ``rules``: that a seed draws at most.  ``full_every``, ``goals_every``: :class:`kvcrucible.fuzz.raw.Conditions`.
    ``digest``: take a digest of the whole state after every step; ``replay_twice``: run every seed twice and compare
    those.  ``backends``, ``hosts``: what settings have beside Main, and whether they have a Host tier.  ``shrink``:
    whether a failing seed is made small.
    """

    engine: str = "paged"
    first_seed: int = 0
    seeds: int | None = DEFAULT_SEEDS
    seconds: float | None = None
    rules: int = 60
    full_every: int = 16
    goals_every: int = 8
    digest: bool = False
    replay_twice: bool = False
    backends: tuple[str | None, ...] = (None, *BACKENDS)
    hosts: tuple[bool, ...] = (False, True)
    shrink: bool = True


@dataclass(slots=True)
class Block:
    """What a block of consecutive seeds came to.  ``cpu_seconds``: of the process that ran it, for these seeds."""

    seeds: int = 0
    goal_seeds: int = 0
    tally: Tally = field(default_factory=Tally)
    novelty: Novelty = field(default_factory=Novelty)
    cpu_seconds: float = 0.0
    digests: list[str] = field(default_factory=list)
    corners: Counter[str] = field(default_factory=Counter)
    failed_seed: int | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class VolumeReport:
    """What a run did.  ``cut_short``: why it stopped before its end, for another reason than a failure."""

    plan: VolumePlan
    conditions: Conditions
    commit: str | None
    total: Block = field(default_factory=Block)
    seconds: float = 0.0
    cut_short: str | None = None

    @property
    def failure(self) -> Failure | None:
        """The failure of the lowest failing seed, minimal where the plan shrinks."""
        return self.total.failure

    @property
    def operations(self) -> int:
        """Operations that were carried out or refused, and judged."""
        return self.total.tally.operations.total()

    @property
    def operations_per_cpu_second(self) -> float:
        """Checked operations per second of processor time: per second and core."""
        return self.operations / self.total.cpu_seconds if self.total.cpu_seconds else 0.0

    @property
    def bound(self) -> float | None:
        """Upper bound, at 95 %, on the share of this generator's seeds that fail; None unless all held."""
        if self.failure is not None or not self.total.seeds:
            return None
        return min(1.0, _RULE_OF_THREE / self.total.seeds)

    @property
    def digest(self) -> str | None:
        """Digest of all seeds' digests in order; None where none were taken."""
        if not self.total.digests:
            return None
        return blake2b("\n".join(self.total.digests).encode(), digest_size=16).hexdigest()

    def goals(self) -> dict[str, int]:
        """How often each goal within reach was reached, by the seeds of which goals are asked."""
        able = self.conditions.capabilities
        return {
            name: self.total.tally.goals[name]
            for name, goal in GOALS.items()
            if within_reach(goal, able, self.plan.backends, self.plan.hosts)
        }

    def never_taken(self) -> list[str]:
        """Operations of the engine that no seed took."""
        able, taken = self.conditions.capabilities.operations, self.total.tally.operations
        return [kind.__name__ for kind in OPERATIONS if kind.__name__ in able and not taken[kind.__name__]]


def conditions_of(plan: VolumePlan) -> Conditions:
    """Return the conditions of a plan's seeds.

    Raises ``InputError`` for an unknown engine, ``NotRunError`` for one that shows nothing at ledger depth.
    """
    # Again in each process: a plan, unlike a file, speaks for whoever runs it.
    use_engine(plan.engine)
    if Depth.LEDGER not in depths_of(plan.engine):
        raise NotRunError(f"{plan.engine} runs at payload depth alone, and the raw loop at ledger depth")
    capabilities = probe(Setting(plan.engine)).capabilities
    backends = tuple(name for name in plan.backends if name is None or name in capabilities.backends)
    hosts = tuple(host for host in plan.hosts if capabilities.host or not host)
    if not backends or not hosts:
        raise NotRunError(f"{plan.engine} can have none of the pools or tiers that were asked for")
    settings = settings_for(
        plan.engine,
        (Depth.LEDGER.value,),
        backends,
        capabilities.profiles,
        hosts,
        LOOKAHEADS if capabilities.backfills else (0,),
    )
    return Conditions(settings, capabilities, plan.rules, plan.full_every, plan.goals_every)


def run_volume(
    plan: VolumePlan, jobs: int = 1, on_progress: Callable[[VolumeReport], None] | None = None
) -> VolumeReport:
    """Run the plan; stops at the first failure, which comes out minimal.

    ``jobs``: processes, never more than this one may use cores.  Which seeds run, and what is reported of them, does
    not depend on it, but for ``seconds``.  ``on_progress`` is called after every block.  Interruption ends it with
    ``cut_short``.  Raises ``NotRunError`` where the engine is not to be had.
    """
    report = VolumeReport(plan, conditions_of(plan), source_commit())
    began = time.perf_counter()
    try:
        for block in _blocks(plan, min(jobs, usable_cores())):
            _merge(report.total, block)
            report.seconds = time.perf_counter() - began
            if on_progress is not None:
                on_progress(report)
            if block.failure is not None:
                tried = report.total
                # A block knows of its own seeds alone.
                tried.failure = replace(
                    block.failure, examples_before=tried.seeds + 1, steps_before=tried.tally.steps
                )
                break
            if plan.seconds is not None and report.seconds > plan.seconds:
                if plan.seeds is not None and report.total.seeds < plan.seeds:
                    report.cut_short = f"time limit of {plan.seconds:g} s"
                break
    except KeyboardInterrupt:
        report.cut_short = "interrupted"
    report.seconds = time.perf_counter() - began
    return report


def run_block(plan: VolumePlan, first: int, seeds: int) -> Block:
    """Run consecutive seeds in this process, up to the first that fails."""
    conditions = conditions_of(plan)
    block = Block()
    # What a seed leaves behind has few cycles, and looking for them again and again takes a tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for seed in range(first, first + seeds):
            began = time.process_time()
            failed = _run_one(plan, conditions, seed, block)
            block.cpu_seconds += time.process_time() - began
            if failed is not None:
                break
            block.seeds += 1
            block.goal_seeds += seed % plan.goals_every == 0
    finally:
        gc.collect()
        if collecting:
            gc.enable()
    return block


def _run_one(plan: VolumePlan, conditions: Conditions, seed: int, block: Block) -> Failure | None:
    watch = _Watch(plan.digest or plan.replay_twice)
    swarm, choices = draw_seed(seed, conditions)
    try:
        failed = run_drawn(swarm, choices, conditions, block.tally, watch)
    except InputError as error:
        raise InputError(f"{error} (seed {seed}, which needs {swarm.setting})") from error
    block.corners[swarm.corner.value] += 1
    block.novelty.add(frozenset(watch.species))
    if failed is not None:
        from kvcrucible.fuzz.shrink import as_seen, shrink

        block.failed_seed = seed
        try:
            block.failure = shrink(failed, conditions) if plan.shrink else as_seen(failed)
        except KeyboardInterrupt:
            # What was seen is a finding all the same.
            block.failure = as_seen(failed)
        return block.failure
    if watch.digest is not None:
        block.digests.append(watch.digest.hexdigest())
    if plan.replay_twice:
        block.failure = _compare(seed, conditions, watch)
        block.failed_seed = None if block.failure is None else seed
    return block.failure


def _compare(seed: int, conditions: Conditions, first: _Watch) -> Failure | None:
    """Run a seed again and compare its digests with those of the ``first`` time."""
    from kvcrucible.fuzz.campaign import Failure

    second = _Watch(True)
    failed: SeedFailure | None = run_seed(seed, conditions, Tally(), second)
    if failed is None and first.after_each == second.after_each:
        return None
    same = 0
    for left, right in zip(first.after_each, second.after_each, strict=False):
        if left != right:
            break
        same += 1
    note = Violation(NOT_REPRODUCED, f"seed {seed} run twice: the state after step {same + 1} is another one")
    setting, steps = draw_seed(seed, conditions)[0].setting, tuple(first.steps[: same + 1])
    return Failure(setting, steps, (note,))


class _Watch:
    """Follows a seed: the species that it meets, and, where asked for, a digest of the whole state after each step."""

    def __init__(self, digest: bool) -> None:
        self.species: set[Species] = set()
        self.digest = blake2b(digest_size=16) if digest else None
        self.after_each: list[bytes] = []
        self.steps: list[Step] = []
        self._before = self._of_pages = 0
        self._pages: Mapping[int, PageState] | None = None

    def __call__(self, lock: LockStep, step: Step, outcome: Outcome | None) -> None:
        if outcome is not None and isinstance(step, Operation):
            self.species.add(species_of(step, outcome, self._before))
            after = lock.snapshot
            # What an operation has not touched is the same object as before it.
            if after.pages is not self._pages:
                self._pages, self._of_pages = after.pages, of_pages(after.pages)
            self._before = self._of_pages | of_the_rest(after)
        if self.digest is not None:
            state = [step_to_plain(step), repr(outcome), to_plain(lock.adapter.snapshot())]
            self.digest.update(json.dumps(state, sort_keys=True).encode())
            self.after_each.append(self.digest.digest())
            self.steps.append(step)


def _blocks(plan: VolumePlan, jobs: int) -> Iterator[Block]:
    """Yield blocks in the order of their seeds."""
    parts = _parts(plan)
    if jobs <= 1:
        for first, seeds in parts:
            yield run_block(plan, first, seeds)
        return
    # Started afresh, so that no process inherits half of another's state.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _leave_interrupts_to_the_parent) as pool:
        waiting: list[Future[Block]] = []
        try:
            for first, seeds in parts:
                waiting.append(pool.submit(run_block, plan, first, seeds))
                # A block more than there are processes, so that none has to wait for the slowest of all.
                if len(waiting) > jobs:
                    block = waiting[0].result()
                    del waiting[0]
                    yield block
            while waiting:
                block = waiting[0].result()
                del waiting[0]
                yield block
        except KeyboardInterrupt:
            # What is under way ends its block and counts, unless its process was ended as well.
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled() and future.exception() is None:
                    yield future.result()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    """An interrupt from the keyboard reaches every process; it is the parent that ends the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _parts(plan: VolumePlan) -> Iterator[tuple[int, int]]:
    """Yield (first seed, seeds) of each block."""
    for number in count():
        done = number * BLOCK_SEEDS
        left = BLOCK_SEEDS if plan.seeds is None else min(BLOCK_SEEDS, plan.seeds - done)
        if left <= 0:
            return
        yield plan.first_seed + done, left


def _merge(total: Block, block: Block) -> None:
    total.seeds += block.seeds
    total.goal_seeds += block.goal_seeds
    total.cpu_seconds += block.cpu_seconds
    total.digests += block.digests
    total.corners.update(block.corners)
    total.novelty.merge(block.novelty)
    total.failed_seed, total.failure = block.failed_seed, block.failure
    for part in fields(Tally):
        ours, theirs = getattr(total.tally, part.name), getattr(block.tally, part.name)
        if isinstance(ours, Counter):
            ours.update(theirs)
        else:
            setattr(total.tally, part.name, ours + theirs)


def volume_to_plain(report: VolumeReport, reproduction: str | None) -> dict[str, Any]:
    """Return the report as JSON-ready data; ``reproduction``: where a failing seed's steps were written."""
    from kvcrucible.fuzz.report import failure_to_plain

    plan, total, failure = report.plan, report.total, report.failure
    tally, able = total.tally, report.conditions.capabilities
    return {
        "format": "kvcrucible.fuzz-volume/1",
        "engine": plan.engine,
        "commit": report.commit,
        "first_seed": plan.first_seed,
        "seeds": total.seeds,
        "seeds_asked_for": plan.seeds,
        "rules": plan.rules,
        "full_every": plan.full_every,
        "corners": dict(sorted(total.corners.items())),
        "operations": report.operations,
        "operations_by_kind": dict(sorted(tally.operations.items())),
        "operations_never_taken": report.never_taken(),
        "refusals": dict(sorted(tally.refusals.items())),
        "waits": dict(sorted(tally.waits.items())),
        "admissions": dict(sorted(tally.modes.items())),
        "seconds": round(report.seconds, 3),
        "cpu_seconds": round(total.cpu_seconds, 3),
        "operations_per_cpu_second": round(report.operations_per_cpu_second, 1),
        "failing_share_below": report.bound,
        "goals": {"asked_of_seeds": total.goal_seeds, "reached": report.goals()},
        "pairs_missing": [pair_name(pair) for pair in missing(tally.pairs, able, plan.hosts)],
        "invariants": {
            name: {"judged": tally.invariants[name], "with_premise": tally.premises[name]}
            for name in sorted(tally.invariants)
        },
        "novelty": total.novelty.to_plain(),
        "digest": report.digest,
        "replayed_twice": plan.replay_twice,
        "cut_short": report.cut_short,
        "failing_seed": total.failed_seed,
        "failure": None if failure is None else failure_to_plain(failure, reproduction),
    }
