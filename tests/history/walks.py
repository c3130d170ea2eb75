"""Random walks of the accounting model, written as histories that show no pages: outcomes and counters only.

The model counts every thing afresh from lists; the checker keeps running numbers.  So one can be held against the other
over all of the contract, Host tier, retiring pages and engines without reservations included.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from kvcrucible.contract import history
from kvcrucible.contract import operations as ops
from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.history import Line
from kvcrucible.contract.history_header import Header, Shown
from kvcrucible.contract.media import TokenSpan
from kvcrucible.contract.operations import (
    Admitted,
    Hit,
    Operation,
    Outcome,
    Progressed,
    Scheduled,
    TransferEnded,
    UnitEnded,
    Waiting,
)
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import Geometry, PlaneOrder, storage_profile
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import Tokens, count, run
from kvcrucible.engine.history import header_of
from kvcrucible.reference.accounting import AccountingModel

SHOWS = [Shown.TOKENS, Shown.HITS, Shown.REFUSALS, Shown.FIFO, Shown.LRU, Shown.FENCES, Shown.RETURNS]


def config_of(pools: int, host: bool, lookahead: int = 0, backend: str = "draft") -> EngineConfig:
    """Return a small engine, in which everything is soon short."""

    def pool(name: str, pages: int, size: int) -> PoolSpec:
        order = PlaneOrder.HEAD_MAJOR if name == "draft" else PlaneOrder.PAGE_MAJOR
        planes = PlaneSpec(storage_profile("FP32"), Geometry(1, 1, 4), size, name, order=order)
        return PoolSpec(name, pages, size, (planes,) if host else ())

    specs = [pool("main", 14, 4), pool(backend, 22, 2)][:pools]
    return EngineConfig(tuple(specs), 24, 4, HostSpec(1 << 24, 256) if host else None, lookahead=lookahead)


class Walk:
    """A random walk: :meth:`step` gives an operation's line, with what the model says that it comes to."""

    def __init__(
        self,
        seed: int,
        pools: int = 1,
        host: bool = False,
        immediate: bool = True,
        reserves: bool = True,
        lookahead: int = 0,
    ) -> None:
        # Of the two backends one may run ahead inside a unit, the other may not.
        self.config = config_of(pools, host, lookahead, "mtp" if seed % 2 else "draft")
        self.header: Header = header_of(self.config, "model", SHOWS)
        self.header = history.msgspec.structs.replace(self.header, reserves=reserves)
        self.model = AccountingModel(self.config, Capabilities("model", reserves=reserves), immediate)
        self.random = random.Random(seed)
        self.immediate = immediate
        self._offset = 0

    def step(self) -> Line:
        """Carry out one operation on the model and return its line."""
        operation = self._draw()
        extents: list[history.NewExtent] = []
        if isinstance(operation, ops.Demote):
            extents = self._extents(operation.continuation)
        if isinstance(operation, ops.Progress):
            outcome = self.model.predict_progress(self._report())
        else:
            outcome = self.model.predict(operation)
        line = line_of(operation, outcome, self.immediate)
        if isinstance(line, history.Demote) and outcome.refusal is None:
            line.extents = extents
        line.counters = list(outcome.counters)
        return line

    def _extents(self, continuation: int) -> list[history.NewExtent]:
        """Place what a demotion takes behind everything before: the arena is larger than the walk is long."""
        entry = self.model.books.continuations.get(continuation)
        found = []
        books = self.model.books
        for extent in () if entry is None else books.extents(books.all_movable(entry, Tier.DEVICE)):
            if extent is not None:
                found.append(history.NewExtent(pool=extent.pool, offset=self._offset, size=extent.size_bytes))
                self._offset += extent.size_bytes
        return found

    def _report(self) -> Progressed:
        """Return some of what could be over, in order."""
        done = self.model.everything_done()
        units = done.units[: self.random.randint(0, len(done.units))]
        over = [
            TransferEnded(one.transfer, one.outcome, self.random.random() < 0.2)
            for one in done.transfers
            if self.random.random() < 0.6
        ]
        return Progressed(units, tuple(over))

    def _draw(self) -> Operation:
        draw, model = self.random, self.model
        known = [*model.queue, *model.sequences(), *model.continuations(), 999]
        some = draw.choice(known)
        active = draw.choice(model.sequences() or [some])
        kept = draw.choice(model.continuations() or [some])
        session = draw.choice([None, None, "a", "b"])
        unit = draw.choice(model.units or [7])
        kinds: list[tuple[int, Callable[[], Operation]]] = [
            (5, lambda: self._submit(session)),
            (5, ops.Schedule),
            (1, lambda: ops.TryAdmit(draw.choice([*model.queue[:1], some]))),
            (10, self._begin),
            (10, lambda: self._end(unit)),
            (
                2,
                lambda: ops.Fork(
                    draw.choice([active, kept, some]), draw.randint(0, 12), draw.randint(-1, 9), session
                ),
            ),
            (2, lambda: ops.Truncate(active, draw.randint(-1, 14))),
            (2, lambda: ops.Checkpoint(draw.choice([active, some]))),
            (4, lambda: ops.Finish(active, draw.random() < 0.85)),
            (1, lambda: ops.Finish(some)),
            (1, lambda: ops.Cancel(some)),
            (1, lambda: ops.Release(draw.choice([kept, some]))),
            (3, lambda: ops.Pin(kept, draw.random() < 0.4)),
            (1, self._lookup),
            (4 if self.config.host else 1, lambda: ops.Demote(kept, draw.random() < 0.4)),
            (4 if self.config.host else 1, lambda: ops.Restore(kept, draw.random() < 0.4)),
            (1, lambda: ops.CancelTransfer(draw.choice([*model.transfers(), 9]))),
            (5, ops.Progress),
        ]
        (chosen,) = draw.choices([make for _, make in kinds], [weight for weight, _ in kinds])
        return chosen()

    def _prompt(self) -> ops.Tokens:
        draw = self.random
        return run(0, 0, draw.randint(0, 10)) + run(draw.randint(1, 3), 50, draw.randint(0, 5))

    def _spans(self, prompt: ops.Tokens) -> tuple[TokenSpan, ...]:
        """Mostly none; else an item in the part that prompts share, now and then twice in a row or out of place."""
        draw, size = self.random, count(prompt)
        if draw.random() < 0.6:
            return ()
        kind, digest = draw.choice(
            [("image", "a"), ("image", "a"), ("image", "b"), ("audio", "a"), ("", "a")]
        )
        start, length = draw.choice([0, 2, 2, 3]), draw.choice([2, 4, 4, 6])
        first = TokenSpan(start, min(length, max(1, size - start)), kind, digest)
        if draw.random() < 0.3:
            return (first, TokenSpan(first.stop, draw.randint(0, 3), kind, digest))
        return (first,)

    def _lookup(self) -> Operation:
        prompt = self._prompt()
        return ops.Lookup(prompt, spans=self._spans(prompt))

    def _submit(self, session: str | None) -> Operation:
        identity = self.random.choice([ops.DEFAULT_IDENTITY] * 4 + [ops.Identity(tenant_salt="b")])
        prompt = self._prompt()
        more, consume = self.random.randint(-1, 10), self.random.random() < 0.3
        return ops.Submit(prompt, more, session, consume, identity, self._spans(prompt))

    def _end(self, unit: int) -> Operation:
        """End a unit: committed, in part, aborted, and now and then with what cannot be accepted."""
        draw, commit = self.random, self.random.random() < 0.85
        appended = self.model.appended(unit) if unit in self.model.units else {}
        accepted: list[tuple[int, int]] = []
        if commit or draw.random() < 0.05:
            for sequence, tokens in appended.items():
                if draw.random() < 0.5:
                    odd = draw.random() < 0.05
                    accepted.append(
                        (sequence, draw.choice([0, tokens + 1]) if odd else draw.randint(1, tokens))
                    )
        if draw.random() < 0.03:
            accepted.append(draw.choice([*accepted, (999, 1), *[(one, 1) for one in self.model.sequences()]]))
        return ops.EndUnit(unit, commit, tuple(accepted))

    def _begin(self) -> Operation:
        draw, model = self.random, self.model
        works: list[ops.Work] = []
        idle = [one for one in model.sequences() if not model.in_flight(one) or draw.random() < 0.05]
        for sequence in draw.sample(idle, min(len(idle), draw.choice([0, 1, 1, 1, 2, 2]))):
            left = model.prompt_left(sequence)
            backend = draw.choice([None, None, 0, 1, 2, 4]) if draw.random() < 0.4 else None
            if left and draw.random() < 0.95:
                works.append(
                    ops.Prefill(sequence, draw.choice([left, left, left, left, 1, 2, left + 1]), backend)
                )
            else:
                works.append(ops.Append(sequence, run(draw.randint(4, 6), 0, draw.randint(0, 4)), backend))
        return ops.BeginUnit(tuple(works))


