"""Compares what an engine shows of its state with the reference model, field by field.

Verifies: who is queued, active and retained; of each the tokens, identity, session, prompt, limit, pins and recorded
cancels; the order in which continuations were used; every checkpoint's owner, frontier and tokens; in which tier each
page is visible and whether it has a valid copy in the other; transfers under way, with how many pages of each pool;
bytes of the host arena that are used; how many pages are retiring.
Does not verify: pages, leases and tables, which the model does not know by name; the checkers judge those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.media import TokenSpan, labelled, plain
from kvcrucible.contract.operations import Operation, Truncate
from kvcrucible.contract.snapshot import ContinuationState, SequenceState, Snapshot
from kvcrucible.contract.tokens import Tokens, count
from kvcrucible.invariants.judgements import PREDICTED_OUTCOME
from kvcrucible.invariants.violation import Violation, mismatch
from kvcrucible.reference.accounting import AccountingModel

#: Most tokens are asked for again after each operation, unchanged.
_known: Callable[[Tokens, tuple[TokenSpan, ...]], Tokens] = lru_cache(maxsize=1024)(labelled)


def state_agrees(
    operation: Operation, model: AccountingModel, snapshot: Snapshot, capabilities: Capabilities
) -> list[Violation]:
    """Return every field in which engine and model differ, over the parts that the engine can show."""
    parts = capabilities.snapshot_parts
    violations: list[Violation] = []
    if "queue" in parts and list(snapshot.queue) != model.queue:
        violations.append(mismatch(PREDICTED_OUTCOME, "queue", list(snapshot.queue), list(model.queue)))
    # Each part is first compared as quickly as can be; only where it differs is it gone through field by field.
    if "sequences" in parts and not holders_agree(model, snapshot):
        violations += _holders(operation, model, snapshot, capabilities)
    if "checkpoints" in parts and "findable" in parts and not checkpoints_agree(model, snapshot):
        violations += _checkpoints(model, snapshot)
    if "pages" in parts and "spaces" in parts and not replicas_agree(model, snapshot):
        violations += _replicas(model, snapshot)
    if "transfers" in parts and (snapshot.transfers or model.books.transfers):
        violations += _transfers(model, snapshot)
    if "retiring" in parts and (snapshot.retiring or any(model.books.retiring)):
        retiring = [sum(pool == one for one, _ in snapshot.retiring) for pool in range(len(snapshot.pools))]
        due = [model.retiring(pool) for pool in range(len(snapshot.pools))]
        violations += _differ("recycle-fenced", "retiring pages of each pool", retiring, due)
    if snapshot.host is not None:
        violations += _differ(
            "host-conservation", "host bytes used", snapshot.host.used, model.host_used_bytes
        )
    return violations


def holders_agree(model: AccountingModel, snapshot: Snapshot) -> bool:
    """Say quickly whether active and retained sequences are the same ones and agree in every field."""
    active, kept = model.books.active, model.books.continuations
    if snapshot.sequences.keys() != active.keys() or snapshot.continuations.keys() != kept.keys():
        return False
    for owner, sequence in snapshot.sequences.items():
        entry = active[owner]
        if (
            sequence.tokens != (_known(entry.tokens, entry.spans) if entry.spans else entry.tokens)
            or sequence.limit != entry.limit
            or sequence.prompt != count(entry.prompt)
            or sequence.in_flight is not (entry.unit is not None)
            or sequence.cancel_recorded is not entry.cancelled
            or sequence.session != entry.session
            or (sequence.identity is not entry.identity and sequence.identity != entry.identity)
        ):
            return False
    for owner, continuation in snapshot.continuations.items():
        entry = kept[owner]
        if (
            continuation.tokens != (_known(entry.tokens, entry.spans) if entry.spans else entry.tokens)
            or continuation.pinned is not entry.pinned
            or continuation.session != entry.session
            or (continuation.identity is not entry.identity and continuation.identity != entry.identity)
        ):
            return False
    if len(kept) < 2:
        return True
    uses = snapshot.continuations
    return sorted(uses, key=lambda one: uses[one].last_use) == model.continuations_by_use()


def checkpoints_agree(model: AccountingModel, snapshot: Snapshot) -> bool:
    """Say quickly whether checkpoints and what can be found for them are the same."""
    marks, checkpoints, findable = model.books.marks, snapshot.checkpoints, snapshot.findable
    if not len(marks) == len(checkpoints) == len(findable):
        return False
    for number, mark in marks.items():
        checkpoint, found = checkpoints.get(number), findable.get(number)
        if (
            checkpoint is None
            or found is None
            or checkpoint.owner != mark.owner
            or checkpoint.frontier != count(mark.tokens)
            or found.tokens != (_known(mark.tokens, mark.spans) if mark.spans else mark.tokens)
            or (found.identity is not mark.identity and found.identity != mark.identity)
        ):
            return False
    return True


def replicas_agree(model: AccountingModel, snapshot: Snapshot) -> bool:
    """Say quickly whether each page of each holder is visible where it should be, with the copies that are due."""
    active, kept, pages = model.books.active, model.books.continuations, snapshot.pages
    for (owner, pool), space in snapshot.spaces.items():
        entry = active.get(owner) or kept.get(owner)
        if entry is None:
            return False
        held, named = entry.pages[pool], space.pages
        if len(held) != len(named):
            return False
        for name, due in zip(named, held, strict=True):
            page = pages.get(name)
            if page is None or page.visible is not due.visible:
                return False
            # Copied is what is on both tiers; most pages are on Device alone on both sides.
            if page.on_host is None and due.host is None:
                continue
            copied = page.on_device is not None and page.on_host is not None
            if copied is not (due.device and due.host is not None):
                return False
    return True


def _differ(invariant: str, what: str, found: object, due: object) -> list[Violation]:
    return [] if found == due else [mismatch(invariant, what, found, due)]


def _replicas(model: AccountingModel, snapshot: Snapshot) -> Iterator[Violation]:
    known = {*model.sequences(), *model.continuations()}
    for (owner, pool), space in sorted(snapshot.spaces.items()):
        # Whom the model does not know, or the engine lists nowhere, is told elsewhere; so is a page that has ended.
        if owner not in known or owner not in (snapshot.sequences.keys() | snapshot.continuations.keys()):
            continue
        if not snapshot.pages.keys() >= set(space.pages):
            continue
        pages = [snapshot.pages[page] for page in space.pages]
        what = f"sequence {owner}, pool {pool}"
        tiers = tuple(page.visible for page in pages)
        yield from _differ("one-visible-replica", f"{what}, visible tiers", tiers, model.tiers(owner, pool))
        copies = tuple(page.on_device is not None and page.on_host is not None for page in pages)
        due = model.clean_copies(owner, pool)
        yield from _differ("replica-valid", f"{what}, pages with a clean copy", copies, due)


def _transfers(model: AccountingModel, snapshot: Snapshot) -> Iterator[Violation]:
    found: dict[int, tuple[tuple[int, ...], bool]] = {}
    for transfer, state in snapshot.transfers.items():
        pools = tuple(sum(move.pool == pool for move in state.moves) for pool in range(len(snapshot.pools)))
        found[transfer] = pools, state.cancelling
    due = {one: (model.transfer_pages(one), model.cancelling(one)) for one in model.transfers()}
    what = "transfers under way, pages of each pool and whether cancelled"
    yield from _differ("transfer-pinned", what, found, due)


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
        if (owner in snapshot.sequences) is not (owner in model.books.active):
            found, due = ("active", "retained") if owner in snapshot.sequences else ("retained", "active")
            yield mismatch(PREDICTED_OUTCOME, name, found, due)
            continue
        fields: list[tuple[str, str, object, object]] = [
            (token_invariant, "tokens", plain(state.tokens), model.tokens(owner)),
            ("exact-prefix-identity", "tokens with their labels", state.tokens, model.known_as(owner)),
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
