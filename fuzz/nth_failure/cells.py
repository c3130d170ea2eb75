"""One cell: one failure in one operation of one workload, and what has to be so afterwards.

Verifies, by the kind of site:

- *in the call*: the operation is refused for that reason and nothing has changed, or it is an admission, and what it
  does not report as admitted or begun has not changed; carried out again, it does what it does without any failure (a
  hostile policy, which answers at random, aside);
- *of a transfer*: once its effects are over the transfer is reported as abandoned, and everything is as if it had been
  cancelled before a single byte moved;
- *losing*: every later operation raises ``EngineLost`` and changes nothing;
- *unforeseen*: it reaches the caller, and what follows is as for a refusal, or as for *losing*.  Only as for a refusal
  where nothing can have been done by then that is never taken back: a copy asked for by name raises, or a policy does
  as it is asked for an order, unless an admission has admitted somebody or begun a transfer before (decision 0030).

Where the engine is not lost, every checker holds and ending everything leads to the initial free sets.  Does not
verify: bytes (payload campaigns do), and which of several ways an admission takes that goes on in spite of a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from kvcrucible.contract.errors import EngineLost, RefusalKind
from kvcrucible.contract.in_words import in_words
from kvcrucible.contract.operations import (
    CancelTransfer,
    Demote,
    Lookup,
    Operation,
    Outcome,
    Progress,
    Progressed,
    Restore,
    Schedule,
    Scheduled,
    TransferOutcome,
    TryAdmit,
    Waiting,
)
from kvcrucible.contract.snapshot import Snapshot
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz.nth_failure.failing import ORDER_ASKED, UnforeseenError
from kvcrucible.fuzz.nth_failure.sites import IN_THE_CALL, LOSING, OF_A_TRANSFER, UNFORESEEN, Failure, Site
from kvcrucible.fuzz.nth_failure.subject import Subject
from kvcrucible.fuzz.nth_failure.workloads import Workload
from kvcrucible.fuzz.setting import HOSTILE_POLICY, Setting
from kvcrucible.fuzz.steps import ReadBack, RunEffects, Step
from kvcrucible.invariants import registry
from kvcrucible.invariants.behaviour import unchanged
from kvcrucible.invariants.judgements import ENGINE_FAULT, raised
from kvcrucible.invariants.violation import Violation, mismatch

#: Makes an engine for a setting and takes steps on it.
Build: TypeAlias = Callable[[Setting, Sequence[Step]], Subject]


class Ending(StrEnum):
    """What became of a cell that held."""

    #: The digest is what it was, or for a transfer what it is when the transfer is cancelled at once.
    ROLLED_BACK = "rolled back"
    #: An admission that began something else instead, or admitted others before: it reports all that it did.
    WENT_ON = "went on"
    #: The engine is lost, and says so.
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Cell:
    """Failure ``failure`` in step ``at`` of a workload; ``build`` makes the engine that is failed."""

    workload: Workload
    at: int
    failure: Failure
    build: Build = Subject

    @property
    def operation(self) -> Operation:
        """The operation that is failed."""
        step = self.workload.steps[self.at]
        assert not isinstance(step, RunEffects | ReadBack)
        return step

    def __str__(self) -> str:
        return f"{self.failure} in {in_words(self.operation)}, step {self.at + 1}"


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one cell: how it ended, what it violated, and whether ending everything was exact (None: it was
    not tried).
    """

    cell: Cell
    ending: Ending | None
    violations: tuple[Violation, ...]
    emptied: bool | None


#: With which refusal a site in the call fails.
_REFUSALS = {
    Site.PROMISE: RefusalKind.DEVICE_CAPACITY,
    Site.GRANT: RefusalKind.DEVICE_CAPACITY,
    Site.EXTENT: RefusalKind.HOST_GEOMETRY,
}


def cells_of(workload: Workload, build: Build = Subject) -> Iterator[Cell]:
    """Yield every cell of a workload: each site that an operation passes, each passage, once and persistently."""
    subject = build(workload.setting, ())
    for at, step in enumerate(workload.steps):
        subject.gate.disarm()
        subject.take(step)
        if isinstance(step, RunEffects | ReadBack):
            continue
        for site in Site:
            for k in range(1, subject.gate.passed[site] + 1):
                # What ends the call with its first failure passes the site no second time.
                ends = site is Site.COMPUTE_QUEUE or site in UNFORESEEN
                for persistent in (False,) if ends else (False, True):
                    yield Cell(workload, at, Failure(site, k, persistent), build)


