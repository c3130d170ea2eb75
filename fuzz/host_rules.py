"""Rules for pages that move between Device and Host, and for what happens to them meanwhile (decision 0013)."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

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
    Submit,
    Truncate,
)
from kvcrucible.contract.tokens import canonical, count, prefix
from kvcrucible.fuzz.draws import SOURCES, Length, Where, choose, lengths, picks, positions
from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.pressure import PressureRules
from kvcrucible.fuzz.rules import any_idle, any_kept, can
from kvcrucible.fuzz.steps import RunEffects

#: More device effects than ever are open.
ALL_EFFECTS = 10_000

#: How many open effects take place before the next look; mostly some or all.
effects = st.sampled_from((ALL_EFFECTS, 3, 0, 1, 8))

#: What happens between the start of a transfer and its end.
MEANWHILE = ("fork", "fork", "release", "cancel", "write", "lookup", "session", "demote", "nothing")


def any_transfer(lock: LockStep) -> Any:
    """Transfers that are under way."""
    return lock.model.transfers()


def hosted_and_kept(lock: LockStep) -> bool:
    """Whether there is a Host tier and a continuation that could move there."""
    return lock.setting.host_bytes is not None and bool(any_kept(lock))


def hosted_and_idle(lock: LockStep) -> bool:
    """Whether there is a Host tier and an active sequence that could be retained."""
    return lock.setting.host_bytes is not None and any_idle(lock)


class HostRules(PressureRules):
    """All rules; those here move pages and look at what is under way."""

    def movable(self, pick: int) -> int | None:
        """Return a continuation of which something can be demoted, None where there is none."""
        model = self.lock.model
        return choose((kept for kept in model.continuations() if model.movable(kept)), pick)

    def restorable(self, pick: int) -> int | None:
        """Return a continuation of which something can be restored, None where there is none."""
        model = self.lock.model
        return choose((kept for kept in model.continuations() if model.restorable(kept)), pick)

    def settle(self, count: int) -> None:
        """Let effects take place, then look at what is over."""
        if self.lock.setting.lagging and count:
            self.take(RunEffects(count))
        self.take(Progress())

    def newest(self, before: set[int]) -> int | None:
        """Return the active sequence that was not in ``before``, None where there is none."""
        return max(set(self.lock.model.sequences()) - before, default=None)

    # -- single steps --------------------------------------------------------------------------------------------------

    @can("Demote", there=any_kept)
    @rule(pick=picks, keep=st.booleans(), any_one=st.sampled_from((False, False, False, True)))
    def demote(self, pick: int, keep: bool, any_one: bool) -> None:
        """Demote a continuation; now and then one of which nothing can move."""
        kept = None if any_one else self.movable(pick)
        kept = choose(self.lock.model.continuations(), pick) if kept is None else kept
        if kept is not None:
            self.take(Demote(kept, keep))

    @can("Restore", there=any_kept)
    @rule(pick=picks, keep=st.booleans(), any_one=st.sampled_from((False, False, False, True)))
    def restore(self, pick: int, keep: bool, any_one: bool) -> None:
        """Restore a continuation; now and then one that has nothing on Host."""
        kept = None if any_one else self.restorable(pick)
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
    @rule(count=effects)
    def progress(self, count: int) -> None:
        """Look at what is over, with or without letting something happen first."""
        self.settle(count)

    # -- whole journeys ------------------------------------------------------------------------------------------------

    @can("Demote", "Restore", there=hosted_and_kept)
    @rule(pick=picks, keep=st.tuples(st.booleans(), st.booleans(), st.booleans()), last=st.integers(1, 3))
    def there_and_back(self, pick: int, keep: tuple[bool, bool, bool], last: int) -> None:
        """Demote, restore and demote again, keeping copies on the way."""
        kept = self.movable(pick)
        if kept is None:
            return
        for index, kind in enumerate((Demote, Restore, Demote)[:last]):
            if kept not in self.lock.model.continuations():
                return
            self.take(kind(kept, keep[index]))
            self.settle(ALL_EFFECTS)

    @can("Demote", "Fork", "Truncate", "Release", there=hosted_and_idle)
    @rule(
        pick=picks,
        down=st.sampled_from((True, True, False)),
        keep=st.booleans(),
        twin=st.sampled_from((False, False, True)),
        meanwhile=st.sampled_from(MEANWHILE),
        where=positions,
        cut=positions,
        length=lengths,
        first=effects,
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
            self.settle(ALL_EFFECTS)
        before = set(model.transfers())
        self.take(Demote(sequence, keep) if down else Restore(sequence, keep))
        started = max(set(model.transfers()) - before, default=None)
        if self.lock.setting.lagging and first:
            self.take(RunEffects(first))
        child = self.happens(meanwhile, sequence, started, where, length)
        if child is not None and child in model.sequences():
            if release and sequence in model.continuations():
                self.take(Release(sequence))
            if end == "cut":
                self.take(Truncate(child, self.position(child, cut)))
            elif end != "stay":
                self.take(Finish(child) if end == "finish" else Cancel(child))
        self.settle(ALL_EFFECTS)

    def happens(
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
                self.take(Lookup(canonical([*model.tokens(sequence), (2, 900, 1)]), model.identity(sequence)))
            case "session" if not model.queue:
                return self.come_back(sequence, length, consume=True)
            case "demote":
                self.take(Demote(sequence), Restore(sequence))
        return None

    def come_back(self, owner: int, own: Length, consume: bool) -> int | None:
        """Submit the next turn of a continuation and let it run; return the active sequence, None where it waits."""
        model = self.lock.model
        known, alive = model.tokens(owner), set(model.sequences())
        prompt = canonical([*known, (1, 300, max(1, own.tokens(self.page_size)))])
        length = self.placeable(count(prompt), 0, large=False)
        request = Submit(prefix(prompt, length), 0, model.session(owner), consume, model.identity(owner))
        self.start(request, patient=False, prefill=True)
        return self.newest(alive)

    @can("Demote", "Fork", "Lookup", there=hosted_and_idle)
    @rule(pick=picks, own=lengths, first=effects, where=positions)
    def next_turn(self, pick: int, own: Length, first: int, where: Where) -> None:
        """Let the next turn of a session come and go while what its last one left moves."""
        sequence, model = self.idle(pick), self.lock.model
        if sequence is None or not model.frontier(sequence) or model.queue:
            return
        alive = set(model.sequences())
        self.take(Fork(sequence, self.position(sequence, where), 0, "s"))
        turn = self.newest(alive)
        if turn is None:
            return
        self.take(Finish(turn))
        if turn not in model.continuations() or not model.movable(turn):
            return
        self.take(Demote(turn))
        if self.lock.setting.lagging and first:
            self.take(RunEffects(first))
        child = self.come_back(turn, own, consume=False)
        if child is not None and not model.in_flight(child):
            self.take(Finish(child))
        self.settle(ALL_EFFECTS)

    @can("Demote", "Restore", "Fork", "Release", there=hosted_and_idle)
    @rule(pick=picks, where=positions, release=st.booleans(), lookup=st.booleans())
    def twins(self, pick: int, where: Where, release: bool, lookup: bool) -> None:
        """Move two continuations that share pages: one is released while it moves, or both come back at once."""
        sequence, model = self.idle(pick), self.lock.model
        if sequence is None or not model.frontier(sequence):
            return
        alive = set(model.sequences())
        self.take(Fork(sequence, self.position(sequence, where), 0))
        other = self.newest(alive)
        self.take(*(Finish(one) for one in (sequence, other) if one is not None))
        if sequence not in model.continuations() or other not in model.continuations():
            return
        self.take(Demote(sequence))
        if release and not model.pinned(sequence):
            self.take(Release(sequence))
        self.settle(ALL_EFFECTS)
        if lookup:
            self.take(Lookup(canonical([*model.tokens(other), (2, 900, 1)]), model.identity(other)))
        for kept in (other, sequence):
            if kept in model.continuations():
                self.take(Restore(kept))
        self.settle(ALL_EFFECTS)

    @can("Demote", "Fork", "Truncate", "Release", there=hosted_and_idle)
    @rule(pick=picks, back=st.integers(0, 2), cut=positions, end=st.sampled_from(("cut", "cancel", "finish")))
    def last_holder(self, pick: int, back: int, cut: Where, end: str) -> None:
        """Release a continuation that moves, so that a child alone holds its pages; then cut or end the child."""
        sequence, model = self.idle(pick), self.lock.model
        if sequence is None or not model.frontier(sequence):
            return
        self.take(Finish(sequence))
        if sequence not in model.continuations() or not model.movable(sequence):
            return
        self.take(Demote(sequence))
        position, alive = max(1, model.frontier(sequence) - back), set(model.sequences())
        self.take(Fork(sequence, position, self.placeable(self.page_size, position, large=False)))
        child = self.newest(alive)
        if child is None:
            return
        if not model.pinned(sequence):
            self.take(Release(sequence))
        if end == "cut":
            self.take(Truncate(child, self.position(child, cut)))
        else:
            self.take(Cancel(child) if end == "cancel" else Finish(child))
        self.settle(ALL_EFFECTS)

    @can("Demote", "Restore", "Lookup", "Truncate", there=hosted_and_kept)
    @rule(
        pick=picks, own=lengths, cut=positions, tail=st.booleans(), keep=st.sampled_from((True, True, False))
    )
    def change_what_has_a_copy(self, pick: int, own: Length, cut: Where, tail: bool, keep: bool) -> None:
        """Bring a continuation back to Device with copies on Host, take it up, and write or cut where it ends."""
        kept, model = self.movable(pick), self.lock.model
        if kept is None or model.queue:
            return
        for kind in (Demote, Restore):
            self.take(kind(kept, keep))
            self.settle(ALL_EFFECTS)
            if kept not in model.continuations():
                return
        if tail:
            # Without its last token the prompt is known but for the end of a page, so that the source is cut.
            known = model.tokens(kept)
            cut_prompt = prefix(known, max(1, count(known) - 1))
            request = Submit(cut_prompt, 1, model.session(kept), consume=True, identity=model.identity(kept))
            self.start(request, patient=False, prefill=True)
            return
        child = self.come_back(kept, own, consume=True)
        if child is not None and not model.in_flight(child):
            self.take(Truncate(child, self.position(child, cut)))
            self.settle(0)

    @can("Demote", "Restore", there=hosted_and_kept)
    @rule(pick=picks, source=st.sampled_from(SOURCES), spare=st.integers(0, 2), hold=st.booleans())
    def restore_under_pressure(self, pick: int, source: int, spare: int, hold: bool) -> None:
        """Demote a continuation, fill the pool with something else, and restore it."""
        kept, model = self.movable(pick), self.lock.model
        if kept is None or model.queue:
            return
        self.take(Demote(kept))
        self.settle(ALL_EFFECTS)
        size = self.lock.setting.placeable_tokens - spare * self.page_size
        if size > 0:
            alive = set(model.sequences())
            self.start(Submit(((source, 700, size),), 0), patient=False, prefill=True)
            filler = self.newest(alive)
            if filler is not None and not hold:
                self.take(Finish(filler))
        if kept in model.continuations():
            self.take(Restore(kept))
        self.settle(ALL_EFFECTS)

    @can("Demote", "Restore", there=hosted_and_kept)
    @rule(down=st.booleans(), keep=st.booleans(), count=effects)
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
        end=st.sampled_from(("cancel", "finish", "stay")),
        source=st.sampled_from(SOURCES),
    )
    def give_up_what_is_used(
        self, pick: int, length: Length, cut: Where, again: bool, end: str, source: int
    ) -> None:
        """Write, cut and write again, and end the sequence, all before the device has done anything."""
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
