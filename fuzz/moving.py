"""What rules about moving pages look up in the model, and the steps that they share (decision 0013)."""

from __future__ import annotations

from kvcrucible.contract.operations import Progress, Submit
from kvcrucible.contract.tokens import canonical, count, prefix, run
from kvcrucible.fuzz.draws import Length, choose
from kvcrucible.fuzz.driver import Driver
from kvcrucible.fuzz.steps import RunEffects

#: More device effects than ever are open.
ALL_EFFECTS = 10_000


class Moving(Driver):
    """Lookups and shared steps; no rules."""

    def movable(self, pick: int) -> int | None:
        """Return a continuation of which something can be demoted, None where there is none."""
        model = self.lock.model
        return choose((kept for kept in model.continuations() if model.movable(kept)), pick)

    def restorable(self, pick: int) -> int | None:
        """Return a continuation of which something can be restored, None where there is none."""
        model = self.lock.model
        return choose((kept for kept in model.continuations() if model.restorable(kept)), pick)

    def newest(self, before: set[int]) -> int | None:
        """Return the active sequence that was not in ``before``, None where there is none."""
        return max(set(self.lock.model.sequences()) - before, default=None)

    def fresh(self, source: int, tokens: int) -> int | None:
        """Start a sequence of so many tokens, fewer where no more fit; return it, None where it has to wait."""
        alive = set(self.lock.model.sequences())
        size = max(1, self.placeable(tokens, 0, large=False))
        self.start(Submit(run(source, 60, size), 0), patient=False, prefill=True)
        started = self.newest(alive)
        return started if started is not None and self.lock.model.frontier(started) else None

    def grown(self) -> int | None:
        """Return the longest active sequence that is not in flight; where none has a whole page, start one that has.

        None where there is no room for it.
        """
        model = self.lock.model
        idle = [one for one in model.sequences() if model.frontier(one) and not model.in_flight(one)]
        longest = max(idle, key=model.frontier, default=None)
        if longest is not None and (model.frontier(longest) >= self.page_size or model.queue):
            return longest
        started = self.fresh(0, 2 * self.page_size + 1)
        return longest if started is None else started

    def come_back(self, owner: int, own: Length, consume: bool, prefill: bool = True) -> int | None:
        """Submit the next turn of a continuation and let it run; return the active sequence, None where it waits."""
        model = self.lock.model
        known, alive = model.tokens(owner), set(model.sequences())
        prompt = canonical([*known, (1, 300, max(1, own.tokens(self.page_size)))])
        length = self.placeable(count(prompt), 0, large=False)
        spans = self.spans_of(owner, count(known), length)
        identity = model.identity(owner)
        request = Submit(prefix(prompt, length), 0, model.session(owner), consume, identity, spans)
        self.start(request, patient=False, prefill=prefill)
        return self.newest(alive)

    def happens(self, effects: int) -> None:
        """Let effects take place; on a device that does not lag they have."""
        if self.lock.setting.lagging and effects:
            self.take(RunEffects(effects))

    def settle(self, effects: int = ALL_EFFECTS) -> None:
        """Let effects take place, then look at what is over."""
        self.happens(effects)
        self.take(Progress())
