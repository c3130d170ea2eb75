"""Checkers about transfers between Device and Host (DESIGN 4.4, 4.7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from kvcrucible.contract.snapshot import MoveState, PageState, Snapshot, Tier, TransferState
from kvcrucible.invariants.checker import Checker, Scope
from kvcrucible.invariants.places import given_away, host_slot
from kvcrucible.invariants.replicas import replica
from kvcrucible.invariants.violation import Violation

#: What of a move stays as it was when the transfer started; ``dropped`` and with it ``fresh`` may change.
_FIXED = ("page", "pool", "device", "generation", "extent", "slot", "epoch", "coverage")


def _place(page: PageState, tier: Tier) -> tuple[int, ...] | None:
    """Return where the replica of a page on a tier lies: (pool, device, generation), or (pool, extent, slot)."""
    return (page.pool, page.device, page.generation) if tier is Tier.DEVICE else host_slot(page)


def _end(move: MoveState, tier: Tier) -> tuple[int, ...]:
    """Return the place that a move names on a tier."""
    if tier is Tier.DEVICE:
        return move.pool, move.device, move.generation
    return move.pool, move.extent, move.slot


class TransferPinned(Checker):
    """Verifies: a page is in one transfer at most, and both its ends, at the places that the transfer names, are pinned
    once as long as it is under way; nothing else is pinned; its Host slot is live and its physical page is nobody
    else's.  A transfer keeps its pages, places, source and kind from start to end, and is not uncancelled; a page that
    has ended is marked as dropped.

    Does not verify: when a transfer ends (publish-order), nor that copies touch these places alone (the payload checks
    read rows back).
    """

    id = "transfer-pinned"
    statement = (
        "Both ends of each page in a transfer are pinned, stay in place and are given to nobody "
        "until it is over."
    )
    source = "4.4, 4.14.13"
    needs = frozenset({"pages", "transfers", "extents"})
    reads = frozenset({"pages", "transfers", "extents", "retiring"})
    premise_part = "transfers"
    is_temporal = True
    needs_host = True

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge every transfer and the pins of every page."""
        moves = [move for transfer in snapshot.transfers.values() for move in transfer.moves]
        pages = snapshot.pages.keys() | {move.page for move in moves}
        yield from self._judge(snapshot, pages, {move.extent for move in moves})

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge pages and moves that changed, and what touched transfers have to keep."""
        yield from self._judge(after, scope.replicas, scope.arena)
        for key in scope.transfers:
            old, new = before.transfers.get(key), after.transfers.get(key)
            if old is not None and new is not None:
                yield from self._kept(old, new)

    def _judge(
        self, snapshot: Snapshot, pages: Collection[int], arena: Collection[int]
    ) -> Iterator[Violation]:
        """Judge the moves and pins of ``pages``, the slots of ``arena``, and who else holds what is in view."""
        named: dict[int, list[tuple[TransferState, MoveState]]] = defaultdict(list)
        live = {key: extent.live for key, extent in snapshot.extents.items()} if snapshot.transfers else {}
        for page, place, other in given_away(snapshot):
            yield self.mismatch(
                f"page {page} in a transfer, place {place}", f"page {other}'s", "its own until the end"
            )
        for transfer in snapshot.transfers.values():
            for move in transfer.moves:
                in_view = move.page in pages
                if in_view:
                    named[move.page].append((transfer, move))
                if (move.pool, move.device) in snapshot.retiring:
                    subject = f"{_subject(transfer, move)}, device {move.device}"
                    yield self.mismatch(subject, "retiring", "its own until the end")
                if (in_view or move.extent in arena) and move.slot not in live.get(move.extent, ()):
                    subject = f"{_subject(transfer, move)}, slot {move.slot} of extent {move.extent}"
                    yield self.mismatch(subject, "not live", "live until the end")
        for key in pages:
            now = snapshot.pages.get(key)
            if key in named or (now is not None and _pinned(now)):
                yield from self._ends(now, named.get(key, []))

    def _ends(
        self, page: PageState | None, named: list[tuple[TransferState, MoveState]]
    ) -> Iterator[Violation]:
        if len(named) > 1:
            transfers = sorted(transfer.transfer for transfer, _ in named)
            yield self.mismatch(f"page {named[0][1].page}", f"in transfers {transfers}", "in one at most")
        for transfer, move in named:
            if move.dropped != (page is None):
                found = "marked as ended" if move.dropped else "not marked as ended"
                due = "as it is: gone" if page is None else "as it is: alive"
                yield self.mismatch(_subject(transfer, move), found, due)
        if page is None:
            return
        for tier in Tier:
            copy = replica(page, tier)
            if copy is not None and copy.pins != bool(named):
                yield self.mismatch(f"page {page.page}, replica on {tier}, pins", copy.pins, int(bool(named)))
            for transfer, move in named:
                # A fresh destination need not be shown as a replica before it is published.
                if copy is None and move.fresh and tier is transfer.source.other:
                    continue
                found_place = None if copy is None else _place(page, tier)
                if found_place != _end(move, tier):
                    what = f"page {page.page}, replica on {tier}, end of transfer {transfer.transfer}"
                    yield self.mismatch(what, f"at {found_place}", f"at {_end(move, tier)}")

    def _kept(self, old: TransferState, new: TransferState) -> Iterator[Violation]:
        subject = f"transfer {new.transfer}"
        was, now = ((t.continuation, t.source, t.keep, len(t.moves)) for t in (old, new))
        if was != now:
            yield self.mismatch(
                f"{subject}, continuation, source, keep and pages", now, f"{was}, as it started"
            )
            return
        if old.cancelling and not new.cancelling:
            yield self.mismatch(subject, "no longer cancelling", "to stay cancelled")
        for move, later in zip(old.moves, new.moves, strict=True):
            fixed, found = ([getattr(one, name) for name in _FIXED] for one in (move, later))
            if fixed != found:
                yield self.mismatch(f"{subject}, {', '.join(_FIXED)}", found, f"{fixed}, as it started")
            if (move.dropped and not later.dropped) or (move.fresh != later.fresh and not later.dropped):
                yield self.mismatch(_subject(new, later), f"{later}", f"{move}, as before")


class PublishOrder(Checker):
    """Verifies: a page is born visible on Device and is visible at the source of its transfer as long as that is under
    way; visibility moves only in the step in which a transfer of the page ends, from its source to its destination,
    for all its living pages at once and never where it was cancelled.  What is visible then lies where the transfer
    put it, with the page's epoch and columns; the source is gone, or kept where that was asked for.  An abandoned
    transfer leaves nothing at a destination that it took.

    Does not verify: that the copies had run and succeeded when the transfer ended; the harness judges that by device
    truth (``transfer_completed``).
    """

    id = "publish-order"
    statement = (
        "Visibility moves when a transfer ends, for all of its pages at once, to a whole and current copy."
    )
    source = "4.4, 4.7"
    needs = frozenset({"pages", "transfers", "host"})
    reads = frozenset({"pages", "transfers"})
    premise_part = "transfers"
    is_temporal = True
    needs_host = True

    def check(self, snapshot: Snapshot) -> Iterator[Violation]:
        """Judge where the pages of transfers under way are visible."""
        yield from self._under_way(snapshot, None)

    def check_delta(self, before: Snapshot, after: Snapshot, scope: Scope) -> Iterator[Violation]:
        """Judge every change of visibility by the transfers that ended in this step, and what these left."""
        yield from self._under_way(after, scope.replicas)
        for key in scope.created:
            if after.pages[key].visible is not Tier.DEVICE:
                yield self.mismatch(f"new page {key}", f"visible on {after.pages[key].visible}", "on Device")
        over = [
            before.transfers[key]
            for key in scope.transfers & before.transfers.keys() - after.transfers.keys()
        ]
        ended = {move.page: transfer for transfer in over for move in transfer.moves if not move.dropped}
        for was, now in scope.kept:
            if was.visible is now.visible:
                continue
            transfer, found = ended.get(now.page), f"now visible on {now.visible}"
            if transfer is None:
                yield self.mismatch(f"page {now.page}", found, f"on {was.visible}: no transfer of it ended")
            elif transfer.source is not was.visible or transfer.cancelling:
                kind = "a cancelled transfer" if transfer.cancelling else "a transfer"
                due = f"on {was.visible}: {kind} from {transfer.source} ended"
                yield self.mismatch(f"page {now.page}", found, due)
        for transfer in over:
            yield from self._over(before, after, transfer)

    def _under_way(self, snapshot: Snapshot, pages: Collection[int] | None) -> Iterator[Violation]:
        for transfer in snapshot.transfers.values():
            for move in transfer.moves:
                if pages is not None and move.page not in pages:
                    continue
                page = snapshot.pages.get(move.page)
                if page is not None and not move.dropped and page.visible is not transfer.source:
                    found = f"visible on {page.visible}"
                    yield self.mismatch(
                        _subject(transfer, move), found, f"on {transfer.source} until its end"
                    )

    def _over(self, before: Snapshot, after: Snapshot, transfer: TransferState) -> Iterator[Violation]:
        """Judge what the end of a transfer did to its living pages."""
        living = [
            (move, before.pages[move.page], after.pages[move.page])
            for move in transfer.moves
            if move.page in before.pages and move.page in after.pages
        ]
        moved = [now.page for _, was, now in living if was.visible is not now.visible]
        if 0 < len(moved) < len(living):
            yield self.mismatch(f"transfer {transfer.transfer}, pages published", moved, "all of it or none")
        source, destination = transfer.source, transfer.source.other
        for move, was, now in living:
            subject, copy = _subject(transfer, move), replica(now, destination)
            if was.visible is now.visible:
                if move.fresh and copy is not None:
                    yield self.mismatch(f"{subject}, abandoned", f"a replica on {destination}", "none")
                continue
            if copy is None or copy.epoch != now.epoch or copy.coverage < now.committed:
                yield self.mismatch(
                    subject, f"published as {copy}", f"epoch {now.epoch}, {now.committed} columns"
                )
            elif _place(now, destination) != _end(move, destination):
                found, due = _place(now, destination), _end(move, destination)
                yield self.mismatch(f"{subject}, published", f"at {found}", f"at {due}")
            if (replica(now, source) is not None) != transfer.keep:
                found_source = "gone" if transfer.keep else "still there"
                due_source = "kept as a clean copy" if transfer.keep else "freed"
                yield self.mismatch(f"{subject}, source", found_source, due_source)


def _pinned(page: PageState) -> bool:
    on_device, on_host = page.on_device, page.on_host
    return (on_device is not None and on_device.pins != 0) or (on_host is not None and on_host.pins != 0)


def _subject(transfer: TransferState, move: MoveState) -> str:
    return f"transfer {transfer.transfer}, page {move.page}"
