"""Checkers about the replicas of single pages (DESIGN 4.4)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcrucible.contract.snapshot import PageState, ReplicaState, Snapshot, Tier
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.violation import Violation


def replica(page: PageState, tier: Tier) -> ReplicaState | None:
    """Return the replica of a page on a tier, None where it has none there or the engine has no Host tier."""
    return page.on_device if tier is Tier.DEVICE else page.on_host


def on_host(snapshot: Snapshot) -> bool:
    """Say whether some page has a Host replica."""
    return any(page.on_host is not None for page in snapshot.pages.values())


class OneVisibleReplica(Checker):
    """Verifies: the visible replica of each page exists, and a Device replica exists exactly where the page has a
    physical page; every page that an active sequence holds, and so every page that a row maps, is visible on Device.

    Does not verify: when visibility may move (publish-order), nor that reads in fact resolve to the visible replica
    (the payload checks read rows back).
    """

    id = "one-visible-replica"
    statement = (
        "Each page has exactly one visible replica, which exists; what an active sequence holds is on Device."
    )
    source = "4.4"
    needs = frozenset({"pages", "spaces", "sequences", "host"})
    reads = frozenset({"pages", "spaces", "sequences"})
    needs_host = True

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether some page has a Host replica, so that there is a choice."""
        return on_host(snapshot)

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every page, and every block of every active sequence."""
        whole = Scope(starts=dict.fromkeys(snapshot.spaces, 0))
        return self.check_delta(snapshot, snapshot, whole)

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge the pages in view and the changed blocks of active sequences."""
        if after.host is None:
            yield from self._without_host(after)
        for page in after.pages.values() if after.host is not None else ():
            leased = page.device != -1
            if leased != (page.on_device is not None):
                found = "there" if page.on_device is not None else "absent"
                yield self.mismatch(
                    f"page {page.page}, device {page.device}, Device replica", found, "with its lease"
                )
            if (page.on_device if page.visible is Tier.DEVICE else page.on_host) is None:
                yield self.mismatch(f"page {page.page}, visible on {page.visible}", "no replica there", "one")
        hidden = {page.page for page in after.pages.values() if page.visible is not Tier.DEVICE}
        if not hidden:
            return
        for key in scope.starts.keys() | scope.displaced.keys():
            space = after.spaces.get(key)
            if space is None or space.owner not in after.sequences:
                continue
            for block in scope.blocks(key, len(space.pages)):
                if space.pages[block] in hidden:
                    subject = f"active sequence {space.owner}, block {block}, page {space.pages[block]}"
                    yield self.mismatch(subject, "visible on Host", "visible on Device")

    def _without_host(self, snapshot: Snapshot) -> Iterator[Violation]:
        for page in snapshot.pages.values():
            if page.visible is not Tier.DEVICE or page.device == -1 or page.on_host is not None:
                found = f"device {page.device}, visible on {page.visible}, Host replica {page.on_host}"
                yield self.mismatch(f"page {page.page}", found, "on Device: there is no Host tier")


class ReplicaValid(Checker):
    """Verifies: the visible replica, and every hidden one that no transfer has pinned, has the epoch of its page and
    covers its committed columns; a copy that went stale is therefore gone.

    Does not verify: the bytes of a hidden copy; the harness reads clean copies back and compares them (``rows_equal``).
    """

    id = "replica-valid"
    statement = (
        "The visible replica and every clean copy have the page's epoch and cover its committed columns."
    )
    source = "4.4"
    needs = frozenset({"pages", "host"})
    reads = frozenset({"pages"})
    needs_host = True

    def premise(self, snapshot: Snapshot) -> bool:
        """Say whether some page has a Host replica."""
        return on_host(snapshot)

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every replica in view but the hidden ones of transfers under way."""
        for page in snapshot.pages.values():
            epoch, committed, visible = page.epoch, page.committed, page.visible
            copy = page.on_device
            if page.on_host is None and (
                copy is None or (copy.epoch == epoch and copy.coverage >= committed)
            ):
                continue
            for tier, copy in ((Tier.DEVICE, page.on_device), (Tier.HOST, page.on_host)):
                if copy is None or (tier is not visible and copy.pins):
                    continue
                if copy.epoch != epoch or copy.coverage < committed:
                    kind = "visible" if tier is page.visible else "hidden"
                    found = f"epoch {copy.epoch}, {copy.coverage} columns"
                    due = f"epoch {page.epoch}, at least {page.committed} columns"
                    yield self.mismatch(f"page {page.page}, {kind} replica on {tier}", found, due)
