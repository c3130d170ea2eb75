"""Rules for pages that move between Device and Host, and for what happens to them meanwhile (decision 0013)."""

from __future__ import annotations

from typing import Any

from kvcrucible.contract.operations import (
    Cancel,
    CancelTransfer,
    Demote,
    Finish,
    Fork,
    Lookup,
    Progress,
    Release,
    Restore,
    Truncate,
)
from kvcrucible.contract.tokens import canonical
from kvcrucible.fuzz import strategies as st
from kvcrucible.fuzz.draws import SOURCES, Length, Where, choose, lengths, picks, positions
from kvcrucible.fuzz.journeys import JOURNEYS, Journeys, routes, some_effects
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.offers import any_idle, any_kept, can
from kvcrucible.fuzz.pressure import PressureRules
from kvcrucible.fuzz.returns import Route
from kvcrucible.fuzz.ruling import precondition, rule

#: What happens between the start of a transfer and its end.
MEANWHILE = ("fork", "fork", "release", "cancel", "write", "lookup", "demote", "nothing")


def any_transfer(lock: LockStep) -> Any:
    """Transfers that are under way."""
    return lock.model.transfers()


def hosted(lock: LockStep) -> bool:
    """Whether there is a Host tier."""
    return lock.setting.host_bytes is not None


def hosted_and_kept(lock: LockStep) -> bool:
    """Whether there is a Host tier and a continuation that could move there."""
    return hosted(lock) and bool(any_kept(lock))


