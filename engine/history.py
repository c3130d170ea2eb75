"""Writes the history of an engine while it runs (DESIGN 6; decision 0017; ``docs/histories.md``).

The writer sees what a harness sees: each operation, its outcome, and the drained snapshot of what it touched.  It asks
the engine for nothing, keeps one number, and writes one line an operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from kvcrucible.contract import history, operations
from kvcrucible.contract.config import LRU, EngineConfig
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.history import MAX_LINE_BYTES, Line
from kvcrucible.contract.history_header import HISTORY_FORMAT, Header, Host, Pool, Shown
from kvcrucible.contract.media import MAX_MEDIA, MAX_TOKEN_TYPE, TokenSpan
from kvcrucible.contract.operations import (
    DEFAULT_IDENTITY,
    Admitted,
    Hit,
    Identity,
    Operation,
    Outcome,
    Progressed,
    Scheduled,
    UnitEnded,
    Waiting,
)
from kvcrucible.contract.snapshot import Snapshot, Tier
from kvcrucible.contract.tokens import Tokens
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.history_lines import split

#: (pool, page copied from, page copied to, columns).
Copies = list[tuple[int, int, int, int]]


def header_of(config: EngineConfig, engine: str, shows: Iterable[Shown]) -> Header:
    """Return the first line for an engine of this configuration."""
    host = config.host
    return Header(
        HISTORY_FORMAT,
        engine,
        [
            Pool(pool.name, pool.capacity_pages, pool.page_size, pool.page_bytes if host else 0)
            for pool in config.pools
        ],
        config.max_context,
        config.max_concurrency,
        sorted(shows),
        host=None if host is None else Host(host.capacity_bytes, host.alignment_bytes),
        lookahead=config.lookahead,
    )


class HistoryWriter:
    """Writes a history to ``path``, which appears when :meth:`close` has written the last line, and not before.

    Until then the lines go to ``path`` with ``.part`` behind it; what a crash leaves there can be checked too, with the
    verdict *unknown* at best.  ``immediate``: device effects of a unit are done when it ends.  ``tables``: write the
    block table of each sequence that an operation touched.  ``lru``: continuations yield in order of last use; None
    asks the configuration.  Raises ``InputError`` where nothing can be written.
    """

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        immediate: bool = True,
        tables: bool = False,
        lru: bool | None = None,
    ) -> None:
        self.path = path
        self.lines = 0
        lru = config.policy == LRU if lru is None else lru
        self._pools = range(len(config.pools))
        self._immediate, self._tables = immediate, tables
        self._next_page = 0
        self._encode = history.encoder()
        self._part = path.with_name(path.name + ".part")
        try:
            self._file: IO[bytes] = self._part.open("wb", buffering=1 << 18)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
        shown = set(Shown) if lru else set(Shown) - {Shown.LRU}
        self._file.write(self._encode(header_of(config, "kvcrucible paged", shown)) + b"\n")

    def record(
        self, operation: Operation, outcome: Outcome, touched: Snapshot, copies: Copies | None = None
    ) -> None:
        """Write one operation: its outcome, and the drained snapshot from after it.  ``copies``: of partial tails."""
        line = self._line(operation, outcome, touched, copies or [])
        line.counters = list(outcome.counters)
        self._write(line)
        self._next_page = max(self._next_page, max(touched.pages, default=-1) + 1)
        if self._tables:
            self._write_tables(touched)

    def close(self, empty: bool = False) -> None:
        """Write the last line and put the file in its place.  ``empty``: nothing is alive in the engine any more."""
        if self._file.closed:
            return
        self._file.write(self._encode(history.Close(lines=self.lines, empty=empty)) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self.path)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _write(self, line: Line) -> None:
        text = self._encode(line)
        if len(text) < MAX_LINE_BYTES:
            self._file.write(text + b"\n")
            self.lines += 1
            return
        for part in split(line):
            self._write(part)

    def _write_tables(self, touched: Snapshot) -> None:
        for (pool, _), row in sorted(touched.rows.items()):
            if pool == 0 and row.sequence is not None:
                rows = [touched.rows.get((other, row.row)) for other in self._pools]
                if None not in rows:
                    entries = [list(one.entries) for one in rows if one is not None]
                    self._write(history.Table(sequence=row.sequence, pages=entries))

    def _line(self, operation: Operation, outcome: Outcome, touched: Snapshot, copies: Copies) -> Line:
        refused = outcome.refusal
        given: Any = None if refused is not None else outcome.value
        evicted, given_up = list(outcome.evicted), list(outcome.given_up)
        match operation:
            case operations.Submit(prompt, max_new, session, consume, identity, spans):
                return history.Submit(
                    prompt=_runs(prompt),
                    max_new=max_new,
                    sequence=given,
                    session=session,
                    consume=consume,
                    identity=_identity(identity),
                    spans=_spans(spans),
                    refused=refused,
                )
            case operations.TryAdmit(sequence):
                if refused is not None:
                    return history.Admit(sequence=sequence, refused=refused)
                if isinstance(given, Waiting):
                    tried = history.Admit(wait=_wait(given), started=self._started(given, touched))
                else:
                    tried = history.Admit(admission=self._admission(given, touched, copies))
                tried.evicted, tried.given_up = _released(given, evicted), given_up
                return tried
            case operations.Schedule():
                if not isinstance(given, Scheduled):
                    return history.Schedule(refused=refused)
                line = history.Schedule(
                    admitted=[self._admission(one, touched, copies) for one in given.admitted],
                    evicted=_released(given.waiting, evicted),
                    given_up=given_up,
                )
                if given.waiting is not None:
                    line.wait, line.started = _wait(given.waiting), self._started(given.waiting, touched)
                return line
            case operations.BeginUnit(work):
                works = [self._work(one, touched, refused is None) for one in work]
                return history.Begin(work=works, unit=given, evicted=evicted, refused=refused)
            case operations.EndUnit(unit, commit, accepted):
                end = history.End(unit=unit, commit=commit, accepted=list(accepted), refused=refused)
                if isinstance(given, UnitEnded):
                    end.done = self._immediate
                    end.frontiers, end.cancelled = list(given.frontiers), list(given.cancelled)
                return end
            case operations.Fork(source, position, max_new, session):
                fork = history.Fork(
                    source=source, position=position, max_new=max_new, session=session, refused=refused
                )
                if given is not None:
                    fork.sequence, fork.row, fork.evicted = given, touched.sequences[given].row, evicted
                    fork.pages, fork.generations = self._granted(given, touched)
                    fork.copies = copies
                return fork
            case operations.Truncate(sequence, position):
                cut = history.Truncate(sequence=sequence, position=position, refused=refused)
                if refused is None:
                    cut.pages, cut.generations = self._granted(sequence, touched)
                    cut.copies, cut.evicted = copies, evicted
                return cut
            case operations.Checkpoint(sequence):
                return history.Checkpoint(sequence=sequence, checkpoint=given, refused=refused)
            case operations.Finish(sequence, retain):
                return history.Finish(sequence=sequence, retain=retain, kept=given, refused=refused)
            case operations.Cancel(sequence):
                return history.Cancel(sequence=sequence, done=given, refused=refused)
            case operations.Release(continuation):
                return history.Release(continuation=continuation, refused=refused)
            case operations.Pin(continuation, pinned):
                return history.Pin(continuation=continuation, pinned=pinned, refused=refused)
            case operations.Lookup(prompt, identity, spans):
                found = None
                if isinstance(given, Hit):
                    found = history.Found(
                        source=given.source, length=given.length, checkpoint=given.checkpoint
                    )
                return history.Lookup(
                    prompt=_runs(prompt),
                    identity=_identity(identity),
                    spans=_spans(spans),
                    hit=found,
                    refused=refused,
                )
            case operations.Demote(continuation, keep):
                demote = history.Demote(continuation=continuation, keep=keep, transfer=given, refused=refused)
                if refused is None:
                    demote.extents = _extents(given, touched)
                return demote
            case operations.Restore(continuation, keep):
                restore = history.Restore(
                    continuation=continuation, keep=keep, transfer=given, evicted=evicted, refused=refused
                )
                if refused is None:
                    restore.pages, restore.generations = self._restored(given, touched)
                return restore
            case operations.CancelTransfer(transfer):
                return history.CancelTransfer(transfer=transfer, refused=refused)
            case operations.Progress():
                return history.Progress(refused=refused) if refused is not None else _progress(given)
        raise AssertionError(operation)

    def _admission(self, given: Admitted, touched: Snapshot, copies: Copies) -> history.Admission:
        sequence = given.sequence
        pages, generations = self._granted(sequence, touched)
        own = {(pool, page) for pool, granted in enumerate(pages) for page in granted}
        return history.Admission(
            sequence=sequence,
            mode=given.mode,
            source=given.source,
            hit=given.hit,
            row=touched.sequences[sequence].row,
            pages=pages,
            generations=generations,
            copies=[copy for copy in copies if (copy[0], copy[2]) in own],
        )

    def _work(self, work: operations.Work, touched: Snapshot, granted: bool) -> history.Work:
        pages, generations = self._granted(work.sequence, touched) if granted else ([], [])
        if isinstance(work, operations.Prefill):
            prefill, append = work.count, None
        else:
            prefill, append = None, _runs(work.tokens)
        return history.Work(
            sequence=work.sequence,
            prefill=prefill,
            append=append,
            backend=work.backend,
            pages=pages,
            generations=generations,
        )

    def _granted(self, sequence: int, touched: Snapshot) -> tuple[list[list[int]], list[list[int]]]:
        """Return the physical pages that the sequence has got, and their generations: the last ones of its spaces,
        whose logical pages were never seen before.
        """
        pages: list[list[int]] = []
        generations: list[list[int]] = []
        for pool in self._pools:
            space = touched.spaces.get((sequence, pool))
            held: Sequence[int] = () if space is None else space.pages
            first = len(held)
            while first and held[first - 1] >= self._next_page:
                first -= 1
            new = [touched.pages[page] for page in held[first:]]
            pages.append([page.device for page in new])
            generations.append([page.generation for page in new])
        while pages and not pages[-1]:
            del pages[-1], generations[-1]
        return pages, generations

    def _started(self, told: Waiting, touched: Snapshot) -> list[history.Started]:
        found = []
        for one in told.started:
            line = history.Started(
                transfer=one.transfer,
                continuation=one.continuation,
                source=one.source,
                positions=one.positions,
            )
            if one.source is Tier.HOST:
                line.pages, line.generations = self._restored(one.transfer, touched)
            else:
                line.extents = _extents(one.transfer, touched)
                line.beside, line.given_up, line.evicted = (
                    list(one.beside),
                    list(one.given_up),
                    list(one.evicted),
                )
            found.append(line)
        return found

    def _restored(self, transfer: int, touched: Snapshot) -> tuple[list[list[int]], list[list[int]]]:
        """Return the Device pages that a restore has taken, and their generations."""
        fresh = [move for move in touched.transfers[transfer].moves if move.fresh]
        return (
            [[move.device for move in fresh if move.pool == pool] for pool in self._pools],
            [[move.generation for move in fresh if move.pool == pool] for pool in self._pools],
        )


class ObservedEngine:
    """Follows an engine for a writer: collects its page copies between operations.

    Wraps the engine's ``copy_columns``, by which every copy of a partial tail is queued; nothing else of it is touched.
    """

    def __init__(self, engine: Engine, writer: HistoryWriter) -> None:
        self.writer = writer
        self._copies: Copies = []
        queue = engine.copy_columns

        def copy_columns(pool: int, source: int, destination: int, columns: int) -> None:
            self._copies.append((pool, source, destination, columns))
            queue(pool, source, destination, columns)

        setattr(engine, "copy_columns", copy_columns)  # noqa: B010 - an instance's own, beside the class's method

    def record(self, operation: Operation, outcome: Outcome, touched: Snapshot) -> None:
        """Write one operation, with the copies that it queued."""
        copies, self._copies = self._copies, []
        self.writer.record(operation, outcome, touched, copies)


def _identity(identity: Identity) -> history.IdentityFields | None:
    if identity == DEFAULT_IDENTITY:
        return None
    return history.IdentityFields(
        identity.adapter, identity.tenant_salt, identity.weights_epoch, identity.position_mode
    )


def _runs(tokens: Tokens) -> history.Runs:
    """Return the runs of an operation, which are plain: what its spans say stands beside them."""
    return cast("history.Runs", list(tokens))


def _spans(spans: tuple[TokenSpan, ...]) -> list[history.Span]:
    return [
        history.Span(one.start, one.length, one.token_type[: MAX_TOKEN_TYPE + 1], one.media[: MAX_MEDIA + 1])
        for one in spans
    ]


def _wait(told: Waiting) -> history.Wait:
    return history.Wait(sequence=told.sequence, why=told.kind)


def _released(told: object, evicted: list[int]) -> list[int]:
    """Return who was released for Device pages: those who were for what sinks stand with that, and come last."""
    started = told.started if isinstance(told, Waiting) else ()
    on_host = sum(len(one.evicted) for one in started)
    return evicted[: len(evicted) - on_host]


def _extents(transfer: int, touched: Snapshot) -> list[history.NewExtent]:
    """Return the extents that a demotion has taken."""
    started = touched.transfers[transfer]
    assert started.source is Tier.DEVICE
    taken = sorted({move.extent for move in started.moves if move.fresh})
    extents = [touched.extents[extent] for extent in taken]
    return [history.NewExtent(pool=one.pool, offset=one.offset, size=one.size) for one in extents]


def _progress(given: Progressed) -> history.Progress:
    return history.Progress(
        units=list(given.units),
        transfers=[
            history.Ended(transfer=one.transfer, outcome=one.outcome, failed=one.failed)
            for one in given.transfers
        ],
    )
