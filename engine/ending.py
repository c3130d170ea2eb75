"""How a sequence ceases to be active (DESIGN 4.8): what it gives back at once, and what of it somebody may keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcrucible.engine.records import Sequence
from kvcrucible.engine.space import close_spaces

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine


def deactivate(engine: Engine, record: Sequence) -> None:
    """Take back row, session key and unused reservation; the spaces and checkpoints are the caller's."""
    engine.touch(record)
    for table in engine.tables:
        table.cut(record.row, 0)
    engine.rows.release(record.row)
    for space, reservation in zip(record.spaces, record.reservations, strict=True):
        engine.pools[space.pool].close(reservation)
    if record.session is not None:
        del engine.active_sessions[record.session]
    del engine.sequences[record.sequence]


def drop(engine: Engine, record: Sequence) -> None:
    """End an active sequence and keep nothing of it."""
    deactivate(engine, record)
    engine.cache.unmark_beyond(record.marks, 0)
    close_spaces(engine.ledger, record.spaces)
