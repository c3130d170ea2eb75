"""Compares what an engine shows of its state with the reference model, field by field.

Verifies: who is queued, active and retained; of each the tokens, identity, session, prompt, limit, pins and recorded
cancels; the order in which continuations were used; every checkpoint's owner, frontier and tokens.
Does not verify: pages, leases and tables, which the model does not know by name; the checkers judge those.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.operations import Operation, Truncate
from kvcrucible.contract.snapshot import ContinuationState, SequenceState, Snapshot
from kvcrucible.invariants.judgements import PREDICTED_OUTCOME
from kvcrucible.invariants.violation import Violation, mismatch
from kvcrucible.reference.accounting import AccountingModel


def state_agrees(
    operation: Operation, model: AccountingModel, snapshot: Snapshot, capabilities: Capabilities
) -> list[Violation]:
    """Return every field in which engine and model differ, over the parts that the engine can show."""
    parts = capabilities.snapshot_parts
    violations: list[Violation] = []
    if "queue" in parts and list(snapshot.queue) != list(model.queue):
        violations.append(mismatch(PREDICTED_OUTCOME, "queue", list(snapshot.queue), list(model.queue)))
    if "sequences" in parts:
        violations += _holders(operation, model, snapshot, capabilities)
    if "checkpoints" in parts and "findable" in parts:
        violations += _checkpoints(model, snapshot)
    return violations


def _holders(
    operation: Operation, model: AccountingModel, snapshot: Snapshot, capabilities: Capabilities
) -> Iterator[Violation]:
    token_invariant = "token-exact-truncation" if isinstance(operation, Truncate) else "frontier-visibility"
    shown: dict[int, SequenceState | ContinuationState] = {**snapshot.sequences, **snapshot.continuations}
    known = {*model.sequences(), *model.continuations()}
    for owner in sorted(shown.keys() | known):
        name = f"sequence {owner}"
        if owner not in known or owner not in shown:
            found, due = ("absent", "alive") if owner in known else ("alive", "absent")
            yield mismatch(token_invariant, name, found, due)
            continue
        state = shown[owner]
        fields: list[tuple[str, str, object, object]] = [
            (token_invariant, "tokens", state.tokens, model.tokens(owner)),
            ("exact-prefix-identity", "identity", state.identity, model.identity(owner)),
            (PREDICTED_OUTCOME, "session", state.session, model.session(owner)),
        ]
        if owner in snapshot.sequences:
            active = snapshot.sequences[owner]
            fields += [
                (PREDICTED_OUTCOME, "prompt", active.prompt, model.prompt(owner)),
                (PREDICTED_OUTCOME, "limit", active.limit, model.limit(owner)),
                (PREDICTED_OUTCOME, "in flight", active.in_flight, model.in_flight(owner)),
                (PREDICTED_OUTCOME, "cancel recorded", active.cancel_recorded, model.cancel_recorded(owner)),
            ]
        else:
            fields.append(
                (PREDICTED_OUTCOME, "pinned", snapshot.continuations[owner].pinned, model.pinned(owner))
            )
        for invariant, field, found_value, due_value in fields:
            if found_value != due_value:
                yield mismatch(invariant, f"{name}, {field}", found_value, due_value)
    if "continuations" in capabilities.snapshot_parts:
        by_use = sorted(snapshot.continuations, key=lambda kept: snapshot.continuations[kept].last_use)
        if by_use != model.continuations_by_use():
            yield mismatch("cache-yields", "continuations by last use", by_use, model.continuations_by_use())


def _checkpoints(model: AccountingModel, snapshot: Snapshot) -> Iterator[Violation]:
    due = {checkpoint: (owner, frontier) for checkpoint, owner, frontier, _, _ in model.checkpoints}
    found = {checkpoint: (mark.owner, mark.frontier) for checkpoint, mark in snapshot.checkpoints.items()}
    findable = {checkpoint: (entry.tokens, entry.identity) for checkpoint, entry in snapshot.findable.items()}
    expected = {checkpoint: (tokens, identity) for checkpoint, _, _, tokens, identity in model.checkpoints}
    for what, left, right in (("checkpoint", found, due), ("findable checkpoint", findable, expected)):
        for checkpoint in sorted(left.keys() | right.keys()):
            if left.get(checkpoint) != right.get(checkpoint):
                subject = f"{what} {checkpoint}"
                yield mismatch(
                    "exact-prefix-identity",
                    subject,
                    left.get(checkpoint, "absent"),
                    right.get(checkpoint, "absent"),
                )
