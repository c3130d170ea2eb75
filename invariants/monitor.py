"""Runs the checkers along a run: step checks after every operation, full checks now and then (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from kvcrucible.contract.snapshot import KEYED_PARTS, Snapshot, Touched
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.judgements import UNREPORTED_CHANGE
from kvcrucible.invariants.shadow import Shadow, Step
from kvcrucible.invariants.violation import Violation, mismatch

#: What a step may change, in the order of the bits by which a monitor remembers whom that concerns.
_CHANGES: tuple[str, ...] = (*Touched.__slots__, "counters", "arena")
_COUNTERS, _ARENA = (1 << _CHANGES.index(name) for name in ("counters", "arena"))

#: The ids of a touched set, in the order of the bits.
_ids_of: Callable[[Touched], tuple[Any, ...]] = attrgetter(*Touched.__slots__)

#: Entries that an unreported-change message names per part; a lost report may concern thousands of pages.
MAX_NAMED_ENTRIES = 5


@dataclass(slots=True)
class Tally:
    """How often an invariant was judged: by step, in full, by the harness; and how often it had something to judge."""

    steps: int = 0
    full: int = 0
    harness: int = 0
    premises: int = 0


#: What a step asks a checker: its step check, whether the rule has anything to bite on, and where that is counted.
_Asked: TypeAlias = tuple[
    Callable[[Snapshot, Snapshot, Scope], Iterable[Violation]], Callable[[Snapshot], object], Tally
]


class Monitor:
    """Follows one engine through a run.

    ``checkers`` are fresh instances (``registry.checkers()``); temporal ones remember.  Call :meth:`observe_full` once
    at the start, then :meth:`observe` after each operation and :meth:`observe_full` at intervals and at the end.
    Without ``reports_touched`` (an engine that has no touched sets) call :meth:`observe_full` alone: each step is then
    found by comparing with the snapshot before.  Both return every violation and raise nothing; after one, the shadow
    follows the engine, so a caller that goes on sees follow-up violations too.  Mutates none of its arguments.
    """

    def __init__(self, checkers: Iterable[Checker], *, reports_touched: bool = True) -> None:
        self._checkers = tuple(checkers)
        self._local = tuple(checker for checker in self._checkers if checker.is_local)
        self._at_quiescence = tuple(checker for checker in self._checkers if not checker.is_local)
        self._reports_touched = reports_touched
        self._premises = {checker.id: _premise_of(checker) for checker in self._checkers}
        self._concerned: dict[int, list[_Asked]] = {}
        self._shadow: Shadow | None = None
        self.tallies: dict[str, Tally] = {checker.id: Tally() for checker in self._checkers}

    def observe(self, partial: Snapshot, touched: Touched) -> list[Violation]:
        """Judge one operation by what it touched.

        ``partial`` holds the pools and the touched entries; a touched entry that it lacks has ceased to exist.  Costs
        time in proportion to what was touched.  A checker that reads nothing of what has changed is not asked.
        """
        assert self._shadow is not None, "observe_full has to come first: a step needs a state before it"
        changed = self._changed(self._shadow.state, partial, touched)
        if not changed and partial.queue == self._shadow.state.queue:
            return []
        violations: list[Violation] = []
        if changed or self._concerns(changed):
            step = self._shadow.step(partial, touched)
            violations += self._judge_step(step, changed)
            self._shadow.advance(step)
        else:
            self._shadow.requeue(partial.queue)
        state = self._shadow.state
        if not state.sequences and not state.continuations:
            for checker in self._at_quiescence:
                violations += self._judge_state(checker, state, full=False)
        return violations

    def observe_full(self, snapshot: Snapshot) -> list[Violation]:
        """Judge a full snapshot, and compare it with what the steps since the last one reported."""
        violations: list[Violation] = []
        if self._shadow is not None:
            unseen = differences(self._shadow.state, snapshot)
            if self._reports_touched:
                violations += _unreported(unseen, self._shadow.state, snapshot)
            else:
                violations += self._judge_step(self._shadow.step(snapshot, unseen), ~0)
        for checker in self._checkers:
            violations += self._judge_state(checker, snapshot, full=True)
        self._shadow = Shadow(snapshot)
        return violations

    def count(self, invariant: str, *, premise: bool = True) -> None:
        """Record that the harness judged ``invariant`` once by behaviour, so that reports count it with the others."""
        tally = self.tallies.setdefault(invariant, Tally())
        tally.harness += 1
        tally.premises += premise

    def _changed(self, state: Snapshot, partial: Snapshot, touched: Touched) -> int:
        """Return a bit for each of ``_CHANGES`` that a step may have made; all of them where a pool or the arena is no
        longer what it was, for checkers read those anywhere.
        """
        changed, bit = 0, 1
        for ids in _ids_of(touched):
            if ids:
                changed |= bit
            bit <<= 1
        if partial.pools != state.pools:
            changed |= _COUNTERS if _shapes(partial) == _shapes(state) else ~0
        if partial.host != state.host:
            changed |= _ARENA if partial.host is not None and state.host is not None else ~0
        return changed

    def _concerns(self, changed: int) -> list[_Asked]:
        """Return the local checkers that read something of what has changed."""
        found = self._concerned.get(changed)
        if found is None:
            names = {name for bit, name in enumerate(_CHANGES) if changed >> bit & 1}
            local = [checker for checker in self._local if not checker.reads or checker.reads & names]
            found = [(one.check_delta, self._premises[one.id], self.tallies[one.id]) for one in local]
            self._concerned[changed] = found
        return found

    def _judge_step(self, step: Step, changed: int) -> list[Violation]:
        violations: list[Violation] = []
        before, after, scope = step.before, step.after, step.scope
        for check_delta, premise, tally in self._concerns(changed):
            tally.steps += 1
            if premise(after):
                tally.premises += 1
            violations += check_delta(before, after, scope)
        return violations

    def _judge_state(self, checker: Checker, snapshot: Snapshot, *, full: bool) -> list[Violation]:
        tally = self.tallies[checker.id]
        if full:
            tally.full += 1
        else:
            tally.steps += 1
        if self._premises[checker.id](snapshot):
            tally.premises += 1
        return list(checker.check(snapshot))


def _premise_of(checker: Checker) -> Callable[[Snapshot], object]:
    """Return what says, true or false, whether a rule has anything to bite on: mostly that a part has an entry."""
    if type(checker).premise is Checker.premise:
        return attrgetter(checker.premise_part)
    return checker.premise


def _shapes(snapshot: Snapshot) -> list[tuple[str, int, int]]:
    return [(pool.name, pool.page_size, pool.capacity) for pool in snapshot.pools]


def differences(before: Snapshot, after: Snapshot) -> Touched:
    """Return the ids of all entries in which two full snapshots differ, an absent entry included."""
    touched = Touched()
    for part in KEYED_PARTS:
        old, new = getattr(before, part), getattr(after, part)
        if old == new:
            continue
        ids = touched.checkpoints if part == "findable" else getattr(touched, part)
        ids.update(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return touched


def _unreported(unseen: Touched, known: Snapshot, found: Snapshot) -> list[Violation]:
    violations = []
    for part in Touched.__slots__:
        ids = sorted(getattr(unseen, part))
        if ids:
            shown = ", ".join(map(str, ids[:MAX_NAMED_ENTRIES])) + (
                ", …" if len(ids) > MAX_NAMED_ENTRIES else ""
            )
            first = ids[0]
            was, now = getattr(known, part).get(first), getattr(found, part).get(first)
            violations.append(
                mismatch(UNREPORTED_CHANGE, f"{part} {shown}; of the first", now, f"{was}, as last reported")
            )
    if found.pools != known.pools:
        violations.append(
            mismatch(UNREPORTED_CHANGE, "pools", found.counters, f"{known.counters}, as last reported")
        )
    if found.host != known.host:
        violations.append(mismatch(UNREPORTED_CHANGE, "host", found.host, f"{known.host}, as last reported"))
    return violations