def line_of(operation: Operation, outcome: Outcome, immediate: bool) -> Line:
    """Return the line that says what an operation came to, without pages."""
    refused, value, evicted = outcome.refusal, outcome.value, list(outcome.evicted)
    given = value if isinstance(value, int) and refused is None else None
    match operation:
        case ops.Submit(prompt, max_new, session, consume, identity, spans):
            fields = history.IdentityFields(tenant_salt=identity.tenant_salt)
            return history.Submit(
                prompt=_runs(prompt), max_new=max_new, sequence=given, session=session, consume=consume,
                identity=fields, spans=_spans(spans), refused=refused,
            )  # fmt: skip
        case ops.TryAdmit(sequence):
            if isinstance(value, Admitted):
                return history.Admit(admission=_admission(value), evicted=evicted)
            wait = (
                history.Wait(sequence=value.sequence, why=value.kind) if isinstance(value, Waiting) else None
            )
            return history.Admit(
                wait=wait,
                sequence=sequence if refused else None,
                evicted=evicted,
                started=_started(value),
                refused=refused,
            )
        case ops.Schedule():
            assert isinstance(value, Scheduled)
            head = value.waiting
            wait = None if head is None else history.Wait(sequence=head.sequence, why=head.kind)
            return history.Schedule(
                admitted=[_admission(one) for one in value.admitted],
                wait=wait,
                evicted=evicted,
                started=_started(head),
            )
        case ops.BeginUnit(work):
            return history.Begin(work=list(_works(work)), unit=given, evicted=evicted, refused=refused)
        case ops.EndUnit(unit, commit, accepted):
            line = history.End(
                unit=unit, commit=commit, accepted=list(accepted), done=immediate, refused=refused
            )
            if isinstance(value, UnitEnded):
                line.frontiers, line.cancelled = list(value.frontiers), list(value.cancelled)
            return line
        case ops.Fork(source, position, max_new, session):
            return history.Fork(
                source=source, position=position, max_new=max_new, session=session, sequence=given,
                evicted=evicted, refused=refused,
            )  # fmt: skip
        case ops.Truncate(sequence, position):
            return history.Truncate(sequence=sequence, position=position, evicted=evicted, refused=refused)
        case ops.Checkpoint(sequence):
            return history.Checkpoint(sequence=sequence, checkpoint=given, refused=refused)
        case ops.Finish(sequence, retain):
            return history.Finish(
                sequence=sequence, retain=retain, kept=None if refused else bool(value), refused=refused
            )
        case ops.Cancel(sequence):
            return history.Cancel(sequence=sequence, done=None if refused else bool(value), refused=refused)
        case ops.Release(continuation):
            return history.Release(continuation=continuation, refused=refused)
        case ops.Pin(continuation, pinned):
            return history.Pin(continuation=continuation, pinned=pinned, refused=refused)
        case ops.Lookup(prompt, spans=spans):
            hit = value if isinstance(value, Hit) else None
            found = hit and history.Found(source=hit.source, length=hit.length, checkpoint=hit.checkpoint)
            return history.Lookup(prompt=_runs(prompt), spans=_spans(spans), hit=found, refused=refused)
        case ops.Demote(continuation, keep):
            return history.Demote(continuation=continuation, keep=keep, transfer=given, refused=refused)
        case ops.Restore(continuation, keep):
            return history.Restore(
                continuation=continuation, keep=keep, transfer=given, evicted=evicted, refused=refused
            )
        case ops.CancelTransfer(transfer):
            return history.CancelTransfer(transfer=transfer, refused=refused)
        case ops.Progress():
            assert isinstance(value, Progressed)
            over = [
                history.Ended(transfer=one.transfer, outcome=one.outcome, failed=one.failed)
                for one in value.transfers
            ]
            return history.Progress(units=list(value.units), transfers=over)
    raise AssertionError(operation)


def _runs(tokens: Tokens) -> history.Runs:
    return [(source, start, length) for source, start, length in tokens if isinstance(source, int)]


def _spans(spans: tuple[TokenSpan, ...]) -> list[history.Span]:
    return [history.Span(one.start, one.length, one.token_type, one.media) for one in spans]


def _started(value: object) -> list[history.Started]:
    return [
        history.Started(
            transfer=one.transfer,
            continuation=one.continuation,
            source=one.source,
            positions=one.positions,
        )
        for one in (value.started if isinstance(value, Waiting) else ())
    ]


def _admission(value: Admitted) -> history.Admission:
    return history.Admission(sequence=value.sequence, mode=value.mode, source=value.source, hit=value.hit)


def _works(work: tuple[ops.Work, ...]) -> Iterator[history.Work]:
    for one in work:
        if isinstance(one, ops.Prefill):
            yield history.Work(sequence=one.sequence, prefill=one.count, backend=one.backend)
        else:
            yield history.Work(sequence=one.sequence, append=_runs(one.tokens), backend=one.backend)
