"""Predicts every outcome of every operation: value, refusal, released continuations and counters (DESIGN 4.14).

The engine under test does its book-keeping forwards, with free lists, reference counts and stored counters.  This model
does it backwards: it carries an operation out on a copy of its books and then looks whether the copy still adds up.
"Making room" is literally that: the copy with no continuation released, with one, with two, … until the pages suffice.
Refusals are the rows of ``contract.semantics``; each counted change is asserted to be what ``contract.counters`` says.

Verifies: who is refused and why, who is admitted and how, that who is released might be and had to be, how a transfer
ends, what the counters and the bytes of the host arena are.
Does not verify: the order in which continuations yield (the engine's word is taken for it, decision 0020), which
physical page, row or extent is used, when device effects complete and whether a copy fails (the engine's report is
taken for it, where it is possible), what is stored in a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.operations import (
    AdmissionMode,
    Admitted,
    Append,
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Hit,
    Lookup,
    Operation,
    Outcome,
    Pin,
    Progress,
    Progressed,
    Release,
    Restore,
    Schedule,
    Scheduled,
    Submit,
    TransferEnded,
    TransferOutcome,
    Truncate,
    TryAdmit,
    Value,
    Waiting,
    WaitingKind,
)
from kvcrucible.contract.planes import LEADING
from kvcrucible.contract.semantics import Facts, Row
from kvcrucible.contract.tokens import count
from kvcrucible.reference import acts, backfill, transfers
from kvcrucible.reference.books import Books
from kvcrucible.reference.holdings import Entry
from kvcrucible.reference.judging import Judged, first_row
from kvcrucible.reference.pages import Page
from kvcrucible.reference.room import Attempt, Choice, Plan, Room, Told


class AccountingModel(Room):
    """The expected behaviour of one engine.

    ``capabilities`` (default: everything) say which operations exist and whether admission reserves the worst case.
    Where it does not, ``BeginUnit`` takes pages from free and truncated pages go back there.  Where there is no
    ``Release``, nothing is retained and nothing released.  ``immediate``: the effects of a unit are done when it ends;
    False where they may lag, so that pages wait for a reported progress (0013).
    """

    def __init__(
        self, config: EngineConfig, capabilities: Capabilities | None = None, immediate: bool = True
    ) -> None:
        self.config = config
        self.capabilities = capabilities if capabilities is not None else Capabilities("reference")
        self.books = Books(config, self.capabilities.reserves, immediate)
        self.holes = None
        self._told = Told()

    def predict(self, operation: Operation, told: Outcome | None = None) -> Outcome:
        """Carry the operation out on the model; a refused one changes nothing.

        ``told``: what the engine says to have come of it, for what is its own choice (0020): whom it released, which
        copies it gave up and what it let sink to make room.  Each is taken as long as it is legal and pages are still
        lacking.  From the first on that is not legal, and where nothing is told, the least recently used is released
        instead; so the outcome differs from what was told where, and only where, that was not legal.

        When device effects complete is not known here: ``Progress`` is predicted as if the engine had reported that
        everything under way is done and no copy failed; for any other report use :meth:`predict_progress`.  Raises
        ``ValueError`` for an operation that the engine does not offer.
        """
        if isinstance(operation, Progress):
            return self.predict_progress(self.everything_done())
        self._require_offered(operation)
        self._told = Told() if told is None else Told.of(told)
        outcome = self._outcome(operation)
        self.holes = None
        return Outcome(outcome.value, outcome.refusal, outcome.evicted, self.books.counters, outcome.given_up)

    def predict_progress(self, reported: Progressed) -> Outcome:
        """Carry out a ``Progress`` of which the engine has reported ``reported``.

        Taken from the report: which units are complete, which transfers are over, and which of them had a failed copy.
        The outcome's value is the ``Progressed`` that is due then, with each transfer's outcome.  What is impossible in
        the report is left out of it and not carried out: a unit that has not ended or is out of order, a transfer that
        is not under way or is out of order, the failure of a transfer that had nothing to copy.  Raises ``ValueError``
        where the engine does not offer ``Progress``.
        """
        self._require_offered(Progress())
        self.holes = None
        return Outcome(transfers.progress(self.books, reported), counters=self.books.counters)

    def everything_done(self) -> Progressed:
        """The report of an engine whose every unit that has ended is complete and whose every transfer is over; the
        outcomes in it are not predictions.
        """
        over = [TransferEnded(name, TransferOutcome.MOVED) for name in self.transfers()]
        return Progressed(tuple(self.books.ended), tuple(over))

    def see_holes(self, sizes: tuple[int, ...]) -> None:
        """Note the sizes, in bytes, of the holes that the engine's host arena has now.

        They hold for the next operation that is predicted, and no longer.  Where none were seen, all that is not used
        is taken to be one hole.
        """
        self.holes = sizes

    def _require_offered(self, operation: Operation) -> None:
        if type(operation).__name__ not in self.capabilities.operations:
            raise ValueError(f"{self.capabilities.engine} has no operation {type(operation).__name__}")

    def refusing_row(self, operation: Operation) -> Row | None:
        """The row of the semantics table that refuses the operation now, or makes the request wait; changes nothing.

        None for one that would be carried out, and for a request behind the head of the queue.
        """
        if isinstance(operation, Fork | Truncate | BeginUnit | TryAdmit | Restore):
            return self._choose(self._plan(operation))[0]
        if isinstance(operation, Schedule | Progress):
            return None
        return first_row(self._judged(operation))

    def demand(self, operation: Operation) -> int | None:
        """Pages that the operation takes less the pages that can be had for it (above 0: too many), in the pool where
        that is most; changes nothing.

        ``Schedule`` asks for the head of the queue.  Where there are several choices the most modest counts.  None
        where the operation takes no pages or something else refuses it.
        """
        if isinstance(operation, Schedule):
            if not self.queue:
                return None
            operation = TryAdmit(self.queue[0])
        if not isinstance(operation, Fork | Truncate | BeginUnit | TryAdmit | Restore):
            return None
        plan = self._plan(operation)
        if first_row(plan.judged):
            return None
        attempts = [self._after_all_releases(choice) for choice in plan.choices]
        slack = [attempt.slack for attempt in attempts if attempt.slack is not None]
        return min(slack, default=None)

    def available_pages(self) -> tuple[int, ...]:
        """Pages that can be had in each pool: free now, and after releasing every continuation that may be released."""
        return self._attempt(self._releasable(None), lambda books: None).available

    def _plan(self, operation: Fork | Truncate | BeginUnit | TryAdmit | Restore) -> Plan:
        match operation:
            case BeginUnit(work):
                named = [one.sequence for one in work]
                judged: Judged = [
                    (
                        type(one),
                        self._about(
                            one.sequence,
                            count=one.count,
                            backend=one.backend,
                            leads=isinstance(one, Append) and self.config.pools[-1].name in LEADING,
                            repeated=named.count(one.sequence) > 1,
                        ),
                    )
                    for one in work
                ]
                if not work:
                    judged = [(BeginUnit, Facts(empty=True))]
                return Plan(judged, [Choice(lambda books: acts.begin(books, work))])
            case TryAdmit(sequence):
                heads = self.queue[:1] == [sequence]
                choices = list(self._admissions(sequence)) if heads else []
                return Plan([(TryAdmit, self._facts(operation))], choices)
            case Fork(source):
                choice = Choice(lambda books: acts.fork(books, operation), protected=source)
                return Plan([(Fork, self._facts(operation))], [choice])
            case Truncate():
                choice = Choice(lambda books: acts.truncate(books, operation))
                return Plan([(Truncate, self._facts(operation))], [choice])
            case Restore(continuation):
                choice = Choice(lambda books: transfers.restore(books, operation), protected=continuation)
                return Plan([(Restore, self._facts(operation))], [choice])

    def _admissions(self, sequence: int, *, at_once: bool = False) -> Iterator[Choice]:
        """The candidates of an admission, best first (0003); who is in flight is no source.

        A hit that is not all on Device is waited for, or restored, once for each request and source; what sinks for
        the request is waited for before anything else (0020).  ``at_once``: nothing is restored, so it waits.
        """
        books = self.books
        request = books.queued[sequence]
        if request.sinks & books.transfers.keys():
            yield Choice(lambda books: Waiting(sequence, WaitingKind.SINKING))
            return
        left_out = [owner for owner, entry in books.holders().items() if entry.unit is not None]
        while True:
            hit = books.best_hit(request.prompt, request.spans, request.identity, frozenset(left_out))
            if hit is None:
                break
            missing = list(chain(*books.missing(books.holders()[hit.source], hit.length)))
            if not missing:
                yield from self._hit(sequence, hit)
                break
            tried = hit.source in request.tried
            if any(books.in_transfer(page) for page in missing) or (at_once and not tried):
                yield Choice(lambda books: Waiting(sequence, WaitingKind.RESTORING))
                break
            if not tried:
                yield Choice(partial(transfers.restore_hit, sequence=sequence, hit=hit), hit.source)
            left_out.append(hit.source)
        yield Choice(lambda books: acts.admit_cold(books, sequence))

    def _hit(self, sequence: int, hit: Hit) -> Iterator[Choice]:
        """The candidates that start from a hit of which every page is there."""
        books = self.books
        request, source = books.queued[sequence], books.continuations.get(hit.source)
        may_move = source is not None and not books.any_in_transfer(source)
        consumes = request.consume or (
            source is not None and request.session is not None and request.session == source.session
        )
        if source is not None and may_move and consumes and set(books.reach(source)) == {hit.length}:
            yield Choice(
                lambda books: acts.admit_by_move(books, sequence, hit, AdmissionMode.MOVE), hit.source
            )
            return
        yield Choice(lambda books: acts.admit_by_fork(books, sequence, hit), hit.source)
        if source is not None and may_move and not source.pinned:
            mode = AdmissionMode.MOVE_TRUNCATED
            yield Choice(lambda books: acts.admit_by_move(books, sequence, hit, mode), hit.source)

    def _choose(self, plan: Plan) -> tuple[Row | None, Choice | None, Attempt | None]:
        """Return the first choice that fits, or the row that refuses the operation; with a choice, how it went where
        nobody has to be released for it.
        """
        row = first_row(plan.judged)
        if row is not None:
            # No need has been stated yet, so this is not for want of pages; the act would make no sense.
            return row, None, None
        for choice in plan.choices:
            # What fits while everyone stays fits all the more once they have gone.
            attempt = self._attempt([], choice.act)
            if min(attempt.books.free) >= 0:
                return None, choice, attempt
            victims = self._releasable(choice.protected)
            if victims:
                attempt = self._attempt(victims, choice.act)
            row = first_row(
                [(kind, facts.with_pages(attempt.need, attempt.available)) for kind, facts in plan.judged]
            )
            if row is None:
                return None, choice, None
        return row, None, None

    # -- the operations ------------------------------------------------------------------------------------------------

    def _outcome(self, operation: Operation) -> Outcome:
        if isinstance(operation, Schedule):
            return self._schedule()
        if isinstance(operation, TryAdmit):
            return self._try_admit(operation)
        if isinstance(operation, Fork | Truncate | BeginUnit | Restore):
            row, choice, ready = self._choose(self._plan(operation))
            if choice is None:
                assert row is not None, operation
                return Outcome(refusal=row.kind)
            return self._carry_out(choice, ready)
        row = first_row(self._judged(operation))
        if row is not None:
            return Outcome(refusal=row.kind)
        return Outcome(self._do(operation))

    def _try_admit(self, operation: TryAdmit) -> Outcome:
        sequence = operation.sequence
        if sequence in self.queue[1:]:
            return Outcome(Waiting(sequence, WaitingKind.BEHIND_HEAD))
        row, choice, ready = self._choose(self._plan(operation))
        if choice is not None:
            return self._carry_out(choice, ready, sequence)
        assert row is not None, operation
        if row.kind.precedence < RefusalKind.SESSION_BUSY.precedence:
            return Outcome(refusal=row.kind)
        return Outcome(Waiting(sequence, WaitingKind(row.kind.value)))

    def _schedule(self) -> Outcome:
        admitted: list[Admitted] = []
        waiting: Waiting | None = None
        evicted: tuple[int, ...] = ()
        given_up: tuple[int, ...] = ()
        while self.queue and waiting is None:
            outcome = self._try_admit(TryAdmit(self.queue[0]))
            evicted, given_up = evicted + outcome.evicted, given_up + outcome.given_up
            if isinstance(outcome.value, Waiting):
                waiting = outcome.value
                passed, more = self._behind_the_head()
                admitted += passed
                evicted += more
            else:
                assert isinstance(outcome.value, Admitted), outcome
                admitted.append(outcome.value)
        return Outcome(Scheduled(tuple(admitted), waiting), evicted=evicted, given_up=given_up)

    def _behind_the_head(self) -> tuple[list[Admitted], tuple[int, ...]]:
        """Admit those within the look-ahead who may pass the head and fit now (0021); return them, and whom that
        released.
        """
        admitted: list[Admitted] = []
        evicted: tuple[int, ...] = ()
        for request in backfill.look_ahead(self.books):
            if not backfill.may_pass(self.books, request):
                continue
            _, choice, ready = self._choose(
                Plan(
                    [(TryAdmit, self._facts(TryAdmit(request)))],
                    list(self._admissions(request, at_once=True)),
                )
            )
            if choice is None:
                continue
            head = self.queue[0]
            outcome = self._carry_out(choice, ready)
            if isinstance(outcome.value, Waiting):
                continue
            assert isinstance(outcome.value, Admitted), outcome
            self.books.active[request].passed = head
            admitted.append(outcome.value)
            evicted += outcome.evicted
        return admitted, evicted

    def _do(self, operation: Operation) -> Value:
        """Carry out an operation that takes no pages and that no row refuses."""
        books = self.books
        match operation:
            case Submit(prompt, max_new, session, consume, identity, spans):
                sequence = books.new_sequence()
                limit, nothing = count(prompt) + max_new, [list[Page]() for _ in books.pools]
                books.queued[sequence] = Entry(
                    prompt, limit, session, identity, consume, spans, pages=nothing
                )
                return sequence
            case Lookup(prompt, identity, spans):
                return books.best_hit(prompt, spans, identity, left_out=frozenset())
            case EndUnit():
                return acts.end_unit(books, operation)
            case Checkpoint(sequence):
                return books.mark(sequence)
            case Finish(sequence, retain):
                if not retain or "Release" not in self.capabilities.operations:
                    acts.end(books, sequence)
                    return False
                return acts.retain(books, sequence)
            case Cancel(sequence):
                entry = self._entry(sequence)
                if entry.unit is not None:
                    entry.cancelled = True
                    return False
                acts.end(books, sequence)
                return True
            case Release(continuation):
                acts.end(books, continuation)
                return None
            case Pin(continuation, pinned):
                books.continuations[continuation].pinned = pinned
                return None
            case Demote():
                return transfers.demote(books, operation)
            case CancelTransfer(transfer):
                transfers.cancel(books, transfer)
                return None
        raise AssertionError(operation)