def try_cell(cell: Cell) -> Tried:
    """Try one cell; an exception that is neither a refusal nor ``EngineLost`` is a finding."""
    try:
        if cell.failure.site in LOSING:
            return Tried(cell, Ending.LOST, tuple(_lost(cell)), None)
        if cell.failure.site in UNFORESEEN:
            return _unforeseen(cell)
        return _rolled_back(cell)
    except Exception as error:
        return Tried(cell, None, (Violation(ENGINE_FAULT, f"{cell} raised {raised(error)}"),), None)


def _prefix(cell: Cell) -> Subject:
    return cell.build(cell.workload.setting, cell.workload.steps[: cell.at])


def _rolled_back(cell: Cell) -> Tried:
    subject = _prefix(cell)
    judge = _in_the_call if cell.failure.site in IN_THE_CALL else _of_a_transfer
    assert cell.failure.site in IN_THE_CALL | OF_A_TRANSFER
    ending, violations = judge(cell, subject)
    return _emptied(cell, subject, ending, violations)


def _emptied(cell: Cell, subject: Subject, ending: Ending, violations: list[Violation]) -> Tried:
    """Check the state, end everything, and return what came of the cell in all."""
    subject.gate.disarm()
    violations += _checked(subject.snapshot())
    left = subject.empty()
    return Tried(cell, ending, tuple(violations + left), not left)


# -- what fails in the call --------------------------------------------------------------------------------------------


def _in_the_call(cell: Cell, subject: Subject) -> tuple[Ending, list[Violation]]:
    before, gate, operation = subject.snapshot(), subject.gate, cell.operation
    gate.arm(cell.failure)
    outcome = subject.operate(operation)
    violations = _fired(cell, gate.failed)
    after = subject.snapshot()
    if _reports_something(outcome):
        # Which of its ways an admission takes then is its own; all that it did it says, and the checkers see it.
        return Ending.WENT_ON, violations
    violations += _refused(cell, outcome) + unchanged(before, after)
    if cell.workload.setting.policy == HOSTILE_POLICY:
        # It answers otherwise whenever it is asked once more.
        return Ending.ROLLED_BACK, violations
    if cell.failure.persistent:
        # As long as it lasts, asking again changes nothing either.
        violations += _refused(cell, subject.operate(operation)) + unchanged(before, subject.snapshot())
    gate.disarm()
    again, due = subject.operate(operation), _prefix(cell).operate(operation)
    if again != due:
        violations.append(mismatch("refusal-atomic", f"{cell}, carried out again", again, due))
    return Ending.ROLLED_BACK, violations


def _refused(cell: Cell, outcome: Outcome) -> list[Violation]:
    """Judge the answer: the refusal of the site, or for an admission that the request waits."""
    due = _REFUSALS[cell.failure.site]
    if isinstance(cell.operation, Schedule | TryAdmit):
        value = outcome.value
        waiting = value.waiting if isinstance(value, Scheduled) else value
        if outcome.refusal is None and isinstance(waiting, Waiting):
            return []
        return [mismatch("refusal-atomic", f"{cell}, outcome", outcome, "the request waits")]
    if outcome.refusal is due:
        return []
    return [mismatch("refusal-atomic", f"{cell}, outcome", outcome, f"refused, {due.value}")]


def _reports_something(outcome: Outcome) -> bool:
    """Say whether an admission admitted somebody, or began or released something."""
    value = outcome.value
    if isinstance(value, Scheduled):
        begun = value.waiting.started if value.waiting is not None else ()
        return bool(value.admitted or begun or outcome.evicted or outcome.given_up)
    if isinstance(value, Waiting):
        return bool(value.started or outcome.evicted or outcome.given_up)
    return False


# -- what a transfer answers for ---------------------------------------------------------------------------------------


def _of_a_transfer(cell: Cell, subject: Subject) -> tuple[Ending, list[Violation]]:
    gate = subject.gate
    gate.arm(cell.failure)
    outcome = subject.operate(cell.operation)
    failed = set(gate.transfers)
    gate.disarm()
    violations = _fired(cell, len(failed))
    told = outcome.value.transfers if isinstance(outcome.value, Progressed) else ()
    subject.settle()
    late = subject.operate(Progress()).value
    assert isinstance(late, Progressed)
    ended = {one.transfer: one for one in (*told, *late.transfers)}
    for transfer in sorted(failed):
        found = ended.get(transfer)
        due = cell.failure.site is not Site.PUBLICATION
        if found is None or found.outcome is not TransferOutcome.ABANDONED or found.failed is not due:
            what = f"{cell}, transfer {transfer}"
            violations.append(mismatch("publish-order", what, found, f"abandoned, failed {due}"))
    twin = _cancelled(cell, failed)
    return Ending.ROLLED_BACK, violations + unchanged(twin, subject.snapshot())


