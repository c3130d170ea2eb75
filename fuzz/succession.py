"""Rules for what directly follows what: any kind of operation after any other, wherever both can be carried out."""

from __future__ import annotations

from kvcrucible.contract.operations import (
    BeginUnit,
    Cancel,
    CancelTransfer,
    Checkpoint,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Lookup,
    Operation,
    Pin,
    Progress,
    Release,
    Restore,
    Schedule,
    Submit,
    Truncate,
    TryAdmit,
)
from kvcrucible.contract.tokens import run
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.draws import SOURCES, Length, choose, lengths, picks
from kvcrucible.fuzz.host_rules import HostRules
from kvcrucible.fuzz.pairs import KINDS
from kvcrucible.fuzz.ruling import rule

#: Operations on continuations.
_ON_CONTINUATIONS = frozenset({"Release", "Pin", "Demote", "Restore", "CancelTransfer"})

#: Kinds to draw from; those that are seldom possible more often.
_WEIGHED = (*KINDS, "Restore", "Restore", "CancelTransfer", "Release", "TryAdmit", "EndUnit")


class SuccessionRules(HostRules):
    """All rules; the one here takes a few operations of drawn kinds, each of which the model expects to be done."""

    @rule(
        kinds=st.lists(st.sampled_from(_WEIGHED), min_size=2, max_size=6),
        pick=picks,
        length=lengths,
        source=st.sampled_from(SOURCES),
        keep=st.booleans(),
        ready=st.booleans(),
    )
    def in_succession(
        self, kinds: list[str], pick: int, length: Length, source: int, keep: bool, ready: bool
    ) -> None:
        """Take one operation of each kind in turn, leaving out those of which none is possible.

        ``ready``: first see to it that there is something for each of them.
        """
        if ready:
            self.make_ready(kinds, pick, length, source, keep)
        for kind in kinds:
            operation = self.possible(kind, pick, length, source, keep)
            if operation is not None:
                self.take(operation)

    def make_ready(self, kinds: list[str], pick: int, length: Length, source: int, keep: bool) -> None:
        """Bring about what the kinds need: a continuation, one that is away, one on its way, a unit, a request."""
        model, names = self.lock.model, set(kinds) & self.supported
        if "Release" in self.supported and names & _ON_CONTINUATIONS and not model.continuations():
            idle = self.idle(pick)
            self.take(*([] if idle is None else [Finish(idle)]))
        if self.lock.setting.host_bytes is not None and "Restore" in names:
            movable = self.movable(pick)
            self.take(*([] if movable is None else [Demote(movable, keep)]))
            self.settle()
        if "CancelTransfer" in names:
            starts = (self.possible(kind, pick, length, source, keep) for kind in ("Demote", "Restore"))
            self.take(*[start for start in starts if start is not None][:1])
        unit = self.possible("BeginUnit", pick, length, source, keep) if "EndUnit" in names else None
        self.take(*([] if unit is None else [unit]))
        if "TryAdmit" in names and not model.queue:
            self.take(Submit(run(source, 40, 1), 0))

    def possible(self, kind: str, pick: int, length: Length, source: int, keep: bool) -> Operation | None:
        """Return an operation of a kind that is most likely carried out now, None where there is none."""
        if kind not in self.supported or (kind == "Demote" and self.lock.setting.host_bytes is None):
            return None
        found = self._on_nobody(kind, pick, source)
        if found is None:
            found = self._on_an_active_one(kind, pick, length, source, keep)
        return self._on_a_kept_one(kind, pick, keep) if found is None else found

    def _on_nobody(self, kind: str, pick: int, source: int) -> Operation | None:
        model = self.lock.model
        match kind:
            case "Submit":
                return Submit(run(source, 40, 1 + pick), pick % 2)
            case "Schedule":
                return Schedule()
            case "TryAdmit" if model.queue:
                return TryAdmit(model.queue[0])
            case "EndUnit" if model.units:
                return EndUnit(model.units[pick % len(model.units)])
            case "Lookup":
                return Lookup(run(source, 100, 1 + pick))
            case "Progress":
                return Progress()
            case "CancelTransfer" if model.transfers():
                return CancelTransfer(model.transfers()[pick % len(model.transfers())])
        return None

    def _on_an_active_one(
        self, kind: str, pick: int, length: Length, source: int, keep: bool
    ) -> Operation | None:
        model, sequence = self.lock.model, self.idle(pick)
        if kind == "Cancel":
            anyone = choose([*model.queue, *model.sequences()], pick)
            return None if anyone is None else Cancel(anyone)
        if sequence is None:
            return None
        match kind:
            case "BeginUnit":
                work = self.work(sequence, length, source)
                return None if work is None else BeginUnit((work,))
            case "Truncate":
                return Truncate(sequence, max(0, model.frontier(sequence) - pick))
            case "Checkpoint" if min(model.reach(sequence)):
                return Checkpoint(sequence)
            case "Finish":
                return Finish(sequence, keep)
        return None

    def _on_a_kept_one(self, kind: str, pick: int, keep: bool) -> Operation | None:
        model = self.lock.model
        kept = model.continuations()
        match kind:
            case "Fork":
                idle = [one for one in model.sequences() if not model.in_flight(one)]
                sources = [one for one in [*idle, *kept] if model.resident(one) and model.frontier(one)]
                source = choose(sources, pick)
                return None if source is None else Fork(source, model.frontier(source), 0)
            case "Release":
                free = choose((one for one in kept if not model.pinned(one)), pick)
                return None if free is None else Release(free)
            case "Pin" if kept:
                return Pin(kept[pick % len(kept)], pinned=keep)
            case "Demote":
                movable = self.movable(pick)
                return None if movable is None else Demote(movable, keep)
            case "Restore":
                restorable = self.restorable(pick)
                return None if restorable is None else Restore(restorable, keep)
        return None
