"""Drives the engine by recorded rounds of speculation, every step judged (DESIGN 4.8; decision 0023).

Turns come in the order of the file, each as soon as fewer than ``concurrency`` are queued or active; a turn goes on
with the whole conversation of its parent, under one session key.  One step is a unit over everyone whose prompt is
complete: a token and k' drafted ones each (k' = min(k, remaining − 1, S − frontier)), of which the recorded number is
accepted.  Rejected tokens are others than the accepted ones, so that the next turn's hit would miss if one stayed.

There is no clock and nothing is drawn: the same file and settings give the same figures on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcrucible.contract.config import EngineConfig, PoolSpec, pages_for
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    EndUnit,
    Finish,
    Prefill,
    Progress,
    Release,
    Schedule,
    Scheduled,
    Submit,
    Work,
)
from kvcrucible.contract.planes import LEADING
from kvcrucible.contract.speculation import lead
from kvcrucible.contract.tokens import Tokens, canonical, count, run
from kvcrucible.perf.replay_watch import OperationFailed, Subject, WatchedEngine
from kvcrucible.perf.traces.accepted import AcceptedTurn
from kvcrucible.perf.traces.request import RequestId

#: Sources of runs for each turn: what the user says, what is accepted, what is drafted and rejected.
_SOURCES = 3


@dataclass(frozen=True, slots=True)
class RoundsSettings:
    """Geometry and rhythm.  ``drafted``: k.  ``ahead``: positions by which MTP runs ahead of Main in a round, at most.

    ``asked``: tokens that each turn asks.  ``backend``: "mtp", "draft" or None for Main alone.  ``full_every`` counts
    operations.
    """

    backend: str | None = "mtp"
    page_size: int = 16
    drafted: int = 10
    ahead: int = 2
    asked: int = 64
    concurrency: int = 8
    full_every: int = 1_000


@dataclass(slots=True)
class RoundsFigures:
    """What came of it; page counts are by pool.  ``rounds``: of one sequence each, several of which make a unit.

    ``hit_tokens`` of ``findable_tokens``: what turns found of their parents' conversations.  ``failure``: the first
    violation, None where everything held.
    """

    turns: int = 0
    units: int = 0
    rounds: int = 0
    cut_rounds: int = 0
    written_tokens: int = 0
    accepted_tokens: int = 0
    led_positions: int = 0
    findable_tokens: int = 0
    hit_tokens: int = 0
    pages_granted: list[int] = field(default_factory=list)
    pages_trimmed: list[int] = field(default_factory=list)
    operations: int = 0
    step_checks: int = 0
    full_checks: int = 0
    failure: str | None = None

    @property
    def accepted_per_round(self) -> float:
        """Mean of what a round accepted."""
        return self.accepted_tokens / self.rounds if self.rounds else 0.0


@dataclass(slots=True)
class _Live:
    """A turn from submit to finish; ``rest``: what its coming rounds accept, the next one last."""

    turn: AcceptedTurn
    ordinal: int
    tokens: Tokens
    left: int
    rest: list[int]
    prompt_left: int
    done: int = 0


class Rounds:
    """One run over ``turns``, once; it owns its engine."""

    def __init__(self, turns: list[AcceptedTurn], settings: RoundsSettings) -> None:
        self._turns, self._settings = turns, settings
        self.figures = RoundsFigures()
        self._lengths: dict[RequestId, int] = {}
        self._roots: dict[RequestId, RequestId] = {}
        for turn in turns:
            before = 0 if turn.parent is None else self._lengths.get(turn.parent, 0)
            self._lengths[turn.id] = before + settings.asked + sum(turn.accepted)
            self._roots[turn.id] = turn.id if turn.parent is None else self._roots.get(turn.parent, turn.id)
        self._context = max(self._lengths.values())
        self._watched = WatchedEngine(self._config(), settings.full_every)
        self.figures.pages_granted = [0] * len(self._watched.engine.pools)
        self.figures.pages_trimmed = [0] * len(self._watched.engine.pools)
        self._spoken: dict[RequestId, Tokens] = {}
        self._queued: dict[int, _Live] = {}
        self._active: dict[int, _Live] = {}

    def _config(self) -> EngineConfig:
        """Return an engine that holds as many of the longest conversations as there are rows."""
        size, rows = self._settings.page_size, self._settings.concurrency
        names = ["main"] + ([] if self._settings.backend is None else [self._settings.backend])
        pools = [PoolSpec(name, rows * pages_for(self._context, size), size) for name in names]
        return EngineConfig(tuple(pools), self._context, rows)

    def run(self) -> RoundsFigures:
        """Run to the end or to the first violation, which the figures tell; nothing is raised."""
        watched, coming = self._watched, list(enumerate(self._turns))[::-1]
        try:
            while coming or self._queued or self._active:
                while coming and len(self._queued) + len(self._active) < self._settings.concurrency:
                    # A turn whose parent is under way waits for it, and so do those behind it.
                    parent = coming[-1][1].parent
                    if parent in {live.turn.id for live in (self._queued | self._active).values()}:
                        break
                    self._submit(*coming.pop())
                self._schedule()
                self._step()
            for continuation in list(watched.engine.cache.continuations):
                watched.must(Release(continuation))
            watched.check_all("the last release", ())
        except OperationFailed as failed:
            self.figures.failure = str(failed)
        self.figures.operations, self.figures.step_checks = watched.operations, watched.step_checks
        self.figures.full_checks = watched.full_checks
        return self.figures

    def _submit(self, ordinal: int, turn: AcceptedTurn) -> None:
        before = () if turn.parent is None else self._spoken.get(turn.parent, ())
        prompt = canonical([*before, *run(_SOURCES * ordinal, 0, self._settings.asked)])
        answer = sum(turn.accepted)
        session = str(self._roots[turn.id])
        outcome = self._watched.must(Submit(prompt, answer, session), [Subject(turn.id)])
        assert isinstance(outcome.value, int)
        rest = list(reversed(turn.accepted))
        self._queued[outcome.value] = _Live(turn, ordinal, prompt, answer, rest, count(prompt))
        self.figures.findable_tokens += count(before)

    def _schedule(self) -> None:
        outcome = self._watched.must(Schedule())
        assert isinstance(outcome.value, Scheduled)
        for admitted in outcome.value.admitted:
            live = self._active[admitted.sequence] = self._queued.pop(admitted.sequence)
            live.prompt_left -= admitted.hit
            self.figures.hit_tokens += admitted.hit

    def _step(self) -> None:
        for sequence, live in self._active.items():
            if live.prompt_left:
                self._unit([Prefill(sequence, live.prompt_left)], ())
                live.prompt_left = 0
        works: list[Work] = []
        accepted: list[tuple[int, int]] = []
        for sequence, live in self._active.items():
            work, tokens = self._round(sequence, live)
            works.append(work)
            if tokens < work.count:
                accepted.append((sequence, tokens))
        if works:
            self._unit(works, tuple(accepted))
            self.figures.units += 1
        for sequence, live in list(self._active.items()):
            if not live.left:
                self._watched.must(Finish(sequence), [Subject(live.turn.id, sequence)])
                self._spoken[live.turn.id] = live.tokens
                del self._active[sequence]
                self.figures.turns += 1
        self._watched.must(Progress())

    def _round(self, sequence: int, live: _Live) -> tuple[Append, int]:
        """Return a turn's next round and how many of its tokens are accepted; what is too much for one is left."""
        frontier, figures = count(live.tokens), self.figures
        written = 1 + lead(self._settings.drafted, live.left, self._context - frontier)
        wanted = live.rest.pop()
        tokens = min(wanted, written)
        if wanted > tokens:
            live.rest.append(wanted - tokens)
        right = run(_SOURCES * live.ordinal + 1, live.done, tokens)
        wrong = run(_SOURCES * live.ordinal + 2, live.done, written - tokens)
        backend = None
        if self._settings.backend in LEADING:
            last = written - 1
            by = lead(self._settings.ahead, live.left - last, self._context - frontier - last)
            # The backend stands where Main does: each round brings it there.
            backend = written + by
            figures.led_positions += by
        live.tokens = canonical([*live.tokens, *right])
        live.done, live.left = live.done + tokens, live.left - tokens
        figures.rounds += 1
        figures.cut_rounds += tokens < written
        figures.written_tokens += written
        figures.accepted_tokens += tokens
        return Append(sequence, canonical([*right, *wrong]), backend), tokens

    def _unit(self, works: list[Work], accepted: tuple[tuple[int, int], ...]) -> None:
        before = [pool.leased for pool in self._watched.last.pools]
        begun = self._watched.must(BeginUnit(tuple(works)))
        assert isinstance(begun.value, int)
        ended = self._watched.must(EndUnit(begun.value, accepted=accepted))
        for pool, ((granted, _, _), (kept, _, _)) in enumerate(
            zip(begun.counters, ended.counters, strict=True)
        ):
            self.figures.pages_granted[pool] += granted - before[pool]
            self.figures.pages_trimmed[pool] += granted - kept