def _cancelled(cell: Cell, transfers: set[int]) -> Snapshot:
    """Return where the same operation leads without a failure when the transfers are cancelled by their owner: right
    before a publication, right after what started them.
    """
    twin = _prefix(cell)
    first = cell.failure.site is Site.PUBLICATION
    for cancels in (first, not first):
        if cancels:
            for transfer in sorted(transfers):
                twin.operate(CancelTransfer(transfer))
        if cancels is first:
            twin.operate(cell.operation)
    twin.settle()
    twin.operate(Progress())
    return twin.snapshot()


# -- what nothing can make good ----------------------------------------------------------------------------------------


def _lost(cell: Cell) -> list[Violation]:
    """Return in what the engine does not say, once the host can know, that it is lost."""
    subject = _prefix(cell)
    subject.gate.arm(cell.failure)
    violations: list[Violation] = []
    try:
        subject.operate(cell.operation)
    except EngineLost:
        if cell.failure.site is not Site.COMPUTE_QUEUE and not isinstance(cell.operation, Progress):
            violations.append(mismatch("frontier-visibility", f"{cell}", "lost at once", "carried out"))
    violations += _fired(cell, subject.gate.failed)
    subject.gate.disarm()
    subject.settle()
    # What was queued last has no event behind it before somebody looks: it is known one look later.
    with suppress(EngineLost):
        subject.operate(Progress())
    subject.settle()
    return violations + _says_that_it_is_lost(cell, subject)


def _says_that_it_is_lost(cell: Cell, subject: Subject) -> list[Violation]:
    violations: list[Violation] = []
    before: Snapshot | None = None
    for operation in (Progress(), cell.operation, Schedule(), Lookup(run(0, 0, 2)), Progress()):
        try:
            outcome = subject.operate(operation)
        except EngineLost:
            pass
        else:
            what = f"{in_words(operation)} after {cell}"
            violations.append(mismatch("frontier-visibility", what, outcome, "raises EngineLost"))
        # What the engine has noted as it was found out is noted once.
        after = subject.snapshot()
        violations += [] if before is None else unchanged(before, after)
        before = after
    return violations


# -- what nobody has foreseen ------------------------------------------------------------------------------------------


def _unforeseen(cell: Cell) -> Tried:
    """The error reaches the caller; the engine is as it was, or lost where it may be, and says so."""
    subject = _prefix(cell)
    before, gate = subject.snapshot(), subject.gate
    gate.arm(cell.failure)
    violations: list[Violation] = []
    where = ""
    try:
        outcome = subject.operate(cell.operation)
    except UnforeseenError as error:
        where = error.where
    else:
        violations.append(mismatch(ENGINE_FAULT, f"{cell}, outcome", outcome, "raises the error"))
    violations += _fired(cell, gate.failed)
    gate.disarm()
    try:
        subject.operate(Lookup(run(0, 0, 2)))
    except EngineLost:
        if not _may_be_lost(cell, where, before, subject.snapshot()):
            violations.append(mismatch("refusal-atomic", f"{cell}, the engine", "lost", "as it was"))
        violations += _says_that_it_is_lost(cell, subject)
        return Tried(cell, Ending.LOST, tuple(violations), None)
    violations += unchanged(before, subject.snapshot())
    if cell.workload.setting.policy != HOSTILE_POLICY:
        again, due = subject.operate(cell.operation), _prefix(cell).operate(cell.operation)
        if again != due:
            violations.append(mismatch("refusal-atomic", f"{cell}, carried out again", again, due))
    return _emptied(cell, subject, Ending.ROLLED_BACK, violations)


def _may_be_lost(cell: Cell, where: str, before: Snapshot, after: Snapshot) -> bool:
    """Say whether something that is never taken back may have been done before the error."""
    if cell.failure.site is Site.COPY_ERROR:
        return not isinstance(cell.operation, Demote | Restore)
    if where != ORDER_ASKED:
        return True
    # An order is asked for anew for each request of an admission, and for each continuation that sinks for one.
    admits = isinstance(cell.operation, Schedule | TryAdmit)
    return admits and (
        after.sequences.keys() != before.sequences.keys() or after.transfers != before.transfers
    )


# -- what holds for all ------------------------------------------------------------------------------------------------


def _fired(cell: Cell, times: int) -> list[Violation]:
    """A failure that never happened proves nothing: the same steps have to pass the same sites."""
    if times:
        return []
    return [mismatch(ENGINE_FAULT, f"{cell}: failures that happened", times, "at least 1")]


def _checked(snapshot: Snapshot) -> list[Violation]:
    """Return what the checkers of the catalogue find in one state."""
    found: Sequence[Violation] = [
        violation for checker in registry.checkers() for violation in checker.check(snapshot)
    ]
    return list(found)
