"""Compares what an engine answered with what the reference predicted, and names the invariant that a difference
breaks.
"""

from __future__ import annotations

from kvcrucible.contract.errors import RefusalKind
from kvcrucible.contract.in_words import in_words
from kvcrucible.contract.operations import (
    Admitted,
    BeginUnit,
    EndUnit,
    Fork,
    Hit,
    Lookup,
    Operation,
    Outcome,
    Schedule,
    Scheduled,
    Truncate,
    TryAdmit,
    Waiting,
    WaitingKind,
)
from kvcrucible.invariants.judgements import PREDICTED_OUTCOME
from kvcrucible.invariants.violation import Violation, mismatch


def judge_outcome(operation: Operation, expected: Outcome, actual: Outcome) -> list[Violation]:
    """Return every difference between prediction and answer, the most telling first."""
    if actual == expected:
        return []
    what = in_words(operation)
    violations: list[Violation] = []
    if actual.refusal is not expected.refusal:
        name = _refusal_invariant(operation, expected.refusal, actual.refusal)
        violations.append(mismatch(name, what, _shown(actual), _shown(expected)))
    elif actual.value != expected.value:
        name = _value_invariant(operation, expected.value, actual.value)
        violations.append(mismatch(name, what, repr(actual.value), repr(expected.value)))
    if actual.evicted != expected.evicted:
        violations.append(
            mismatch("cache-yields", f"{what}, released", list(actual.evicted), list(expected.evicted))
        )
    if actual.given_up != expected.given_up:
        copies, due = list(actual.given_up), list(expected.given_up)
        violations.append(mismatch("cache-yields", f"{what}, copies on Device given up", copies, due))
    if actual.counters != expected.counters:
        found = mismatch(
            "pool-conservation",
            f"{what}, (leased, reserved, free) after it",
            actual.counters,
            expected.counters,
        )
        violations.append(found)
    return violations


def _refusal_invariant(operation: Operation, due: RefusalKind | None, found: RefusalKind | None) -> str:
    if due is RefusalKind.STALE_HANDLE:
        return "stale-handle-refused"
    if RefusalKind.ROW_IN_FLIGHT in (due, found):
        return "unit-frozen"
    if RefusalKind.DEVICE_CAPACITY in (due, found):
        if isinstance(operation, BeginUnit):
            return "completion-guarantee"
        # Room decides only where the other side had none against it for any other reason.
        if None in (due, found):
            return "cache-yields" if isinstance(operation, Fork | Truncate) else "admission-by-count"
    return PREDICTED_OUTCOME


def _value_invariant(operation: Operation, due: object, found: object) -> str:
    if isinstance(operation, Lookup) or isinstance(due, Hit) or isinstance(found, Hit):
        return "exact-prefix-identity"
    if isinstance(operation, EndUnit):
        return "frontier-visibility"
    if isinstance(operation, Schedule | TryAdmit):
        return _admission_invariant(_admissions(due), _admissions(found))
    return PREDICTED_OUTCOME


def _admission_invariant(due: list[Admitted | Waiting], found: list[Admitted | Waiting]) -> str:
    for left, right in zip(due, found, strict=False):
        if left == right:
            continue
        if isinstance(left, Admitted) and isinstance(right, Admitted):
            return "exact-prefix-identity"
        if any(isinstance(w, Waiting) and w.kind is WaitingKind.SINKING for w in (left, right)):
            return "cache-yields"
        capacity = [
            w for w in (left, right) if isinstance(w, Waiting) and w.kind is WaitingKind.DEVICE_CAPACITY
        ]
        return "admission-by-count" if capacity else PREDICTED_OUTCOME
    return PREDICTED_OUTCOME


def _admissions(value: object) -> list[Admitted | Waiting]:
    if isinstance(value, Scheduled):
        return [*value.admitted, *([value.waiting] if value.waiting else [])]
    return [value] if isinstance(value, Admitted | Waiting) else []


def _shown(outcome: Outcome) -> str:
    return repr(outcome.value) if outcome.refusal is None else f"refused, {outcome.refusal.value}"
