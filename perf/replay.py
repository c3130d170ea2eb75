"""Drives the engine's control plane by a recorded trace, every step judged (DESIGN 4.8, 4.9, 5).

**Time.**  A replay is closed-loop and has no clock: requests come in order of arrival, each as soon as fewer than
``concurrency`` are queued or active.  The gaps between arrivals, and how long anything takes, play no part, so the same
settings give the same figures on every machine.  One round is:

1. submit requests while there is room among the ``concurrency``, then ``schedule``;
2. go through the active sequences in an order drawn from ``seed``: one prefill chunk, a unit of its own, for each whose
   prompt is incomplete; a completed prompt is checkpointed, so that it can be found while its answer is being written;
3. one unit for the next decode run of all the others; a run of n stands for n rounds, and beyond ``LONG_TOKENS`` runs
   grow with the sequence;
4. finish what is complete, retaining it, in the same order, which is the order in which pressure releases it again.

Every generated token gets a KV position, the last one too.  Once the trace is through, every continuation is released,
so that the last full check sees an empty engine and nothing leaked.

A request that can never run (larger than the pool or the context) is refused by ``submit``, counted, and passed over.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.operations import (
    Admitted,
    Append,
    BeginUnit,
    Checkpoint,
    EndUnit,
    Finish,
    Prefill,
    Progress,
    Release,
    Schedule,
    Scheduled,
    Submit,
    Waiting,
    WaitingKind,
    Work,
)
from kvcrucible.contract.snapshot import Tier
from kvcrucible.engine.observe import snapshot
from kvcrucible.invariants.behaviour import admitted_by_count, cache_yielded
from kvcrucible.invariants.violation import mismatch
from kvcrucible.perf.replay_figures import Counts, Figures, figures_of
from kvcrucible.perf.replay_settings import ReplaySettings
from kvcrucible.perf.replay_tokens import InfiniteCache, output_of, prompt_of
from kvcrucible.perf.replay_watch import OperationFailed, Subject, WatchedEngine

if TYPE_CHECKING:
    from pathlib import Path

    from kvcrucible.perf.traces.request import TraceRequest


#: Tokens of a sequence from which on its decode runs grow in proportion.  A step is judged on all the pages of the
#: sequences that it touches, so runs of one length would make a sequence cost the square of its length.  Below it,
#: where the recorded traces are, every run has the length that was asked for.
LONG_TOKENS = 1 << 18


@dataclass(slots=True)
class _Live:
    """A request from submit to finish; ``left`` counts what is still to be written of prompt and output."""

    request: TraceRequest
    ordinal: int
    subject: Subject
    sequence: int
    prompt_left: int
    output_done: int = 0
    restored: bool = False

    @property
    def output_left(self) -> int:
        return self.request.output_tokens - self.output_done

    def next_run(self, asked: int) -> int:
        """Return how many tokens to decode next where ``asked`` is the most of an ordinary run."""
        written = self.request.prompt_tokens + self.output_done
        return min(max(asked, asked * written // LONG_TOKENS), self.output_left)


class Replay:
    """One replay of ``requests``, which are in order of arrival.  Run it once; it owns its engine.

    ``on_progress`` is called with the number of requests that are over, refused ones included, whenever it rises.
    ``history``: where to write the engine's history; it is complete once the replay is over, however that came.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        settings: ReplaySettings,
        on_progress: Callable[[int], None] | None = None,
        history: Path | None = None,
    ) -> None:
        self._requests, self._settings = requests, settings
        self._on_progress = on_progress
        self._watched = WatchedEngine(settings.engine_config(), settings.full_every, history)
        self._random = random.Random(settings.seed)
        #: Every prompt that was admitted, and every one that is complete, for ever: what can be found at best.
        self._infinite, self._complete = InfiniteCache(), InfiniteCache()
        self._alone = 0
        self._counts = Counts()
        self._next = 0
        self._queued: dict[int, _Live] = {}
        self._active: dict[int, _Live] = {}

    def run(self) -> Figures:
        """Replay to the end, to the first violation or to an interrupt; the figures say which, nothing is raised."""
        began = time.process_time()
        failure: OperationFailed | None = None
        cut_short = False
        try:
            while self._next < len(self._requests) or self._queued or self._active:
                self._submit()
                self._schedule()
                self._round()
            self._drain()
        except OperationFailed as failed:
            failure = failed
        except KeyboardInterrupt:
            cut_short = True
        self._watched.close(empty=failure is None and not cut_short)
        cpu_seconds = time.process_time() - began
        return figures_of(self._counts, self._watched, self._next, failure, cut_short, cpu_seconds)

    # -- one round -----------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        while (
            self._next < len(self._requests)
            and len(self._queued) + len(self._active) < self._settings.concurrency
        ):
            request, ordinal = self._requests[self._next], self._next
            self._next += 1
            submit = Submit(prompt_of(request, ordinal), request.output_tokens)
            outcome = self._watched.perform(submit, [Subject(request.id)])
            if outcome.refusal is not None:
                self._counts.refused[outcome.refusal.value] += 1
                self._counts.refused_tokens.append(request.prompt_tokens + request.output_tokens)
                self._report_progress()
                continue
            assert isinstance(outcome.value, int)
            sequence = outcome.value
            subject = Subject(request.id, sequence)
            self._queued[sequence] = _Live(request, ordinal, subject, sequence, request.prompt_tokens)

    def _schedule(self) -> None:
        if not self._queued:
            return
        subjects = [live.subject for live in self._queued.values()]
        outcome = self._watched.must(Schedule(), subjects)
        assert isinstance(outcome.value, Scheduled)
        for admitted in outcome.value.admitted:
            self._admit(admitted)
        if outcome.value.waiting is not None:
            self._judge_wait(outcome.value.waiting)

    def _admit(self, admitted: Admitted) -> None:
        live = self._queued.pop(admitted.sequence)
        live.prompt_left -= admitted.hit
        self._active[admitted.sequence] = live
        ideal, counts = self._infinite.add(live.request), self._counts
        self._alone = 0
        counts.admitted[admitted.mode] += 1
        counts.prompt_tokens += live.request.prompt_tokens
        counts.ideal_block_tokens += ideal.blocks
        counts.ideal_tokens += ideal.tokens
        counts.last_tokens += ideal.last
        counts.findable_tokens += self._complete.find(live.request).tokens
        if admitted.hit and live.restored:
            counts.host_hits += 1
            counts.host_hit_tokens += admitted.hit
        elif admitted.hit:
            counts.device_hits += 1
        self._watched.monitor.count("exact-prefix-identity", premise=admitted.hit > 0)
        if admitted.hit > ideal.tokens:
            found = mismatch(
                "exact-prefix-identity",
                "hit",
                f"{admitted.hit} tokens",
                f"at most {ideal.tokens}, as the trace says",
            )
            self._watched.require([found], "Schedule", [live.subject])

    def _judge_wait(self, waiting: Waiting) -> None:
        """Judge a head that waits: never while its pages are free, nor while it is alone."""
        live = self._queued[waiting.sequence]
        self._counts.waits[waiting.kind] += 1
        live.restored = live.restored or any(one.source is Tier.HOST for one in waiting.started)
        total = live.request.prompt_tokens + live.request.output_tokens
        need = [pages_for(total, self._settings.page_size)]
        refused = waiting.kind is WaitingKind.DEVICE_CAPACITY
        watched = self._watched
        found = admitted_by_count(need, refused, watched.last, "schedule")
        watched.monitor.count("admission-by-count")
        if not self._active and waiting.kind in (WaitingKind.RESTORING, WaitingKind.SINKING):
            # Transfers end at the end of the round, and each continuation sinks and comes back once for it at most.
            self._alone += 1
            if self._alone > 4 + 2 * len(watched.engine.cache.continuations):
                found = [
                    mismatch(
                        "completion-guarantee", "schedule", f"{self._alone} rounds without end", "admitted"
                    )
                ]
        elif not self._active:
            watched.monitor.count("cache-yields")
            found += cache_yielded(need, refused, snapshot(watched.engine), "schedule")
            if not found:
                found = [
                    mismatch("completion-guarantee", "schedule", f"waiting, {waiting.kind.value}", "admitted")
                ]
        watched.require(found, "Schedule", [live.subject])

    def _round(self) -> None:
        self._counts.see(self._watched.engine.cache)
        order = list(self._active.values())
        self._random.shuffle(order)
        decoding: list[_Live] = []
        for live in order:
            if live.prompt_left:
                self._prefill(live)
            else:
                decoding.append(live)
        if decoding:
            self._decode(decoding)
        for live in order:
            if not live.prompt_left and not live.output_left:
                self._watched.must(Finish(live.sequence), [live.subject])
                del self._active[live.sequence]
                self._counts.finished += 1
                self._report_progress()
        self._watched.must(Progress())

    def _prefill(self, live: _Live) -> None:
        chunk = min(self._settings.prefill_chunk, live.prompt_left)
        self._unit([Prefill(live.sequence, chunk)], [live.subject])
        live.prompt_left -= chunk
        if not live.prompt_left:
            self._watched.must(Checkpoint(live.sequence), [live.subject])
            self._complete.add(live.request)

    def _decode(self, decoding: list[_Live]) -> None:
        work: list[Work] = []
        for live in decoding:
            length = live.next_run(self._settings.decode_run)
            work.append(Append(live.sequence, output_of(live.ordinal, live.output_done, length)))
            live.output_done += length
            self._counts.appended_tokens += length
        self._unit(work, [live.subject for live in decoding])

    def _unit(self, work: list[Work], subjects: list[Subject]) -> None:
        outcome = self._watched.must(BeginUnit(tuple(work)), subjects)
        assert isinstance(outcome.value, int)
        self._watched.must(EndUnit(outcome.value), subjects)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Release every continuation and check that nothing is left."""
        watched = self._watched
        for continuation in list(watched.engine.cache.continuations):
            watched.must(Release(continuation))
        watched.check_all("the last release", ())

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._counts.over)
