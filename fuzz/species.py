"""How much that is new a further seed would still show, by the species that seeds have met (STADS; decision 0027).

A *species* is (operation, what came of it, what the state was like before it).  The state is reduced to eight yes-or-no
questions (:data:`ABSTRACT_STATE`).  Incidence is counted by sampling unit: in how many seeds, and in how many pairs of
seeds, a species came up.  A figure of novelty means nothing without the definition of its species, and little where it
moves with the size of the unit, so both go with it.

Does not verify: that what is new would be a fault, nor anything about inputs that the generator cannot draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvcrucible.contract.operations import (
    Admitted,
    Hit,
    Operation,
    Outcome,
    Scheduled,
    TransferStarted,
    Waiting,
)
from kvcrucible.contract.snapshot import PageState, Snapshot

#: (operation, outcome, answers to the questions as bits, the first the lowest).
Species: TypeAlias = tuple[str, str, int]

#: What is asked of the state before an operation, in the order of the bits.
ABSTRACT_STATE: tuple[str, ...] = (
    "a request is queued",
    "a unit is in flight",
    "a sequence is retained",
    "a transfer is under way",
    "a page retires",
    "some pool has no free page",
    "a page is shared",
    "a page has a Host replica or none on Device",
)

#: The answers that pages give are the last two.
_SHARED, _HOSTED = 1 << len(ABSTRACT_STATE) - 2, 1 << len(ABSTRACT_STATE) - 1

#: Seeds that make the larger sampling unit.
PAIR = 2


def abstract(snapshot: Snapshot) -> int:
    """Return the answers of a state."""
    return of_pages(snapshot.pages) | of_the_rest(snapshot)


def of_pages(pages: Mapping[int, PageState]) -> int:
    """Return the answers of a state that its pages give."""
    shared = hosted = False
    for page in pages.values():
        if page.references > 1:
            shared = True
            if hosted:
                break
        if page.on_host is not None or page.device == -1:
            hosted = True
            if shared:
                break
    return (_SHARED if shared else 0) | (_HOSTED if hosted else 0)


def of_the_rest(snapshot: Snapshot) -> int:
    """Return the answers of a state that anything but its pages gives."""
    answers = (
        snapshot.queue,
        snapshot.units,
        snapshot.continuations,
        snapshot.transfers,
        snapshot.retiring,
        min([pool.free for pool in snapshot.pools]) == 0,
    )
    found, bit = 0, 1
    for answer in answers:
        if answer:
            found |= bit
        bit <<= 1
    return found


def outcome_kind(outcome: Outcome) -> str:
    """Return in a word what came of an operation: a refusal's kind, or what kind of value it has."""
    if outcome.refusal is not None:
        return outcome.refusal.value
    return _kind(outcome.value)


def _kind(value: object) -> str:
    match value:
        case Scheduled(admitted, waiting):
            words = sorted({_kind(one) for one in admitted})
            return "+".join([*words, *([] if waiting is None else [_kind(waiting)])]) or "nobody"
        case Admitted(mode=mode):
            return mode.value
        case Waiting(kind=kind):
            return kind.value
        case Hit():
            return "hit"
        case TransferStarted():
            return "started"
        case bool():
            return str(value)
    return "done"


def species_of(operation: Operation, outcome: Outcome, before: int) -> Species:
    """Return the species of an operation that was carried out or refused in a state with these answers."""
    return type(operation).__name__, outcome_kind(outcome), before


@dataclass(slots=True)
class Incidence:
    """In how many of the ``units`` each species came up."""

    units: int = 0
    counts: Counter[Species] = field(default_factory=Counter)

    def add(self, found: Iterable[Species]) -> None:
        """Add one unit."""
        self.units += 1
        for one in found:
            self.counts[one] += 1

    def merge(self, other: Incidence) -> None:
        """Add the units of another count."""
        self.units += other.units
        self.counts.update(other.counts)

    def to_plain(self) -> dict[str, Any]:
        """Return the figures: species seen, Chao2's estimate of how many there are (bias-corrected), and how many new
        ones a further unit is expected to show (Good-Turing: those seen once, by unit); None without two units.
        """
        once = sum([times == 1 for times in self.counts.values()])
        twice = sum([times == 2 for times in self.counts.values()])
        enough = self.units > 1
        unseen = (self.units - 1) / self.units * once * (once - 1) / (2 * (twice + 1)) if enough else None
        return {
            "units": self.units,
            "seen": len(self.counts),
            "once": once,
            "twice": twice,
            "chao2": None if unseen is None else round(len(self.counts) + unseen, 1),
            "new_in_next_unit": round(once / self.units, 6) if enough else None,
        }


@dataclass(slots=True)
class Novelty:
    """Species by both sampling units; seeds come in order, and a pair is a seed with an even position and the next."""

    seeds: Incidence = field(default_factory=Incidence)
    pairs: Incidence = field(default_factory=Incidence)
    _open: frozenset[Species] | None = None

    def add(self, found: frozenset[Species]) -> None:
        """Add what the next seed has met."""
        self.seeds.add(found)
        if self._open is None:
            self._open = found
        else:
            self.pairs.add(self._open | found)
            self._open = None

    def merge(self, other: Novelty) -> None:
        """Add another count; a seed of either without its partner stays without."""
        self.seeds.merge(other.seeds)
        self.pairs.merge(other.pairs)

    def to_plain(self) -> dict[str, Any]:
        """Return figures by seed and by pair of seeds, with the definition that they rest on."""
        return {
            "species": ["operation", "outcome", "state before"],
            "state": list(ABSTRACT_STATE),
            "by_seed": self.seeds.to_plain(),
            "by_pair_of_seeds": self.pairs.to_plain(),
        }