class HostRules(PressureRules, Journeys):
    """All rules; those here move pages and look at what is under way."""

    # -- single steps --------------------------------------------------------------------------------------------------

    @can("Demote", there=any_kept)
    @rule(pick=picks, keep=st.booleans(), any_one=st.sampled_from((False, False, False, True)))
    def demote(self, pick: int, keep: bool, any_one: bool) -> None:
        """Demote a continuation; now and then one of which nothing can move, or what is no continuation."""
        kept = self.held(pick) if any_one else self.movable(pick)
        kept = choose(self.lock.model.continuations(), pick) if kept is None else kept
        if kept is not None:
            self.take(Demote(kept, keep))

    @can("Restore", there=any_kept)
    @rule(pick=picks, keep=st.booleans(), any_one=st.sampled_from((False, False, False, True)))
    def restore(self, pick: int, keep: bool, any_one: bool) -> None:
        """Restore a continuation; now and then one that has nothing on Host, or what is no continuation."""
        kept = self.held(pick) if any_one else self.restorable(pick)
        kept = choose(self.lock.model.continuations(), pick) if kept is None else kept
        if kept is not None:
            self.take(Restore(kept, keep))

    @can("CancelTransfer", there=any_transfer)
    @rule(pick=picks)
    def cancel_transfer(self, pick: int) -> None:
        """Cancel a transfer."""
        transfer = choose(self.lock.model.transfers(), pick)
        if transfer is not None:
            self.take(CancelTransfer(transfer))

    @can("Progress")
    @rule(count=some_effects)
    def progress(self, count: int) -> None:
        """Look at what is over, with or without letting something happen first."""
        self.settle(count)

    # -- journeys ------------------------------------------------------------------------------------------------------

    @can("Demote", "Restore", "Fork", "Lookup", "Truncate", "Release", there=hosted)
    @rule(which=st.sampled_from(tuple(JOURNEYS)), route=routes, rather=st.integers(0, 7))
    def journey(self, which: str, route: Route, rather: int) -> None:
        """Take one of the journeys, mostly a favoured one where there are any."""
        favoured = self.favoured and rather
        JOURNEYS[self.favoured[rather % len(self.favoured)] if favoured else which](self, route)

    @can("Demote", "Fork", "Truncate", "Release", there=hosted)
    @rule(
        pick=picks,
        down=st.sampled_from((True, True, False)),
        keep=st.booleans(),
        twin=st.sampled_from((False, False, True)),
        meanwhile=st.sampled_from(MEANWHILE),
        where=positions,
        cut=positions,
        length=lengths,
        first=some_effects,
        release=st.booleans(),
        end=st.sampled_from(("cut", "cut", "cancel", "finish", "stay")),
    )
    def disturb(
        self,
        pick: int,
        down: bool,
        keep: bool,
        twin: bool,
        meanwhile: str,
        where: Where,
        cut: Where,
        length: Length,
        first: int,
        release: bool,
        end: str,
    ) -> None:
        """Retain a sequence, start to move it, and let something happen to it before the transfer is looked at.

        ``twin``: another continuation holds some of the same pages.
        """
        sequence, model = self.idle(pick), self.lock.model
        if sequence is None or not model.frontier(sequence):
            return
        if twin:
            alive = set(model.sequences())
            self.take(Fork(sequence, self.position(sequence, where), 0))
            other = self.newest(alive)
            self.take(*([] if other is None else [Finish(other)]))
        self.take(Finish(sequence))
        if sequence not in model.continuations():
            return
        if not down:
            self.take(Demote(sequence, keep))
            self.settle()
        before = set(model.transfers())
        self.take(Demote(sequence, keep) if down else Restore(sequence, keep))
        started = max(set(model.transfers()) - before, default=None)
        self.happens(first)
        child = self.meanwhile(meanwhile, sequence, started, where, length)
        if child is not None and child in model.sequences():
            if release and sequence in model.continuations():
                self.take(Release(sequence))
            if end == "cut":
                self.take(Truncate(child, self.position(child, cut)))
            elif end != "stay":
                self.take(Finish(child) if end == "finish" else Cancel(child))
        self.settle()

    def meanwhile(
        self, what: str, sequence: int, started: int | None, where: Where, length: Length
    ) -> int | None:
        """Do something to a continuation that is in a transfer; return the child where it is forked."""
        model = self.lock.model
        match what:
            case "fork" | "write":
                alive = set(model.sequences())
                position = self.position(sequence, where)
                self.take(Fork(sequence, position, self.placeable(self.page_size, position, large=False)))
                child = self.newest(alive)
                work = None if child is None or what == "fork" else self.work(child, length, 2)
                if work is not None:
                    self.write((work,), commit=True)
                return child
            case "release" if not model.pinned(sequence):
                self.take(Release(sequence))
            case "cancel" if started is not None:
                self.take(CancelTransfer(started))
            case "lookup":
                prompt = canonical([*model.tokens(sequence), (2, 900, 1)])
                spans = self.spans_of(sequence, model.frontier(sequence))
                self.take(Lookup(prompt, model.identity(sequence), spans))
            case "demote":
                self.take(Demote(sequence), Restore(sequence))
        return None

    @can("Demote", "Restore", there=hosted_and_kept)
    @rule(down=st.booleans(), keep=st.booleans(), count=some_effects)
    def move_all(self, down: bool, keep: bool, count: int) -> None:
        """Demote or restore every continuation of which something can move, one after the other."""
        model = self.lock.model
        for kept in sorted(model.continuations()):
            if kept in model.continuations() and (model.movable(kept) if down else model.restorable(kept)):
                self.take(Demote(kept, keep) if down else Restore(kept, keep))
        self.settle(count)

    # -- fences --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.lock.setting.lagging and "Truncate" in self.supported)
    @can("BeginUnit", "EndUnit", "Progress", there=any_idle)
    @rule(
        pick=picks,
        length=lengths,
        cut=positions,
        again=st.booleans(),
        shared=st.booleans(),
        end=st.sampled_from(("cancel", "finish", "stay")),
        source=st.sampled_from(SOURCES),
    )
    def give_up_what_is_used(
        self, pick: int, length: Length, cut: Where, again: bool, shared: bool, end: str, source: int
    ) -> None:
        """Write, cut and write again, and end the sequence, all before the device has done anything.

        ``shared``: cut inside a page that a fork holds too, so that the copy takes what the cut gives back.
        """
        if shared and "Fork" in self.supported and not self.lock.model.queue:
            self.cut_what_is_shared(source, again)
            return
        sequence = self.idle(pick)
        if sequence is None:
            return
        work = self.work(sequence, length, source)
        if work is not None:
            self.write((work,), commit=True)
        self.take(Truncate(sequence, self.position(sequence, cut)))
        work = self.work(sequence, length, 0) if again else None
        if work is not None:
            self.write((work,), commit=True)
        if end != "stay":
            self.take(Cancel(sequence) if end == "cancel" else Finish(sequence, retain=False))
        self.take(Progress())

    def cut_what_is_shared(self, source: int, cancel: bool) -> None:
        """Write two pages and a bit, fork, cut inside the second page, and end the sequence, all at once."""
        sequence = self.fresh(source, 2 * self.page_size + 1)
        if sequence is None:
            return
        frontier = self.lock.model.frontier(sequence)
        self.take(Fork(sequence, frontier, 0))
        self.take(Truncate(sequence, max(0, (frontier - 1) // self.page_size * self.page_size - 1)))
        self.take(Cancel(sequence) if cancel else Finish(sequence, retain=False))
        self.take(Progress())
