"""Retained continuations and findable checkpoints (DESIGN 4.9, 4.14.5-9; decision 0003).

The cache owns the leases of its continuations until they are released or moved to a sequence.  It decides who may be
released, a policy in which order (:mod:`kvcrucible.engine.policies`); whether anything has to be is decided by the
caller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set
from collections.abc import Sequence as Seq

from kvcrucible.contract.operations import Hit, Identity
from kvcrucible.contract.snapshot import Tier, Touched
from kvcrucible.contract.tokens import Tokens, count, prefix
from kvcrucible.engine.pages import LogicalPage, PageLedger
from kvcrucible.engine.policies import LeastRecentlyUsed, Policy
from kvcrucible.engine.prefix import PrefixIndex, TokenHash
from kvcrucible.engine.records import Continuation, Mark, Sequence
from kvcrucible.engine.residency import Residency
from kvcrucible.engine.space import AddressSpace, close_spaces


class ContextCache:
    """Continuations in order of last use, their session keys, and the checkpoints of continuations and sequences.

    ``tiered``: the engine has a Host tier; ``residency`` says where retained pages are, None without one.
    """

    def __init__(
        self,
        ledger: PageLedger,
        touched: Touched,
        token_hash: TokenHash,
        policy: Policy,
        *,
        tiered: bool,
    ) -> None:
        self.continuations: OrderedDict[int, Continuation] = OrderedDict()
        self.index = PrefixIndex(token_hash)
        self.policy = policy
        self.owners: dict[int, int] = {}
        self.residency = Residency() if tiered else None
        self._sessions: dict[str, int] = {}
        self._ledger, self._touched = ledger, touched
        self._next_checkpoint = 0
        self._clock = 0

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def mark(self, holder: Sequence) -> int:
        """Make what every pool has committed findable; return the checkpoint's id, the old one where it exists."""
        frontier = holder.smallest_frontier
        for mark in holder.marks:
            if mark.frontier == frontier:
                return mark.checkpoint
        checkpoint = self._next_checkpoint
        self._next_checkpoint += 1
        last = frontier - 1
        held = [space.pages[last // space.page_size] for space in holder.spaces]
        columns = tuple([last % space.page_size + 1 for space in holder.spaces])
        pages, epochs = tuple([page.page for page in held]), tuple([page.epoch for page in held])
        holder.marks.append(Mark(checkpoint, frontier, pages, epochs, columns))
        self.index.insert(checkpoint, prefix(holder.tokens, frontier), holder.identity)
        self.owners[checkpoint] = holder.sequence
        self._touched.checkpoints.add(checkpoint)
        return checkpoint

    def unmark(self, marks: Iterable[Mark]) -> None:
        """Drop checkpoints: nothing finds them any more."""
        for mark in marks:
            self.index.remove(mark.checkpoint)
            del self.owners[mark.checkpoint]
            self._touched.checkpoints.add(mark.checkpoint)

    def unmark_beyond(self, marks: list[Mark], position: int) -> list[Mark]:
        """Drop the checkpoints beyond ``position``; return those that stay."""
        kept, beyond = [], []
        for mark in marks:
            if mark.frontier <= position:
                kept.append(mark)
            else:
                beyond.append(mark)
        self.unmark(beyond)
        return kept

    def rename(self, marks: list[Mark], owner: int) -> list[Mark]:
        """Pass checkpoints to a new owner under their old ids; return them."""
        for mark in marks:
            self.owners[mark.checkpoint] = owner
            self._touched.checkpoints.add(mark.checkpoint)
        return marks

    def restamp(self, marks: list[Mark], spaces: list[AddressSpace]) -> None:
        """Bring what checkpoints remember of their pages up to date after a cut that they survived: in each pool the
        cut page has a new epoch or, where it was shared, is another page with the same protected columns.
        """
        for mark in marks:
            last = mark.frontier - 1
            held = [space.pages[last // space.page_size] for space in spaces]
            pages, epochs = tuple([page.page for page in held]), tuple([page.epoch for page in held])
            if (mark.pages, mark.epochs) != (pages, epochs):
                mark.pages, mark.epochs = pages, epochs
                self._touched.checkpoints.add(mark.checkpoint)

    def lookup(
        self, prompt: Tokens, identity: Identity, excluded_owners: Iterable[Sequence | Continuation] = ()
    ) -> Hit | None:
        """Return the best hit for ``prompt``, at most all but its last token; a resident owner's before others."""
        excluded = {mark.checkpoint for owner in excluded_owners for mark in owner.marks}
        away = {mark.checkpoint for owner in self.away for mark in self.continuations[owner].marks}
        found = self.index.longest(prefix(prompt, count(prompt) - 1), identity, excluded, away)
        if found is None:
            return None
        length, checkpoint = found
        return Hit(self.owners[checkpoint], checkpoint, length)

    # -- continuations -------------------------------------------------------------------------------------------------

    @property
    def away(self) -> Set[int]:
        """Continuations of which a page is visible on Host."""
        return frozenset() if self.residency is None else self.residency.away

    def in_transfer(self, kept: Continuation) -> bool:
        """Tell whether one of its pages is in a transfer."""
        return self.residency is not None and self.residency.of(kept).in_transfer

    def in_use(self, page: LogicalPage) -> bool:
        """Tell whether an active sequence holds a page that some continuation retains.

        Known where there is a Host tier; without one nobody moves, and it is looked for over all continuations.
        """
        if self.residency is not None:
            return self.residency.in_use(page)
        kept = self.continuations.values()
        return page.references > sum([page in space.pages for one in kept for space in one.spaces])

    def retain(self, sequence: Sequence) -> None:
        """Publish the sequence's spaces as a continuation, then release the one that its session key replaces."""
        self.mark(sequence)
        for space in sequence.spaces:
            self._ledger.stamp(space.pages, space.fence)
        kept = Continuation(
            sequence.sequence,
            sequence.committed_tokens,
            sequence.identity,
            sequence.session,
            sequence.spaces,
            sequence.marks,
            self._tick(),
        )
        self.continuations[kept.continuation] = kept
        if self.residency is not None:
            self.residency.add(kept)
        self.policy.used(kept)
        self._touch(kept)
        replaced = None
        if kept.session is not None:
            replaced = self._sessions.get(kept.session)
            self._sessions[kept.session] = kept.continuation
        if replaced is not None:
            self.release(self.continuations[replaced])

    def release(self, kept: Continuation) -> None:
        """Drop a continuation and its checkpoints; pages that nobody else holds become free, behind their fence."""
        self.take(kept)
        self.unmark(kept.marks)
        close_spaces(self._ledger, kept.spaces)

    def set_aside(self, kept: Continuation) -> None:
        """See that nothing more is sought of a continuation that is being given up; it stays in the cache."""
        if self.residency is not None:
            self.residency.remove(kept)

    def put_back(self, kept: Continuation) -> None:
        """Undo :meth:`set_aside`."""
        if self.residency is not None:
            self.residency.add(kept)

    def forget(self, kept: Continuation) -> None:
        """Drop a continuation that was set aside and whose pages have been given up, and its checkpoints."""
        self._leave(kept)
        self.unmark(kept.marks)
        for space in kept.spaces:
            space.pages, space.frontier = [], 0

    def take(self, kept: Continuation) -> None:
        """Remove a continuation from the cache; its spaces and checkpoints are the caller's."""
        self.set_aside(kept)
        self._leave(kept)

    def changed(self, pages: Iterable[LogicalPage]) -> None:
        """Learn that the replicas of ``pages`` have changed."""
        if self.residency is not None:
            self.residency.changed(pages)

    def _leave(self, kept: Continuation) -> None:
        del self.continuations[kept.continuation]
        self.policy.gone(kept)
        if kept.session is not None and self._sessions.get(kept.session) == kept.continuation:
            del self._sessions[kept.session]
        self._touch(kept)

    def use(self, kept: Continuation) -> None:
        """Note that the continuation was the source of a fork."""
        if self.residency is not None:
            self.residency.remove(kept)
        kept.last_use = self._tick()
        if self.residency is not None:
            self.residency.add(kept)
        self.continuations.move_to_end(kept.continuation)
        self.policy.used(kept)
        self._touched.continuations.add(kept.continuation)

    def releasable(self, protected: int | None) -> Iterator[Continuation]:
        """Yield what may be released under pressure, in order of last use.

        With a Host tier those in a transfer are passed over, and those whose release would free nothing on Device.
        """
        residency = self.residency
        offered = self.continuations.values() if residency is None else residency.yielding()
        for kept in offered:
            if not kept.pinned and kept.continuation != protected:
                yield kept

    def with_device_copies(self, protected: int | None) -> Iterator[tuple[Continuation, Seq[LogicalPage]]]:
        """Yield, in the order of the policy, what may be released under pressure and has hidden Device copies, with
        these copies as they are when its turn comes.
        """
        residency = self.residency
        if residency is None:
            return
        offered = [
            kept
            for kept in residency.with_copies(Tier.DEVICE)
            if not (kept.pinned or kept.continuation == protected or residency.of(kept).in_transfer)
        ]
        for kept in self.in_order(offered):
            copies = residency.of(kept).device_copies
            if copies:
                yield kept, copies

    def yielding(self, protected: int | None) -> Iterator[Continuation]:
        """Yield what may be released under pressure, in the order of the policy."""
        yield from self.in_order(self.releasable(protected))

    def in_order(self, continuations: Iterable[Continuation]) -> Iterator[Continuation]:
        """Yield continuations, which come in order of last use, each once in the order of the policy.

        Whatever the policy returns: what it was not offered is passed over, and what it leaves out comes last.
        """
        if isinstance(self.policy, LeastRecentlyUsed):
            yield from continuations
            return
        offered = {kept.continuation: kept for kept in continuations}
        for kept in self.policy.order(tuple(offered.values())):
            if offered.pop(kept.continuation, None) is not None:
                yield kept
        yield from offered.values()

    def room(
        self, short: list[int], dropped: Iterable[LogicalPage], protected: int | None
    ) -> list[Continuation] | None:
        """Choose the continuations to release so that every pool gets its ``short`` pages (DESIGN 4.9, decision 0003).

        ``dropped`` are references that the caller gives up beside: a page whose last reference goes, by the caller
        or by a release, counts as gained, unless a transfer or an outstanding unit holds it up.  No unit holds up what
        returns to the caller's own reservation.  Returns the victims in order, None where all of them together would
        not do.  Changes nothing.
        """
        short = list(short)
        given_up: dict[int, int] = {}
        own = {page for page in dropped if page.transfer is None and page.device >= 0}
        self._give_up(own, given_up, short, own)
        victims: list[Continuation] = []
        if max(short) <= 0:
            return victims
        for kept in self.yielding(protected):
            if max(short) <= 0:
                break
            self._give_up(self.device_pages(kept), given_up, short, own)
            victims.append(kept)
        return victims if max(short) <= 0 else None

    def lacking(self, short: Seq[int], dropped: Iterable[LogicalPage]) -> list[int]:
        """Return what is left of ``short`` once the caller has given up ``dropped``, as for :meth:`room`."""
        left = list(short)
        own = {page for page in dropped if page.transfer is None and page.device >= 0}
        self._give_up(own, {}, left, own)
        return left

    def device_pages(self, kept: Continuation) -> Iterable[LogicalPage]:
        """Return the pages of a continuation that have a Device replica, pool by pool in logical order."""
        return kept.pages() if self.residency is None else self.residency.of(kept).on_device

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _touch(self, kept: Continuation) -> None:
        self._touched.continuations.add(kept.continuation)
        self._touched.spaces.update((kept.continuation, space.pool) for space in kept.spaces)

    def _give_up(
        self,
        pages: Iterable[LogicalPage],
        given_up: dict[int, int],
        short: list[int],
        own: set[LogicalPage],
    ) -> None:
        """Count one reference of each page as given up and take what that frees off ``short``."""
        for page in pages:
            if page.references > 1:
                times = given_up.get(page.page, 0) + 1
                given_up[page.page] = times
                if times < page.references:
                    continue
            if self._ledger.frees(page) or page in own:
                short[page.pool] -= 1
