"""Checkpoints in a history, and what a prompt would hit (DESIGN 4.9, 4.14.6)."""

from __future__ import annotations

from kvcrucible.contract import history, operations
from kvcrucible.contract.media import TokenSpan, labelled
from kvcrucible.contract.operations import DEFAULT_IDENTITY, Identity
from kvcrucible.contract.semantics import Facts
from kvcrucible.contract.tokens import Run
from kvcrucible.invariants.history import facts as judge
from kvcrucible.invariants.history.index import extend, head
from kvcrucible.invariants.history.ledger import Ledger
from kvcrucible.invariants.history.outcome import Broken
from kvcrucible.invariants.history.records import Holder


def identity_of(fields: history.IdentityFields | None) -> Identity:
    """Return the identity that a line states."""
    return DEFAULT_IDENTITY if fields is None else fields.to_identity()


def asked_for(line: history.Submit | history.Lookup) -> tuple[list[Run], int, tuple[TokenSpan, ...]]:
    """Return a line's prompt, plain, its length in tokens, and its spans, which may be out of place."""
    runs: list[Run] = []
    extend(runs, line.prompt)
    return runs, sum([run[2] for run in runs]), tuple([one.to_span() for one in line.spans])


def known_as(runs: list[Run], spans: tuple[TokenSpan, ...]) -> list[Run]:
    """Return a prompt's runs with what its spans, which are in place, say of them."""
    return list(labelled(tuple(runs), spans)) if spans else runs


def checkpoint(ledger: Ledger, line: history.Checkpoint) -> None:
    """Make what every pool has committed findable."""
    facts = judge.about(ledger, line.sequence)
    what = f"checkpoint of {line.sequence}"
    if not judge.require(ledger, what, [(operations.Checkpoint, facts)], line.refused):
        return
    own, is_new = mark(ledger, ledger.holders[line.sequence])
    if line.checkpoint is None:
        return
    told = ledger.told_marks.get(own)
    if told is None and not is_new and line.checkpoint <= ledger.last["checkpoint"]:
        # One that an earlier end made without a word of its number; nobody else may have that number.
        if line.checkpoint in ledger.told_marks.values():
            raise Broken("protected-prefix", f"{what} gives {line.checkpoint}, which is another's")
    elif told is None:
        ledger.number("checkpoint", line.checkpoint)
    elif told != line.checkpoint:
        raise Broken(
            "protected-prefix", f"{what} gives {line.checkpoint}; its frontier has checkpoint {told} already"
        )
    ledger.told_marks[own] = line.checkpoint


def mark(ledger: Ledger, holder: Holder) -> tuple[int, bool]:
    """Return the checkpoint at the smallest frontier, and whether it is new."""
    position = holder.common
    for own, frontier in holder.marks:
        if frontier == position:
            return own, False
    own, ledger.next_mark = ledger.next_mark, ledger.next_mark + 1
    holder.marks.append((own, position))
    ledger.owners_of_marks[own] = holder.id
    ledger.charge(1)
    if ledger.shows_hits:
        before = ledger.index.entries
        ledger.index.insert(own, head(holder.runs, position), position, holder.identity)
        ledger.charge(ledger.index.entries - before)
    return own, True


def unmark(ledger: Ledger, holder: Holder, position: int) -> None:
    """Drop the checkpoints beyond ``position``."""
    beyond = [own for own, frontier in holder.marks if frontier > position]
    if not beyond:
        return
    holder.marks = [one for one in holder.marks if one[1] <= position]
    before = ledger.index.entries
    for own in beyond:
        del ledger.owners_of_marks[own]
        ledger.told_marks.pop(own, None)
        if ledger.shows_hits:
            ledger.index.remove(own)
    ledger.charge(ledger.index.entries - before - len(beyond))


def lookup(ledger: Ledger, line: history.Lookup) -> None:
    """Judge what a prompt would hit."""
    runs, prompt, spans = asked_for(line)
    facts = Facts(prompt=prompt, spans=spans)
    if not judge.require(ledger, "lookup", [(operations.Lookup, facts)], line.refused):
        return
    if not ledger.shows_hits:
        return
    runs = known_as(runs, spans)
    length, members = ledger.index.best(head(runs, prompt - 1), identity_of(line.identity), lambda own: True)
    own = None
    if length:
        found = list(members)
        resident = [one for one in found if not ledger.holders[ledger.owners_of_marks[one]].away]
        own = (resident or found)[0]
    source = None if own is None else ledger.owners_of_marks[own]
    told = (0, None) if line.hit is None else (line.hit.length, line.hit.source)
    if told != (length, source):
        raise Broken(
            "exact-prefix-identity",
            f"lookup finds {told[0]} tokens of {told[1]}; the longest common prefix is {length}, of {source}",
        )
    known = None if own is None else ledger.told_marks.get(own)
    if line.hit is not None and None not in (known, line.hit.checkpoint) and line.hit.checkpoint != known:
        raise Broken("exact-prefix-identity", f"lookup finds checkpoint {line.hit.checkpoint}; due: {known}")
