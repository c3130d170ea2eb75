"""Checkers about pages that more than one party relies on (DESIGN 4.5, 4.6)."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from kvcrucible.contract.snapshot import CheckpointState, Snapshot
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.violation import Violation


def _most_references(snapshot: Snapshot) -> int:
    return max(map(attrgetter("references"), snapshot.pages.values()), default=0)


class SingleWriter(Checker):
    """Verifies: only full pages have several references, and no space holds such a page, nor an active sequence a page
    that is in a transfer, at or beyond its frontier, where it would write.

    Does not verify: that a shared page's bytes stay (shared-immutable for bookkeeping, cow-isolation for payload).
    """

    id = "single-writer"
    statement = (
        "A page with two references, or in a transfer, has no writer: it lies below every frontier "
        "that can move."
    )
    source = "4.5, 4.4"
    needs = frozenset({"pools", "pages", "spaces"})
    reads = frozenset({"pages", "spaces", "sequences"})

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether some page is shared."""
        return _most_references(snapshot) > 1

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every shared page and every block that a space may write."""
        sizes = dict(enumerate(pool.page_size for pool in snapshot.pools))
        pages = snapshot.pages
        for page in [page for page in pages.values() if page.references > 1]:
            size = sizes.get(page.pool)
            if size is not None and page.committed < size:
                subject = f"page {page.page} with {page.committed} of {size} columns, references"
                yield self.mismatch(subject, page.references, "1: only full pages are shared")
        for space in snapshot.spaces.values():
            size = sizes.get(space.pool)
            if size is None:
                continue
            first = space.frontier // size
            for block in range(first, len(space.pages)) if first < len(space.pages) else ():
                writable = pages.get(space.pages[block])
                if writable is not None and writable.references > 1:
                    subject = f"space of {space.owner}, frontier {space.frontier}, block {block}, page {writable.page}"
                    yield self.mismatch(
                        subject, f"{writable.references} references", "1: the next write goes here"
                    )
                elif writable is not None and writable.in_transfer and space.owner in snapshot.sequences:
                    subject = (
                        f"active sequence {space.owner}, frontier {space.frontier}, page {writable.page}"
                    )
                    yield self.mismatch(subject, "in a transfer", "its own: the next write goes here")


class SharedImmutable(Checker):
    """Verifies: a page that is shared before and after a step, by two references or by being in a transfer, keeps its
    content epoch and its committed columns.

    Does not verify: its bytes (cow-isolation compares those at payload depth).
    """

    id = "shared-immutable"
    statement = "While a page has two references or more, or is in a transfer, its content does not change."
    source = "4.5, 4.4"
    needs = frozenset({"pages"})
    reads = frozenset({"pages"})
    is_temporal = True

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether some page is shared."""
        return _most_references(snapshot) > 1

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Compare every page that is shared on both sides of the step."""
        for old, page in scope.kept:
            if page.epoch == old.epoch and page.committed == old.committed:
                continue
            if all(side.references > 1 or side.in_transfer for side in (old, page)):
                found, due = (
                    f"epoch {page.epoch}, {page.committed} columns",
                    f"epoch {old.epoch}, {old.committed} columns",
                )
                subject = f"page {page.page}, {page.references} references, in a transfer: {page.in_transfer}"
                yield self.mismatch(subject, found, due)


class ProtectedPrefix(Checker):
    """Verifies: the owner of a checkpoint is alive, and in every pool its frontier covers the checkpoint, and the page
    named by the checkpoint is in place, holds the protected columns and has the epoch that the checkpoint names.

    Does not verify: that the protected columns keep their bytes (the payload checks do), nor what the prefix index
    holds (exact-prefix-identity).  A cut that a checkpoint survives renews page and epoch of the checkpoint with it.
    """

    id = "protected-prefix"
    statement = (
        "As long as a checkpoint lives, its owner keeps its tokens in every pool, in the pages that it names."
    )
    source = "4.5, 4.14.6, 4.14.10"
    needs = frozenset({"pools", "pages", "spaces", "checkpoints"})
    reads = frozenset({"pages", "spaces", "checkpoints"})
    premise_part = "checkpoints"

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every checkpoint by its owner's space in each pool."""
        pools = len(snapshot.pools)
        for checkpoint in snapshot.checkpoints.values():
            named = (checkpoint.pages, checkpoint.epochs, checkpoint.columns)
            if not len(named[0]) == len(named[1]) == len(named[2]) == pools:
                lengths = [len(vector) for vector in named if len(vector) != pools]
                yield self.mismatch(
                    f"checkpoint {checkpoint.checkpoint}, vectors", f"{lengths[0]} pools", pools
                )
                continue
            for pool in range(pools):
                broken = self._judge(snapshot, checkpoint, pool)
                if broken:
                    subject = (
                        f"checkpoint {checkpoint.checkpoint} of {checkpoint.owner} at {checkpoint.frontier}"
                    )
                    if pool:
                        subject = f"{subject}, pool {pool}"
                    for what, found, due in broken:
                        yield self.mismatch(f"{subject}{what}", found, due)

    def _judge(
        self, snapshot: Snapshot, checkpoint: CheckpointState, pool: int
    ) -> list[tuple[str, object, object]]:
        """Return (of what, what was found, what was due) for all that is wrong with a checkpoint in one pool."""
        named, epoch, columns = checkpoint.pages[pool], checkpoint.epochs[pool], checkpoint.columns[pool]
        space = snapshot.spaces.get((checkpoint.owner, pool))
        if space is None:
            return [("", "no space of its owner", "its owner to live as long")]
        if not 1 <= checkpoint.frontier <= space.frontier:
            return [("", f"owner's frontier {space.frontier}", "a frontier that covers the checkpoint")]
        wrong: list[tuple[str, object, object]] = []
        block, column = divmod(checkpoint.frontier - 1, snapshot.pools[pool].page_size)
        held = space.pages[block] if block < len(space.pages) else None
        if held != named:
            wrong.append((f", block {block}", f"page {held}", f"page {named}"))
        if columns != column + 1:
            wrong.append((", protected columns", columns, column + 1))
        page = snapshot.pages.get(named)
        if page is None:
            wrong.append((f", page {named}", "absent", "to exist"))
        elif page.committed < columns:
            wrong.append((f", page {page.page}", f"{page.committed} columns", f"at least {columns}"))
        elif page.epoch != epoch:
            wrong.append((f", page {page.page}", f"epoch {page.epoch}", f"epoch {epoch}"))
        return wrong
