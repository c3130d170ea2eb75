"""Judges a history offline: the first line at which no legal continuation exists, and why (DESIGN 6; decision 0017).

One pass, one line at a time; memory is bounded by what is alive at once, up to a cap beyond which the verdict is
*unknown*.  Where the contract leaves a choice (which page, which row, when an effect is complete), any choice is legal.

Verifies: every outcome and counter against the semantics table, every grant against who holds what, every hit against
all checkpoints, what waits and what is released, transfers, extents, and that nothing is left where nothing should be.
Does not verify: what is stored in a page, and what the header says that the history does not show.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcrucible.contract import history
from kvcrucible.contract.history import Line
from kvcrucible.contract.history_header import Header
from kvcrucible.invariants.history import admission, checkpoints, sequences, sharing, transfers, units
from kvcrucible.invariants.history.ledger import MAX_LIVE_ENTRIES, Ledger
from kvcrucible.invariants.history.outcome import Broken, Judgement, Undecided, Verdict
from kvcrucible.invariants.history.reader import HistoryReader
from kvcrucible.invariants.history.rules import not_judged

#: Lines between two calls of ``on_progress``.
PROGRESS_LINES = 65_536


def check_file(
    path: Path, max_entries: int = MAX_LIVE_ENTRIES, on_progress: Callable[[int], None] | None = None
) -> Verdict:
    """Judge the history in a file; ``on_progress`` is called with the lines so far now and then.

    Raises ``InputError`` for a file that is no history.
    """
    with HistoryReader(path) as reader:
        return _judge(reader, HistoryChecker(reader.header, max_entries), on_progress)


def _judge(
    reader: HistoryReader, checker: HistoryChecker, on_progress: Callable[[int], None] | None
) -> Verdict:
    take, at = checker.take, 0
    try:
        for line in reader.lines():
            if type(line) is history.Close:
                reader.require_count(line.lines)
            take(line)
            if checker.closed:
                break
            at += 1
            if on_progress is not None and not at % PROGRESS_LINES:
                on_progress(reader.number)
        else:
            raise Undecided("the file ends without a close line; what there is of it is legal")
        reader.require_end()
    except Broken as broken:
        return checker.verdict(Judgement.FAIL, reader.number, broken.reason, broken.rule)
    except Undecided as reason:
        return checker.verdict(Judgement.UNKNOWN, reader.number, str(reason))
    return checker.verdict(Judgement.PASS, reader.number)


class HistoryChecker:
    """Takes a history's lines one after another; :meth:`take` raises ``Broken`` at the first that is not legal."""

    def __init__(self, header: Header, max_entries: int = MAX_LIVE_ENTRIES) -> None:
        self.header = header
        self.ledger = Ledger(header, max_entries)
        self.operations = 0
        self.closed: history.Close | None = None
        ledger = self.ledger
        acts: dict[type, Callable[[Ledger, Any], None]] = {
            history.Submit: sequences.submit,
            history.Admit: admission.admit,
            history.Schedule: admission.schedule,
            history.Begin: units.begin,
            history.End: units.finish,
            history.Fork: sharing.fork,
            history.Truncate: sharing.truncate,
            history.Checkpoint: checkpoints.checkpoint,
            history.Finish: sequences.finish,
            history.Cancel: sequences.cancel,
            history.Release: sequences.release,
            history.Pin: sequences.pin,
            history.Lookup: checkpoints.lookup,
            history.Demote: transfers.demote,
            history.Restore: transfers.restore,
            history.CancelTransfer: transfers.cancel,
            history.Progress: _progress,
            history.Table: _table,
            history.Close: self._close,
        }
        self._acts = acts
        self._ledger = ledger

    def take(self, line: Line) -> None:
        """Carry out one line; raises ``Broken``, or ``Undecided`` beyond the cap."""
        ledger = self._ledger
        self._acts[type(line)](ledger, line)
        self.operations += self.closed is None
        told = line.counters
        if told is not None:
            due = list(zip(ledger.leased, ledger.reserved, ledger.free, strict=True))
            if told != due:
                rule = "pool-conservation" if line.refused is None else "refusal-atomic"
                raise Broken(rule, f"counters (leased, reserved, free) are {told}, due: {due}")

    def verdict(
        self, judgement: Judgement, line: int, reason: str | None = None, rule: str | None = None
    ) -> Verdict:
        """Return the verdict at a line."""
        return Verdict(
            judgement,
            self.header.engine,
            line,
            self.operations,
            reason,
            rule,
            not_judged(self.header),
            self.ledger.most_entries,
        )

    def _close(self, ledger: Ledger, line: history.Close) -> None:
        self.closed = line
        if not line.empty:
            return
        alive = {
            "sequences": len(ledger.holders),
            "units": len(ledger.units),
            "transfers": len(ledger.transfers),
            "leased pages": sum(ledger.leased),
            "extents": 0 if ledger.arena is None else len(ledger.arena),
        }
        left = [f"{count} {what}" for what, count in alive.items() if count]
        if left:
            raise Broken("no-leak-at-quiescence", f"nothing is to be alive any more; left: {', '.join(left)}")


def _progress(ledger: Ledger, line: history.Progress) -> None:
    if line.refused is not None:
        raise Broken("refusal-due", "progress is never refused")
    if line.units:
        units.done(ledger, line.units)
    if line.transfers:
        transfers.over(ledger, line.transfers)


def _table(ledger: Ledger, line: history.Table) -> None:
    holder = ledger.holders.get(line.sequence)
    if holder is None or not holder.active:
        raise Broken("table-mirror", f"a table of {line.sequence}, which is not active")
    if not ledger.shows_pages:
        return
    told = line.pages + [[] for _ in range(len(ledger.names) - len(line.pages))]
    due = [[page.device for page in held] for held in holder.pages]
    for pool, (entries, pages) in enumerate(zip(told, due, strict=True)):
        if entries != pages:
            at = next(
                (block for block, pair in enumerate(zip(entries, pages, strict=False)) if pair[0] != pair[1]),
                None,
            )
            block = min(len(entries), len(pages)) if at is None else at
            raise Broken(
                "table-mirror",
                f"sequence {holder.id}, pool {ledger.names[pool]}: the table differs from logical block {block} on; "
                f"{len(entries)} pages mapped, {len(pages)} held",
            )
